//! One dispatch of a request to one candidate, as history keeps it.

use std::time::Duration;

use iop_types::{
    Attempt, ErrorCode, Failure, Form, Generation, NodeId, ProviderKey, Requeue, Target,
};

/// Who a request was granted to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The Node.
    pub node: NodeId,
    /// The provider on it.
    pub provider: ProviderKey,
    /// What it is asked for.
    pub target: Target,
    /// The link that the grant is good for.
    pub generation: Generation,
    /// How the request travels.
    pub form: Form,
    /// Why this candidate; of an attempt that follows a failure, the failure's
    /// [`Reason`](crate::Reason).
    pub why: &'static str,
    /// Whether another candidate at which the request has not failed was ready.
    pub has_others: bool,
    /// Whether the Edge adds `stream_options.include_usage`: the request is a stream, usage is
    /// `exact`, and the client did not send the option itself.
    pub asks_usage: bool,
}

/// What became of one attempt. Times count from the receipt of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptRecord {
    /// Its number.
    pub attempt: Attempt,
    /// Who it went to; `why` says why this attempt was made to this candidate.
    pub grant: Grant,
    /// When it was sent.
    pub sent_at: Duration,
    /// When the provider's head came.
    pub head_at: Option<Duration>,
    /// When the first piece of the result came.
    pub first_token_at: Option<Duration>,
    /// When its outcome was known.
    pub ended_at: Option<Duration>,
    /// Its outcome.
    pub end: Option<AttemptEnd>,
    /// Whether another attempt was allowed after it, by the verdict of [`crate::recovery`].
    pub recovery_eligible: bool,
}

impl AttemptRecord {
    pub(crate) const fn new(attempt: Attempt, grant: Grant, sent_at: Duration) -> Self {
        Self {
            attempt,
            grant,
            sent_at,
            head_at: None,
            first_token_at: None,
            ended_at: None,
            end: None,
            recovery_eligible: false,
        }
    }

    /// Says whether it was let in by a gate, as far as is known, and counts as an attempt: asking once
    /// more without an option of ours does not.
    pub(crate) const fn has_passed(&self) -> bool {
        match &self.end {
            Some(AttemptEnd::Requeued(_) | AttemptEnd::UsageOptionRefused) => false,
            Some(AttemptEnd::Completed | AttemptEnd::Cancelled(_) | AttemptEnd::Failed(_))
            | None => true,
        }
    }

    /// Settles the outcome; the first one stays.
    pub(crate) fn settle(&mut self, at: Duration, end: AttemptEnd) {
        if self.end.is_none() {
            self.ended_at = Some(at);
            self.end = Some(end);
        }
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptEnd {
    /// Its response reached its end.
    Completed,
    /// The Edge cut it for the client's sake.
    Cancelled(ErrorCode),
    /// It failed.
    Failed(Failure),
    /// Nothing was executed and the request went back to the queue.
    Requeued(Requeue),
    /// The provider refused an option that the Edge had added, and is asked once more without it.
    UsageOptionRefused,
}

impl AttemptEnd {
    /// Returns the stable text of history's `terminal`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Cancelled(code) => code.as_str(),
            Self::Failed(failure) => failure.code.as_str(),
            Self::Requeued(cause) => cause.as_str(),
            Self::UsageOptionRefused => USAGE_OPTION_REFUSED,
        }
    }
}

/// History's word for the attempt that leaves `stream_options` out, and for the one before it.
pub const USAGE_OPTION_REFUSED: &str = "usage_option_refused";
