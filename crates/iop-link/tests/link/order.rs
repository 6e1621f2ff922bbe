//! Peers that do not keep to the protocol.

use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use iop_link::{Link, StreamError, edge, node};
use iop_testkit::Line;
use iop_types::CloseReason;
use iop_wire::{Message, v1};
use proptest::prelude::*;

use crate::support::{
    GENERATION, Pair, body, bytes, complete, feed, registration, run, spoken, text, tunnel,
};

fn event(answer: iop_link::Answer) -> Message {
    answer.into()
}

fn frame_end() -> Message {
    Message::ProviderTunnelFrame(v1::ProviderTunnelFrame {
        session_id: String::new(),
        kind: Some(v1::provider_tunnel_frame::Kind::End(v1::TunnelEnd {})),
    })
}

#[test]
fn a_gap_or_a_repetition_breaks_its_stream_and_no_other() {
    for wrong in [1, 3, 0, u64::MAX] {
        let mut pair = Pair::up(Line::LOCAL);
        let (broken, other) = (pair.open(run()), pair.open(run()));
        let other_there = pair.accepted(other.id);
        let now = pair.clock.now();
        feed(&mut pair.edge.link, now, &bytes(broken.id, 1, event(text("in order"))));
        feed(&mut pair.edge.link, now, &bytes(broken.id, wrong, event(text("not"))));
        feed(&mut pair.edge.link, now, &bytes(broken.id, 3, event(text("nor this"))));
        assert!(matches!(pair.edge.link.poll_answer(broken), Poll::Ready(Ok(_))));
        let protocol = Poll::Ready(Err(StreamError::Protocol));
        assert_eq!(pair.edge.link.poll_answer(broken), protocol);
        let said = spoken(&mut pair.edge.link);
        assert!(said.iter().any(|frame| matches!(
            &frame.message,
            Some(Message::Cancel(cancel)) if frame.stream_id == broken.id
                && cancel.reason() == v1::CancelReason::ProtocolError
        )));
        pair.node.link.finish(other_there, complete()).unwrap();
        pair.run(Duration::from_millis(1));
        assert!(matches!(pair.edge.link.poll_answer(other), Poll::Ready(Ok(_))));
        assert_eq!(pair.edge.link.close_reason(), None);
    }
}

#[test]
fn a_broken_stream_is_gone_once_its_terminal_came() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    pair.accepted(key.id);
    let now = pair.clock.now();
    feed(&mut pair.edge.link, now, &bytes(key.id, 9, event(text("out of place"))));
    feed(&mut pair.edge.link, now, &bytes(key.id, 2, event(complete())));
    pair.edge.link.release(key);
    spoken(&mut pair.edge.link);
    let stats = pair.edge.link.stats();
    assert_eq!((stats.streams, stats.late_frames, pair.edge.link.reserved_bytes()), (0, 0, 0));
}

#[test]
fn a_body_out_of_place_stops_its_request_at_the_node() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    let there = pair.accepted(key.id);
    let now = pair.clock.now();
    feed(&mut pair.node.link, now, &bytes(key.id, 3, body("late", true)));
    let reason = v1::CancelReason::ProtocolError;
    assert_eq!(pair.node.link.poll_cancelled(there), Poll::Ready(Ok(reason)));
    let broken = Poll::Ready(Some(Err(StreamError::Protocol)));
    assert_eq!(pair.node.link.poll_body(there), broken);
    assert_eq!(pair.node.link.close_reason(), None);
}

#[test]
fn answers_of_the_wrong_form_or_of_an_unknown_kind_are_no_answers() {
    let unknown_event = Message::RunEvent(v1::RunEvent::default());
    let unknown_frame = Message::ProviderTunnelFrame(v1::ProviderTunnelFrame::default());
    for (head, answer) in [
        (run(), frame_end()),
        (run(), unknown_event),
        (tunnel(), event(complete())),
        (tunnel(), unknown_frame),
    ] {
        let mut pair = Pair::up(Line::LOCAL);
        let key = pair.open(head);
        pair.accepted(key.id);
        feed(&mut pair.edge.link, pair.clock.now(), &bytes(key.id, 1, answer));
        let protocol = Poll::Ready(Err(StreamError::Protocol));
        assert_eq!(pair.edge.link.poll_answer(key), protocol);
    }
}

#[test]
fn what_follows_a_terminal_is_dropped_and_counted() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    pair.accepted(key.id);
    let now = pair.clock.now();
    for (seq, answer) in [(1, complete()), (2, complete()), (3, text("more"))] {
        feed(&mut pair.edge.link, now, &bytes(key.id, seq, event(answer)));
    }
    assert!(matches!(pair.edge.link.poll_answer(key), Poll::Ready(Ok(_))));
    assert!(matches!(pair.edge.link.poll_answer(key), Poll::Ready(Err(_))));
    assert_eq!(pair.edge.link.stats().late_frames, 2);
    assert_eq!(pair.edge.link.close_reason(), None);
}

#[test]
fn a_thousand_late_frames_a_minute_are_borne_and_no_more() {
    let mut pair = Pair::up(Line::LOCAL);
    let late = bytes(77, 1, event(complete()));
    for minute in 0..3 {
        for _ in 0..1000 {
            feed(&mut pair.edge.link, pair.clock.now(), &late);
        }
        assert_eq!(pair.edge.link.close_reason(), None, "minute {minute}");
        if minute < 2 {
            pair.run(Duration::from_secs(60));
        }
    }
    feed(&mut pair.edge.link, pair.clock.now(), &late);
    assert_eq!(pair.edge.link.close_reason(), Some(CloseReason::ProtocolError));
    assert_eq!(pair.edge.link.stats().late_frames, 3001);
}

#[test]
fn heads_beyond_max_streams_or_out_of_order_close_the_link() {
    let limits = v1::Limits { max_streams: 2, ..v1::Limits::standard() };
    let mut pair = Pair::with_limits(Line::LOCAL, limits).brought_up();
    let head = || Message::RunRequest(v1::RunRequest::default());
    let now = pair.clock.now();
    feed(&mut pair.node.link, now, &bytes(5, 1, head()));
    feed(&mut pair.node.link, now, &bytes(9, 1, head()));
    feed(&mut pair.node.link, now, &bytes(7, 1, head()));
    assert_eq!(pair.node.link.stats().late_frames, 1, "ids grow");
    assert_eq!(pair.node.link.close_reason(), None);
    feed(&mut pair.node.link, now, &bytes(10, 1, head()));
    assert_eq!(pair.node.link.close_reason(), Some(CloseReason::ProtocolError));
}

#[test]
fn the_edge_keeps_to_max_streams_itself() {
    let limits = v1::Limits { max_streams: 2, ..v1::Limits::standard() };
    let mut pair = Pair::with_limits(Line::LOCAL, limits).brought_up();
    let first = pair.open(run());
    pair.open(run());
    assert_eq!(pair.edge.link.open(run()), Err(iop_link::OpenError::TooManyStreams { limit: 2 }));
    let there = pair.accepted(first.id);
    pair.node.link.finish(there, complete()).unwrap();
    pair.run(Duration::from_millis(1));
    assert!(pair.edge.link.open(run()).is_ok(), "its terminal freed the place");
}

#[test]
fn a_second_head_breaks_its_stream() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    let there = pair.accepted(key.id);
    let head = Message::RunRequest(v1::RunRequest::default());
    feed(&mut pair.node.link, pair.clock.now(), &bytes(key.id, 2, head));
    assert!(pair.node.link.poll_cancelled(there).is_ready());
    assert_eq!(pair.node.link.close_reason(), None);
}

// ---- every message in every state

/// One message of every kind, each well formed.
fn every_message() -> Vec<Message> {
    vec![
        Message::RegisterRequest(registration()),
        Message::RegisterResponse(v1::RegisterResponse::default()),
        Message::RegisterResponse(v1::RegisterResponse {
            outcome: Some(v1::register_response::Outcome::Registered(v1::Registered::default())),
        }),
        Message::NodeReadyRequest(v1::NodeReadyRequest {
            generation: GENERATION.0,
            ..v1::NodeReadyRequest::default()
        }),
        Message::NodeReadyResponse(v1::NodeReadyResponse {}),
        Message::HeartbeatRequest(v1::HeartbeatRequest { id: 1 }),
        Message::HeartbeatResponse(v1::HeartbeatResponse { id: 1, edge_time_ms: 0 }),
        Message::ProviderStatus(v1::ProviderStatus::default()),
        Message::Drain(v1::Drain::default()),
        Message::RunRequest(v1::RunRequest::default()),
        Message::ProviderTunnelRequest(v1::ProviderTunnelRequest::default()),
        Message::RequestBody(v1::RequestBody::default()),
        Message::RunEvent(v1::RunEvent::default()),
        Message::ProviderTunnelFrame(v1::ProviderTunnelFrame::default()),
        Message::Credit(v1::Credit { bytes: 1 }),
        Message::Cancel(v1::Cancel::default()),
    ]
}

fn name(message: &Message) -> String {
    let text = format!("{message:?}");
    text.split('(').next().unwrap_or_default().to_owned()
}

/// Names the messages that leave the link alive.
fn survivors<R: iop_link::Role>(stream_id: u32, make: impl Fn() -> Link<R>) -> Vec<String> {
    let now = std::time::Instant::now();
    let mut survivors = Vec::new();
    for message in every_message() {
        let name = name(&message);
        let mut link = make();
        feed(&mut link, now, &bytes(stream_id, 1, message));
        match link.close_reason() {
            None => survivors.push(name),
            Some(reason) => assert_eq!(reason, CloseReason::ProtocolError, "{name}"),
        }
    }
    survivors.dedup();
    survivors
}

#[test]
fn in_every_state_exactly_the_messages_of_that_state_are_accepted() {
    let deciding = || {
        let mut pair = Pair::connected(Line::LOCAL);
        pair.run(Duration::from_secs(1));
        pair
    };
    let registered = || {
        let mut pair = deciding();
        pair.edge.link.register(pair.clock.now(), GENERATION, v1::NodeConfig::default(), 0);
        pair.run(Duration::from_secs(1));
        pair
    };
    let reported = || {
        let mut pair = registered();
        pair.node.link.ready(pair.clock.now(), v1::NodeReadyRequest::default());
        pair
    };
    let up = || Pair::up(Line::LOCAL);
    let beats = ["HeartbeatRequest", "HeartbeatResponse"];

    let edge = |make: &dyn Fn() -> Pair| survivors::<edge::Edge>(0, || make().edge.link);
    assert_eq!(edge(&|| Pair::connected(Line::LOCAL)), ["RegisterRequest"]);
    assert_eq!(edge(&deciding), [""; 0]);
    assert_eq!(edge(&registered), ["NodeReadyRequest", beats[0], beats[1]]);
    assert_eq!(edge(&up), [beats[0], beats[1], "ProviderStatus", "Drain"]);

    let node = |make: &dyn Fn() -> Pair| survivors::<node::Node>(0, || make().node.link);
    assert_eq!(node(&|| Pair::connected(Line::LOCAL)), ["RegisterResponse"]);
    assert_eq!(node(&registered), beats);
    assert_eq!(node(&reported), ["NodeReadyResponse", beats[0], beats[1]]);
    assert_eq!(node(&up), [beats[0], beats[1], "Drain"]);

    // On a stream, and for streams nobody opened.
    for make in [&deciding as &dyn Fn() -> Pair, &registered, &reported] {
        assert_eq!(survivors::<edge::Edge>(1, || make().edge.link), [""; 0]);
        assert_eq!(survivors::<node::Node>(1, || make().node.link), [""; 0]);
    }
    assert_eq!(
        survivors::<edge::Edge>(1, || up().edge.link),
        ["RunEvent", "ProviderTunnelFrame", "Credit"]
    );
    assert_eq!(
        survivors::<node::Node>(1, || up().node.link),
        ["RunRequest", "ProviderTunnelRequest", "RequestBody", "Credit", "Cancel"]
    );
}

#[test]
fn garbage_closes_with_the_reason_that_fits() {
    let frame =
        |length: u32, class: u8, rest: &[u8]| [&length.to_be_bytes()[..], &[class], rest].concat();
    let cases = [
        (frame(0, 0, b""), CloseReason::MalformedFrame),
        (frame(2, 9, b""), CloseReason::MalformedFrame),
        (frame(u32::MAX, 0, b""), CloseReason::FrameTooLarge),
        (frame(1024 * 1024 + 2, 1, b""), CloseReason::FrameTooLarge),
        (frame(64 * 1024 + 2, 2, b""), CloseReason::FrameTooLarge),
        (frame(3, 1, b"\xff\xff"), CloseReason::MalformedFrame),
        (frame(1, 1, b""), CloseReason::MalformedFrame),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), CloseReason::MalformedFrame),
        // Field 45, a message that this version does not know.
        (frame(4, 1, &[0xea, 0x02, 0x00]), CloseReason::UnsupportedMessage),
    ];
    for (garbage, reason) in cases {
        for up in [false, true] {
            let mut pair = if up { Pair::up(Line::LOCAL) } else { Pair::connected(Line::LOCAL) };
            let now = pair.clock.now();
            feed(&mut pair.edge.link, now, &garbage);
            feed(&mut pair.node.link, now, &garbage);
            assert_eq!(pair.reasons(), (Some(reason), Some(reason)), "{garbage:?}");
        }
    }
}

#[test]
fn an_unknown_message_that_says_so_is_skipped_and_still_counts_in_its_stream() {
    let mut pair = Pair::up(Line::LOCAL);
    let key = pair.open(run());
    pair.accepted(key.id);
    let now = pair.clock.now();
    // stream_id, seq 1, ignorable, field 45.
    let id = u8::try_from(key.id).unwrap();
    let envelope = [0x08, id, 0x10, 0x01, 0x18, 0x01, 0xea, 0x02, 0x00];
    let unknown = [&10_u32.to_be_bytes()[..], &[1], &envelope].concat();
    feed(&mut pair.edge.link, now, &unknown);
    feed(&mut pair.edge.link, now, &bytes(key.id, 2, event(complete())));
    assert!(matches!(pair.edge.link.poll_answer(key), Poll::Ready(Ok(_))));
}

#[test]
fn frames_cut_anywhere_are_read_as_one() {
    let whole = [
        bytes(1, 1, Message::RunRequest(v1::RunRequest::default())),
        bytes(1, 2, body(vec![b'x'; 300], true)),
    ]
    .concat();
    for cut in 0..whole.len() {
        let mut pair = Pair::up(Line::LOCAL);
        let now = pair.clock.now();
        let mut buffer = BytesMut::from(&whole[..cut]);
        pair.node.link.handle_read(now, &mut buffer);
        buffer.extend_from_slice(&whole[cut..]);
        pair.node.link.handle_read(now, &mut buffer);
        pair.settle();
        let there = pair.accepted(1);
        let Poll::Ready(Some(Ok(part))) = pair.node.link.poll_body(there) else {
            panic!("cut at {cut}")
        };
        assert_eq!(part, Bytes::from(vec![b'x'; 300]));
    }
}

fn any_message() -> impl Strategy<Value = Message> {
    (0..every_message().len(), proptest::collection::vec(any::<u8>(), 0..200), any::<bool>())
        .prop_map(|(kind, data, last)| match every_message().swap_remove(kind) {
            Message::RequestBody(_) => body(data, last),
            Message::RunEvent(_) if last => event(complete()),
            Message::RunEvent(_) => event(text(data)),
            Message::ProviderTunnelFrame(_) if last => frame_end(),
            message => message,
        })
}

proptest! {
    #[test]
    fn no_bytes_make_a_link_panic(garbage in proptest::collection::vec(any::<u8>(), 0..2000), up: bool) {
        let mut pair = if up { Pair::up(Line::LOCAL) } else { Pair::connected(Line::LOCAL) };
        let now = pair.clock.now();
        feed(&mut pair.edge.link, now, &garbage);
        feed(&mut pair.node.link, now, &garbage);
        spoken(&mut pair.edge.link);
        spoken(&mut pair.node.link);
    }

    /// Well-formed frames in any order: whether the link ends or lives, its handles can be used
    /// and given up.
    #[test]
    fn no_order_of_frames_makes_a_link_panic(
        frames in proptest::collection::vec((0_u32..6, 0_u64..8, any_message()), 0..60),
    ) {
        let mut pair = Pair::up(Line::LOCAL);
        let keys: Vec<_> = (0..3).map(|at| pair.open(if at == 1 { tunnel() } else { run() })).collect();
        let there: Vec<_> = keys.iter().map(|key| pair.accepted(key.id)).collect();
        let now = pair.clock.now();
        for (stream_id, seq, message) in frames {
            let frame = bytes(stream_id, seq, message);
            feed(&mut pair.edge.link, now, &frame);
            feed(&mut pair.node.link, now, &frame);
            for key in &keys {
                let _ = pair.edge.link.poll_answer(*key);
            }
            for key in &there {
                let _ = pair.node.link.poll_body(*key);
                let _ = pair.node.link.poll_cancelled(*key);
            }
            spoken(&mut pair.edge.link);
            spoken(&mut pair.node.link);
        }
        for key in keys {
            pair.edge.link.release(key);
        }
        for key in there {
            pair.node.link.release_body(key);
            pair.node.link.release_answers(key);
            pair.node.link.release_cancelled(key);
        }
        spoken(&mut pair.edge.link);
        spoken(&mut pair.node.link);
    }
}
