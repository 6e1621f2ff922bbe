//! What a tunnel yields: the provider's raw HTTP response in ordered frames.

use bytes::Bytes;

use crate::terminal::Failure;

/// One header line; names are lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Name in lower case.
    pub name: Bytes,
    /// Value, any bytes that HTTP allows.
    pub value: Bytes,
}

impl Header {
    /// Makes a header from static parts.
    pub const fn from_static(name: &'static str, value: &'static str) -> Self {
        Self {
            name: Bytes::from_static(name.as_bytes()),
            value: Bytes::from_static(value.as_bytes()),
        }
    }
}

/// Status and headers of a provider's response, hop-by-hop headers left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseHead {
    /// HTTP status.
    pub status: u16,
    /// Headers in the provider's order.
    pub headers: Vec<Header>,
}

/// One step of a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TunnelFrame {
    /// The response began.
    Head(ResponseHead),
    /// The next bytes of the body, exactly as the provider sent them.
    Body {
        /// The bytes.
        data: Bytes,
        /// Whether they are more than comments, pings and blank keep-alives.
        progress: bool,
    },
    /// Headers after the body.
    Trailers(Vec<Header>),
    /// The response ended cleanly; nothing follows.
    End,
    /// The response ended otherwise; nothing follows.
    Error(Failure),
    /// The tunnel was cancelled; nothing follows.
    Cancelled,
}

impl TunnelFrame {
    /// Says whether this frame ends the tunnel.
    pub const fn is_terminal(&self) -> bool {
        match self {
            Self::End | Self::Error(_) | Self::Cancelled => true,
            Self::Head(_) | Self::Body { .. } | Self::Trailers(_) => false,
        }
    }

    /// Says whether this frame shows that the provider is getting on.
    pub const fn is_progress(&self) -> bool {
        match self {
            Self::Head(_) => true,
            Self::Body { progress, .. } => *progress,
            Self::Trailers(_) | Self::End | Self::Error(_) | Self::Cancelled => false,
        }
    }
}
