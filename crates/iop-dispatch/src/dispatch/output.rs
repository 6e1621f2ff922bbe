//! What the host of a request is told to do.

use std::time::Duration;

use iop_types::{Attempt, Requeue};

use crate::outcome::Finish;
use crate::recovery::Reason;

/// What the host is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send an attempt under the permit that is held.
    Send(Send),
    /// Tell the Node to stop the attempt; go on reading until it has ended. It may just have ended by
    /// itself: then there is nothing to tell and [`Self::Release`] follows at once.
    Cancel(CancelCause),
    /// Give up the ticket.
    LeaveQueue,
    /// Give the permit back for the old place in the queue, and tell the answer.
    Requeue(Requeue),
    /// Give the permit back for the old place in the queue, for another candidate, and tell the
    /// answer. What was kept of the response is discarded.
    Retry(Retry),
    /// The head that was held is the client's, and so is what came behind it.
    ReleaseHead,
    /// Give the permit back: the attempt has returned.
    Release,
    /// Remember that this target refuses `stream_options`.
    RememberUsageRefusal,
    /// The request is over. Only [`Self::Release`] may follow.
    Finish(Finish),
}

/// One retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Why.
    pub reason: Reason,
    /// Whether the response is kept until the request is over: it may be the last one that a provider
    /// gives ([`ClientEnd::KeptAnswer`](crate::ClientEnd::KeptAnswer)). It takes the place of an earlier one.
    pub keeps_answer: bool,
}

/// One send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Send {
    /// Its number.
    pub attempt: Attempt,
    /// Whether `stream_options.include_usage` is added to the body.
    pub asks_usage: bool,
    /// Time left until the first progress.
    pub first_progress_within: Option<Duration>,
    /// Time left for the whole.
    pub ends_within: Option<Duration>,
}

/// Why an attempt is cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelCause {
    /// The client left.
    ClientGone,
    /// The client stopped reading.
    ClientStalled,
    /// A deadline passed.
    Deadline,
    /// An operator ended the request.
    Operator,
    /// The Edge's drain is over.
    ShuttingDown,
}

/// What becomes of a piece of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Relay {
    /// It is the client's.
    Forward,
    /// It is kept for the client until [`Output::ReleaseHead`] or [`Output::Retry`]. The host bounds
    /// what it keeps by [`Dispatch::handle_full`](crate::Dispatch::handle_full).
    Hold,
    /// It is nobody's.
    Discard,
}
