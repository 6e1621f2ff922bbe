//! The class of a frame: how urgent it is and how long it may be.

use crate::v1::envelope::Message;

/// How urgent a frame is. The order is the writer's: urgent, then control, then streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// P0: what keeps the link alive and moving.
    Urgent = 0,
    /// P1: birth, heads, cancellation, reports.
    Control = 1,
    /// P2: the streams, in fair rounds.
    Stream = 2,
}

impl Class {
    /// Reads the class byte of a frame.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Urgent),
            1 => Some(Self::Control),
            2 => Some(Self::Stream),
            _ => None,
        }
    }

    /// Returns the longest encoded envelope that a frame of this class carries.
    pub const fn max_envelope(self) -> usize {
        match self {
            // 1 MiB: the whole configuration of a Node, or its whole list of targets.
            Self::Urgent | Self::Control => 1024 * 1024,
            // 64 KiB: a response head with every header that an HTTP server sends.
            Self::Stream => 64 * 1024,
        }
    }

    /// Returns the one class in which this message travels.
    pub const fn of(message: &Message) -> Self {
        match message {
            Message::HeartbeatRequest(_)
            | Message::HeartbeatResponse(_)
            | Message::Credit(_)
            | Message::LeaseRevoke(_)
            | Message::Drain(_) => Self::Urgent,
            Message::RegisterRequest(_)
            | Message::RegisterResponse(_)
            | Message::NodeReadyRequest(_)
            | Message::NodeReadyResponse(_)
            | Message::ProviderStatus(_)
            | Message::HealthObservation(_)
            | Message::IdentityRenewRequest(_)
            | Message::IdentityRenewResponse(_)
            | Message::RecipientKey(_)
            | Message::CredentialGrant(_)
            | Message::Close(_)
            | Message::RunRequest(_)
            | Message::ProviderTunnelRequest(_)
            | Message::NodeCommandRequest(_)
            | Message::Cancel(_) => Self::Control,
            Message::RequestBody(_)
            | Message::RunEvent(_)
            | Message::ProviderTunnelFrame(_)
            | Message::NodeCommandResponse(_) => Self::Stream,
        }
    }
}
