//! Draining, closing, fencing.

use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use iop_link::{OpenError, StreamError, edge, node};
use iop_testkit::Line;
use iop_types::CloseReason;
use iop_wire::{Message, RunAnswer};

use crate::support::{Pair, complete, run, spoken, text};

const TICK: Duration = Duration::from_millis(10);
const DRAIN: Duration = Duration::from_secs(30);

#[test]
fn an_edge_that_drains_opens_nothing_new_and_closes_after_the_last_stream() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    let at_node = pair.accepted(key.id);
    pair.edge.link.drain(pair.clock.now(), DRAIN);
    assert_eq!(pair.edge.link.open(run()), Err(OpenError::Draining));
    pair.run(Duration::from_secs(10));
    assert_eq!(pair.reasons(), (None, None));
    pair.node.link.send(at_node, text("the rest")).unwrap();
    pair.node.link.finish(at_node, complete()).unwrap();
    pair.run(TICK);
    let closed = Some(CloseReason::ShuttingDown);
    assert_eq!(pair.reasons(), (closed, closed));
    assert!(matches!(pair.edge.link.poll_answer(key), Poll::Ready(Ok(_))));
    assert!(matches!(pair.edge.link.poll_answer(key), Poll::Ready(Ok(_))));
}

#[test]
fn a_drain_ends_at_its_deadline_whatever_still_runs() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    let at_node = pair.accepted(key.id);
    pair.edge.link.drain(pair.clock.now(), DRAIN);
    pair.run(DRAIN - Duration::from_nanos(1));
    assert_eq!(pair.edge.link.close_reason(), None);
    pair.run(TICK);
    let ended = StreamError::LinkClosed(CloseReason::ShuttingDown);
    assert_eq!(pair.edge.link.poll_answer(key), Poll::Ready(Err(ended)));
    assert_eq!(pair.node.link.poll_cancelled(at_node), Poll::Ready(Err(CloseReason::ShuttingDown)));
}

#[test]
fn a_node_that_drains_finishes_what_it_has_and_sends_back_what_crosses() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    let at_node = pair.accepted(key.id);
    pair.node.link.drain(pair.clock.now(), DRAIN);
    // The Edge has not heard of it yet.
    let crossing = pair.open(run());
    pair.run(TICK);
    assert!(pair.edge.is_told(|told| matches!(told, edge::Output::Draining)));
    assert_eq!(pair.edge.link.open(run()), Err(OpenError::Draining));
    let Poll::Ready(Ok(iop_link::Answer::Event(event))) = pair.edge.link.poll_answer(crossing)
    else {
        panic!("the crossing request was not sent back")
    };
    let RunAnswer::Refused(refused) = RunAnswer::try_from(event).unwrap() else {
        panic!("not flagged as refused")
    };
    assert_eq!(refused.requeue(), Some(iop_types::Requeue::Draining));
    let requests =
        pair.node.told.iter().filter(|told| matches!(told, node::Output::Request(..))).count();
    assert_eq!(requests, 1, "the host never sees it");
    assert_eq!(pair.reasons(), (None, None));
    pair.node.link.finish(at_node, complete()).unwrap();
    pair.run(TICK);
    let closed = Some(CloseReason::ShuttingDown);
    assert_eq!(pair.reasons(), (closed, closed));
}

#[test]
fn heads_that_were_queued_before_a_drain_precede_its_acknowledgement() {
    let mut pair = Pair::up(Line::SLOW);
    let bulk = pair.open(run());
    pair.edge.link.queue_body(bulk, Bytes::from(vec![b'x'; 200_000]), false);
    let bulk_there = pair.accepted(bulk.id);
    pair.settle();
    // The line is full: these wait at the Edge.
    let keys: Vec<_> = (0..500).map(|_| pair.open(run())).collect();
    pair.node.link.drain(pair.clock.now(), DRAIN);
    pair.node.link.finish(bulk_there, complete()).unwrap();
    pair.run(Duration::from_secs(5));
    let closed = Some(CloseReason::ShuttingDown);
    assert_eq!(pair.reasons(), (closed, closed));
    for key in keys {
        let answer = pair.edge.link.poll_answer(key);
        assert!(matches!(answer, Poll::Ready(Ok(_))), "{answer:?}: every head was sent back");
    }
}

#[test]
fn both_sides_may_drain_at_once() {
    let mut pair = Pair::up(Line::LOCAL);
    pair.edge.link.drain(pair.clock.now(), DRAIN);
    pair.node.link.drain(pair.clock.now(), DRAIN);
    pair.run(TICK);
    let closed = Some(CloseReason::ShuttingDown);
    assert_eq!(pair.reasons(), (closed, closed));
}

#[test]
fn a_close_is_written_after_what_was_accepted() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    let at_node = pair.accepted(key.id);
    pair.node.link.drain(pair.clock.now(), Duration::ZERO);
    pair.node.link.send(at_node, text("accepted")).unwrap();
    pair.node.link.handle_timeout(pair.clock.now());
    let said = spoken(&mut pair.node.link);
    let last = said.last().and_then(|frame| frame.message.clone());
    assert!(said.iter().any(|frame| matches!(frame.message, Some(Message::RunEvent(_)))));
    assert!(matches!(last, Some(Message::Close(_))));
}

#[test]
fn a_fence_says_why_and_nothing_else() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    pair.edge.link.queue_body(key, Bytes::from_static(b"never sent"), true);
    pair.edge.link.fence(pair.clock.now(), CloseReason::Superseded);
    let said = spoken(&mut pair.edge.link);
    assert!(matches!(
        said[..],
        [ref only] if matches!(&only.message, Some(Message::Close(close))
            if close.reason() == iop_wire::v1::CloseReason::Superseded)
    ));
    assert_eq!(
        pair.edge.link.open(run()),
        Err(OpenError::Fenced(CloseReason::Superseded)),
        "the pre-send fence"
    );
}

#[test]
fn streams_of_a_lost_link_end_with_its_reason_and_those_unsent_say_so() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    let at_node = pair.accepted(key.id);
    pair.node.link.send(at_node, text("arrived")).unwrap();
    pair.run(TICK);
    let unsent = pair.open(run());
    pair.edge.link.handle_eof(pair.clock.now());
    assert!(matches!(pair.edge.link.poll_answer(key), Poll::Ready(Ok(_))), "what arrived is kept");
    let ended = StreamError::LinkClosed(CloseReason::PeerClosed);
    assert_eq!(pair.edge.link.poll_answer(key), Poll::Ready(Err(ended)));
    assert_eq!(pair.edge.link.poll_answer(unsent), Poll::Ready(Err(StreamError::Unsent)));
    pair.edge.link.release(key);
    pair.edge.link.release(unsent);
    assert_eq!(pair.edge.link.stats().streams, 0);
}

#[test]
fn the_reason_of_a_close_is_the_reason_of_both_ends() {
    for reason in CloseReason::ALL {
        let mut pair = Pair::up(Line::LOCAL);
        pair.edge.link.fence(pair.clock.now(), *reason);
        pair.run(TICK);
        assert_eq!(pair.node.link.close_reason(), Some(*reason));
    }
}

#[test]
fn calls_on_an_ended_link_do_nothing() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    let at_node = pair.accepted(key.id);
    let now = pair.clock.now();
    pair.edge.link.handle_lost(now);
    pair.node.link.handle_lost(now);
    pair.edge.link.queue_body(key, Bytes::from_static(b"x"), true);
    pair.edge.link.challenge(now);
    pair.edge.link.drain(now, DRAIN);
    pair.edge.link.fence(now, CloseReason::Superseded);
    pair.edge.link.handle_timeout(now + DRAIN);
    let lost = Err(StreamError::LinkClosed(CloseReason::ConnectionLost));
    assert_eq!(pair.node.link.send(at_node, text("x")), lost);
    assert_eq!(pair.node.link.finish(at_node, complete()), lost);
    pair.node.link.release_answers(at_node);
    assert_eq!(spoken(&mut pair.edge.link), []);
    assert_eq!(spoken(&mut pair.node.link), []);
    assert_eq!(pair.edge.link.poll_timeout(), None);
    let ends = pair.edge.told.iter().filter(|told| matches!(told, edge::Output::Closed(_)));
    assert!(ends.count() <= 1);
}
