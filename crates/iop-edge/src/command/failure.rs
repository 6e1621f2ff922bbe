//! What a command that comes to nothing is to whoever asked.

use iop_net::link::{NotSent, OpenError, StreamError};
use iop_types::{Command, ErrorCode, Failure, NodeId};
use iop_wire::{Refused, v1};

use super::MAX_REQUEST;
use crate::body::BodyError;
use crate::core::Core;
use crate::surface::errors::ErrorAnswer;

/// Somebody cancelled it by its id, or the Edge stops.
pub(super) fn cancelled() -> Failure {
    Failure::new(ErrorCode::Cancelled, "the command was cancelled")
}

/// The request could not be read.
pub(super) fn of_body(error: BodyError) -> ErrorAnswer {
    match error {
        BodyError::TooLarge { .. } => {
            let message = format!("the command is larger than {MAX_REQUEST} bytes");
            ErrorAnswer::new(ErrorCode::BodyTooLarge, message)
        }
        BodyError::OverBudget(_) | BodyError::Paused(_) | BodyError::Broken => error.into(),
    }
}

/// Looks whether the Node has reported the provider, so that a slip of the pen is answered with the
/// names that there are.
pub(super) fn check_provider(
    core: &Core,
    node: &NodeId,
    command: &Command,
) -> Result<(), ErrorAnswer> {
    let Command::OllamaApi(call) = command else { return Ok(()) };
    let views = core.desk.tell(|admission, now| admission.providers(now));
    let there: Vec<_> = views
        .iter()
        .filter(|view| view.id.node == *node)
        .map(|view| view.id.provider.as_str())
        .collect();
    if there.contains(&call.provider.as_str()) {
        return Ok(());
    }
    let names = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
    let message = format!("node `{node}` has no provider `{}`: it has {names}", call.provider);
    Err(ErrorAnswer::new(ErrorCode::NotFound, message))
}

/// Nothing was sent.
pub(super) fn of_sending(error: &NotSent) -> ErrorAnswer {
    let code = match error {
        NotSent::Link(OpenError::Fenced(_)) => ErrorCode::NodeLost,
        NotSent::Link(OpenError::Draining | OpenError::TooManyStreams { .. }) => {
            ErrorCode::NoReadyProvider
        }
        NotSent::Link(OpenError::HeadTooLarge { .. }) => ErrorCode::BodyTooLarge,
        NotSent::UnknownKind { .. } | NotSent::Duplicate { .. } => ErrorCode::InvalidRequest,
        NotSent::TooMany { .. } => ErrorCode::RateLimited,
    };
    ErrorAnswer::new(code, error.to_string())
}

/// The Node did not start it.
pub(super) fn of_refusal(refused: &Refused) -> Failure {
    let code = match refused.reason {
        v1::RefusalReason::NotPermitted => ErrorCode::Forbidden,
        v1::RefusalReason::UnknownProvider | v1::RefusalReason::AmbiguousProvider => {
            ErrorCode::NotFound
        }
        v1::RefusalReason::Unsupported
        | v1::RefusalReason::Malformed
        | v1::RefusalReason::Duplicate => ErrorCode::InvalidRequest,
        v1::RefusalReason::Draining
        | v1::RefusalReason::StaleConfig
        | v1::RefusalReason::CapacityExceeded => ErrorCode::NoReadyProvider,
        v1::RefusalReason::Unspecified
        | v1::RefusalReason::CredentialDenied
        | v1::RefusalReason::StallTimeout => ErrorCode::ProviderError,
    };
    Failure::new(code, format!("the node refused the command: {}", refused.message))
}

/// The stream ended without the Node's last word.
pub(super) fn of_stream(node: &NodeId, error: StreamError) -> Failure {
    match error {
        StreamError::LinkClosed(reason) => {
            Failure::new(ErrorCode::NodeLost, format!("the link to node `{node}` ended: {reason}"))
        }
        StreamError::Unsent => {
            let message = format!("the link to node `{node}` ended before the command was sent");
            Failure::new(ErrorCode::NodeLost, message)
        }
        StreamError::NoMemory => Failure::new(ErrorCode::OverMemoryBudget, error.to_string()),
        StreamError::TimedOut(_) => Failure::new(ErrorCode::DeadlineExceeded, error.to_string()),
        StreamError::Protocol | StreamError::Cancelled | StreamError::TooLarge { .. } => {
            Failure::new(ErrorCode::ProviderError, error.to_string())
        }
    }
}
