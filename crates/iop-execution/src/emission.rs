//! The fence behind which a call's output leaves, and the one terminal that ends it.
//!
//! ```text
//! open ──put──► open ──Fence::close──► closed ──┐
//!   └───────────Ender::claim─────────────────────┴──claim──► claimed ──finish──► (consumed)
//! ```
//!
//! Everything put while the fence is open leaves; nothing put later does, also when the fence is
//! closed from another thread: a put and a close are one after the other, never interleaved. A
//! terminal needs the [`Claim`], which exists once; finishing consumes it and takes the outlet out of
//! the fence, so that two terminals cannot be written, let alone sent. Whoever loses the race for the
//! claim knows that somebody else settles how the call ends. The call itself need not have returned:
//! what it still puts meets a closed fence.
//!
//! What the call shows of itself is noted here as well, once for runs and tunnels ([`Vitals`]): a
//! timestamp is stored, no timer is armed.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use iop_types::{CommandFrame, Event, TunnelFrame};

use crate::provider::{Completion, Fenced, Outlet};
use crate::sync::{Mutex, MutexGuard};
use crate::vitals::{Sent, Vitals};

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

/// The output of one call: an outlet behind a fence. `clock` tells when something came.
pub struct Emission<O, C> {
    shared: Arc<Shared<O>>,
    clock: C,
}

impl<O: Send + 'static, C: Fn() -> Instant> Emission<O, C> {
    /// Puts `outlet` behind a fence.
    pub fn new(outlet: O, clock: C) -> Self {
        let state = State { outlet: Some(outlet), control: Control::default() };
        Self { shared: Arc::new(Shared(Mutex::new(state))), clock }
    }

    /// Returns a handle of the fence.
    pub fn fence(&self) -> Fence {
        Fence(Arc::clone(&self.shared) as Arc<_>)
    }

    /// Returns a handle for whoever may come to end the call.
    pub fn ender(&self) -> Ender<O> {
        Ender(Arc::clone(&self.shared))
    }
}

impl<T, O, C> Outlet<T> for Emission<O, C>
where
    T: Output,
    O: Outlet<T>,
    C: Fn() -> Instant + Send,
{
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fenced>> {
        let state = &mut *self.shared.lock();
        let ready = state.open()?.poll_ready(cx);
        let control = &mut state.control;
        match (&ready, control.vitals.awaits_credit()) {
            (Poll::Pending, awaits_credit) => {
                if !awaits_credit {
                    control.vitals.note_no_credit((self.clock)());
                }
                control.waiting = Some(cx.waker().clone());
            }
            (Poll::Ready(_), true) => control.vitals.note_credit((self.clock)()),
            (Poll::Ready(_), false) => {}
        }
        ready
    }

    fn put(&mut self, item: T) -> Result<(), Fenced> {
        let progress = item.is_progress().then(|| (self.clock)());
        // Held over the put, so that a fence closed meanwhile is closed either before or after it.
        let mut state = self.shared.lock();
        state.open()?.put(item)?;
        if let Some(now) = progress {
            state.control.vitals.note_progress(now);
        }
        Ok(())
    }

    fn note_sent(&mut self, sent: Sent) {
        let now = (self.clock)();
        self.shared.lock().control.vitals.note_sent(sent, now);
    }

    fn note_outcome(&mut self) {
        self.shared.lock().control.vitals.note_outcome();
    }

    fn note_done(&mut self, completion: Completion) {
        let now = (self.clock)();
        let control = &mut self.shared.lock().control;
        control.vitals.note_done(now);
        control.completion = Some(completion);
    }
}

/// Stops an emission and tells what is known of its call. Clones are handles of the same fence.
#[derive(Clone)]
pub struct Fence(Arc<dyn Controlled>);

impl Fence {
    /// Lets nothing more out; what was put before still leaves.
    pub fn close(&self) {
        self.0.control(&mut Control::close);
    }

    /// Says whether the fence is closed.
    pub fn is_closed(&self) -> bool {
        let mut closed = false;
        self.0.control(&mut |control| closed = control.closed);
        closed
    }

    /// Returns what the call has shown of itself.
    pub fn vitals(&self) -> Vitals {
        let mut vitals = Vitals::default();
        self.0.control(&mut |control| vitals = control.vitals);
        vitals
    }

    /// Returns how the call completed, once its provider said that it is done.
    pub fn completion(&self) -> Option<Completion> {
        let mut completion = None;
        self.0.control(&mut |control| completion.clone_from(&control.completion));
        completion
    }

    /// Returns when the first progress was put.
    pub fn first_progress(&self) -> Option<Instant> {
        self.vitals().first_progress()
    }

    /// Returns when the last progress was put.
    pub fn last_progress(&self) -> Option<Instant> {
        self.vitals().last_progress()
    }
}

/// Settles who ends an emission. Clones compete for the same claim.
pub struct Ender<O>(Arc<Shared<O>>);

impl<O> Ender<O> {
    /// Claims the right to end the call; closes the fence. Exactly one caller ever gets it.
    pub fn claim(&self) -> Option<Claim<O>> {
        let control = &mut self.0.lock().control;
        if control.claimed {
            return None;
        }
        control.claimed = true;
        control.close();
        Some(Claim(Arc::clone(&self.0)))
    }
}

impl<O> Clone for Ender<O> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// The right to end one call; there is one.
#[must_use = "a claimed call ends only by its terminal"]
pub struct Claim<O>(Arc<Shared<O>>);

impl<O> Claim<O> {
    /// Ends the call's output with its one terminal.
    ///
    /// # Errors
    /// The link or stream ended: the terminal reaches nobody.
    pub fn finish<T>(self, terminal: T) -> Result<(), Fenced>
    where
        O: Terminus<T>,
    {
        let outlet = self.0.lock().outlet.take().ok_or(Fenced)?;
        outlet.finish(terminal)
    }
}

struct Shared<O>(Mutex<State<O>>);

impl<O> Shared<O> {
    fn lock(&self) -> MutexGuard<'_, State<O>> {
        self.0.lock().expect("no code panics while it holds the fence")
    }
}

struct State<O> {
    /// Taken out by whoever ends the call.
    outlet: Option<O>,
    control: Control,
}

impl<O> State<O> {
    fn open(&mut self) -> Result<&mut O, Fenced> {
        match &mut self.outlet {
            Some(outlet) if !self.control.closed => Ok(outlet),
            Some(_) | None => Err(Fenced),
        }
    }
}

/// What does not depend on the outlet's type.
#[derive(Default)]
struct Control {
    closed: bool,
    claimed: bool,
    /// Who waits for room, to be told that there will be none.
    waiting: Option<Waker>,
    vitals: Vitals,
    /// Known before the call returns where the provider leaves its answer open.
    completion: Option<Completion>,
}

impl Control {
    fn close(&mut self) {
        self.closed = true;
        if let Some(waker) = self.waiting.take() {
            waker.wake();
        }
    }
}

/// Lets one type of fence stand for emissions of any outlet; nothing of it is called per item.
trait Controlled: Send + Sync {
    fn control(&self, with: &mut dyn FnMut(&mut Control));
}

impl<O: Send> Controlled for Shared<O> {
    fn control(&self, with: &mut dyn FnMut(&mut Control)) {
        with(&mut self.lock().control);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

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
        let claim = emission.ender().claim().unwrap();
        assert!(emission.ender().claim().is_none());
        assert_eq!(emission.put(body("late", true)), Err(Fenced));
        claim.finish(TunnelFrame::End).unwrap();
        assert_eq!(*sent.items.lock().unwrap(), [body("a", true), TunnelFrame::End]);
    }

    #[test]
    fn a_terminal_may_leave_while_the_call_is_still_at_work_and_its_late_output_does_not() {
        let sent = Sent::default();
        let mut emission = emission(&sent);
        emission.ender().claim().unwrap().finish(TunnelFrame::Cancelled).unwrap();
        assert_eq!(emission.put(body("late", true)), Err(Fenced));
        let ready = emission.poll_ready(&mut Context::from_waker(Waker::noop()));
        assert_eq!(ready, Poll::Ready(Err(Fenced)));
        assert_eq!(*sent.items.lock().unwrap(), [TunnelFrame::Cancelled]);
    }

    #[test]
    fn waiting_for_room_is_noted_as_a_pause_once_and_room_ends_it() {
        let start = Instant::now();
        let elapsed = Arc::new(AtomicU64::new(0));
        let hand = Arc::clone(&elapsed);
        let clock = move || start + Duration::from_secs(hand.load(Ordering::SeqCst));
        let sent = Sent::default();
        let mut emission = Emission::new(sent.clone(), clock);
        let fence = emission.fence();
        Outlet::<TunnelFrame>::note_sent(&mut emission, crate::vitals::Sent::Whole);
        sent.full.store(true, Ordering::SeqCst);
        let mut poll_at = |second| {
            elapsed.store(second, Ordering::SeqCst);
            let _ = emission.poll_ready(&mut Context::from_waker(Waker::noop()));
        };
        poll_at(2);
        poll_at(9);
        assert!(fence.vitals().stands_still());
        sent.full.store(false, Ordering::SeqCst);
        poll_at(10);
        let vitals = fence.vitals();
        assert_eq!(
            vitals.silent_for(Duration::from_secs(3)),
            Some(start + Duration::from_secs(11))
        );
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
            let enders: Vec<_> = (0..claimers).map(|_| emission.ender()).collect();
            let claims = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    enders.iter().map(|ender| scope.spawn(|| ender.claim())).collect();
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
            claim.finish(TunnelFrame::End).unwrap();
            let items = sent.items.lock().unwrap();
            let terminals = items.iter().filter(|item| item.is_terminal()).count();
            prop_assert_eq!(terminals, 1);
            prop_assert_eq!(items.last(), Some(&TunnelFrame::End));
        }
    }
}
