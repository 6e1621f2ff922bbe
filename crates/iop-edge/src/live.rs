//! Every request from its admission to the return of its last attempt.
//!
//! The table is how something other than the client's own connection reaches a request: an operator who
//! cancels it, the end of the drain, the sweep for clients that do not read, and the figure of what is
//! in flight.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use iop_types::RunId;
use tokio::sync::Notify;

use crate::relay::Request;

/// The requests of one Edge.
#[derive(Default)]
pub(crate) struct Live {
    requests: Mutex<BTreeMap<RunId, Arc<Request>>>,
    left: Notify,
}

impl Live {
    /// Enters a request.
    pub(crate) fn enter(&self, run_id: RunId, request: &Arc<Request>) {
        self.lock().insert(run_id, Arc::clone(request));
    }

    /// A request is over.
    pub(crate) fn leave(&self, run_id: RunId) {
        self.lock().remove(&run_id);
        self.left.notify_waiters();
    }

    /// Cancels the request whose id begins like this, with all its attempts, in whatever phase it is.
    ///
    /// # Errors
    /// There is no such request, or there are several, or its client has its end already.
    pub(crate) fn cancel(&self, prefix: &str) -> Result<RunId, CancelError> {
        let (run_id, request) = self.find(&prefix.to_ascii_lowercase())?;
        match request.cancel() {
            true => Ok(run_id),
            false => Err(CancelError::Over),
        }
    }

    fn find(&self, prefix: &str) -> Result<(RunId, Arc<Request>), CancelError> {
        if prefix.is_empty() {
            return Err(CancelError::Unknown);
        }
        let requests = self.lock();
        let mut found = requests.iter().filter(|(id, _)| id.to_string().starts_with(prefix));
        match (found.next(), found.next()) {
            (None, _) => Err(CancelError::Unknown),
            (Some(_), Some(_)) => Err(CancelError::Ambiguous),
            (Some((id, request)), None) => Ok((*id, Arc::clone(request))),
        }
    }

    /// Counts them.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Completes once there are none.
    pub(crate) async fn none_left(&self) {
        loop {
            let mut left = std::pin::pin!(self.left.notified());
            left.as_mut().enable();
            if self.len() == 0 {
                return;
            }
            left.await;
        }
    }

    /// Visits every request; each may leave meanwhile.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&Arc<Request>)) {
        let all: Vec<_> = self.lock().values().cloned().collect();
        all.iter().for_each(&mut visit);
    }

    /// Looks after requests that their clients do not poll, until the future is dropped.
    pub(crate) async fn sweep(&self, period: Duration) {
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = crate::now();
            self.for_each(|request| request.look_after(now));
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RunId, Arc<Request>>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a request cannot be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CancelError {
    /// Nothing under way has this id.
    #[error("no such run is under way: it may have ended, which `iop runs show` tells")]
    Unknown,
    /// Several do.
    #[error("several runs under way begin like this: give more of the id")]
    Ambiguous,
    /// Its client has its end, and its provider is being waited for.
    #[error("the run has ended already: only its provider is still being waited for")]
    Over,
}

/// Returns how often to look for clients that do not read: often enough to be late by an eighth of
/// the allowed time at most.
pub(crate) fn sweep_period(within: Duration) -> Duration {
    (within / 8).clamp(Duration::from_millis(5), Duration::from_secs(5))
}
