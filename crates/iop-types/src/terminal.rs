//! How a run or tunnel ends.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::code::ErrorCode;
use crate::lease::LeaseFault;
use crate::stall::Stall;
use crate::stall_timeout::StallTimeoutError;

/// The one outcome that ends a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Terminal {
    /// The response reached its end.
    Completed,
    /// Somebody who may do so cancelled it.
    Cancelled,
    /// It ended otherwise.
    Failed(Failure),
}

/// Why a run failed, in words for the client and the operator.
///
/// The message never holds a secret, a header or a URL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Which kind of failure.
    pub code: ErrorCode,
    /// What was attempted and what went wrong, one line.
    pub message: String,
    /// The provider's own HTTP status, where it answered with one.
    pub provider_status: Option<u16>,
    /// Seconds after which the provider asked to be called again.
    pub retry_after_s: Option<u32>,
    /// What is known of the provider, where it fell silent ([`ErrorCode::ResponseStalled`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<Stall>,
    /// Whether the connection to the provider was lost: it closed or reset it before its answer was
    /// complete. How far the answer had got is for whoever received it to know.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub connection_lost: bool,
}

impl Failure {
    /// Makes a failure without a provider status.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            provider_status: None,
            retry_after_s: None,
            stall: None,
            connection_lost: false,
        }
    }

    /// Says whether the same request may succeed later without being changed: by its code, or
    /// because the provider is known to have let go of a call that stalled.
    pub fn is_retryable(&self) -> bool {
        self.code.is_retryable() || self.stall.is_some_and(|stall| stall.is_retryable())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

/// Why a Node did not start a run or tunnel: no provider was called, no permit is held.
///
/// Declared in the order in which a Node checks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The stall field is out of range.
    #[error(transparent)]
    StallTimeout(#[from] StallTimeoutError),
    /// A field of the request is missing or malformed.
    #[error("field `{field}` of the request is {problem}")]
    Malformed {
        /// Name of the wire field.
        field: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The same run and attempt, or the same command, is already at work.
    #[error("its id is already at work on this node")]
    Duplicate,
    /// No current or draining snapshot has the request's provider revision.
    #[error("provider revision {revision} is not served by this node")]
    StaleConfig {
        /// The revision that was asked for.
        revision: u64,
    },
    /// Nothing is registered under the name.
    #[error("no provider `{provider}` on this node")]
    UnknownProvider {
        /// The name that was asked for.
        provider: String,
    },
    /// A type name that more than one instance has.
    #[error("`{type_name}` is the type of several providers: name one of {choices:?}")]
    AmbiguousProvider {
        /// The type name.
        type_name: String,
        /// Instance keys that have it.
        choices: Vec<String>,
    },
    /// The provider's adapter cannot do this.
    #[error("provider does not offer {what}")]
    Unsupported {
        /// The form, operation or path that was asked for.
        what: String,
    },
    /// Every permit of the provider is in use.
    #[error("provider is full at {capacity} calls")]
    CapacityExceeded {
        /// The provider's capacity.
        capacity: u32,
    },
    /// The Node drains and takes nothing new.
    #[error("node is draining")]
    Draining,
    /// The request's credential lease is not good for it: no provider was called.
    #[error("credential denied: {0}")]
    CredentialDenied(LeaseFault),
    /// A command that changes what a server holds is not permitted.
    #[error("{what} is not permitted: {remedy}")]
    NotPermitted {
        /// The operation that was asked for.
        what: String,
        /// Which key permits it, and in whose file.
        remedy: String,
    },
}

/// Why a request goes back to its old place in the queue instead of ending: no provider saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Requeue {
    /// The Node's gate was full.
    CapacityExceeded,
    /// The Node does not serve the revision that was decided on.
    StaleConfig,
    /// The Node drains.
    Draining,
    /// The generation ended before anything was sent.
    Fenced,
    /// The link carries as many streams as it may.
    LinkFull,
}

impl Requeue {
    /// Returns the stable text for history and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CapacityExceeded => "capacity_exceeded",
            Self::StaleConfig => "stale_config",
            Self::Draining => "draining",
            Self::Fenced => "fenced",
            Self::LinkFull => "link_full",
        }
    }
}

impl fmt::Display for Requeue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Refusal {
    /// Says why the Edge puts the request back to its old place, `None` where it ends instead.
    pub const fn requeue(&self) -> Option<Requeue> {
        match self {
            Self::StaleConfig { .. } => Some(Requeue::StaleConfig),
            Self::CapacityExceeded { .. } => Some(Requeue::CapacityExceeded),
            Self::Draining => Some(Requeue::Draining),
            Self::StallTimeout(_)
            | Self::Malformed { .. }
            | Self::Duplicate
            | Self::UnknownProvider { .. }
            | Self::AmbiguousProvider { .. }
            | Self::Unsupported { .. }
            | Self::CredentialDenied(_)
            | Self::NotPermitted { .. } => None,
        }
    }

    /// Says whether the Edge puts the request back to its old place in the queue.
    pub const fn is_requeued(&self) -> bool {
        self.requeue().is_some()
    }
}
