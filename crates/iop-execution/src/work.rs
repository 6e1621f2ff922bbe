//! What this Node is working on, and how to stop it.
//!
//! Calls are keyed by run and attempt, commands by their id, each in a table of their own. An entry goes exactly when its call returned: the host keeps
//! the [`Entry`] beside the call's future and drops both together, however the call ended. Every
//! way of cancelling (by key, by run, by link, at shutdown) goes through this table and takes the
//! same path from here; cancelling asks, it never removes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use iop_types::{Attempt, Generation, Refusal, RunId, WorkKey};

use crate::cancel::{Cancelled, Canceller, cancellation};

/// The table of calls, or of whatever else has keys of its own. Clones are handles of the same table.
pub struct Work<K = WorkKey>(Arc<Mutex<Table<K>>>);

struct Table<K> {
    calls: BTreeMap<K, Call>,
    draining: bool,
    waiting_for_idle: Option<Waker>,
}

struct Call {
    generation: Generation,
    canceller: Canceller,
}

impl<K: Copy + Ord> Work<K> {
    /// Makes an empty table.
    pub fn new() -> Self {
        let table = Table { calls: BTreeMap::new(), draining: false, waiting_for_idle: None };
        Self(Arc::new(Mutex::new(table)))
    }

    /// Enters a call that arrived on the link of `generation`.
    ///
    /// # Errors
    /// Refuses a key that is already at work, whichever link brought it, and everything once the
    /// Node drains.
    pub fn enter(&self, key: K, generation: Generation) -> Result<(Entry<K>, Cancelled), Refusal> {
        let mut table = self.lock();
        if table.calls.contains_key(&key) {
            return Err(Refusal::Duplicate);
        }
        if table.draining {
            return Err(Refusal::Draining);
        }
        let (canceller, cancelled) = cancellation();
        table.calls.insert(key, Call { generation, canceller });
        drop(table);
        Ok((Entry { work: self.clone(), key, generation }, cancelled))
    }

    /// Asks one call to wind up; says whether it was at work.
    pub fn cancel(&self, key: K) -> bool {
        self.cancel_where(|table| table.calls.get(&key).into_iter().collect()) > 0
    }

    /// Asks everything that came on one link to wind up; returns how much that was.
    pub fn cancel_generation(&self, generation: Generation) -> usize {
        self.cancel_where(|table| {
            table.calls.values().filter(|call| call.generation == generation).collect()
        })
    }

    /// Asks everything to wind up; returns how much that was.
    pub fn cancel_all(&self) -> usize {
        self.cancel_where(|table| table.calls.values().collect())
    }

    /// Takes nothing new from now on. What is at work goes on.
    pub fn drain(&self) {
        self.lock().draining = true;
    }

    /// Waits until nothing is at work. Cancel safe; one task waits at a time.
    pub async fn idle(&self) {
        std::future::poll_fn(|cx| self.poll_idle(cx)).await;
    }

    /// Returns how many calls are at work.
    pub fn len(&self) -> usize {
        self.lock().calls.len()
    }

    /// Says whether nothing is at work.
    pub fn is_empty(&self) -> bool {
        self.lock().calls.is_empty()
    }

    fn poll_idle(&self, cx: &Context<'_>) -> Poll<()> {
        let mut table = self.lock();
        if table.calls.is_empty() {
            return Poll::Ready(());
        }
        table.waiting_for_idle = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Cancels outside the lock: waking may run code of the host.
    fn cancel_where(&self, pick: impl FnOnce(&Table<K>) -> Vec<&Call>) -> usize {
        let cancellers: Vec<_> =
            pick(&self.lock()).into_iter().map(|call| call.canceller.clone()).collect();
        for canceller in &cancellers {
            canceller.cancel();
        }
        cancellers.len()
    }

    fn lock(&self) -> MutexGuard<'_, Table<K>> {
        self.0.lock().expect("no code panics while it holds the table of work")
    }
}

impl Work {
    /// Asks every attempt of a run to wind up; returns how many were at work.
    pub fn cancel_run(&self, run_id: RunId) -> usize {
        let first = WorkKey { run_id, attempt: Attempt(0) };
        let last = WorkKey { run_id, attempt: Attempt(u32::MAX) };
        self.cancel_where(|table| table.calls.range(first..=last).map(|(_, call)| call).collect())
    }
}

impl<K> Clone for Work<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Copy + Ord> Default for Work<K> {
    fn default() -> Self {
        Self::new()
    }
}

/// One call's place in the table; dropping it says that the call returned.
#[must_use = "dropping the entry says that the call returned"]
pub struct Entry<K: Copy + Ord = WorkKey> {
    work: Work<K>,
    key: K,
    generation: Generation,
}

impl<K: Copy + Ord> Entry<K> {
    /// Returns the key: of a call its run and attempt.
    pub const fn key(&self) -> K {
        self.key
    }

    /// Returns the link that brought the call.
    pub const fn generation(&self) -> Generation {
        self.generation
    }
}

impl<K: Copy + Ord> Drop for Entry<K> {
    fn drop(&mut self) {
        let mut table = self.work.lock();
        table.calls.remove(&self.key);
        let waker = if table.calls.is_empty() { table.waiting_for_idle.take() } else { None };
        drop(table);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(run: u8, attempt: u32) -> WorkKey {
        let run_id = RunId::from_slice(&[run; 16]).unwrap();
        WorkKey { run_id, attempt: Attempt(attempt) }
    }

    fn is_idle(work: &Work) -> bool {
        work.poll_idle(&Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn the_same_run_and_attempt_is_refused_until_its_call_returned() {
        let work = Work::new();
        let (entry, _cancelled) = work.enter(key(1, 1), Generation(1)).unwrap();
        // Another link changes nothing: the provider is still busy with this attempt.
        assert_eq!(work.enter(key(1, 1), Generation(2)).err(), Some(Refusal::Duplicate));
        assert!(work.enter(key(1, 2), Generation(1)).is_ok());
        drop(entry);
        assert!(work.enter(key(1, 1), Generation(1)).is_ok());
    }

    #[test]
    fn cancelling_asks_and_the_entry_stays_until_the_call_returned() {
        let work = Work::new();
        let (entry, cancelled) = work.enter(key(1, 1), Generation(1)).unwrap();
        assert!(work.cancel(key(1, 1)));
        assert!(cancelled.is_cancelled());
        assert_eq!(work.len(), 1);
        drop(entry);
        assert!(work.is_empty());
        assert!(!work.cancel(key(1, 1)));
    }

    #[test]
    fn cancelling_a_run_reaches_all_its_attempts_and_no_other_run() {
        let work = Work::new();
        let calls: Vec<_> = [key(1, 1), key(1, u32::MAX), key(2, 1), key(0, 3)]
            .map(|key| work.enter(key, Generation(1)).unwrap())
            .into();
        assert_eq!(work.cancel_run(key(1, 1).run_id), 2);
        let cancelled: Vec<_> = calls.iter().map(|(_, signal)| signal.is_cancelled()).collect();
        assert_eq!(cancelled, [true, true, false, false]);
    }

    #[test]
    fn the_end_of_a_link_cancels_its_own_work_only() {
        let work = Work::new();
        let (_old_entry, old) = work.enter(key(1, 1), Generation(4)).unwrap();
        let (_new_entry, new) = work.enter(key(2, 1), Generation(5)).unwrap();
        assert_eq!(work.cancel_generation(Generation(4)), 1);
        assert!(old.is_cancelled() && !new.is_cancelled());
        assert_eq!(work.cancel_all(), 2);
        assert!(new.is_cancelled());
    }

    #[test]
    fn commands_have_a_table_of_their_own() {
        let (work, commands) = (Work::new(), Work::new());
        let id = |number| iop_types::CommandId::from_slice(&[number; 16]).unwrap();
        let (_call, call) = work.enter(key(1, 1), Generation(1)).unwrap();
        let (entry, command) = commands.enter(id(1), Generation(1)).unwrap();
        let (_other, other) = commands.enter(id(2), Generation(2)).unwrap();
        assert_eq!(commands.enter(id(1), Generation(2)).err(), Some(Refusal::Duplicate));
        work.cancel_all();
        assert!(call.is_cancelled() && !command.is_cancelled());
        commands.cancel_generation(Generation(1));
        assert!(command.is_cancelled() && !other.is_cancelled());
        drop(entry);
        assert!(commands.enter(id(1), Generation(2)).is_ok());
    }

    #[test]
    fn a_drained_table_takes_nothing_new_and_is_idle_after_its_last_call() {
        let work = Work::new();
        let (entry, cancelled) = work.enter(key(1, 1), Generation(1)).unwrap();
        work.drain();
        assert_eq!(work.enter(key(2, 1), Generation(1)).err(), Some(Refusal::Draining));
        assert_eq!(work.enter(key(1, 1), Generation(1)).err(), Some(Refusal::Duplicate));
        assert!(!cancelled.is_cancelled());
        assert!(!is_idle(&work));
        drop(entry);
        assert!(is_idle(&work));
    }

    #[tokio::test]
    async fn the_one_who_waits_for_idle_is_woken_by_the_last_return() {
        let work = Work::new();
        let entries: Vec<_> =
            (0..3).map(|run| work.enter(key(run, 1), Generation(1)).unwrap()).collect();
        let returning = async {
            for entry in entries {
                drop(entry);
                tokio::task::yield_now().await;
            }
        };
        futures_util::future::join(work.idle(), returning).await;
        assert!(work.is_empty());
    }
}
