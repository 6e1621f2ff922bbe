//! Why a link ended.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $text:literal;)*) => {
        /// Why a link ended; the closed list of `docs/wire.md`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum CloseReason {
            $($(#[$doc])* $variant,)*
        }

        impl CloseReason {
            /// Every reason, in the order of the schema.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the stable text of logs and metrics.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }
    };
}

reasons! {
    /// The peer ended the connection without a Close.
    PeerClosed = "peer_closed";
    /// The connection broke.
    ConnectionLost = "connection_lost";
    /// An own heartbeat stayed unanswered for 45 s.
    HeartbeatTimeout = "heartbeat_timeout";
    /// A newer link of the same Node took over.
    Superseded = "superseded";
    /// Another live instance holds this Node id.
    DuplicateNode = "duplicate_node";
    /// One side stops on purpose, after the drain.
    ShuttingDown = "shutting_down";
    /// A message came at a time when it has no meaning.
    ProtocolError = "protocol_error";
    /// The length prefix exceeds the limit of the frame's class.
    FrameTooLarge = "frame_too_large";
    /// A frame is not a valid envelope.
    MalformedFrame = "malformed_frame";
    /// A message of an unknown kind that must not be skipped.
    UnsupportedMessage = "unsupported_message";
    /// The peer sent more than its credit.
    FlowControlViolation = "flow_control_violation";
    /// The peer's queue of control frames overflowed.
    ControlOverflow = "control_overflow";
    /// No registration came in time.
    RegisterTimeout = "register_timeout";
    /// The Edge does not serve this protocol version.
    VersionUnsupported = "version_unsupported";
    /// The Edge does not know or accept this Node.
    RegistrationRefused = "registration_refused";
    /// The Node's identity was revoked.
    IdentityRevoked = "identity_revoked";
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
