//! Whether an attempt that ended is followed by another: the only place that decides it.
//!
//! Two kinds of further sends exist, and neither is a retry: a request that no provider saw goes back
//! to its place in the queue, and one that was refused for an option of ours is asked without it.
//! Neither counts as a retry. Trying again after a failure is not done; every attempt is therefore
//! recorded as not eligible.

use iop_types::{ErrorCode, Failure, Requeue};

use crate::outcome::Ended;

/// Sends of one request that were refused before start. Admission keeps a refusing provider out of
/// the choice until it reports, so that this is met only where refusals and reports take turns for
/// ever; it also bounds what history keeps of one request.
const MAX_REFUSED_SENDS: u32 = 64;

/// What is known of an attempt when it is judged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    /// Whether it carried an option that only the Edge wanted.
    pub(crate) asks_usage: bool,
    /// Whether any of its response has been released to the client or kept for it.
    pub(crate) has_answered: bool,
    /// Sends of this request that were refused before start, this one left out.
    pub(crate) refused_sends: u32,
}

/// What follows an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) next: Next,
    /// For history.
    pub(crate) recovery_eligible: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    /// The request goes back to its place.
    Requeue(Requeue),
    /// The same candidate is asked once more, without the option.
    AskWithoutUsage,
    /// The attempt's end is the request's.
    End(Ended),
}

impl Verdict {
    const fn of(next: Next) -> Self {
        Self { next, recovery_eligible: false }
    }
}

/// Judges an attempt that ended by what its Node said last.
pub(crate) fn judge(facts: Facts, ended: Ended) -> Verdict {
    match ended {
        Ended::Refused(refusal) => match refusal.requeue() {
            Some(cause) => judge_unsent(facts, cause),
            None => Verdict::of(Next::End(Ended::Refused(refusal))),
        },
        Ended::Failed(failure)
            if !facts.has_answered && is_usage_refusal(facts, failure.provider_status) =>
        {
            Verdict::of(Next::AskWithoutUsage)
        }
        Ended::Completed(_) | Ended::Cancelled | Ended::Failed(_) => Verdict::of(Next::End(ended)),
    }
}

/// Judges an attempt that never reached a provider.
pub(crate) fn judge_unsent(facts: Facts, cause: Requeue) -> Verdict {
    // Whoever answers and then says that nothing was started is not believed.
    if facts.has_answered {
        let message = "the attempt was lost after it had begun to answer";
        return Verdict::of(Next::End(Ended::Failed(Failure::new(ErrorCode::NodeLost, message))));
    }
    if facts.refused_sends + 1 < MAX_REFUSED_SENDS {
        return Verdict::of(Next::Requeue(cause));
    }
    let message =
        format!("no node started the request in {MAX_REFUSED_SENDS} sends, last: {cause}");
    Verdict::of(Next::End(Ended::Failed(Failure::new(ErrorCode::NoReadyProvider, message))))
}

/// Judges a provider's status line: whether it may be about an option that the client did not send.
///
/// Any 400 is taken for it, for providers word it in too many ways. A request that is wrong for
/// another reason gets the same answer a second time, and that one is the client's.
pub(crate) fn is_usage_refusal(facts: Facts, status: Option<u16>) -> bool {
    facts.asks_usage && status == Some(400)
}
