//! Whose frame leaves next.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use iop_link::StreamKey;
use iop_link::outbox::{MAX_BATCH, QUANTUM};
use iop_testkit::Line;
use iop_wire::frame::{self, Frame};
use iop_wire::{Class, MAX_PAYLOAD, Message, v1};
use proptest::prelude::*;

use crate::support::{Pair, run, spoken, text};

/// Decodes the next batch.
fn batch(pair: &mut Pair) -> (usize, Vec<Frame>) {
    let mut written = Vec::new();
    pair.node.link.transmit(&mut written);
    let mut bytes = BytesMut::from(&written[..]);
    let frames =
        std::iter::from_fn(|| frame::decode(&mut bytes).expect("own frames are right")).collect();
    (written.len(), frames)
}

fn payload_of(frame: &Frame) -> usize {
    frame.message.as_ref().and_then(frame::payload).map_or(0, Bytes::len)
}

/// Opens streams whose answers have all the credit there can be.
fn backlogged(count: usize) -> (Pair, Vec<StreamKey>) {
    let mut pair = Pair::up(Line::LOCAL);
    let keys: Vec<StreamKey> = (0..count).map(|_| pair.open(run())).collect();
    let there: Vec<StreamKey> = keys.iter().map(|key| pair.accepted(key.id)).collect();
    for (key, seq) in keys.iter().zip(std::iter::repeat(2)) {
        let credit = Message::Credit(v1::Credit { bytes: 100_000_000 });
        let bytes = crate::support::bytes(key.id, seq, credit);
        crate::support::feed(&mut pair.node.link, pair.clock.now(), &bytes);
    }
    (pair, there)
}

#[test]
fn urgent_frames_precede_control_frames_precede_streams() {
    let (mut pair, there) = backlogged(2);
    pair.node.link.send(there[0], text(vec![b'x'; 100_000])).unwrap();
    pair.node.link.send_status(v1::ProviderStatus::default());
    let asked =
        crate::support::bytes(0, 0, Message::HeartbeatRequest(v1::HeartbeatRequest { id: 1 }));
    crate::support::feed(&mut pair.node.link, pair.clock.now(), &asked);
    let (_, frames) = batch(&mut pair);
    let classes: Vec<Class> =
        frames.iter().filter_map(|frame| frame.message.as_ref()).map(Class::of).collect();
    assert_eq!(classes[..3], [Class::Urgent, Class::Control, Class::Stream]);
}

#[test]
fn only_what_fills_a_batch_and_has_credit_is_a_full_batch() {
    let mut pair = Pair::up(Line::LOCAL);
    let small = pair.open(run());
    pair.edge.link.queue_body(small, vec![b'x'; 1000].into(), true);
    assert!(!pair.edge.link.has_full_batch());
    let large = pair.open(run());
    pair.edge.link.queue_body(large, vec![b'x'; MAX_BATCH].into(), true);
    assert!(pair.edge.link.has_full_batch(), "behind a head that is not sent yet");
    pair.settle();
    assert!(!pair.edge.link.has_full_batch());
    // A body as long as its credit leaves the rest waiting.
    let long = pair.open(run());
    pair.edge.link.queue_body(long, vec![b'x'; 1_000_000].into(), true);
    pair.settle();
    assert!(!pair.edge.link.has_full_batch(), "without credit nothing can be sent");
}

#[test]
fn a_batch_holds_32_kib_at_most() {
    let (mut pair, there) = backlogged(3);
    for key in &there {
        pair.node.link.send(*key, text(vec![b'x'; 500_000])).unwrap();
    }
    loop {
        let (length, frames) = batch(&mut pair);
        if length == 0 {
            break;
        }
        assert!(length <= MAX_BATCH, "{length}");
        assert!(frames.iter().all(|frame| payload_of(frame) <= MAX_PAYLOAD));
    }
}

#[test]
fn a_small_answer_waits_for_one_round_of_the_large_ones() {
    let (mut pair, there) = backlogged(11);
    for key in &there[..10] {
        pair.node.link.send(*key, text(vec![b'x'; 1_000_000])).unwrap();
    }
    for _ in 0..20 {
        batch(&mut pair);
    }
    pair.node.link.send(there[10], text("small")).unwrap();
    let mut before = 0;
    loop {
        let (_, frames) = batch(&mut pair);
        if frames.iter().any(|frame| frame.stream_id == there[10].id) {
            break;
        }
        before += frames.iter().map(payload_of).sum::<usize>();
        assert!(before <= 11 * MAX_PAYLOAD, "{before} bytes went first");
    }
}

#[test]
fn a_newer_status_replaces_one_that_waits() {
    let mut pair = Pair::up(Line::LOCAL);
    for in_use in 0..100 {
        for key in ["ollama", "vllm"] {
            let status = v1::ProviderStatus { key: key.into(), in_use, ..Default::default() };
            pair.node.link.send_status(status);
        }
    }
    let said = spoken(&mut pair.node.link);
    let in_use: Vec<u32> = said
        .iter()
        .filter_map(|frame| match &frame.message {
            Some(Message::ProviderStatus(status)) => Some(status.in_use),
            _ => None,
        })
        .collect();
    assert_eq!(in_use, [99, 99]);
}

proptest! {
    /// As long as two streams have something to send, neither gets ahead by more than a quantum and
    /// what one frame may overdraw, whatever the sizes of their messages.
    #[test]
    fn backlogged_streams_share_the_line(
        sizes in proptest::collection::vec(1_usize..60_000, 3..6),
        batches in 1_usize..60,
    ) {
        let (mut pair, there) = backlogged(sizes.len());
        let total = 2_000_000;
        for (key, size) in there.iter().zip(&sizes) {
            for _ in 0..total / size + 1 {
                pair.node.link.send(*key, text(vec![b'x'; *size])).unwrap();
            }
        }
        let mut sent: BTreeMap<u32, i64> = there.iter().map(|key| (key.id, 0)).collect();
        for _ in 0..batches {
            let (_, frames) = batch(&mut pair);
            for frame in frames {
                // What a frame of this stream costs on the line, prefix and envelope included.
                let cost = i64::try_from(payload_of(&frame)).unwrap() + 16;
                *sent.entry(frame.stream_id).or_default() += cost;
            }
        }
        let most = sent.values().max().unwrap();
        let least = sent.values().min().unwrap();
        let frame = i64::try_from(MAX_PAYLOAD).unwrap();
        // Sixteen bytes are a guess of the overhead; small messages have many of them.
        let guess = most / 8;
        prop_assert!(most - least <= 2 * QUANTUM + frame + guess, "{sent:?}");
    }
}
