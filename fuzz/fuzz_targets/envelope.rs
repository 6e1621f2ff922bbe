//! Frames: what is read is what was written, a claimed length allocates nothing, and the conversions
//! to words take whatever a peer may say.

#![no_main]

use bytes::BytesMut;
use iop_fuzz::{cuts, segments};
use iop_types::{
    CommandRequest, Failure, HealthObservation, ProviderStatus, RunRequest, TunnelRequest,
};
use iop_wire::frame::{self, Frame};
use iop_wire::v1::{
    Envelope, RunError, TunnelError, provider_tunnel_frame, run_error, run_event, tunnel_error,
};
use iop_wire::{Message, Refused};
use libfuzzer_sys::fuzz_target;

/// Decodes everything; the second part says how it ended.
fn frames(segments: &[&[u8]]) -> (Vec<Frame>, Option<String>) {
    let mut buffer = BytesMut::new();
    let mut frames = Vec::new();
    for segment in segments {
        buffer.extend_from_slice(segment);
        loop {
            match frame::decode(&mut buffer) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error.to_string())),
            }
        }
        assert!(buffer.capacity() < (4 << 20), "a claim costs {}", buffer.capacity());
    }
    (frames, None)
}

fn encoded(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    let envelope = Envelope {
        stream_id: frame.stream_id,
        seq: frame.seq,
        body_credit: frame.body_credit,
        answer_credit: frame.answer_credit,
        message: frame.message.clone(),
        ..Envelope::default()
    };
    frame::encode(&envelope, &mut bytes).expect("what fitted once fits again");
    bytes
}

/// What hosts make of a message: any result is fine, as long as there is one.
fn understand(message: Message) {
    match message {
        Message::RunRequest(request) => drop(RunRequest::try_from(request)),
        Message::ProviderTunnelRequest(request) => drop(TunnelRequest::try_from(request)),
        Message::NodeCommandRequest(request) => drop(CommandRequest::try_from(request)),
        Message::ProviderStatus(status) => drop(ProviderStatus::try_from(status)),
        Message::HealthObservation(seen) => drop(HealthObservation::from(seen)),
        Message::RunEvent(event) => {
            if let Some(run_event::Kind::Error(RunError { error: Some(error) })) = event.kind {
                match error {
                    run_error::Error::Failure(failure) => drop(Failure::from(failure)),
                    run_error::Error::Refused(refused) => drop(Refused::from(refused)),
                }
            }
        }
        Message::ProviderTunnelFrame(answer) => {
            if let Some(provider_tunnel_frame::Kind::Error(TunnelError { error: Some(error) })) =
                answer.kind
            {
                match error {
                    tunnel_error::Error::Failure(failure) => drop(Failure::from(failure)),
                    tunnel_error::Error::Refused(refused) => drop(Refused::from(refused)),
                }
            }
        }
        _ => {}
    }
}

fuzz_target!(|input: &[u8]| {
    let (sizes, bytes) = cuts(input);
    let (whole, ended) = frames(&[bytes]);
    assert_eq!((&whole, &ended), (&frames(&segments(&sizes, bytes)).0, &ended));
    for frame in whole {
        if frame.message.is_some() {
            let again = frames(&[&encoded(&frame)]);
            assert_eq!(again, (vec![frame.clone()], None));
        }
        if let Some(message) = frame.message {
            understand(message);
        }
    }
});
