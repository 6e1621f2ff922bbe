//! Liveness, idle and under load.

use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use iop_link::heartbeat::INTERVAL;
use iop_link::{edge, node};
use iop_testkit::Line;
use iop_types::CloseReason;
use iop_wire::Message;

use crate::support::{Pair, complete, run, spoken, text, tunnel};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn both_sides_ask_every_30_s_on_an_idle_link() {
    let mut pair = Pair::up(Line::LOCAL);
    pair.run(Duration::from_secs(29));
    let quiet = (pair.down.written(), pair.up.written());
    pair.run(2 * SECOND);
    assert!(pair.down.written() > quiet.0);
    assert!(pair.up.written() > quiet.1);
    assert!(pair.edge.link.stats().heartbeat_rtt.is_some());
    assert!(pair.node.link.stats().heartbeat_rtt.is_some());
}

#[test]
fn traffic_neither_replaces_nor_postpones_a_heartbeat() {
    let mut pair = Pair::up(Line::LOCAL);
    let started = pair.clock.now();
    let key = pair.open(run());
    let accepted = pair.accepted(key.id);
    let mut rtts = Vec::new();
    while pair.clock.now() < started + Duration::from_secs(100) {
        pair.node.link.send(accepted, text("token")).unwrap();
        pair.run(Duration::from_millis(100));
        pair.drain_streams(&[key]);
        if let Some(rtt) = pair.edge.link.stats().heartbeat_rtt {
            rtts.push((pair.clock.now() - started, rtt));
        }
    }
    let (first, _) = rtts[0];
    assert!((29 * SECOND..=31 * SECOND).contains(&first), "first answer after {first:?}");
    assert_eq!(pair.reasons(), (None, None));
}

#[test]
fn an_unanswered_heartbeat_ends_the_link_exactly_45_s_after_it_was_sent() {
    let mut pair = Pair::up(Line::LOCAL);
    // Registration started the Edge's timer one round trip before the link was up.
    pair.up.lose();
    pair.down.lose();
    let mut sent = None;
    while sent.is_none() {
        let before = pair.down.written();
        pair.step(pair.clock.now() + SECOND);
        if pair.down.written() > before {
            sent = Some(pair.clock.now());
        }
    }
    let sent = sent.unwrap();
    pair.run(45 * SECOND - Duration::from_nanos(1));
    assert_eq!(pair.edge.link.close_reason(), None);
    pair.run(Duration::from_nanos(1));
    assert_eq!(pair.clock.now(), sent + 45 * SECOND);
    assert_eq!(pair.edge.link.close_reason(), Some(CloseReason::HeartbeatTimeout));
    assert!(
        pair.edge.is_told(|told| {
            matches!(told, edge::Output::Closed(CloseReason::HeartbeatTimeout))
        })
    );
}

#[test]
fn data_of_a_peer_does_not_stand_in_for_its_answer() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    let accepted = pair.accepted(key.id);
    // Nothing reaches the Node any more; what it says still arrives.
    pair.down.lose();
    let lost = pair.clock.now();
    while pair.edge.link.close_reason().is_none() {
        let _ = pair.node.link.send(accepted, text("token"));
        pair.run(SECOND);
        pair.drain_streams(&[key]);
        assert!(pair.clock.now() - lost < 76 * SECOND);
    }
    assert_eq!(pair.edge.link.close_reason(), Some(CloseReason::HeartbeatTimeout));
}

#[test]
fn an_idle_link_lives_for_a_day() {
    let mut pair = Pair::up(Line::SLOW);
    pair.run(24 * 3600 * SECOND);
    assert_eq!(pair.reasons(), (None, None));
}

#[test]
fn a_prefill_of_five_minutes_does_not_trip_it() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    let accepted = pair.accepted(key.id);
    pair.run(300 * SECOND);
    pair.node.link.finish(accepted, complete()).unwrap();
    pair.run(SECOND);
    assert!(matches!(pair.edge.link.poll_answer(key), Poll::Ready(Ok(_))));
}

#[test]
fn a_body_of_12_mb_at_1_mbit_trips_nothing_and_delays_a_small_run_by_less_than_a_second() {
    let mut pair = Pair::up(Line::SLOW);
    let started = pair.clock.now();
    let bulk = pair.open(run());
    pair.edge.link.queue_body(bulk, Bytes::from(vec![b'x'; 12_000_000]), true);
    let bulk_at_node = pair.accepted(bulk.id);
    let mut received = 0;
    let mut worst = Duration::ZERO;
    while received < 12_000_000 {
        // A small run beside it, again and again.
        let asked = pair.clock.now();
        let small = pair.open(run());
        pair.edge.link.queue_body(small, Bytes::from_static(b"{\"prompt\":\"hi\"}"), true);
        let accepted = pair.accepted(small.id);
        let mut answered = false;
        while !answered {
            if let Poll::Ready(Some(_)) = pair.node.link.poll_body(accepted) {
                pair.node.link.finish(accepted, complete()).unwrap();
            }
            received += pair.drain_streams(&[bulk_at_node]).0;
            answered = pair.edge.link.poll_answer(small).is_ready();
            if !answered {
                pair.step(pair.clock.now() + SECOND);
            }
        }
        worst = worst.max(pair.clock.now() - asked);
        pair.edge.link.release(small);
        pair.node.link.release_body(accepted);
        pair.node.link.release_answers(accepted);
        pair.node.link.release_cancelled(accepted);
        assert_eq!(pair.reasons(), (None, None));
    }
    let took = pair.clock.now() - started;
    assert!((95 * SECOND..105 * SECOND).contains(&took), "the body took {took:?}");
    assert!(worst < SECOND, "a small run took {worst:?}");
    assert!(pair.edge.link.stats().heartbeat_rtt.unwrap() < SECOND);
}

#[test]
fn heartbeats_are_answered_before_the_link_is_up() {
    let mut pair = Pair::connected(Line::LOCAL);
    pair.settle();
    pair.run(SECOND);
    let now = pair.clock.now();
    pair.edge.link.register(
        now,
        crate::support::GENERATION,
        iop_wire::v1::NodeConfig::default(),
        0,
    );
    // The Node's adapters take ten minutes to start.
    pair.run(600 * SECOND);
    assert_eq!(pair.reasons(), (None, None));
    pair.node.link.ready(pair.clock.now(), iop_wire::v1::NodeReadyRequest::default());
    pair.run(SECOND);
    assert!(pair.node.is_told(|told| matches!(told, node::Output::Up)));
}

#[test]
fn a_peer_that_asks_and_never_reads_is_given_up() {
    let mut pair = Pair::up(Line::LOCAL);
    let now = pair.clock.now();
    let request = Message::HeartbeatRequest(iop_wire::v1::HeartbeatRequest { id: 1 });
    let asked = crate::support::bytes(0, 0, request);
    for _ in 0..1024 {
        crate::support::feed(&mut pair.edge.link, now, &asked);
    }
    assert_eq!(pair.edge.link.close_reason(), None);
    crate::support::feed(&mut pair.edge.link, now, &asked);
    assert_eq!(pair.edge.link.close_reason(), Some(CloseReason::ControlOverflow));
    let last = spoken(&mut pair.edge.link);
    assert!(matches!(last[..], [ref close] if matches!(close.message, Some(Message::Close(_)))));
}

/// Nine minutes of a full line, on a manual clock.
#[test]
fn sixty_four_mib_over_a_line_of_1_mbit_keep_heartbeats_and_small_requests_alive() {
    const BYTES: usize = 64 * 1024 * 1024;
    const PART: usize = 64 * 1024;
    const STEP: Duration = Duration::from_millis(500);
    let mut pair = Pair::up(Line::SLOW);
    let began = pair.clock.now();
    let upload = pair.open(tunnel());
    let (mut queued, mut read, mut at_node) = (0, 0, None);
    let (mut most_queued, mut slowest, mut seconds) = (0, Duration::ZERO, 0);
    while read < BYTES {
        while queued < BYTES && pair.edge.link.poll_body_room(upload).is_ready() {
            queued += PART;
            pair.edge.link.queue_body(upload, Bytes::from(vec![b'x'; PART]), queued == BYTES);
        }
        most_queued = most_queued.max(pair.edge.link.stats().queued_bytes);
        pair.run(STEP);
        let at_node = *at_node.get_or_insert_with(|| pair.accepted(upload.id));
        while let Poll::Ready(Some(part)) = pair.node.link.poll_body(at_node) {
            read += part.unwrap().len();
        }
        assert_eq!(pair.reasons(), (None, None), "after {read} bytes");
        for stats in [pair.edge.link.stats(), pair.node.link.stats()] {
            slowest = slowest.max(stats.heartbeat_rtt.unwrap_or_default());
        }
        seconds += 1;
        if seconds % 60 == 0 {
            // Every half minute somebody asks something small, and is answered at once.
            let small = pair.open(run());
            pair.edge.link.queue_body(small, Bytes::from(vec![b'x'; 1_000]), true);
            let asked = pair.clock.now();
            let there = pair.accepted(small.id);
            assert!(pair.clock.now() - asked < Duration::from_millis(900), "{read}");
            pair.node.link.finish(there, complete()).unwrap();
            pair.run(Duration::from_millis(10));
            pair.edge.link.release(small);
        }
    }
    let took = pair.clock.now() - began;
    assert!((Duration::from_secs(530)..Duration::from_secs(600)).contains(&took), "{took:?}");
    assert!(slowest > Duration::ZERO && slowest < Duration::from_secs(2), "{slowest:?}");
    assert!(most_queued <= 256 * 1024 + PART as u64, "{most_queued}");
}

/// A process that was stopped, or a machine whose clock counts while it sleeps.
#[test]
fn a_clock_that_jumps_ends_no_link_whose_answer_has_arrived_or_was_never_asked_for() {
    // The answer to the own heartbeat lies unread when the clock jumps.
    let mut pair = Pair::up(Line::LOCAL);
    pair.run(INTERVAL + Duration::from_millis(1));
    pair.clock.advance(Duration::from_secs(50));
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.reasons(), (None, None));
    // Nothing was asked: a heartbeat goes out at once and its answer counts.
    let mut pair = Pair::up(Line::LOCAL);
    pair.clock.advance(Duration::from_secs(3600));
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.reasons(), (None, None));
    assert!(pair.edge.link.stats().heartbeat_answered.is_some());
    pair.run(Duration::from_secs(120));
    assert_eq!(pair.reasons(), (None, None));
}

/// Asleep for an hour beside a peer that has given up long ago: the end is known at once.
#[test]
fn after_an_hour_asleep_a_dead_link_ends_at_once() {
    let mut pair = Pair::up(Line::LOCAL);
    pair.down.lose();
    pair.up.lose();
    pair.run(INTERVAL + Duration::from_secs(1));
    let now = pair.clock.advance(Duration::from_secs(3600));
    pair.settle();
    assert_eq!(pair.reasons().1, Some(CloseReason::HeartbeatTimeout));
    assert_eq!(pair.clock.now(), now, "no time passed meanwhile");
}
