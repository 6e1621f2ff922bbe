//! Whether an attempt that ended is followed by another: the only place that decides it.
//!
//! Three kinds of further sends exist. A request that no provider saw goes back to its place in the
//! queue, and one that was refused for an option of ours is asked without it: neither is a retry and
//! neither counts. A **retry** follows a failure for a [`Reason`], and only if all of this holds: no byte
//! of the response has reached the client; the request may be executed twice and its body is still
//! there; its route allows it; fewer than three attempts have passed the gate; the deadlines leave
//! time; and the Edge's [`Budget`] has one left, which is asked last because asking takes it.

use std::time::Instant;

use iop_types::{ErrorCode, Failure, Recovery, Requeue};

use crate::budget::Budget;
use crate::outcome::{Ended, provider_answered};

/// Sends of one request that were refused before start. Admission keeps a refusing provider out of
/// the choice until it reports, so that this is met only where refusals and reports take turns for
/// ever; it also bounds what history keeps of one request.
const MAX_REFUSED_SENDS: u32 = 64;

/// Attempts of one request that pass a gate: a third provider may be well where two are not, and a
/// request at which three failed is likely to be the reason.
const MAX_ATTEMPTS: usize = 3;

/// What a request's route and its Edge allow.
#[derive(Debug, Clone)]
pub struct Policy {
    /// How far the route lets the Edge try again.
    pub recovery: Recovery,
    /// How long a streamed head is held back for its first progress; zero lets every head through.
    pub hold_head: std::time::Duration,
    /// Whether the operation may be executed twice and its body can be sent again.
    pub is_repeatable: bool,
    /// What the Edge's retries are taken from.
    pub budget: Budget,
}

/// Why a further attempt is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No connection to the provider could be made: it has seen nothing.
    ConnectFailed,
    /// The provider let go of the connection.
    ConnectionLost,
    /// The link to the Node ended.
    NodeLost,
    /// The provider fell silent and its call was seen to return.
    ResponseStalled,
    /// The provider answered 429.
    Provider429,
    /// The provider answered 502.
    Provider502,
    /// The provider answered 503.
    Provider503,
    /// The provider answered 504.
    Provider504,
}

impl Reason {
    /// Every reason.
    pub const ALL: &[Self] = &[
        Self::ConnectFailed,
        Self::ConnectionLost,
        Self::NodeLost,
        Self::ResponseStalled,
        Self::Provider429,
        Self::Provider502,
        Self::Provider503,
        Self::Provider504,
    ];

    /// Returns the stable text of history and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ConnectFailed => "connect_failed",
            Self::ConnectionLost => "connection_lost",
            Self::NodeLost => "node_lost",
            Self::ResponseStalled => "response_stalled",
            Self::Provider429 => "provider_429",
            Self::Provider502 => "provider_502",
            Self::Provider503 => "provider_503",
            Self::Provider504 => "provider_504",
        }
    }

    /// Finds the reason in a failure before the first progress.
    fn of(failure: &Failure) -> Option<Self> {
        if let Some(reason) = failure.provider_status.and_then(Self::of_status) {
            return Some(reason);
        }
        match failure.code {
            ErrorCode::ConnectFailed => Some(Self::ConnectFailed),
            ErrorCode::NodeLost => Some(Self::NodeLost),
            ErrorCode::ResponseStalled => failure
                .stall
                .is_some_and(|stall| stall.is_retryable())
                .then_some(Self::ResponseStalled),
            _ => failure.connection_lost.then_some(Self::ConnectionLost),
        }
    }

    /// Finds the reason in a provider's status.
    pub(crate) const fn of_status(status: u16) -> Option<Self> {
        match status {
            429 => Some(Self::Provider429),
            502 => Some(Self::Provider502),
            503 => Some(Self::Provider503),
            504 => Some(Self::Provider504),
            _ => None,
        }
    }

    /// Says whether the provider gave an answer.
    pub const fn is_answer(self) -> bool {
        match self {
            Self::Provider429 | Self::Provider502 | Self::Provider503 | Self::Provider504 => true,
            Self::ConnectFailed | Self::ConnectionLost | Self::NodeLost | Self::ResponseStalled => {
                false
            }
        }
    }

    /// Says whether only another candidate is worth asking: the same one would refuse, or fall silent,
    /// again. A connection or a link that was lost can be another one at once.
    pub const fn is_for_another(self) -> bool {
        match self {
            Self::ConnectFailed
            | Self::ResponseStalled
            | Self::Provider429
            | Self::Provider502
            | Self::Provider503
            | Self::Provider504 => true,
            Self::ConnectionLost | Self::NodeLost => false,
        }
    }

    /// Says whether no byte of the request can have reached a provider.
    const fn is_before_contact(self) -> bool {
        matches!(self, Self::ConnectFailed)
    }
}

/// What is known of an attempt when it is judged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub(crate) now: Instant,
    pub(crate) policy: &'a Policy,
    /// Whether it carried an option that only the Edge wanted.
    pub(crate) asks_usage: bool,
    /// Whether it has begun to answer.
    pub(crate) has_answered: bool,
    /// Whether any of its response has been released to the client.
    pub(crate) is_released: bool,
    /// The status of an answer that is held because another provider may give a better one.
    pub(crate) held_refusal: Option<u16>,
    /// Sends of this request that were refused before start, this one left out.
    pub(crate) refused_sends: u32,
    /// Attempts that passed a gate, this one included.
    pub(crate) passed: usize,
    /// Whether a candidate at which the request has not failed was ready.
    pub(crate) has_others: bool,
    /// Whether the deadlines leave time for another.
    pub(crate) has_time: bool,
}

/// What follows an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    /// The request goes back to its place.
    Requeue(Requeue),
    /// The same candidate is asked once more, without the option.
    AskWithoutUsage,
    /// Another attempt is made.
    Retry(Reason, Failure),
    /// The attempt's end is the request's.
    End(Ended),
}

/// Judges an attempt that ended by what its Node said last.
pub(crate) fn judge(facts: &Facts<'_>, ended: Ended) -> Next {
    match ended {
        Ended::Refused(refusal) => match refusal.requeue() {
            Some(cause) => judge_unsent(facts, cause),
            None => Next::End(Ended::Refused(refusal)),
        },
        Ended::Failed(failure)
            if !facts.has_answered && is_usage_refusal(facts, failure.provider_status) =>
        {
            Next::AskWithoutUsage
        }
        Ended::Failed(failure) => match Reason::of(&failure) {
            Some(reason) if may_retry(facts, reason) => Next::Retry(reason, failure),
            Some(_) | None => Next::End(Ended::Failed(failure)),
        },
        Ended::Completed(seen) => {
            match facts.held_refusal.and_then(|status| Some((status, Reason::of_status(status)?))) {
                Some((status, reason)) if may_retry(facts, reason) => {
                    Next::Retry(reason, provider_answered(status))
                }
                Some(_) | None => Next::End(Ended::Completed(seen)),
            }
        }
        Ended::Cancelled => Next::End(ended),
    }
}

/// Judges an attempt that never reached a provider.
pub(crate) fn judge_unsent(facts: &Facts<'_>, cause: Requeue) -> Next {
    // Whoever answers and then says that nothing was started is not believed.
    if facts.has_answered {
        let message = "the attempt was lost after it had begun to answer";
        return Next::End(Ended::Failed(Failure::new(ErrorCode::NodeLost, message)));
    }
    if facts.refused_sends + 1 < MAX_REFUSED_SENDS {
        return Next::Requeue(cause);
    }
    let message =
        format!("no node started the request in {MAX_REFUSED_SENDS} sends, last: {cause}");
    Next::End(Ended::Failed(Failure::new(ErrorCode::NoReadyProvider, message)))
}

/// Judges a provider's status line: whether it may be about an option that the client did not send.
///
/// Any 400 is taken for it, for providers word it in too many ways. A request that is wrong for
/// another reason gets the same answer a second time, and that one is the client's.
pub(crate) fn is_usage_refusal(facts: &Facts<'_>, status: Option<u16>) -> bool {
    facts.asks_usage && status == Some(400)
}

/// Says whether an answer with this status is worth holding: another provider may be asked instead.
pub(crate) fn is_held_refusal(facts: &Facts<'_>, status: u16) -> bool {
    Reason::of_status(status).is_some_and(|reason| is_allowed(facts, reason))
}

/// Says whether another candidate would have been asked, had the silent call been seen to return.
pub(crate) fn is_kept_from_others(facts: &Facts<'_>, failure: &Failure) -> bool {
    let is_unconfirmed = failure.stall.is_some_and(|stall| !stall.is_retryable());
    is_unconfirmed && is_allowed(facts, Reason::ResponseStalled)
}

/// Says whether a retry for this reason is made now, and takes it from the budget.
fn may_retry(facts: &Facts<'_>, reason: Reason) -> bool {
    is_allowed(facts, reason) && facts.has_time && facts.policy.budget.take(facts.now)
}

fn is_allowed(facts: &Facts<'_>, reason: Reason) -> bool {
    let is_in_reach = match facts.policy.recovery {
        Recovery::Off => false,
        Recovery::ConnectOnly => reason.is_before_contact(),
        Recovery::Full => true,
    };
    is_in_reach
        && facts.policy.is_repeatable
        && !facts.is_released
        && facts.passed < MAX_ATTEMPTS
        && (facts.has_others || !reason.is_for_another())
}
