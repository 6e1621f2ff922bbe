//! Whole frames out of a stream of bytes, with their names.

use bytes::{Bytes, BytesMut};
use iop_wire::v1::{provider_tunnel_frame, run_event};
use iop_wire::{Message, frame};

use super::Towards;

/// One frame, as it came to the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameSeen {
    /// Which connection, in the order of accepting, from 0.
    pub link: usize,
    /// Its direction.
    pub towards: Towards,
    /// Its message; for answers what kind of answer (`TunnelHead`, `TunnelEnd`, `RunTerminal`, …).
    pub kind: &'static str,
    /// How many of its kind came before it on this connection and in this direction.
    pub nth: usize,
    /// Its stream, 0 for the link itself.
    pub stream: u32,
    /// Its length, framing included.
    pub length: usize,
}

/// Cuts one direction of one connection into frames.
pub(super) struct Frames {
    link: usize,
    towards: Towards,
    buffer: BytesMut,
    kinds: Vec<&'static str>,
}

/// Bytes before the length counts.
const LENGTH: usize = 4;
/// Longer than any frame may be: what claims this is no frame.
const ABSURD: usize = 2 << 20;

impl Frames {
    pub(super) fn new(link: usize, towards: Towards) -> Self {
        Self { link, towards, buffer: BytesMut::new(), kinds: Vec::new() }
    }

    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// Takes the next whole frame. What is none is one frame of the kind `garbage`.
    pub(super) fn next(&mut self) -> Option<(FrameSeen, Bytes)> {
        let length = self.buffer.first_chunk::<LENGTH>().copied().map(u32::from_be_bytes)?;
        let total = LENGTH + usize::try_from(length).unwrap_or(usize::MAX - LENGTH);
        let bytes = if total > ABSURD {
            self.buffer.split().freeze()
        } else if self.buffer.len() < total {
            return None;
        } else {
            self.buffer.split_to(total).freeze()
        };
        let decoded = frame::decode(&mut BytesMut::from(&bytes[..]));
        let (kind, stream) = match &decoded {
            Ok(Some(frame)) => (frame.message.as_ref().map_or("unknown", kind_of), frame.stream_id),
            Ok(None) | Err(_) => ("garbage", 0),
        };
        let nth = self.kinds.iter().filter(|seen| **seen == kind).count();
        self.kinds.push(kind);
        let (link, towards) = (self.link, self.towards);
        Some((FrameSeen { link, towards, kind, nth, stream, length: bytes.len() }, bytes))
    }
}

fn kind_of(message: &Message) -> &'static str {
    match message {
        Message::RegisterRequest(_) => "RegisterRequest",
        Message::RegisterResponse(_) => "RegisterResponse",
        Message::NodeReadyRequest(_) => "NodeReadyRequest",
        Message::NodeReadyResponse(_) => "NodeReadyResponse",
        Message::HeartbeatRequest(_) => "HeartbeatRequest",
        Message::HeartbeatResponse(_) => "HeartbeatResponse",
        Message::ProviderStatus(_) => "ProviderStatus",
        Message::Drain(_) => "Drain",
        Message::Close(_) => "Close",
        Message::RunRequest(_) => "RunRequest",
        Message::ProviderTunnelRequest(_) => "TunnelRequest",
        Message::RequestBody(_) => "RequestBody",
        Message::RunEvent(event) => match &event.kind {
            Some(
                run_event::Kind::Complete(_)
                | run_event::Kind::Error(_)
                | run_event::Kind::Cancelled(_),
            ) => "RunTerminal",
            _ => "RunEvent",
        },
        Message::ProviderTunnelFrame(answer) => match &answer.kind {
            Some(provider_tunnel_frame::Kind::Head(_)) => "TunnelHead",
            Some(provider_tunnel_frame::Kind::Body(_)) => "TunnelBody",
            Some(provider_tunnel_frame::Kind::End(_)) => "TunnelEnd",
            Some(provider_tunnel_frame::Kind::Error(_)) => "TunnelError",
            Some(provider_tunnel_frame::Kind::Cancelled(_)) => "TunnelCancelled",
            _ => "TunnelOther",
        },
        Message::Credit(_) => "Credit",
        Message::Cancel(_) => "Cancel",
        Message::NodeCommandRequest(_) => "CommandRequest",
        Message::NodeCommandResponse(_) => "CommandResponse",
        Message::HealthObservation(_) => "HealthObservation",
        Message::IdentityRenewRequest(_) => "IdentityRenewRequest",
        Message::IdentityRenewResponse(_) => "IdentityRenewResponse",
        Message::RecipientKey(_) => "RecipientKey",
        Message::CredentialGrant(_) => "CredentialGrant",
        Message::LeaseRevoke(_) => "LeaseRevoke",
    }
}
