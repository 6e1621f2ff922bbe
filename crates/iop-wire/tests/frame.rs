//! Frames: what is written is read, and nothing else is.

use bytes::{Bytes, BytesMut};
use iop_types::CloseReason;
use iop_wire::frame::{self, FrameError};
use iop_wire::v1::{self, Envelope};
use iop_wire::{Class, MAX_PAYLOAD, Message};
use proptest::prelude::*;

fn envelope(message: Message) -> Envelope {
    Envelope { stream_id: 3, seq: 9, message: Some(message), ..Envelope::default() }
}

fn encoded(message: Message) -> Vec<u8> {
    let mut batch = Vec::new();
    frame::encode(&envelope(message), &mut batch).expect("the test's frame fits");
    batch
}

fn body(length: usize) -> Message {
    Message::RequestBody(v1::RequestBody { data: vec![b'x'; length].into(), last: false })
}

#[test]
fn a_frame_is_length_class_and_envelope() {
    let bytes = encoded(Message::HeartbeatRequest(v1::HeartbeatRequest { id: 1 }));
    assert_eq!(bytes, [0, 0, 0, 9, 0, 0x08, 3, 0x10, 9, 0x72, 2, 0x08, 1]);
}

#[test]
fn a_payload_is_a_slice_of_the_read_buffer() {
    let mut buffer = BytesMut::from(&encoded(body(1000))[..]);
    let held = buffer.as_ptr() as usize..buffer.as_ptr() as usize + buffer.len();
    let frame = frame::decode(&mut buffer).unwrap().unwrap();
    let payload = frame.message.as_ref().and_then(frame::payload).unwrap();
    assert!(held.contains(&(payload.as_ptr() as usize)));
}

#[test]
fn a_length_beyond_its_class_is_refused_before_anything_is_allocated() {
    for (class, most) in [(0, 1 << 20), (1, 1 << 20), (2, 1 << 16)] {
        let prefix = |length: u32| {
            let mut buffer = BytesMut::with_capacity(5);
            buffer.extend_from_slice(&length.to_be_bytes());
            buffer.extend_from_slice(&[class]);
            buffer
        };
        let mut buffer = prefix(most + 2);
        let error = frame::decode(&mut buffer).unwrap_err();
        assert_eq!(error.close_reason(), CloseReason::FrameTooLarge);
        assert_eq!(buffer.capacity(), 5);
        assert_eq!(frame::decode(&mut prefix(most + 1)), Ok(None));
    }
}

#[test]
fn what_is_reserved_for_a_frame_does_not_follow_the_length_it_claims() {
    let mut buffer = BytesMut::from(&[0, 0x10, 0, 0, 1][..]);
    assert_eq!(frame::decode(&mut buffer), Ok(None));
    assert!(buffer.capacity() < 200_000, "{}", buffer.capacity());
}

#[test]
fn a_message_travels_in_its_own_class_only() {
    let mut bytes = encoded(body(10));
    bytes[4] = Class::Control as u8;
    let error = frame::decode(&mut BytesMut::from(&bytes[..])).unwrap_err();
    assert_eq!(error, FrameError::WrongClass);
}

#[test]
fn a_payload_of_16_kib_is_carried_and_one_byte_more_is_not() {
    assert!(frame::decode(&mut BytesMut::from(&encoded(body(MAX_PAYLOAD))[..])).is_ok());
    let error =
        frame::decode(&mut BytesMut::from(&encoded(body(MAX_PAYLOAD + 1))[..])).unwrap_err();
    assert_eq!(error.close_reason(), CloseReason::FrameTooLarge);
}

#[test]
fn an_envelope_that_is_too_long_is_not_written_and_leaves_the_batch_as_it_was() {
    let mut batch = b"before".to_vec();
    assert!(frame::encode(&envelope(body(70_000)), &mut batch).is_err());
    assert_eq!(batch, b"before");
}

#[test]
fn missing_and_unknown_messages_are_told_apart() {
    let frame = |envelope: &[u8]| {
        let length = u8::try_from(envelope.len() + 1).unwrap();
        let mut bytes = BytesMut::from(&[0, 0, 0, length, 1][..]);
        bytes.extend_from_slice(envelope);
        frame::decode(&mut bytes)
    };
    assert_eq!(frame(&[0x08, 1]), Err(FrameError::NoMessage));
    assert_eq!(frame(&[0xea, 0x02, 0]), Err(FrameError::UnknownMessage));
    let skipped = frame(&[0x08, 1, 0x10, 2, 0x18, 1, 0xea, 0x02, 0]).unwrap().unwrap();
    assert_eq!((skipped.stream_id, skipped.seq, skipped.message), (1, 2, None));
    assert_eq!(frame(&[0x18, 1]), Err(FrameError::NoMessage), "ignorable, but nothing to ignore");
}

#[test]
fn text_that_is_not_utf8_and_nesting_without_end_are_malformed() {
    // RegisterRequest.node_id = 0xff.
    let mut bytes = BytesMut::from(&[0, 0, 0, 6, 1, 0x52, 3, 0x12, 1, 0xff][..]);
    assert_eq!(frame::decode(&mut bytes).unwrap_err().close_reason(), CloseReason::MalformedFrame);
    // Groups within groups of an unknown field.
    let mut bytes = BytesMut::from(&[0, 0, 0x13, 0x89, 1][..]);
    bytes.extend_from_slice(&[0x4b; 5000]);
    assert_eq!(frame::decode(&mut bytes).unwrap_err().close_reason(), CloseReason::MalformedFrame);
}

proptest! {
    #[test]
    fn frames_survive_any_segmentation(
        lengths in proptest::collection::vec(0_usize..2000, 1..8),
        cuts in proptest::collection::vec(0_usize..4000, 0..20),
    ) {
        let whole: Vec<u8> = lengths.iter().flat_map(|length| encoded(body(*length))).collect();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(whole.len())).collect();
        cuts.sort_unstable();
        cuts.push(whole.len());
        let (mut buffer, mut read, mut from) = (BytesMut::new(), Vec::new(), 0);
        for cut in cuts {
            buffer.extend_from_slice(&whole[from..cut]);
            from = cut;
            while let Some(frame) = frame::decode(&mut buffer).unwrap() {
                read.push(frame.message.as_ref().and_then(frame::payload).map_or(0, Bytes::len));
            }
        }
        prop_assert_eq!(read, lengths);
        prop_assert!(buffer.is_empty());
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4000)) {
        let mut buffer = BytesMut::from(&bytes[..]);
        while let Ok(Some(_)) = frame::decode(&mut buffer) {}
    }
}
