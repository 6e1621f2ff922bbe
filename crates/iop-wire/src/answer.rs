//! Answers on the wire: what a Node sends back on a stream.
//!
//! Writing never fails. Reading treats whatever it does not know as an error: an unknown kind, code or
//! reason is never a success. A refusal before start travels as an error that is flagged `refused`.

mod command;
mod event;
mod join;
mod tunnel;

use iop_types::{ErrorCode, Failure, LeaseFault, Refusal, Requeue, SessionId};

pub use command::{CommandAnswer, command_frame, command_refusal};
pub use event::{RunAnswer, run_event, run_refusal};
pub use join::{EventJoiner, JoinError};
pub use tunnel::{TunnelAnswer, tunnel_frame, tunnel_refusal};

use crate::v1;

/// Longest error message that travels: a data frame holds it whatever a provider wrote.
const MAX_MESSAGE: usize = 4 * 1024;

/// A refusal before start, as the Edge receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Why; `Unspecified` where the Node gave a reason that this version does not know.
    pub reason: v1::RefusalReason,
    /// In words, one line.
    pub message: String,
    /// What was wrong with the credential lease, where that was the reason and its code is known.
    pub lease_fault: Option<LeaseFault>,
}

impl Refused {
    /// Says why the request goes back to its old place in the queue, `None` where it ends instead.
    pub const fn requeue(&self) -> Option<Requeue> {
        match self.reason {
            v1::RefusalReason::CapacityExceeded => Some(Requeue::CapacityExceeded),
            v1::RefusalReason::StaleConfig => Some(Requeue::StaleConfig),
            v1::RefusalReason::Draining => Some(Requeue::Draining),
            v1::RefusalReason::Unspecified
            | v1::RefusalReason::StallTimeout
            | v1::RefusalReason::Malformed
            | v1::RefusalReason::Duplicate
            | v1::RefusalReason::UnknownProvider
            | v1::RefusalReason::AmbiguousProvider
            | v1::RefusalReason::Unsupported
            | v1::RefusalReason::CredentialDenied
            | v1::RefusalReason::NotPermitted => None,
        }
    }
}

/// An answer that cannot be understood; the stream is treated as failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}` of the answer is {problem}")]
pub struct AnswerError {
    /// Name of the wire field.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl From<Failure> for v1::Failure {
    fn from(failure: Failure) -> Self {
        Self {
            code: failure.code.as_str().to_owned(),
            message: shortened(failure.message),
            provider_status: failure.provider_status.map_or(0, u32::from),
            retry_after_s: failure.retry_after_s,
            stall: failure.stall.map(Into::into),
            connection_lost: failure.connection_lost,
        }
    }
}

impl From<v1::Failure> for Failure {
    /// An unknown code is a provider error.
    fn from(failure: v1::Failure) -> Self {
        Self {
            code: ErrorCode::parse(&failure.code).unwrap_or(ErrorCode::ProviderError),
            message: failure.message,
            provider_status: match u16::try_from(failure.provider_status) {
                Ok(0) | Err(_) => None,
                Ok(status) => Some(status),
            },
            retry_after_s: failure.retry_after_s,
            stall: failure.stall.as_ref().and_then(crate::stall::read),
            connection_lost: failure.connection_lost,
        }
    }
}

impl From<&Refusal> for v1::Refusal {
    fn from(refusal: &Refusal) -> Self {
        let reason = match refusal {
            Refusal::StallTimeout(_) => v1::RefusalReason::StallTimeout,
            Refusal::Malformed { .. } => v1::RefusalReason::Malformed,
            Refusal::Duplicate => v1::RefusalReason::Duplicate,
            Refusal::StaleConfig { .. } => v1::RefusalReason::StaleConfig,
            Refusal::UnknownProvider { .. } => v1::RefusalReason::UnknownProvider,
            Refusal::AmbiguousProvider { .. } => v1::RefusalReason::AmbiguousProvider,
            Refusal::Unsupported { .. } => v1::RefusalReason::Unsupported,
            Refusal::CapacityExceeded { .. } => v1::RefusalReason::CapacityExceeded,
            Refusal::Draining => v1::RefusalReason::Draining,
            Refusal::CredentialDenied(_) => v1::RefusalReason::CredentialDenied,
            Refusal::NotPermitted { .. } => v1::RefusalReason::NotPermitted,
        };
        let lease_fault = match refusal {
            Refusal::CredentialDenied(fault) => fault.as_str(),
            _ => "",
        };
        Self {
            reason: reason.into(),
            message: shortened(refusal.to_string()),
            lease_fault: lease_fault.to_owned(),
        }
    }
}

impl From<v1::Refusal> for Refused {
    fn from(refusal: v1::Refusal) -> Self {
        Self {
            reason: refusal.reason(),
            lease_fault: LeaseFault::parse(&refusal.lease_fault),
            message: refusal.message,
        }
    }
}

/// The correlation value rides on the first and on the terminal message of a stream.
fn echo(session: Option<&SessionId>) -> String {
    session.map_or_else(String::new, |session| session.as_str().to_owned())
}

fn shortened(mut message: String) -> String {
    let end = message.floor_char_boundary(MAX_MESSAGE);
    message.truncate(end);
    message
}
