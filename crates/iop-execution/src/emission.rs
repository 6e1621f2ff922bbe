//! The fence behind which a call's output leaves, and the one terminal that ends it.
//!
//! ```text
//! open ──put──► open ──Fence::close──► closed ──┐
//!   └───────────Fence::claim─────────────────────┴──claim──► claimed ──finish──► (consumed)
//! ```
//!
//! Everything put while the fence is open leaves; nothing put later does, also when the fence is
//! closed from another thread: a put and a close are one after the other, never interleaved. A
//! terminal needs the [`Claim`], which exists once, and consumes the [`Emission`], so that two
//! terminals cannot be written, let alone sent. Whoever loses the race for the claim knows that
//! somebody else settles how the call ends.
//!
//! Progress is marked here as well, once for runs and tunnels: a timestamp is stored, no timer is
//! armed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use iop_types::{Event, TunnelFrame};

use crate::provider::{Fenced, Outlet};

/// An outlet that can be ended, for good, by consuming it.
pub trait Terminus<T>: Outlet<T> {
    /// Sends the terminal behind all that was put.
    ///
    /// # Errors
    /// The link or stream ended: the terminal reaches nobody.
    fn finish(self, terminal: T) -> Result<(), Fenced>;
}

/// Output of which some shows that the provider is getting on.
pub trait Output: Send {
    /// Says whether this item is progress.
    fn is_progress(&self) -> bool;
}

impl Output for Event {
    fn is_progress(&self) -> bool {
        self.is_progress()
    }
}

impl Output for TunnelFrame {
    fn is_progress(&self) -> bool {
        self.is_progress()
    }
}

/// The output of one call: an outlet behind a fence. `clock` tells the time of a progress.
pub struct Emission<O, C> {
    outlet: O,
    fence: Fence,
    clock: C,
}

impl<O, C: Fn() -> Instant> Emission<O, C> {
    /// Puts `outlet` behind a fence.
    pub fn new(outlet: O, clock: C) -> Self {
        let fence = Fence(Arc::new(Shared {
            began: clock(),
            gate: Mutex::new(FenceState { closed: false, claimed: false, waiting: None }),
            first_progress: AtomicU64::new(NEVER),
            last_progress: AtomicU64::new(NEVER),
        }));
        Self { outlet, fence, clock }
    }

    /// Returns a handle of the fence.
    pub fn fence(&self) -> Fence {
        self.fence.clone()
    }

    /// Ends the call's output with its one terminal.
    ///
    /// # Errors
    /// Nothing is sent when the stream ended, or when `claim` is that of another emission.
    pub fn finish<T>(self, claim: Claim, terminal: T) -> Result<(), Fenced>
    where
        O: Terminus<T>,
    {
        if !Arc::ptr_eq(&claim.0.0, &self.fence.0) {
            return Err(Fenced);
        }
        self.outlet.finish(terminal)
    }
}

impl<T, O, C> Outlet<T> for Emission<O, C>
where
    T: Output,
    O: Outlet<T>,
    C: Fn() -> Instant + Send,
{
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fenced>> {
        let mut state = self.fence.lock();
        if state.closed {
            return Poll::Ready(Err(Fenced));
        }
        let ready = self.outlet.poll_ready(cx);
        if ready.is_pending() {
            state.waiting = Some(cx.waker().clone());
        }
        ready
    }

    fn put(&mut self, item: T) -> Result<(), Fenced> {
        let progress = item.is_progress();
        // Held over the put, so that a fence closed meanwhile is closed either before or after it.
        let state = self.fence.lock();
        if state.closed {
            return Err(Fenced);
        }
        self.outlet.put(item)?;
        drop(state);
        if progress {
            self.fence.0.mark((self.clock)());
        }
        Ok(())
    }
}

/// Stops an emission and settles who ends it. Clones are handles of the same fence.
#[derive(Clone)]
pub struct Fence(Arc<Shared>);

impl Fence {
    /// Lets nothing more out; what was put before still leaves.
    pub fn close(&self) {
        self.lock().close();
    }

    /// Claims the right to end the call; closes the fence. Exactly one caller ever gets it.
    pub fn claim(&self) -> Option<Claim> {
        let mut state = self.lock();
        if state.claimed {
            return None;
        }
        state.claimed = true;
        state.close();
        drop(state);
        Some(Claim(self.clone()))
    }

    /// Says whether the fence is closed.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Returns when the first progress was put.
    pub fn first_progress(&self) -> Option<Instant> {
        self.0.read(&self.0.first_progress)
    }

    /// Returns when the last progress was put.
    pub fn last_progress(&self) -> Option<Instant> {
        self.0.read(&self.0.last_progress)
    }

    fn lock(&self) -> MutexGuard<'_, FenceState> {
        self.0.gate.lock().expect("no code panics while it holds the fence")
    }
}

/// The right to end one call; there is one.
#[must_use = "a claimed call ends only by its terminal"]
pub struct Claim(Fence);

struct Shared {
    began: Instant,
    gate: Mutex<FenceState>,
    /// Nanoseconds since `began`.
    first_progress: AtomicU64,
    last_progress: AtomicU64,
}

/// No progress yet. A call would have to run 584 years to reach it.
const NEVER: u64 = u64::MAX;

struct FenceState {
    closed: bool,
    claimed: bool,
    /// Who waits for room, to be told that there will be none.
    waiting: Option<Waker>,
}

impl FenceState {
    fn close(&mut self) {
        self.closed = true;
        if let Some(waker) = self.waiting.take() {
            waker.wake();
        }
    }
}

impl Shared {
    fn mark(&self, now: Instant) {
        let since = now.saturating_duration_since(self.began).as_nanos();
        let since = u64::try_from(since).unwrap_or(NEVER - 1);
        self.last_progress.store(since, Ordering::Release);
        if self.first_progress.load(Ordering::Relaxed) == NEVER {
            self.first_progress.store(since, Ordering::Release);
        }
    }

    fn read(&self, mark: &AtomicU64) -> Option<Instant> {
        match mark.load(Ordering::Acquire) {
            NEVER => None,
            since => Some(self.began + Duration::from_nanos(since)),
        }
    }
}
