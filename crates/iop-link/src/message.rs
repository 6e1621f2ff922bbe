//! What travels on a stream, and how it is counted and cut.

use bytes::Bytes;
use iop_types::CommandId;
use iop_wire::v1::{self, node_command_response, provider_tunnel_frame, run_event};
use iop_wire::{Message, frame};

/// What a stream carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// A normalized run.
    Run,
    /// A tunnel.
    Tunnel,
    /// A command: its request is whole with its head.
    Command(CommandId),
}

impl StreamKind {
    pub(crate) const fn is_command(self) -> bool {
        matches!(self, Self::Command(_))
    }
}

/// The head that opens the stream of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum RequestMessage {
    /// A normalized run.
    Run(v1::RunRequest),
    /// A tunnel.
    Tunnel(v1::ProviderTunnelRequest),
}

impl RequestMessage {
    pub(crate) const fn kind(&self) -> StreamKind {
        match self {
            Self::Run(_) => StreamKind::Run,
            Self::Tunnel(_) => StreamKind::Tunnel,
        }
    }

    /// Returns the correlation value that the answer echoes.
    pub(crate) fn session_id(&self) -> &str {
        let head = match self {
            Self::Run(request) => request.head.as_ref(),
            Self::Tunnel(request) => request.head.as_ref(),
        };
        head.map_or("", |head| &head.session_id)
    }

    pub(crate) fn encoded_len(&self) -> usize {
        match self {
            Self::Run(request) => frame::encoded_len(request),
            Self::Tunnel(request) => frame::encoded_len(request),
        }
    }
}

impl From<RequestMessage> for Message {
    fn from(request: RequestMessage) -> Self {
        match request {
            RequestMessage::Run(request) => Self::RunRequest(request),
            RequestMessage::Tunnel(request) => Self::ProviderTunnelRequest(request),
        }
    }
}

/// One message of an answer stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Of a run.
    Event(v1::RunEvent),
    /// Of a tunnel.
    Frame(v1::ProviderTunnelFrame),
    /// Of a command.
    Command(v1::NodeCommandResponse),
}

impl Answer {
    /// Says whether this ends the stream.
    pub const fn is_terminal(&self) -> bool {
        match self {
            Self::Event(event) => event.is_terminal(),
            Self::Frame(frame) => frame.is_terminal(),
            Self::Command(response) => response.is_terminal(),
        }
    }

    /// Says whether this may travel on a stream of this kind.
    pub(crate) fn fits(&self, kind: StreamKind) -> bool {
        match (self, kind) {
            (Self::Event(_), StreamKind::Run) | (Self::Frame(_), StreamKind::Tunnel) => true,
            (Self::Command(response), StreamKind::Command(id)) => {
                response.command_id == id.as_bytes()[..]
            }
            (Self::Event(_) | Self::Frame(_) | Self::Command(_), _) => false,
        }
    }

    /// Says whether this version knows what kind of answer it is.
    pub(crate) const fn is_known(&self) -> bool {
        match self {
            Self::Event(event) => event.kind.is_some(),
            Self::Frame(frame) => frame.kind.is_some(),
            Self::Command(response) => response.kind.is_some(),
        }
    }

    /// Returns the encoded length without the payload where it may be large: of everything that
    /// is not plain content.
    pub(crate) fn overhead(&self) -> usize {
        match self {
            Self::Event(event) => match &event.kind {
                Some(run_event::Kind::Text(_) | run_event::Kind::Reasoning(_)) => 0,
                _ => frame::encoded_len(event) - event.payload.len(),
            },
            Self::Frame(tunnel) => match &tunnel.kind {
                Some(provider_tunnel_frame::Kind::Body(_)) => 0,
                _ => frame::encoded_len(tunnel),
            },
            Self::Command(response) => match &response.kind {
                Some(node_command_response::Kind::Part(_)) => 0,
                _ => frame::encoded_len(response),
            },
        }
    }
}

impl From<Answer> for Message {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Event(event) => Self::RunEvent(event),
            Answer::Frame(frame) => Self::ProviderTunnelFrame(frame),
            Answer::Command(response) => Self::NodeCommandResponse(response),
        }
    }
}

/// A message of a stream behind its head.
pub trait Piece: Into<Message> {
    /// Returns the bytes that credit is counted in.
    fn payload(&self) -> &Bytes;

    /// As [`Self::payload`], for replacing a slice of a read buffer by a copy.
    fn payload_mut(&mut self) -> Option<&mut Bytes>;

    /// Says whether this ends its direction of the stream.
    fn is_last(&self) -> bool;

    /// Says whether this costs no credit: at most a few such messages belong to a stream.
    fn is_free(&self) -> bool;

    /// Cuts the first `len` payload bytes off as a message of their own.
    #[must_use]
    fn split_front(&mut self, len: usize) -> Self;

    /// Returns the credit that this costs.
    fn charge(&self) -> u64 {
        if self.is_free() { 0 } else { (self.payload().len() as u64).max(MIN_CHARGE) }
    }
}

/// What the smallest paid message costs. Without it a window of 64 KiB would admit 64 Ki messages of
/// one byte, each of which takes far more memory than that while it waits.
pub const MIN_CHARGE: u64 = 64;

static EMPTY: Bytes = Bytes::new();

impl Piece for v1::RequestBody {
    fn payload(&self) -> &Bytes {
        &self.data
    }

    fn payload_mut(&mut self) -> Option<&mut Bytes> {
        Some(&mut self.data)
    }

    fn is_last(&self) -> bool {
        self.last
    }

    fn is_free(&self) -> bool {
        self.last && self.data.is_empty()
    }

    fn split_front(&mut self, len: usize) -> Self {
        Self { data: self.data.split_to(len), last: false }
    }
}

impl Piece for Answer {
    fn payload(&self) -> &Bytes {
        match self {
            Self::Event(event) => &event.payload,
            Self::Frame(v1::ProviderTunnelFrame {
                kind: Some(provider_tunnel_frame::Kind::Body(body)),
                ..
            }) => &body.data,
            Self::Command(v1::NodeCommandResponse {
                kind: Some(node_command_response::Kind::Part(part)),
                ..
            }) => &part.data,
            Self::Frame(_) | Self::Command(_) => &EMPTY,
        }
    }

    fn payload_mut(&mut self) -> Option<&mut Bytes> {
        match self {
            Self::Event(event) => Some(&mut event.payload),
            Self::Frame(v1::ProviderTunnelFrame {
                kind: Some(provider_tunnel_frame::Kind::Body(body)),
                ..
            }) => Some(&mut body.data),
            Self::Command(v1::NodeCommandResponse {
                kind: Some(node_command_response::Kind::Part(part)),
                ..
            }) => Some(&mut part.data),
            Self::Frame(_) | Self::Command(_) => None,
        }
    }

    fn is_last(&self) -> bool {
        self.is_terminal()
    }

    fn is_free(&self) -> bool {
        match self {
            Self::Event(event) => {
                let starts = matches!(event.kind, Some(run_event::Kind::Start(_)));
                (starts || event.is_terminal()) && event.payload.is_empty()
            }
            Self::Frame(frame) => match &frame.kind {
                Some(provider_tunnel_frame::Kind::Body(_)) | None => false,
                Some(
                    provider_tunnel_frame::Kind::Head(_)
                    | provider_tunnel_frame::Kind::Trailers(_)
                    | provider_tunnel_frame::Kind::End(_)
                    | provider_tunnel_frame::Kind::Error(_)
                    | provider_tunnel_frame::Kind::Cancelled(_),
                ) => true,
            },
            Self::Command(response) => match &response.kind {
                Some(node_command_response::Kind::Part(_)) | None => false,
                Some(
                    node_command_response::Kind::End(_)
                    | node_command_response::Kind::Error(_)
                    | node_command_response::Kind::Cancelled(_),
                ) => true,
            },
        }
    }

    fn split_front(&mut self, len: usize) -> Self {
        match self {
            Self::Event(event) => Self::Event(event.split_front(len)),
            Self::Frame(frame) => {
                let mut front = frame.clone();
                if let Some(provider_tunnel_frame::Kind::Body(body)) = &mut frame.kind
                    && let Some(provider_tunnel_frame::Kind::Body(first)) = &mut front.kind
                {
                    first.data = body.data.split_to(len);
                }
                Self::Frame(front)
            }
            Self::Command(response) => {
                let mut front = response.clone();
                if let Some(node_command_response::Kind::Part(part)) = &mut response.kind
                    && let Some(node_command_response::Kind::Part(first)) = &mut front.kind
                {
                    first.data = part.data.split_to(len);
                }
                Self::Command(front)
            }
        }
    }
}

/// Replaces a small slice of a read buffer by a copy: a message that waits must not pin the buffer.
pub(crate) fn unpin(piece: &mut impl Piece) {
    if let Some(payload) = piece.payload_mut()
        && !payload.is_empty()
        && payload.len() < COPY_BELOW
    {
        *payload = Bytes::copy_from_slice(payload);
    }
}

/// 4 KiB: a waiting slice of 100 bytes was measured to hold 64 KiB; above this the copy costs more
/// than a shared buffer wastes.
const COPY_BELOW: usize = 4 * 1024;

/// Longest encoded answer apart from its payload, so that both fit a data frame of 64 KiB.
pub(crate) const MAX_OVERHEAD: usize = 47 * 1024;

const _: () = assert!(
    MAX_OVERHEAD + iop_wire::MAX_PAYLOAD + ENVELOPE <= iop_wire::Class::Stream.max_envelope()
);

/// Longest encoded head.
pub(crate) const MAX_HEAD: usize = iop_wire::Class::Control.max_envelope() - ENVELOPE;

/// What an envelope adds to a message, at most.
const ENVELOPE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codec_and_the_link_count_the_same_payload() {
        let body = v1::RequestBody { data: Bytes::from_static(b"abc"), last: true };
        assert_eq!(body.payload(), &"abc");
        assert_eq!(frame::payload(&Message::from(body)).map(Bytes::len), Some(3));
    }
}
