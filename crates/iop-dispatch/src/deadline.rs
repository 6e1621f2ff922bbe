//! How long a request may take, counted from its receipt, time in the queue included.

use std::time::{Duration, Instant};

use iop_types::{ErrorCode, Failure};

/// The two bounds of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Bound on the first progress; `None` leaves it unbounded.
    pub first_progress: Option<Duration>,
    /// Bound on the whole, where the route sets one.
    pub whole: Option<Duration>,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            // 15 min: a cold load of a large model and a prefill of 130k tokens fit in.
            first_progress: Some(Duration::from_secs(15 * 60)),
            whole: None,
        }
    }
}

/// What another attempt takes at the very least: a connection and one token.
const LEAST_TIME: Duration = Duration::from_millis(100);

/// The bounds as points in time; the first falls away with the first progress.
#[derive(Debug)]
pub(crate) struct Clock {
    received: Instant,
    limits: Deadlines,
    has_progressed: bool,
}

impl Clock {
    pub(crate) const fn new(received: Instant, limits: Deadlines) -> Self {
        Self { received, limits, has_progressed: false }
    }

    pub(crate) const fn note_progress(&mut self) {
        self.has_progressed = true;
    }

    /// What had progressed is discarded: the bound on the first progress is what it was.
    pub(crate) const fn forget_progress(&mut self) {
        self.has_progressed = false;
    }

    /// Says whether another attempt could begin to answer in time.
    pub(crate) fn has_time(&self, now: Instant) -> bool {
        let bounds = [self.limits.first_progress, self.limits.whole];
        bounds.into_iter().flatten().all(|limit| self.received + limit >= now + LEAST_TIME)
    }

    /// Returns the time since the receipt.
    pub(crate) fn since_receipt(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.received)
    }

    fn first_progress(&self) -> Option<Instant> {
        self.limits.first_progress.filter(|_| !self.has_progressed).map(|d| self.received + d)
    }

    fn whole(&self) -> Option<Instant> {
        self.limits.whole.map(|d| self.received + d)
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.first_progress().into_iter().chain(self.whole()).min()
    }

    /// Returns what is left until the first progress and until the end, for the Node.
    pub(crate) fn remaining(&self, now: Instant) -> (Option<Duration>, Option<Duration>) {
        let left = |at: Instant| at.saturating_duration_since(now);
        (self.first_progress().map(left), self.whole().map(left))
    }

    /// Returns the failure of a bound that has passed; it names the bound.
    pub(crate) fn overdue(&self, now: Instant) -> Option<Failure> {
        let fail = |message| Some(Failure::new(ErrorCode::DeadlineExceeded, message));
        match (self.limits.whole, self.limits.first_progress) {
            (Some(limit), _) if self.whole().is_some_and(|at| at <= now) => fail(format!(
                "request was not finished within {} s, the timeout of its route",
                limit.as_secs_f64()
            )),
            (_, Some(limit)) if self.first_progress().is_some_and(|at| at <= now) => {
                fail(format!("no progress within {} s of the request", limit.as_secs_f64()))
            }
            _ => None,
        }
    }
}
