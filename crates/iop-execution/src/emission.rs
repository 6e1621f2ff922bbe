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

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use iop_types::{CommandFrame, Event, TunnelFrame};

use crate::provider::{Fenced, Outlet};
use crate::sync::{Arc, AtomicU64, Mutex, MutexGuard, Ordering};

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

impl Output for CommandFrame {
    fn is_progress(&self) -> bool {
        !self.is_terminal()
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use bytes::Bytes;
    use iop_types::EventKind;
    use proptest::prelude::*;

    use super::*;

    /// Collects what leaves; has room while `full` is unset.
    #[derive(Default, Clone)]
    struct Sent {
        items: Arc<Mutex<Vec<TunnelFrame>>>,
        full: Arc<AtomicBool>,
    }

    impl Outlet<TunnelFrame> for Sent {
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Fenced>> {
            if self.full.load(Ordering::SeqCst) { Poll::Pending } else { Poll::Ready(Ok(())) }
        }

        fn put(&mut self, item: TunnelFrame) -> Result<(), Fenced> {
            self.items.lock().unwrap().push(item);
            Ok(())
        }
    }

    impl Terminus<TunnelFrame> for Sent {
        fn finish(mut self, terminal: TunnelFrame) -> Result<(), Fenced> {
            self.put(terminal)
        }
    }

    fn body(text: &'static str, progress: bool) -> TunnelFrame {
        TunnelFrame::Body { data: Bytes::from_static(text.as_bytes()), progress }
    }

    fn emission(sent: &Sent) -> Emission<Sent, impl Fn() -> Instant + Send> {
        Emission::new(sent.clone(), Instant::now)
    }

    #[test]
    fn what_was_put_before_the_fence_leaves_and_nothing_after() {
        let sent = Sent::default();
        let mut emission = emission(&sent);
        emission.put(body("a", true)).unwrap();
        emission.fence().close();
        assert_eq!(emission.put(body("b", true)), Err(Fenced));
        let ready = emission.poll_ready(&mut Context::from_waker(Waker::noop()));
        assert_eq!(ready, Poll::Ready(Err(Fenced)));
        assert_eq!(*sent.items.lock().unwrap(), [body("a", true)]);
    }

    #[test]
    fn the_terminal_follows_all_output_and_a_second_claim_fails() {
        let sent = Sent::default();
        let mut emission = emission(&sent);
        emission.put(body("a", true)).unwrap();
        let claim = emission.fence().claim().unwrap();
        assert!(emission.fence().claim().is_none());
        assert_eq!(emission.put(body("late", true)), Err(Fenced));
        emission.finish(claim, TunnelFrame::End).unwrap();
        assert_eq!(*sent.items.lock().unwrap(), [body("a", true), TunnelFrame::End]);
    }

    #[test]
    fn a_claim_of_another_emission_ends_nothing() {
        let (sent, other) = (Sent::default(), Sent::default());
        let foreign = emission(&other).fence().claim().unwrap();
        assert_eq!(emission(&sent).finish(foreign, TunnelFrame::End), Err(Fenced));
        assert!(sent.items.lock().unwrap().is_empty());
    }

    #[test]
    fn only_progress_moves_the_timestamps() {
        let start = Instant::now();
        let elapsed = Arc::new(AtomicU64::new(0));
        let hand = Arc::clone(&elapsed);
        let clock = move || start + Duration::from_millis(hand.load(Ordering::SeqCst));
        let mut emission = Emission::new(Sent::default(), clock);
        let fence = emission.fence();
        let mut put_at = |ms, frame| {
            elapsed.store(ms, Ordering::SeqCst);
            emission.put(frame).unwrap();
        };
        put_at(10, body(": ping", false));
        assert_eq!(fence.first_progress(), None);
        put_at(20, body("x", true));
        put_at(30, body("y", true));
        put_at(40, TunnelFrame::Trailers(Vec::new()));
        assert_eq!(fence.first_progress(), Some(start + Duration::from_millis(20)));
        assert_eq!(fence.last_progress(), Some(start + Duration::from_millis(30)));
    }

    #[test]
    fn a_terminal_event_is_no_progress_whatever_usage_it_carries() {
        let usage = Some(iop_types::Usage::default());
        let complete = Event { kind: EventKind::Complete { finish: Vec::new() }, usage };
        assert!(!Output::is_progress(&complete));
        assert!(Output::is_progress(&Event { kind: EventKind::Start, usage }));
    }

    #[tokio::test]
    async fn a_call_that_waits_for_room_learns_that_the_fence_closed() {
        let sent = Sent::default();
        sent.full.store(true, Ordering::SeqCst);
        let mut emission = emission(&sent);
        let fence = emission.fence();
        let outlet: &mut dyn Outlet<TunnelFrame> = &mut emission;
        let emit = outlet.emit(body("a", true));
        let close = async {
            tokio::task::yield_now().await;
            fence.close();
        };
        let (emitted, ()) = futures_util::future::join(emit, close).await;
        assert_eq!(emitted, Err(Fenced));
    }

    proptest! {
        #[test]
        fn exactly_one_terminal_wins_and_is_the_last_thing_to_leave(
            claimers in 1_usize..6,
            puts in 0_usize..50,
        ) {
            let sent = Sent::default();
            let mut emission = emission(&sent);
            let fences: Vec<_> = (0..claimers).map(|_| emission.fence()).collect();
            let claims = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    fences.iter().map(|fence| scope.spawn(|| fence.claim())).collect();
                for _ in 0..puts {
                    let _ = emission.put(body("x", true));
                }
                let claims: Vec<_> =
                    threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect();
                prop_assert_eq!(emission.put(body("late", true)), Err(Fenced));
                Ok(claims)
            })?;
            prop_assert_eq!(claims.len(), 1);
            let claim = claims.into_iter().next().expect("one was counted");
            emission.finish(claim, TunnelFrame::End).unwrap();
            let items = sent.items.lock().unwrap();
            let terminals = items.iter().filter(|item| item.is_terminal()).count();
            prop_assert_eq!(terminals, 1);
            prop_assert_eq!(items.last(), Some(&TunnelFrame::End));
        }
    }
}
