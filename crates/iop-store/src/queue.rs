//! Rows on their way to the writer: bounded, never waited for by those who push.
//!
//! A batch is what came within 50 ms of its first row, however much that is: a busy process then pays
//! for twenty transactions a second and for twenty wake-ups of its writer, and runs that begin and
//! end within one batch, which under load are most of them, are written once. A quarter of the queue
//! does not wait that long.

use std::mem;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::health::Health;

/// Rows that wait or are being written at most: half a second of 15 000 requests a second, two rows
/// each, or 10 s of 800 while another process holds the file. About 7 MB when full.
pub(crate) const CAPACITY: usize = 16_384;
/// How long a row waits for others to share its transaction.
pub(crate) const LINGER: Duration = Duration::from_millis(50);
/// Room for so many rows is kept from batch to batch: what 15 000 requests bring within [`LINGER`].
const KEPT_ROOM: usize = 2048;

/// A bounded queue with one consumer that takes batches.
#[derive(Debug)]
pub(crate) struct Queue<R> {
    state: Mutex<State<R>>,
    /// Wakes the writer: rows came, somebody flushes, or the end is near.
    work: Condvar,
    /// Wakes those who flush: rows were written or dropped.
    settled: Condvar,
    capacity: usize,
}

#[derive(Debug)]
struct State<R> {
    waiting: Vec<R>,
    /// Rows that the writer has taken and not yet settled.
    taken: usize,
    /// Somebody waits for everything to be written: rows do not wait for company.
    flushing: usize,
    /// Whether the writer has opened the file, or failed to: before that there may be no tables.
    is_opened: bool,
    stage: Stage,
    health: Health,
}

/// Declared in the order in which they follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Rows come and are written; failures are waited out.
    Open,
    /// No further rows come; the rest is written, failures are waited out.
    Closing,
    /// The rest is written; the first failure gives it up.
    GivingUp,
}

impl<R> Queue<R> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            state: Mutex::new(State {
                waiting: Vec::new(),
                taken: 0,
                flushing: 0,
                is_opened: false,
                stage: Stage::Open,
                health: Health::default(),
            }),
            work: Condvar::new(),
            settled: Condvar::new(),
            capacity,
        }
    }

    /// Makes a queue that nobody empties: every row is dropped.
    pub(crate) fn disabled(reason: String) -> Self {
        let queue = Self::new(0);
        queue.lock().health.degraded = Some(reason);
        queue
    }

    /// Adds a row, or drops it when too many wait.
    pub(crate) fn push(&self, row: R) {
        let mut state = self.lock();
        if state.stage > Stage::Open || state.waiting.len() + state.taken >= self.capacity {
            state.health.dropped += 1;
            if state.health.degraded.is_none() {
                state.health.degraded = Some("rows come faster than they are written".to_owned());
            }
            return;
        }
        state.waiting.push(row);
        let count = state.waiting.len();
        drop(state);
        // The writer sleeps until the first row of a batch, then for as long as rows may wait.
        if count == 1 || count == self.hurry() {
            self.work.notify_one();
        }
    }

    /// Waits for rows and puts them all into `batch`, in place of what it held; false when no more
    /// can come.
    pub(crate) fn take(&self, batch: &mut Vec<R>) -> bool {
        if batch.capacity() > KEPT_ROOM {
            *batch = Vec::new();
        }
        batch.clear();
        let mut state = self.lock();
        while state.waiting.is_empty() {
            if state.stage > Stage::Open {
                return false;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let due = Instant::now() + LINGER;
        while state.waiting.len() < self.hurry()
            && state.flushing == 0
            && state.stage == Stage::Open
        {
            let rest = due.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                break;
            }
            state = self.work.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
        mem::swap(&mut state.waiting, batch);
        state.taken = batch.len();
        true
    }

    /// So many rows do not wait for company.
    const fn hurry(&self) -> usize {
        self.capacity.div_ceil(4)
    }

    /// Notes that the rows last taken are written.
    pub(crate) fn written(&self) {
        let mut state = self.lock();
        state.health.written += state.taken as u64;
        state.health.degraded = None;
        state.taken = 0;
        self.settled.notify_all();
    }

    /// Notes why rows cannot be written, and says whether that is news.
    pub(crate) fn degraded(&self, reason: &str) -> bool {
        let mut state = self.lock();
        let is_news = state.health.degraded.as_deref() != Some(reason);
        state.health.degraded = Some(reason.to_owned());
        is_news
    }

    /// Notes that the file works, with nothing to write.
    pub(crate) fn recovered(&self) {
        self.lock().health.degraded = None;
    }

    /// Notes that the writer has opened the file, or failed to.
    pub(crate) fn opened(&self) {
        self.lock().is_opened = true;
        self.settled.notify_all();
    }

    /// Waits until the writer has opened the file, or failed to; false when that takes too long.
    pub(crate) fn wait_until_opened(&self, within: Duration) -> bool {
        let state = self.lock();
        let (state, _) = self
            .settled
            .wait_timeout_while(state, within, |state| !state.is_opened)
            .unwrap_or_else(PoisonError::into_inner);
        state.is_opened
    }

    /// Notes where a broken file was put.
    pub(crate) fn set_aside(&self, path: PathBuf) {
        self.lock().health.set_aside = Some(path);
    }

    /// Waits before the rows last taken are tried again; false when they are to be given up.
    pub(crate) fn wait_for_retry(&self, pause: Duration) -> bool {
        let state = self.lock();
        let (state, _) = self
            .work
            .wait_timeout_while(state, pause, |state| state.stage < Stage::GivingUp)
            .unwrap_or_else(PoisonError::into_inner);
        state.stage < Stage::GivingUp
    }

    /// Drops the rows last taken and all that wait.
    pub(crate) fn give_up(&self) {
        let mut state = self.lock();
        state.health.dropped += (state.taken + state.waiting.len()) as u64;
        state.taken = 0;
        state.waiting.clear();
        self.settled.notify_all();
    }

    /// Waits until every row is written or dropped; false when that takes too long.
    pub(crate) fn flush(&self, within: Duration) -> bool {
        let mut state = self.lock();
        state.flushing += 1;
        self.work.notify_one();
        let (mut state, _) = self
            .settled
            .wait_timeout_while(state, within, |state| !state.is_settled())
            .unwrap_or_else(PoisonError::into_inner);
        state.flushing -= 1;
        state.is_settled()
    }

    /// Refuses further rows; the writer ends once the rest is written.
    pub(crate) fn close(&self) {
        self.advance(Stage::Closing);
    }

    /// Refuses further rows; the writer ends at the next failure or once the rest is written.
    pub(crate) fn close_now(&self) {
        self.advance(Stage::GivingUp);
    }

    /// Returns how the history is doing.
    pub(crate) fn health(&self) -> Health {
        let state = self.lock();
        Health { waiting: state.waiting.len() + state.taken, ..state.health.clone() }
    }

    fn advance(&self, stage: Stage) {
        let mut state = self.lock();
        state.stage = state.stage.max(stage);
        self.work.notify_all();
    }

    /// A panic while the lock was held cannot leave the state half changed: nothing below panics.
    fn lock(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R> State<R> {
    fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.taken == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_waits_for_the_file_to_be_opened_and_no_longer_than_that() {
        let queue = std::sync::Arc::new(Queue::<()>::new(2));
        assert!(!queue.wait_until_opened(Duration::ZERO));
        let opener = std::sync::Arc::clone(&queue);
        let opening = std::thread::spawn(move || opener.opened());
        assert!(queue.wait_until_opened(Duration::from_secs(20)));
        opening.join().unwrap();
    }

    #[test]
    fn a_full_queue_drops_and_says_so_without_waiting() {
        let queue = Queue::new(2);
        for row in 0..5 {
            queue.push(row);
        }
        let health = queue.health();
        assert_eq!((health.waiting, health.dropped), (2, 3));
        assert!(health.degraded.is_some());
        let mut batch = Vec::new();
        assert!(queue.take(&mut batch));
        assert_eq!(batch, [0, 1]);
        queue.written();
        let health = queue.health();
        assert_eq!((health.waiting, health.written, health.degraded), (0, 2, None));
    }

    #[test]
    fn a_batch_is_all_that_waits_and_what_is_being_written_counts_towards_the_bound() {
        let queue = Queue::new(100);
        (0..60).for_each(|row| queue.push(row));
        let mut batch = Vec::new();
        assert!(queue.take(&mut batch));
        assert_eq!(batch.len(), 60);
        (0..60).for_each(|row| queue.push(row));
        let health = queue.health();
        assert_eq!((health.waiting, health.dropped), (100, 20));
        queue.written();
        assert!(queue.take(&mut batch));
        assert_eq!(batch, (0..40).collect::<Vec<_>>());
    }

    #[test]
    fn a_quarter_of_the_queue_waits_for_nobody() {
        let queue = Queue::new(8);
        queue.push(1);
        queue.push(2);
        let began = Instant::now();
        assert!(queue.take(&mut Vec::new()));
        assert!(began.elapsed() < LINGER, "{:?}", began.elapsed());
    }

    #[test]
    fn after_the_close_rows_are_dropped_and_the_rest_can_be_given_up() {
        let queue = Queue::new(10);
        queue.push(1);
        queue.push(2);
        queue.close_now();
        queue.push(3);
        assert!(queue.take(&mut Vec::new()));
        assert!(!queue.wait_for_retry(Duration::from_secs(3600)));
        queue.give_up();
        assert_eq!(queue.health().dropped, 3);
        assert!(queue.flush(Duration::ZERO));
        assert!(!queue.take(&mut Vec::new()));
    }

    #[test]
    fn a_flush_that_nobody_serves_ends_in_time() {
        let queue = Queue::new(10);
        queue.push(1);
        assert!(!queue.flush(Duration::from_millis(1)));
    }
}
