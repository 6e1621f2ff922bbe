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

    /// Cancels the request whose id begins like this, or whose request id this is, with all its
    /// attempts, in whatever phase it is.
    ///
    /// # Errors
    /// There is no such request, or there are several, or its client has its end already.
    pub(crate) fn cancel(&self, id: &str) -> Result<RunId, CancelError> {
        let (run_id, request) = self.find(id)?;
        match request.cancel() {
            true => Ok(run_id),
            false => Err(CancelError::Over { run_id }),
        }
    }

    /// Finds the request whose id begins like this or, if there is none, whose request id this is.
    ///
    /// # Errors
    /// There is no such request, or there are several.
    pub(crate) fn find(&self, id: &str) -> Result<(RunId, Arc<Request>), CancelError> {
        if id.is_empty() {
            return Err(CancelError::Unknown);
        }
        let prefix = id.to_ascii_lowercase();
        let requests = self.lock();
        let by_run = requests.iter().filter(|(run_id, _)| run_id.to_string().starts_with(&prefix));
        let by_request = requests.iter().filter(|(_, held)| held.request_id().as_str() == id);
        let mut found = by_run.take(2).collect::<Vec<_>>();
        if found.is_empty() {
            found.extend(by_request.take(2));
        }
        match found.as_slice() {
            [] => Err(CancelError::Unknown),
            [(run_id, request)] => Ok((**run_id, Arc::clone(request))),
            _ => Err(CancelError::Ambiguous { id: id.to_owned() }),
        }
    }

    /// Returns the request of this run.
    pub(crate) fn of(&self, run_id: RunId) -> Option<Arc<Request>> {
        self.lock().get(&run_id).cloned()
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
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CancelError {
    /// Nothing under way has this id.
    #[error("no such run is under way")]
    Unknown,
    /// Several do.
    #[error("`{id}` is the beginning, or the request id, of several runs: send a whole run id")]
    Ambiguous {
        /// What was asked for.
        id: String,
    },
    /// Its client has its end, and its provider is being waited for.
    #[error("run {run_id} has ended already: only its provider is still being waited for")]
    Over {
        /// The run.
        run_id: RunId,
    },
}

/// Returns how often to look for clients that do not read: often enough to be late by an eighth of
/// the allowed time at most.
pub(crate) fn sweep_period(within: Duration) -> Duration {
    (within / 8).clamp(Duration::from_millis(5), Duration::from_secs(5))
}
