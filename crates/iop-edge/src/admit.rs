//! The desk where requests ask for capacity: admission behind one lock, and those who wait.
//!
//! [`iop_admission::Admission`] decides; the desk passes it the time, keeps a waker for each request
//! that waits, and owns the one timer for queue time-outs. What it hands out gives itself back:
//! dropping a [`Queued`] leaves the queue, dropping a [`Held`] returns the permit, in any phase and
//! however a request ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use iop_admission::{Admission, Candidate, Entry, Output, Permit, Refused, Request, Route, Ticket};
use iop_types::Requeue;
use tokio::sync::Notify;

/// The desk.
#[derive(Debug)]
pub(crate) struct Desk {
    state: Mutex<State>,
    timer: Notify,
}

#[derive(Debug)]
struct State {
    admission: Admission,
    waiters: BTreeMap<Ticket, Waiter>,
    armed: Option<Instant>,
}

#[derive(Debug)]
enum Waiter {
    Waits(Option<Waker>),
    Settled(Result<Permit, Refused>),
}

/// Where a request stands after it asked.
#[derive(Debug)]
pub(crate) enum Standing {
    /// It may be dispatched.
    Granted(Held),
    /// It waits.
    Waiting(Queued),
}

impl Desk {
    /// Opens the desk.
    pub(crate) fn new(admission: Admission) -> Arc<Self> {
        let state = State { admission, waiters: BTreeMap::new(), armed: None };
        Arc::new(Self { state: Mutex::new(state), timer: Notify::new() })
    }

    /// Asks for capacity; returns the route that the request's name leads to.
    ///
    /// # Errors
    /// Admission refused the request at once.
    pub(crate) fn ask(
        self: &Arc<Self>,
        request: &Request<'_>,
    ) -> Result<(Arc<Route>, Standing), Refused> {
        self.with(|state, now| {
            let admitted = state.admission.request(now, request)?;
            Ok((admitted.route, state.stand(self, admitted.entry)))
        })
    }

    /// Tells admission something, or asks it.
    pub(crate) fn tell<T>(&self, tell: impl FnOnce(&mut Admission, Instant) -> T) -> T {
        self.with(|state, now| tell(&mut state.admission, now))
    }

    /// Refuses whatever waits too long, until the future is dropped.
    pub(crate) async fn keep_time(&self) {
        loop {
            let due = self.state.lock().unwrap_or_else(PoisonError::into_inner).armed;
            let earlier = self.timer.notified();
            match due {
                None => earlier.await,
                Some(due) => tokio::select! {
                    biased;
                    () = tokio::time::sleep_until(due.into()) => {
                        self.with(|state, now| state.admission.handle_timeout(now));
                    }
                    () = earlier => {}
                },
            }
        }
    }

    /// Runs one step under the lock; whoever it concerns is woken after it.
    fn with<T>(&self, step: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = crate::now();
        let result = step(&mut state, now);
        let wakers = state.settle();
        let due = state.admission.poll_timeout();
        // An earlier timer must be armed; a later one is found when the armed one fires.
        let is_earlier = due.is_some_and(|due| state.armed.is_none_or(|armed| due < armed));
        if is_earlier || state.armed.is_some_and(|armed| armed <= now) {
            state.armed = due;
        }
        drop(state);
        if is_earlier {
            self.timer.notify_one();
        }
        for waker in wakers {
            waker.wake();
        }
        result
    }
}

impl State {
    fn stand(&mut self, desk: &Arc<Desk>, entry: Entry) -> Standing {
        match entry {
            Entry::Granted(permit) => Standing::Granted(Held::new(desk, permit)),
            Entry::Waiting(ticket) => {
                self.waiters.insert(ticket, Waiter::Waits(None));
                Standing::Waiting(Queued { desk: Arc::clone(desk), ticket: Some(ticket) })
            }
        }
    }

    /// Hands the outputs of admission to those who wait for them.
    fn settle(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while let Some(output) = self.admission.poll_output() {
            let (ticket, result) = match output {
                Output::Granted { ticket, permit } => (ticket, Ok(permit)),
                Output::Refused { ticket, refused } => (ticket, Err(refused)),
            };
            match self.waiters.get_mut(&ticket) {
                Some(waiter) => {
                    let before = std::mem::replace(waiter, Waiter::Settled(result));
                    if let Waiter::Waits(Some(waker)) = before {
                        wakers.push(waker);
                    }
                }
                None => debug_assert!(false, "admission settled a ticket that nobody holds"),
            }
        }
        wakers
    }
}

/// A place in the queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Queued {
    desk: Arc<Desk>,
    ticket: Option<Ticket>,
}

impl Queued {
    /// Ready when the wait is over.
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<Held, Refused>> {
        let Some(ticket) = self.ticket else { return Poll::Pending };
        let mut state = self.desk.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.waiters.get_mut(&ticket) {
            Some(Waiter::Waits(waker)) => {
                if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
            Some(Waiter::Settled(_)) => {
                let Some(Waiter::Settled(result)) = state.waiters.remove(&ticket) else {
                    unreachable!("the waiter was looked at under the same lock")
                };
                drop(state);
                self.ticket = None;
                Poll::Ready(result.map(|permit| Held::new(&self.desk, permit)))
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        self.desk.with(|state, now| match state.waiters.remove(&ticket) {
            // It was granted and not yet looked at: nothing was executed on it.
            Some(Waiter::Settled(Ok(permit))) => state.admission.release(now, permit),
            Some(Waiter::Settled(Err(_))) | None => {}
            Some(Waiter::Waits(_)) => {
                let cancelled = state.admission.cancel(now, ticket);
                debug_assert!(cancelled, "who waits for an outcome has a place");
            }
        });
    }
}

/// A permit in use. Dropping it gives the capacity back.
#[derive(Debug)]
pub(crate) struct Held {
    desk: Arc<Desk>,
    permit: Option<Permit>,
    /// Whether its provider failed the request: what follows is the tail of that.
    is_spoilt: bool,
}

impl Held {
    fn new(desk: &Arc<Desk>, permit: Permit) -> Self {
        Self { desk: Arc::clone(desk), permit: Some(permit), is_spoilt: false }
    }

    /// Returns who executes the request.
    pub(crate) fn candidate(&self) -> &Candidate {
        self.permit().candidate()
    }

    /// The provider gets on with the request.
    pub(crate) fn note_progress(&mut self) {
        if self.permit().is_trial() && !self.is_spoilt {
            self.with_permit(Admission::handle_served);
        }
    }

    /// The provider answered to the end.
    pub(crate) fn note_served(&mut self) {
        self.note_progress();
        if !self.is_spoilt
            && let Some(permit) = &mut self.permit
        {
            permit.note_served();
        }
    }

    /// The provider failed the request: what it still says of it is no service.
    pub(crate) fn note_failed(&mut self) {
        self.is_spoilt = true;
        if self.permit().is_trial() {
            self.with_permit(Admission::handle_failed);
        }
    }

    /// The provider has too much to do, and asked to be left alone for this long.
    pub(crate) fn note_throttled(&mut self, wish: Option<Duration>) {
        self.is_spoilt = true;
        if let Some(time) = wish {
            self.with_permit(|admission, now, permit| admission.cool(now, permit, time));
        }
    }

    fn with_permit(&mut self, tell: impl FnOnce(&mut Admission, Instant, &mut Permit)) {
        let Self { desk, permit, .. } = self;
        let permit = permit.as_mut().expect("a permit is taken once, by value");
        desk.tell(|admission, now| tell(admission, now, permit));
    }

    /// The target refused `stream_options`: it is not asked again.
    pub(crate) fn remember_usage_refused(&self) {
        self.desk.tell(|admission, _| admission.handle_usage_refused(self.permit()));
    }

    /// Gives the capacity back and returns to the old place in the queue.
    ///
    /// # Errors
    /// Nobody is left who could take the request.
    pub(crate) fn requeue(mut self, reason: Requeue) -> Result<Standing, Refused> {
        let permit = self.permit.take().expect("a permit is taken once, by value");
        let desk = Arc::clone(&self.desk);
        desk.with(|state, now| {
            let entry = state.admission.requeue(now, permit, reason)?;
            Ok(state.stand(&desk, entry))
        })
    }

    /// Gives the capacity back after a failure and returns to the old place in the queue, for another
    /// candidate; with `elsewhere` for no other than that.
    ///
    /// # Errors
    /// Nobody is left who could take the request.
    pub(crate) fn retry(mut self, elsewhere: bool) -> Result<Standing, Refused> {
        let permit = self.permit.take().expect("a permit is taken once, by value");
        let desk = Arc::clone(&self.desk);
        desk.with(|state, now| {
            let entry = state.admission.retry(now, permit, elsewhere)?;
            Ok(state.stand(&desk, entry))
        })
    }

    fn permit(&self) -> &Permit {
        self.permit.as_ref().expect("a permit is taken once, by value")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.desk.with(|state, now| state.admission.release(now, permit));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::poll;
    use iop_admission::{Config, Need, QueueLimits, RouteSettings};
    use iop_types::{
        AdapterType, Capabilities, ErrorCode, Generation, ProviderRevision, ProviderState,
        ProviderStatus, RunKind,
    };

    use super::*;

    const REQUEST: Request<'static> = Request {
        model: "m",
        need: Need { method: "POST", path: "/v1/chat/completions", run: Some(RunKind::Chat) },
        affinity: None,
    };

    /// A desk with one provider that takes one call at a time.
    fn desk() -> Arc<Desk> {
        let queue = QueueLimits { timeout: Duration::from_secs(30), ..QueueLimits::default() };
        let discovered = RouteSettings { queue, ..RouteSettings::default() };
        let config = Config { discovered, ..Config::default() };
        let desk = Desk::new(Admission::new(crate::now(), config).unwrap());
        let status = ProviderStatus {
            provider: "p".into(),
            adapter: AdapterType::Mock,
            state: ProviderState::Ready,
            reason: String::new(),
            targets: vec!["m".into()],
            loaded: Vec::new(),
            capacity: 1,
            in_use: 0,
            zombies: 0,
            queued: None,
            revision: ProviderRevision(1),
            capabilities: Capabilities { runs: vec![RunKind::Chat], ..Capabilities::default() },
        };
        desk.tell(|admission, now| {
            admission.handle_ready(now, &"box".into(), Generation(1), vec![status]);
        });
        desk
    }

    fn granted(desk: &Arc<Desk>) -> Held {
        match desk.ask(&REQUEST).unwrap().1 {
            Standing::Granted(held) => held,
            Standing::Waiting(_) => panic!("it waits"),
        }
    }

    fn waiting(desk: &Arc<Desk>) -> Queued {
        match desk.ask(&REQUEST).unwrap().1 {
            Standing::Waiting(queued) => queued,
            Standing::Granted(_) => panic!("it was granted"),
        }
    }

    /// Permits out and requests waiting.
    fn counts(desk: &Desk) -> (u32, usize) {
        let gauges = desk.tell(|admission, now| admission.gauges(now));
        (gauges.in_flight, gauges.waiting)
    }

    #[tokio::test]
    async fn a_permit_that_is_dropped_goes_to_whoever_waits() {
        let desk = desk();
        let held = granted(&desk);
        let mut next = waiting(&desk);
        assert!(poll!(poll_fn(|cx| next.poll(cx))).is_pending());
        let task = tokio::spawn(async move { poll_fn(|cx| next.poll(cx)).await });
        tokio::task::yield_now().await;
        drop(held);
        let held = task.await.unwrap().unwrap();
        assert_eq!(counts(&desk), (1, 0));
        drop(held);
        assert_eq!(counts(&desk), (0, 0));
    }

    #[tokio::test]
    async fn who_leaves_the_queue_leaves_nothing_granted_or_not() {
        let desk = desk();
        let held = granted(&desk);
        let first = waiting(&desk);
        let second = waiting(&desk);
        assert_eq!(counts(&desk), (1, 2));
        drop(first);
        assert_eq!(counts(&desk), (1, 1));
        // The second is granted and leaves before it has looked.
        drop(held);
        assert_eq!(counts(&desk), (1, 0));
        drop(second);
        assert_eq!(counts(&desk), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_too_long_is_ended_by_the_desks_own_timer() {
        let desk = desk();
        let held = granted(&desk);
        let keeper = Arc::clone(&desk);
        let keeping = tokio::spawn(async move { keeper.keep_time().await });
        let mut queued = waiting(&desk);
        let began = crate::now();
        let refused = poll_fn(|cx| queued.poll(cx)).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::QueueTimeout);
        assert!(crate::now() - began >= Duration::from_secs(30));
        assert_eq!(counts(&desk), (1, 0));
        drop(held);
        keeping.abort();
    }

    #[tokio::test]
    async fn a_requeued_request_waits_until_its_provider_reports() {
        let desk = desk();
        let Ok(Standing::Waiting(mut queued)) = granted(&desk).requeue(Requeue::CapacityExceeded)
        else {
            panic!("the provider counts as full")
        };
        assert!(poll!(poll_fn(|cx| queued.poll(cx))).is_pending());
        assert_eq!(counts(&desk), (0, 1));
        drop(queued);
        assert_eq!(counts(&desk), (0, 0));
    }
}
