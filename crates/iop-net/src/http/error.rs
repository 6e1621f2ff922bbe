//! How a call to a provider fails.
//!
//! Messages name the phase and `host:port`; never the path, query, user or headers of a request.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::BodyLost;
use crate::memory::OverBudget;
use crate::tls::HandshakeError;

/// How far a call has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// No connection yet, or none that is known to live; nothing was sent.
    Connecting,
    /// The request is being handed to the provider.
    Sending,
    /// The provider has the whole request and has not answered.
    BeforeHead,
    /// The head of the response arrived.
    MidStream,
    /// Nothing happens any more.
    Ended,
}

/// How much of its request a provider has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sending {
    /// Not a byte.
    Nothing,
    /// Some of it, or all of it with an answer that came before the last byte.
    Partly {
        /// Bytes that the kernel has accepted, head included.
        bytes: u64,
        /// All that was there is sent; the rest of the body is still to come from its source.
        is_starved: bool,
    },
    /// The kernel has accepted all of it.
    HandedOver,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connecting => "before the request was sent",
            Self::Sending => "while the request was being sent",
            Self::BeforeHead => "before the response began",
            Self::MidStream => "in the middle of the response",
            Self::Ended => "after the end",
        })
    }
}

/// How a response was recognised as incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// It ended before the announced length.
    Length,
    /// It ended without the last chunk.
    LastChunk,
    /// The connection was reset.
    Reset,
    /// Its framing is not HTTP.
    Framing,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "fewer bytes than announced",
            Self::LastChunk => "the last chunk is missing",
            Self::Reset => "the connection was reset",
            Self::Framing => "its framing is broken",
        })
    }
}

/// Why a call yields nothing more.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The request cannot be written as HTTP. Nothing was sent.
    #[error("request to `{authority}` cannot be sent: {problem}")]
    Request {
        /// The provider's `host:port`.
        authority: Arc<str>,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The host name leads nowhere. Nothing was sent.
    #[error("cannot resolve `{authority}`")]
    Resolve {
        /// The provider's `host:port`.
        authority: Arc<str>,
        /// The resolver's answer.
        source: io::Error,
    },
    /// The allow-list forbids every address of the host. Nothing was dialled.
    #[error("address {address} of `{authority}` is not allowed by this node's `egress` list")]
    Egress {
        /// The provider's `host:port`.
        authority: Arc<str>,
        /// The first address that was refused.
        address: IpAddr,
    },
    /// No address accepts connections. Nothing was sent.
    #[error("cannot connect to `{authority}`")]
    Connect {
        /// The provider's `host:port`.
        authority: Arc<str>,
        /// What the first address answered.
        source: io::Error,
    },
    /// The provider cannot be spoken to over TLS, or is not who it should be. Nothing was sent.
    #[error("cannot connect to `{authority}` over TLS: {source}")]
    Tls {
        /// The provider's `host:port`.
        authority: Arc<str>,
        /// How the handshake failed.
        source: HandshakeError,
    },
    /// No connection came about in time. Nothing was sent.
    #[error("cannot connect to `{authority}` within {limit:?}")]
    ConnectTimeout {
        /// The provider's `host:port`.
        authority: Arc<str>,
        /// The time it was given.
        limit: Duration,
    },
    /// The source of the request body failed.
    #[error("request to `{authority}` could not be completed")]
    RequestBody {
        /// The provider's `host:port`.
        authority: Arc<str>,
        /// The source's failure.
        source: BodyLost,
    },
    /// The connection ended before a head. The provider may have executed the request.
    #[error("connection to `{authority}` was lost {phase}")]
    Lost {
        /// The provider's `host:port`.
        authority: Arc<str>,
        /// [`Phase::Sending`] or [`Phase::BeforeHead`].
        phase: Phase,
    },
    /// What came before the body is not HTTP, or too much of it.
    #[error("`{authority}` answered with something that is not an HTTP response")]
    Malformed {
        /// The provider's `host:port`.
        authority: Arc<str>,
    },
    /// The response began and ended before it was complete.
    #[error("response of `{authority}` is incomplete: {cut}")]
    Truncated {
        /// The provider's `host:port`.
        authority: Arc<str>,
        /// How that showed.
        cut: Cut,
    },
    /// The body is larger than its reader allows.
    #[error("response of `{authority}` is larger than {limit} bytes")]
    TooLarge {
        /// The provider's `host:port`.
        authority: Arc<str>,
        /// The reader's limit.
        limit: usize,
    },
    /// The host holds too many bodies to hold this one as well.
    #[error("response of `{authority}` cannot be held: {source}")]
    OverBudget {
        /// The provider's `host:port`.
        authority: Arc<str>,
        /// What the host may hold.
        source: OverBudget,
    },
    /// The call was cancelled or has ended before.
    #[error("the call to `{authority}` has ended")]
    Ended {
        /// The provider's `host:port`.
        authority: Arc<str>,
    },
}

impl CallError {
    /// Says whether the provider cannot have seen any of the request.
    pub const fn is_unsent(&self) -> bool {
        match self {
            Self::Request { .. }
            | Self::Resolve { .. }
            | Self::Egress { .. }
            | Self::Connect { .. }
            | Self::Tls { .. }
            | Self::ConnectTimeout { .. } => true,
            Self::RequestBody { .. }
            | Self::Lost { .. }
            | Self::Malformed { .. }
            | Self::Truncated { .. }
            | Self::TooLarge { .. }
            | Self::OverBudget { .. }
            | Self::Ended { .. } => false,
        }
    }
}
