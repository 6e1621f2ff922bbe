//! How attempts end, how the request ends, and what its client still gets.

use iop_types::{ErrorCode, Failure, Refusal};

/// What a Node said last about an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The response reached its end: a tunnel's end or a run's completion.
    Completed(Evidence),
    /// The attempt was cancelled.
    Cancelled,
    /// It failed at the provider or on the way to it.
    Failed(Failure),
    /// The Node did not start it.
    Refused(Refusal),
}

/// What was seen in a response that reached its end. What could not be read counts as seen: a
/// response is found wanting only on proof.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Evidence {
    /// A finish reason.
    pub finish_seen: bool,
    /// The stream's own mark of its end (`[DONE]`).
    pub done_seen: bool,
    /// An error object inside a successful response.
    pub error: Option<Failure>,
}

/// The one outcome of a request, for history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The response reached its end.
    Completed,
    /// Its client left or stopped reading, or an operator ended it; `code` says which.
    Cancelled(Failure),
    /// It failed, whatever its client saw of it.
    Failed(Failure),
}

impl Outcome {
    /// Returns the failure, where there is one.
    pub const fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Completed => None,
            Self::Cancelled(failure) | Self::Failed(failure) => Some(failure),
        }
    }

    /// Returns the stable text of history's `kind`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Cancelled(_) => "cancelled",
            Self::Failed(_) => "failed",
        }
    }
}

/// The end of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// What the client still gets.
    pub client: ClientEnd,
    /// What history keeps.
    pub outcome: Outcome,
}

impl Finish {
    /// Puts this before the message of a failure.
    pub(crate) fn prefix(&mut self, text: &str) {
        if let ClientEnd::Error(failure) | ClientEnd::ErrorEvent(failure) = &mut self.client {
            failure.message.insert_str(0, text);
        }
        if let Outcome::Failed(failure) | Outcome::Cancelled(failure) = &mut self.outcome {
            failure.message.insert_str(0, text);
        }
    }
}

/// What a client still gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEnd {
    /// The regular end of its response. For an answer that is not streamed and not relayed this is
    /// the moment to write it.
    Clean,
    /// Nothing was committed: an error answer with its status.
    Error(Failure),
    /// The provider's answer that was kept at the last [`Output::Retry`](crate::Output::Retry) which
    /// said so, as it came.
    KeptAnswer,
    /// A stream that the Edge writes: one error event and no mark of success.
    ErrorEvent(Failure),
    /// A relayed body: cut without a regular end.
    Abort,
    /// Nobody is there.
    Nothing,
}

/// How much of a response the client has been promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Commitment {
    /// Nothing: any answer is possible.
    Nothing,
    /// The provider's head.
    Tunnel {
        /// Its status.
        status: u16,
    },
    /// The head of a stream that the Edge writes.
    RunStream,
}

impl Commitment {
    /// Says whether the client has anything of the response.
    pub(crate) const fn is_released(self) -> bool {
        match self {
            Self::Nothing => false,
            Self::Tunnel { .. } | Self::RunStream => true,
        }
    }

    /// Returns what a client gets when its request fails now.
    pub(crate) fn fail(self, failure: &Failure) -> ClientEnd {
        match self {
            Self::Nothing => ClientEnd::Error(failure.clone()),
            Self::Tunnel { .. } => ClientEnd::Abort,
            Self::RunStream => ClientEnd::ErrorEvent(failure.clone()),
        }
    }
}

/// Judges a response that reached its end.
///
/// `needs_finish` says that the response is a chat or completion whose finish reason must have been
/// seen if it is whole.
pub(crate) fn completed(commitment: Commitment, needs_finish: bool, seen: Evidence) -> Finish {
    let failed = |client, failure| Finish { client, outcome: Outcome::Failed(failure) };
    match commitment {
        // The provider's own error passes as it is; history tells what it was.
        Commitment::Tunnel { status } if !(200..300).contains(&status) => {
            failed(ClientEnd::Clean, provider_answered(status))
        }
        Commitment::Tunnel { .. } => match seen.error {
            Some(failure) => failed(ClientEnd::Clean, failure),
            None if needs_finish && !seen.finish_seen => {
                // Behind the stream's own mark of its end the client has all there is. Without it,
                // an end that looks regular would hide the loss.
                let client = if seen.done_seen { ClientEnd::Clean } else { ClientEnd::Abort };
                failed(client, truncated())
            }
            None => Finish { client: ClientEnd::Clean, outcome: Outcome::Completed },
        },
        Commitment::Nothing | Commitment::RunStream => {
            let failure = match seen.error {
                Some(failure) => Some(failure),
                None if needs_finish && !seen.finish_seen => Some(truncated()),
                None => None,
            };
            match failure {
                Some(failure) => failed(commitment.fail(&failure), failure),
                None => Finish { client: ClientEnd::Clean, outcome: Outcome::Completed },
            }
        }
    }
}

/// The failure of a relayed answer that is itself an error.
pub(crate) fn provider_answered(status: u16) -> Failure {
    Failure {
        provider_status: Some(status),
        ..Failure::new(ErrorCode::ProviderError, format!("provider answered {status}"))
    }
}

fn truncated() -> Failure {
    Failure::new(ErrorCode::Truncated, "response ended without a finish reason")
}
