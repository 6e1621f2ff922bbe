//! How much waits where, and for whom.

use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use iop_link::credit::{ANSWER_WINDOW, ANSWER_WINDOW_MAX, FLOOR, REQUEST_WINDOW};
use iop_link::message::MIN_CHARGE;
use iop_link::{BudgetStats, StreamKey};
use iop_testkit::Line;
use iop_types::CloseReason;
use iop_wire::{Message, v1};
use proptest::prelude::*;

use crate::support::{Pair, bytes, complete, feed, payload, run, spoken, text, tunnel};

const TICK: Duration = Duration::from_millis(10);

#[test]
fn a_client_that_does_not_read_holds_one_window() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    let at_node = pair.accepted(key.id);
    for _ in 0..100 {
        pair.node.link.send(at_node, text(vec![b'x'; 10_000])).unwrap();
    }
    pair.run(Duration::from_secs(1));
    let edge = pair.edge.link.stats();
    assert_eq!(edge.buffered_bytes + edge.granted_bytes, u64::from(ANSWER_WINDOW));
    assert!(edge.granted_bytes < MIN_CHARGE);
    assert!(pair.node.link.poll_answer_room(at_node).is_pending());
}

#[test]
fn a_provider_that_bursts_is_stopped_by_the_window_not_by_memory() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(tunnel());
    let at_node = pair.accepted(key.id);
    let mut sent = 0;
    while let Poll::Ready(Ok(())) = pair.node.link.poll_answer_room(at_node) {
        pair.node.link.send(at_node, frame_body(vec![b'x'; 8_192])).unwrap();
        sent += 8_192;
        pair.run(TICK);
        assert!(sent < 1_000_000, "nothing stopped it");
    }
    assert!(sent <= u64::from(2 * ANSWER_WINDOW), "{sent}");
    let _ = key;
}

#[test]
fn a_request_body_fills_its_window_and_goes_on_as_it_is_read() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    pair.edge.link.queue_body(key, Bytes::from(vec![b'x'; 3_000_000]), true);
    let at_node = pair.accepted(key.id);
    pair.run(TICK);
    assert_eq!(pair.node.link.stats().buffered_bytes, u64::from(REQUEST_WINDOW));
    assert!(pair.edge.link.poll_body_room(key).is_pending());
    let mut read = 0;
    loop {
        match pair.node.link.poll_body(at_node) {
            Poll::Ready(Some(Ok(part))) => read += part.len(),
            Poll::Ready(None) => break,
            Poll::Ready(Some(Err(error))) => panic!("{error}"),
            Poll::Pending => assert!(pair.step(pair.clock.now() + Duration::from_secs(1))),
        }
        assert!(pair.node.link.stats().buffered_bytes <= u64::from(REQUEST_WINDOW));
    }
    assert_eq!(read, 3_000_000);
    assert!(pair.edge.link.poll_body_room(key).is_ready());
}

#[test]
fn a_stream_that_drains_fast_gets_a_window_of_1_mib() {
    let mut pair = Pair::up(Line { delay: Duration::from_millis(20), ..Line::LOCAL });
    let key = pair.open(run());
    let at_node = pair.accepted(key.id);
    let mut largest = 0;
    for _ in 0..400 {
        while let Poll::Ready(Ok(())) = pair.node.link.poll_answer_room(at_node) {
            pair.node.link.send(at_node, text(vec![b'x'; 16_384])).unwrap();
            pair.settle();
        }
        pair.run(TICK);
        pair.drain_streams(&[key]);
        largest = largest.max(pair.edge.link.reserved_bytes());
    }
    assert_eq!(largest, u64::from(ANSWER_WINDOW_MAX));
}

#[test]
fn each_end_shows_what_its_budget_holds_and_what_it_came_to() {
    let mut pair = Pair::up(Line::LOCAL);
    let keys = [pair.open(run()), pair.open(run())];
    for key in keys {
        pair.edge.link.queue_body(key, Bytes::from(vec![b'x'; 1_000_000]), true);
    }
    pair.run(TICK);
    let limit = v1::Limits::standard().credit_budget;
    let two = |window: u32| 2 * u64::from(window);
    let stats = |reserved, peak| BudgetStats { limit, reserved, peak };
    let edge = pair.edge.link.stats();
    assert_eq!(edge.receiving, stats(two(ANSWER_WINDOW), two(ANSWER_WINDOW)));
    assert_eq!(edge.claimed, Some(stats(two(REQUEST_WINDOW), two(REQUEST_WINDOW))));
    let node = pair.node.link.stats();
    assert_eq!(
        (node.receiving, node.claimed),
        (stats(two(REQUEST_WINDOW), two(REQUEST_WINDOW)), None)
    );
    for key in keys {
        pair.edge.link.release(key);
        let at_node = pair.accepted(key.id);
        pair.run(TICK);
        pair.node.link.finish(at_node, complete()).unwrap();
        pair.node.link.release_body(at_node);
        pair.node.link.release_answers(at_node);
        pair.node.link.release_cancelled(at_node);
    }
    pair.run(TICK);
    let edge = pair.edge.link.stats();
    assert_eq!(edge.receiving, stats(0, two(ANSWER_WINDOW)));
    assert_eq!(edge.claimed, Some(stats(0, two(REQUEST_WINDOW))));
    assert_eq!(pair.node.link.stats().receiving, stats(0, two(REQUEST_WINDOW)));
}

#[test]
fn a_stream_that_drains_slowly_keeps_its_first_window() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    let at_node = pair.accepted(key.id);
    for _ in 0..200 {
        pair.node.link.send(at_node, text(vec![b'x'; 4_096])).unwrap();
        pair.run(Duration::from_millis(100));
        pair.drain_streams(&[key]);
    }
    assert_eq!(pair.edge.link.reserved_bytes(), u64::from(ANSWER_WINDOW));
}

#[test]
fn the_budget_lowers_new_windows_to_the_floor_and_never_below() {
    let limits = v1::Limits { credit_budget: 256 * 1024, ..v1::Limits::standard() };
    let mut pair = Pair::with_limits(Line::LOCAL, limits).brought_up();
    let keys: Vec<StreamKey> = (0..100).map(|_| pair.open(run())).collect();
    assert_eq!(pair.edge.link.reserved_bytes(), 256 * 1024 + 96 * u64::from(FLOOR));
    let last = *keys.last().unwrap();
    let at_node = pair.accepted(last.id);
    pair.node.link.send(at_node, text(vec![b'x'; 100_000])).unwrap();
    pair.run(TICK);
    assert_eq!(pair.edge.link.stats().buffered_bytes, u64::from(FLOOR));
    // Read on, it still gets through a window of the floor.
    let mut read = 0;
    while read < 100_000 {
        read += pair.drain_streams(&[last]).1;
        pair.run(TICK);
    }
    for key in keys {
        pair.edge.link.release(key);
    }
    pair.run(TICK);
    for id in 1..=100 {
        let at_node = pair.accepted(id);
        pair.node.link.finish(at_node, complete()).unwrap();
    }
    pair.run(TICK);
    assert_eq!(pair.edge.link.reserved_bytes(), 0);
}

#[test]
fn a_window_shrinks_while_the_budget_is_exceeded_and_recovers() {
    let limits = v1::Limits { credit_budget: 64 * 1024, ..v1::Limits::standard() };
    let mut pair = Pair::with_limits(Line::LOCAL, limits).brought_up();
    let first = pair.open(run());
    let others: Vec<StreamKey> = (0..4).map(|_| pair.open(run())).collect();
    let at_node = pair.accepted(first.id);
    assert_eq!(pair.edge.link.reserved_bytes(), 128 * 1024);
    let move_bytes = |pair: &mut Pair, times: u32| {
        for _ in 0..times {
            let _ = pair.node.link.send(at_node, text(vec![b'x'; 8_192]));
            pair.run(TICK);
            pair.drain_streams(&[first]);
        }
    };
    move_bytes(&mut pair, 40);
    assert_eq!(pair.edge.link.reserved_bytes(), 80 * 1024, "64 became 16, four floors beside it");
    for key in others {
        let there = pair.accepted(key.id);
        pair.node.link.finish(there, complete()).unwrap();
        pair.run(TICK);
        pair.drain_streams(&[key]);
        pair.edge.link.release(key);
    }
    move_bytes(&mut pair, 40);
    assert_eq!(pair.edge.link.reserved_bytes(), 64 * 1024);
}

#[test]
fn exceeding_the_credit_closes_the_link() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    pair.accepted(key.id);
    let now = pair.clock.now();
    let full = Bytes::from(vec![b'x'; 16_384]);
    for seq in 1..=4 {
        let event = event(full.clone());
        feed(&mut pair.edge.link, now, &bytes(key.id, seq, event));
    }
    assert_eq!(pair.edge.link.close_reason(), None);
    feed(&mut pair.edge.link, now, &bytes(key.id, 5, event(Bytes::from_static(b"x"))));
    assert_eq!(pair.edge.link.close_reason(), Some(CloseReason::FlowControlViolation));
}

#[test]
fn a_body_beyond_its_credit_closes_the_link_at_the_node_too() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    pair.accepted(key.id);
    let now = pair.clock.now();
    for seq in 2..=18 {
        let data = Bytes::from(vec![b'x'; 16_384]);
        let part = Message::RequestBody(v1::RequestBody { data, last: false });
        feed(&mut pair.node.link, now, &bytes(key.id, seq, part));
    }
    assert_eq!(pair.node.link.close_reason(), Some(CloseReason::FlowControlViolation));
}

#[test]
fn credit_that_overflows_closes_and_credit_for_an_ended_stream_is_ignored() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    let at_node = pair.accepted(key.id);
    let now = pair.clock.now();
    let credit = |bytes| Message::Credit(v1::Credit { bytes });
    feed(&mut pair.node.link, now, &bytes(key.id, 2, credit(u32::MAX)));
    assert_eq!(pair.node.link.close_reason(), Some(CloseReason::FlowControlViolation));
    let _ = at_node;

    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    pair.edge.link.queue_body(key, Bytes::new(), true);
    let at_node = pair.accepted(key.id);
    pair.node.link.finish(at_node, complete()).unwrap();
    pair.node.link.release_body(at_node);
    pair.node.link.release_answers(at_node);
    pair.node.link.release_cancelled(at_node);
    pair.run(TICK);
    for seq in 3..5000 {
        feed(&mut pair.node.link, pair.clock.now(), &bytes(key.id, seq, credit(1)));
    }
    assert_eq!(pair.node.link.close_reason(), None);
    assert_eq!(pair.node.link.stats().late_frames, 0);
}

#[test]
fn tiny_messages_cannot_fill_the_memory_behind_a_window() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    let at_node = pair.accepted(key.id);
    for _ in 0..10_000 {
        pair.node.link.send(at_node, text("x")).unwrap();
    }
    pair.run(TICK);
    let mut arrived = 0;
    while let Poll::Ready(Ok(_)) = pair.edge.link.poll_answer(key) {
        arrived += 1;
    }
    assert_eq!(arrived, u64::from(ANSWER_WINDOW) / MIN_CHARGE);
}

#[test]
fn heads_without_end_break_their_stream() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    pair.accepted(key.id);
    for seq in 1..=1000 {
        let start = Message::RunEvent(v1::RunEvent {
            kind: Some(v1::run_event::Kind::Start(v1::Start {})),
            ..v1::RunEvent::default()
        });
        feed(&mut pair.edge.link, pair.clock.now(), &bytes(key.id, seq, start));
    }
    let mut arrived = 0;
    while let Poll::Ready(Ok(_)) = pair.edge.link.poll_answer(key) {
        arrived += 1;
    }
    assert!(arrived < 10, "{arrived} heads wait");
    assert!(matches!(pair.edge.link.poll_answer(key), Poll::Ready(Err(_))));
}

#[test]
fn streams_nobody_reads_block_neither_the_others_nor_the_heartbeats() {
    let mut pair = Pair::up(Line::LOCAL);
    let stuck: Vec<StreamKey> = (0..100).map(|_| pair.open(run())).collect();
    for key in &stuck {
        pair.edge.link.queue_body(*key, Bytes::from(vec![b'x'; 400_000]), true);
        let at_node = pair.accepted(key.id);
        pair.node.link.send(at_node, text(vec![b'x'; 200_000])).unwrap();
    }
    pair.run(Duration::from_secs(90));
    assert_eq!(pair.reasons(), (None, None), "blocked in both directions");
    let key = pair.open(run());
    pair.edge.link.queue_body(key, Bytes::from_static(b"{}"), true);
    let asked = pair.clock.now();
    let at_node = pair.accepted(key.id);
    pair.node.link.finish(at_node, complete()).unwrap();
    pair.run_until(|pair| pair.edge.link.stats().streams == 100);
    assert!(pair.clock.now() - asked < TICK);
}

proptest! {
    /// Whatever is sent, read and waited for in whatever order: nothing is lost, reordered or beyond
    /// the windows, and in the end nothing is left.
    #[test]
    fn windows_bound_what_waits_and_nothing_is_lost(
        steps in proptest::collection::vec((0_usize..4, 0_u8..4, 1_usize..40_000), 1..120),
        budget in 16_u64..300,
    ) {
        let limits = v1::Limits { credit_budget: budget * 1024, ..v1::Limits::standard() };
        let mut pair = Pair::with_limits(Line::LOCAL, limits).brought_up();
        let keys: Vec<StreamKey> = (0..4).map(|_| pair.open(tunnel())).collect();
        let there: Vec<StreamKey> = keys.iter().map(|key| pair.accepted(key.id)).collect();
        let mut sent = [0_u32; 4];
        let mut read: Vec<Vec<u8>> = vec![Vec::new(); 4];
        for (stream, action, size) in steps {
            match action {
                0 | 1 => {
                    let data: Vec<u8> = (0..size).map(|at| byte(sent[stream], at)).collect();
                    sent[stream] += u32::try_from(size).unwrap();
                    pair.node.link.send(there[stream], frame_body(data)).unwrap();
                }
                2 => take(&mut pair, keys[stream], &mut read[stream], size / 1000),
                _ => pair.run(Duration::from_micros(size as u64)),
            }
            let stats = pair.edge.link.stats();
            prop_assert!(stats.buffered_bytes + stats.granted_bytes <= pair.edge.link.reserved_bytes());
            prop_assert_eq!(pair.reasons(), (None, None));
        }
        for (key, there) in keys.iter().zip(&there) {
            pair.edge.link.queue_body(*key, Bytes::new(), true);
            pair.node.link.finish(*there, end()).unwrap();
            pair.node.link.release_body(*there);
            pair.node.link.release_answers(*there);
            pair.node.link.release_cancelled(*there);
        }
        for _ in 0..1000 {
            for (key, read) in keys.iter().zip(&mut read) {
                take(&mut pair, *key, read, usize::MAX);
            }
            pair.run(Duration::from_millis(1));
        }
        for (stream, key) in keys.iter().enumerate() {
            prop_assert_eq!(read[stream].len(), sent[stream] as usize);
            let intact = read[stream].iter().enumerate().all(|(at, seen)| *seen == byte(0, at));
            prop_assert!(intact, "stream {} is out of order", stream);
            pair.edge.link.release(*key);
        }
        let (edge, node) = (pair.edge.link.stats(), pair.node.link.stats());
        prop_assert_eq!((edge.streams, edge.buffered_bytes, edge.granted_bytes), (0, 0, 0));
        prop_assert_eq!((node.streams, node.queued_bytes, node.granted_bytes), (0, 0, 0));
        prop_assert_eq!(pair.edge.link.reserved_bytes(), 0);
        prop_assert_eq!(pair.node.link.reserved_bytes(), 0);
        prop_assert_eq!(spoken(&mut pair.edge.link).len(), 0);
    }
}

fn take(pair: &mut Pair, key: StreamKey, read: &mut Vec<u8>, most: usize) {
    for _ in 0..most {
        let Poll::Ready(Ok(answer)) = pair.edge.link.poll_answer(key) else { return };
        read.extend_from_slice(&payload(&answer));
    }
}

/// The byte at a place of a stream.
fn byte(offset: u32, at: usize) -> u8 {
    u8::try_from((offset as usize + at) % 251).expect("below 251")
}

fn event(payload: Bytes) -> Message {
    match text(payload) {
        iop_link::Answer::Event(event) => Message::RunEvent(event),
        iop_link::Answer::Frame(_) | iop_link::Answer::Command(_) => {
            unreachable!("text is an event")
        }
    }
}

fn frame_body(data: impl Into<Bytes>) -> iop_link::Answer {
    let body = v1::TunnelBody { data: data.into(), progress: true };
    iop_link::Answer::Frame(v1::ProviderTunnelFrame {
        session_id: String::new(),
        kind: Some(v1::provider_tunnel_frame::Kind::Body(body)),
    })
}

fn end() -> iop_link::Answer {
    iop_link::Answer::Frame(v1::ProviderTunnelFrame {
        session_id: String::new(),
        kind: Some(v1::provider_tunnel_frame::Kind::End(v1::TunnelEnd {})),
    })
}
