//! From the first byte to the first request.

use std::time::Duration;

use iop_link::edge::{self, REGISTER_TIMEOUT};
use iop_link::node::{self, ANSWER_TIMEOUT};
use iop_link::{Link, OpenError};
use iop_testkit::{Line, ManualClock};
use iop_types::{CloseReason, EdgeBootId};
use iop_wire::{Message, v1};

use crate::support::{GENERATION, Pair, bytes, feed, registration, run, spoken};

fn accepted() -> (ManualClock, Link<edge::Edge>) {
    let clock = ManualClock::new();
    let boot_id = EdgeBootId::from_slice(&[3; 16]).expect("16 bytes");
    (clock, Link::accept(clock.now(), boot_id, v1::Limits::standard()))
}

#[test]
fn nothing_is_dispatched_before_the_node_is_ready_and_heads_follow_the_response() {
    let mut pair = Pair::connected(Line::LOCAL);
    pair.settle();
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.edge.link.open(run()), Err(OpenError::Draining));
    let now = pair.clock.now();
    pair.edge.link.register(now, GENERATION, v1::NodeConfig::default(), 0);
    assert_eq!(pair.edge.link.open(run()), Err(OpenError::Draining));
    pair.run(Duration::from_secs(1));
    pair.node.link.ready(pair.clock.now(), v1::NodeReadyRequest::default());
    let report = spoken(&mut pair.node.link);
    let Some(Message::NodeReadyRequest(ready)) = report[0].message.clone() else {
        panic!("the Node says {report:?}")
    };
    assert_eq!(ready.generation, GENERATION.0);
    feed(&mut pair.edge.link, now, &bytes(0, 0, Message::NodeReadyRequest(ready)));
    pair.edge.link.open(run()).unwrap();
    let said: Vec<_> = spoken(&mut pair.edge.link);
    assert!(matches!(said[0].message, Some(Message::NodeReadyResponse(_))));
    assert!(matches!(said[1].message, Some(Message::RunRequest(_))));
}

#[test]
fn the_registration_carries_generation_configuration_and_limits() {
    let mut pair = Pair::up(Line::LOCAL);
    assert_eq!(pair.node.link.generation(), Some(GENERATION));
    assert_eq!(pair.node.link.limits(), &v1::Limits::standard());
    assert!(pair.node.told.iter().any(|told| matches!(
        told,
        node::Output::Registered(registered) if registered.edge_boot_id[..] == [3; 16]
    )));
    assert_eq!(spoken(&mut pair.edge.link), []);
}

#[test]
fn a_connection_that_says_nothing_is_closed_after_10_s() {
    let (mut clock, mut edge) = accepted();
    assert_eq!(edge.poll_timeout(), Some(clock.now() + REGISTER_TIMEOUT));
    edge.handle_timeout(clock.advance(REGISTER_TIMEOUT - Duration::from_nanos(1)));
    assert_eq!(edge.close_reason(), None);
    edge.handle_timeout(clock.advance(Duration::from_nanos(1)));
    assert_eq!(edge.close_reason(), Some(CloseReason::RegisterTimeout));
}

#[test]
fn an_edge_that_never_answers_is_given_up() {
    let mut clock = ManualClock::new();
    let mut node = Link::dial(clock.now(), registration());
    node.handle_timeout(clock.advance(ANSWER_TIMEOUT));
    assert_eq!(node.close_reason(), Some(CloseReason::RegisterTimeout));
}

#[test]
fn data_before_ready_and_a_second_registration_are_protocol_errors() {
    let register = Message::RegisterRequest(registration());
    let event = Message::RunEvent(v1::RunEvent::default());
    for later in [bytes(0, 0, register), bytes(1, 1, event)] {
        let mut pair = Pair::connected(Line::LOCAL);
        pair.run(Duration::from_secs(1));
        feed(&mut pair.edge.link, pair.clock.now(), &later);
        assert_eq!(pair.edge.link.close_reason(), Some(CloseReason::ProtocolError));

        let mut pair = Pair::up(Line::LOCAL);
        let now = pair.clock.now();
        feed(&mut pair.edge.link, now, &bytes(0, 0, Message::RegisterRequest(registration())));
        assert_eq!(pair.edge.link.close_reason(), Some(CloseReason::ProtocolError));
    }
}

#[test]
fn another_protocol_version_is_refused_with_the_versions_that_are_spoken() {
    let (clock, mut edge) = accepted();
    let request = v1::RegisterRequest { protocol_version: 2, ..registration() };
    feed(&mut edge, clock.now(), &bytes(0, 0, Message::RegisterRequest(request)));
    assert_eq!(edge.close_reason(), Some(CloseReason::VersionUnsupported));
    let said = spoken(&mut edge);
    let Some(Message::RegisterResponse(v1::RegisterResponse {
        outcome: Some(v1::register_response::Outcome::Refused(refused)),
    })) = &said[0].message
    else {
        panic!("the Edge says {said:?}")
    };
    assert_eq!((refused.min_protocol_version, refused.max_protocol_version), (1, 1));
    assert!(matches!(said[1].message, Some(Message::Close(_))));
}

#[test]
fn a_malformed_registration_is_refused_with_the_field() {
    let wrong: [(&str, v1::RegisterRequest); 4] = [
        ("node_id", v1::RegisterRequest { node_id: String::new(), ..registration() }),
        ("node_id", v1::RegisterRequest { node_id: "n".repeat(129), ..registration() }),
        ("instance_id", v1::RegisterRequest { instance_id: "short".into(), ..registration() }),
        ("lane", v1::RegisterRequest { lane: 1, ..registration() }),
    ];
    for (field, request) in wrong {
        let (clock, mut edge) = accepted();
        feed(&mut edge, clock.now(), &bytes(0, 0, Message::RegisterRequest(request)));
        assert_eq!(edge.close_reason(), Some(CloseReason::RegistrationRefused), "{field}");
        let said = format!("{:?}", spoken(&mut edge));
        assert!(said.contains(&format!("`{field}`")), "{said}");
    }
}

#[test]
fn a_refused_node_learns_why_before_the_link_ends() {
    let mut pair = Pair::connected(Line::LOCAL);
    pair.run(Duration::from_secs(1));
    let refused = v1::RegisterRefused {
        reason: v1::CloseReason::DuplicateNode.into(),
        message: "taken".into(),
        retry_after_ms: 30_000,
        ..v1::RegisterRefused::default()
    };
    pair.edge.link.refuse(pair.clock.now(), refused.clone());
    pair.run(Duration::from_secs(1));
    assert!(matches!(
        &pair.node.told[..],
        [node::Output::Refused(told), node::Output::Closed(CloseReason::DuplicateNode)]
            if *told == refused
    ));
}

#[test]
fn a_report_of_another_generation_is_a_protocol_error() {
    let mut pair = Pair::connected(Line::LOCAL);
    pair.run(Duration::from_secs(1));
    pair.edge.link.register(pair.clock.now(), GENERATION, v1::NodeConfig::default(), 0);
    let ready = v1::NodeReadyRequest { generation: 6, ..v1::NodeReadyRequest::default() };
    feed(&mut pair.edge.link, pair.clock.now(), &bytes(0, 0, Message::NodeReadyRequest(ready)));
    assert_eq!(pair.edge.link.close_reason(), Some(CloseReason::ProtocolError));
}

#[test]
fn a_link_cut_at_any_byte_of_its_birth_ends_on_both_sides_and_is_never_half_up() {
    let whole = Pair::up(Line::LOCAL);
    for (cut_up, cut_down) in (0..whole.up.written())
        .map(|cut| (Some(cut), None))
        .chain((0..whole.down.written()).map(|cut| (None, Some(cut))))
    {
        let mut pair = Pair::connected(Line::LOCAL);
        if let Some(cut) = cut_up {
            pair.up.cut_after(cut);
        }
        if let Some(cut) = cut_down {
            pair.down.cut_after(cut);
        }
        let mut pair = pair.with_hosts();
        pair.run(Duration::from_secs(120));
        assert!(pair.edge.link.close_reason().is_some(), "cut {cut_up:?} {cut_down:?}");
        assert!(pair.node.link.close_reason().is_some(), "cut {cut_up:?} {cut_down:?}");
        let ups = pair.node.told.iter().filter(|told| matches!(told, node::Output::Up)).count();
        assert_eq!(ups, 0, "cut {cut_up:?} {cut_down:?}");
        let ends =
            pair.edge.told.iter().filter(|told| matches!(told, edge::Output::Closed(_))).count();
        assert_eq!(ends, 1, "cut {cut_up:?} {cut_down:?}");
    }
}

#[test]
fn a_drain_before_the_link_is_up_closes_it_at_once() {
    let mut pair = Pair::connected(Line::LOCAL);
    pair.run(Duration::from_secs(1));
    pair.node.link.drain(pair.clock.now(), Duration::from_secs(30));
    assert_eq!(pair.node.link.close_reason(), Some(CloseReason::ShuttingDown));
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.edge.link.close_reason(), Some(CloseReason::ShuttingDown));
}

/// Another instance may claim the seat in the very moment in which it was given.
#[test]
fn a_challenge_does_not_overtake_the_answer_to_the_registration() {
    let (clock, mut edge) = accepted();
    let now = clock.now();
    feed(&mut edge, now, &bytes(0, 0, Message::RegisterRequest(registration())));
    edge.register(now, GENERATION, v1::NodeConfig::default(), 0);
    edge.challenge(now);
    let said: Vec<_> = spoken(&mut edge).into_iter().filter_map(|frame| frame.message).collect();
    let in_order = matches!(said[..], [Message::RegisterResponse(_), Message::HeartbeatRequest(_)]);
    assert!(in_order, "{said:?}");
}
