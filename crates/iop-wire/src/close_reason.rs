//! Close reasons on the wire.

use iop_types::CloseReason;

use crate::v1;

impl From<CloseReason> for v1::CloseReason {
    fn from(reason: CloseReason) -> Self {
        match reason {
            CloseReason::PeerClosed => Self::PeerClosed,
            CloseReason::ConnectionLost => Self::ConnectionLost,
            CloseReason::HeartbeatTimeout => Self::HeartbeatTimeout,
            CloseReason::Superseded => Self::Superseded,
            CloseReason::DuplicateNode => Self::DuplicateNode,
            CloseReason::ShuttingDown => Self::ShuttingDown,
            CloseReason::ProtocolError => Self::ProtocolError,
            CloseReason::FrameTooLarge => Self::FrameTooLarge,
            CloseReason::MalformedFrame => Self::MalformedFrame,
            CloseReason::UnsupportedMessage => Self::UnsupportedMessage,
            CloseReason::FlowControlViolation => Self::FlowControlViolation,
            CloseReason::ControlOverflow => Self::ControlOverflow,
            CloseReason::RegisterTimeout => Self::RegisterTimeout,
            CloseReason::VersionUnsupported => Self::VersionUnsupported,
            CloseReason::RegistrationRefused => Self::RegistrationRefused,
            CloseReason::IdentityRevoked => Self::IdentityRevoked,
        }
    }
}

impl From<v1::CloseReason> for CloseReason {
    /// An unspecified reason says no more than that the peer closed.
    fn from(reason: v1::CloseReason) -> Self {
        match reason {
            v1::CloseReason::Unspecified | v1::CloseReason::PeerClosed => Self::PeerClosed,
            v1::CloseReason::ConnectionLost => Self::ConnectionLost,
            v1::CloseReason::HeartbeatTimeout => Self::HeartbeatTimeout,
            v1::CloseReason::Superseded => Self::Superseded,
            v1::CloseReason::DuplicateNode => Self::DuplicateNode,
            v1::CloseReason::ShuttingDown => Self::ShuttingDown,
            v1::CloseReason::ProtocolError => Self::ProtocolError,
            v1::CloseReason::FrameTooLarge => Self::FrameTooLarge,
            v1::CloseReason::MalformedFrame => Self::MalformedFrame,
            v1::CloseReason::UnsupportedMessage => Self::UnsupportedMessage,
            v1::CloseReason::FlowControlViolation => Self::FlowControlViolation,
            v1::CloseReason::ControlOverflow => Self::ControlOverflow,
            v1::CloseReason::RegisterTimeout => Self::RegisterTimeout,
            v1::CloseReason::VersionUnsupported => Self::VersionUnsupported,
            v1::CloseReason::RegistrationRefused => Self::RegistrationRefused,
            v1::CloseReason::IdentityRevoked => Self::IdentityRevoked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_crosses_the_wire_unchanged() {
        for reason in CloseReason::ALL {
            assert_eq!(CloseReason::from(v1::CloseReason::from(*reason)), *reason);
        }
    }
}
