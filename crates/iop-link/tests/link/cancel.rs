//! Ending one stream early.

use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use iop_link::StreamError;
use iop_testkit::Line;
use iop_wire::Message;
use iop_wire::v1::{self, CancelReason};

use crate::support::{Pair, complete, payload, run, spoken, text, tunnel};

const TICK: Duration = Duration::from_millis(10);

fn release(pair: &mut Pair, key: iop_link::StreamKey) {
    pair.node.link.release_body(key);
    pair.node.link.release_answers(key);
    pair.node.link.release_cancelled(key);
}

#[test]
fn a_head_that_is_still_queued_is_removed_unsent() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    pair.edge.link.queue_body(key, Bytes::from_static(b"{}"), true);
    pair.edge.link.cancel(key, CancelReason::ClientGone);
    assert_eq!(pair.edge.link.poll_answer(key), Poll::Ready(Err(StreamError::Unsent)));
    assert_eq!(spoken(&mut pair.edge.link), []);
    assert_eq!(pair.edge.link.stats().streams, 0);
    pair.edge.link.release(key);
    assert_eq!(pair.edge.link.reserved_bytes(), 0);
}

#[test]
fn a_cancel_overtakes_the_body_of_its_stream_and_drops_the_rest() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    pair.edge.link.queue_body(key, Bytes::from(vec![b'x'; 200_000]), true);
    let mut batch = Vec::new();
    pair.edge.link.transmit(&mut batch);
    pair.edge.link.cancel(key, CancelReason::Deadline);
    let said = spoken(&mut pair.edge.link);
    assert!(matches!(
        said[..],
        [ref only] if matches!(&only.message, Some(Message::Cancel(cancel))
            if cancel.reason() == CancelReason::Deadline)
    ));
}

#[test]
fn a_cancelled_request_is_told_and_its_terminal_still_comes() {
    for head in [run(), tunnel()] {
        let is_run = head == run();
        let mut pair = Pair::up(Line::LOCAL);
        let key = pair.open(head);
        let at_node = pair.accepted(key.id);
        assert!(pair.node.link.poll_cancelled(at_node).is_pending());
        assert!(pair.node.link.poll_body(at_node).is_pending());
        pair.edge.link.cancel(key, CancelReason::ClientGone);
        pair.run(TICK);
        assert_eq!(
            pair.node.link.poll_cancelled(at_node),
            Poll::Ready(Ok(CancelReason::ClientGone))
        );
        assert_eq!(
            pair.node.link.poll_body(at_node),
            Poll::Ready(Some(Err(StreamError::Cancelled)))
        );
        if is_run {
            pair.node.link.finish(at_node, complete()).unwrap();
        }
        release(&mut pair, at_node);
        pair.run(TICK);
        let Poll::Ready(Ok(terminal)) = pair.edge.link.poll_answer(key) else {
            panic!("no terminal came")
        };
        assert!(terminal.is_terminal());
        pair.edge.link.release(key);
        assert_eq!((pair.edge.link.stats().streams, pair.node.link.stats().streams), (0, 0));
    }
}

#[test]
fn answers_that_wait_are_dropped_by_a_cancel_so_that_the_terminal_needs_no_credit() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    let at_node = pair.accepted(key.id);
    pair.node.link.send(at_node, text(vec![b'x'; 1_000_000])).unwrap();
    pair.run(TICK);
    assert!(pair.node.link.poll_answer_room(at_node).is_pending());
    pair.edge.link.release(key);
    pair.run(TICK);
    assert_eq!(pair.node.link.poll_answer_room(at_node), Poll::Ready(Ok(())));
    pair.node.link.send(at_node, text("dropped")).unwrap();
    pair.node.link.finish(at_node, complete()).unwrap();
    release(&mut pair, at_node);
    pair.run(TICK);
    let (edge, node) = (pair.edge.link.stats(), pair.node.link.stats());
    assert_eq!((edge.streams, edge.buffered_bytes, edge.granted_bytes), (0, 0, 0));
    assert_eq!((node.streams, node.queued_bytes), (0, 0));
    assert_eq!((pair.edge.link.reserved_bytes(), edge.late_frames), (0, 0));
}

#[test]
fn what_still_arrives_for_a_handle_that_was_given_up_is_not_kept() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    let at_node = pair.accepted(key.id);
    pair.node.link.send(at_node, text(vec![b'x'; 50_000])).unwrap();
    pair.edge.link.release(key);
    pair.run(TICK);
    assert_eq!(pair.edge.link.stats().buffered_bytes, 0);
    assert!(pair.up.written() > 50_000, "it did arrive");
}

#[test]
fn an_answer_that_has_ended_reserves_no_more_than_what_waits_of_it() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    let at_node = pair.accepted(key.id);
    pair.node.link.send(at_node, text(vec![b'x'; 1_000])).unwrap();
    pair.node.link.finish(at_node, complete()).unwrap();
    pair.run(TICK);
    assert_eq!(pair.edge.link.reserved_bytes(), 1_000);
    assert_eq!(pair.edge.link.stats().granted_bytes, 0);
}

#[test]
fn a_terminal_stays_behind_the_data_of_its_stream() {
    let mut pair = Pair::up(Line::SLOW);
    let key = pair.open(run());
    let at_node = pair.accepted(key.id);
    for _ in 0..20 {
        pair.node.link.send(at_node, text(vec![b'x'; 10_000])).unwrap();
    }
    pair.node.link.finish(at_node, complete()).unwrap();
    let mut seen = 0;
    loop {
        match pair.edge.link.poll_answer(key) {
            Poll::Ready(Ok(answer)) if answer.is_terminal() => break,
            Poll::Ready(Ok(answer)) => seen += payload(&answer).len(),
            Poll::Ready(Err(error)) => panic!("{error}"),
            Poll::Pending => assert!(pair.step(pair.clock.now() + Duration::from_secs(60))),
        }
    }
    assert_eq!(seen, 200_000);
}

#[test]
fn an_answer_that_is_given_up_ends_as_a_provider_error_that_echoes_the_session() {
    let mut pair = Pair::up(Line::LOCAL);
    let head = v1::RequestHead { session_id: "s-1".into(), ..v1::RequestHead::default() };
    let request =
        v1::ProviderTunnelRequest { head: Some(head), ..v1::ProviderTunnelRequest::default() };
    let key = pair.open(iop_link::RequestMessage::Tunnel(request));
    let at_node = pair.accepted(key.id);
    release(&mut pair, at_node);
    pair.run(TICK);
    let Poll::Ready(Ok(iop_link::Answer::Frame(frame))) = pair.edge.link.poll_answer(key) else {
        panic!("no terminal came")
    };
    assert_eq!(frame.session_id, "s-1");
    assert!(format!("{frame:?}").contains("provider_error"));
}

#[test]
fn an_answer_that_does_not_wait_for_the_body_closes_the_request_half() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    pair.edge.link.queue_body(key, Bytes::from(vec![b'x'; 2_000_000]), true);
    let at_node = pair.accepted(key.id);
    pair.node.link.finish(at_node, complete()).unwrap();
    release(&mut pair, at_node);
    pair.run(TICK);
    assert!(pair.down.written() < 1_000_000, "the rest of the body was never sent");
    assert!(matches!(pair.edge.link.poll_answer(key), Poll::Ready(Ok(_))));
    pair.edge.link.release(key);
    let (edge, node) = (pair.edge.link.stats(), pair.node.link.stats());
    assert_eq!((edge.streams, edge.queued_bytes), (0, 0));
    assert_eq!((node.streams, node.buffered_bytes, node.granted_bytes), (0, 0, 0));
    assert_eq!((edge.late_frames, node.late_frames), (0, 0));
    assert_eq!(pair.node.link.reserved_bytes(), 0);
}

#[test]
fn a_body_nobody_reads_does_not_hold_its_request_up() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    pair.edge.link.queue_body(key, Bytes::from(vec![b'x'; 2_000_000]), true);
    let at_node = pair.accepted(key.id);
    pair.node.link.release_body(at_node);
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.edge.link.stats().queued_bytes, 0);
    assert_eq!(pair.node.link.stats().buffered_bytes, 0);
}

#[test]
fn a_thousand_refusals_with_bodies_in_flight_are_no_late_frames() {
    let mut pair = Pair::up(Line::SLOW);
    for _ in 0..1000 {
        let key = pair.open(run());
        pair.edge.link.queue_body(key, Bytes::from(vec![b'x'; 40_000]), true);
        let at_node = pair.accepted(key.id);
        pair.node.link.finish(at_node, complete()).unwrap();
        release(&mut pair, at_node);
        pair.run(Duration::from_millis(50));
        assert!(matches!(pair.edge.link.poll_answer(key), Poll::Ready(Ok(_))));
        pair.edge.link.release(key);
    }
    pair.run(Duration::from_secs(10));
    assert_eq!(pair.reasons(), (None, None));
    assert_eq!(pair.node.link.stats().late_frames, 0);
    assert_eq!(pair.node.link.reserved_bytes(), 0);
}
