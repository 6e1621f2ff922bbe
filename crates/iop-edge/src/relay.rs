//! One request from its admission to the return of its last attempt.
//!
//! [`iop_dispatch::Dispatch`] decides; a [`Request`] carries out. It asks the desk for a permit, opens
//! a stream on the winner's link, turns what the Node sends into the client's answer, and tells
//! history how it ended.
//!
//! ```text
//! begin ─► queued ─► held: stream open ─► head ─► body … end ─► over
//!             │            │               │       │             ▲
//!             └────────────┴── client gone, deadline, drain ─► farewell: waits for the attempt's return
//! ```
//!
//! There is no task per request. The client's own connection drives it, first through the handler
//! ([`Request::poll_head`]) and then through the response body ([`Request::poll_frame`]). When either
//! is dropped the client is gone ([`Attendance`]). Only an attempt that outlives its client gets a
//! task, which does nothing but wait for the Node's word that it has returned.
//!
//! Everything mutable is behind one lock, because a client that does not read, the end of the drain
//! and a later operator must reach a request that its own connection no longer polls. The lock is
//! never held across an await and is contended only then.

mod answer;
mod attempt;
mod body;
mod passage;
mod translation;

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, Version};
use http_body::Frame;
use iop_admission::AffinityKey;
use iop_dialect::splice::Routing;
use iop_dispatch::{ClientIdle, Deadlines, Dispatch, IdleRule, Output, Spec};
use iop_net::accept::Peer;
use iop_store::Receipt;
use iop_types::{Requeue, SessionId};

use self::answer::Answer;
pub(crate) use self::answer::Head;
use self::attempt::Attempt;
pub(crate) use self::body::RelayBody;
use crate::admit::{Held, Queued, Standing};
use crate::core::Core;
use crate::history;
use crate::surface::openai::Operation;
use crate::timer::Timer;

/// The body of a relayed answer ended without its regular end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answer broke off")]
pub(crate) struct Broken;

/// What a client asked for, read once.
pub(crate) struct Call {
    /// The operation of the surface.
    pub(crate) operation: &'static Operation,
    /// What history was told at receipt.
    pub(crate) receipt: Receipt,
    /// When it was received.
    pub(crate) received: Instant,
    /// Correlation value, echoed.
    pub(crate) session_id: Option<SessionId>,
    /// Path and query as the client sent them.
    pub(crate) path_and_query: String,
    /// HTTP version in which the client speaks.
    pub(crate) version: Version,
    /// What routing needs of the body.
    pub(crate) routing: Routing,
    /// Length of the body.
    pub(crate) body_bytes: usize,
    /// Ties calls with a common prefix to one provider.
    pub(crate) affinity: Option<AffinityKey>,
}

/// What may have to be sent more than once; let go as soon as it cannot be any more, because a stream
/// may live long.
pub(crate) struct Original {
    /// Headers as the client sent them.
    pub(crate) headers: HeaderMap,
    /// The body as the client sent it.
    pub(crate) body: Bytes,
}

/// One request.
pub(crate) struct Request {
    core: Arc<Core>,
    call: Call,
    peer: Peer,
    state: Mutex<State>,
}

struct State {
    machine: Dispatch,
    seat: Seat,
    original: Option<Original>,
    attempt: Option<Attempt>,
    answer: Answer,
    timer: Timer,
    client: Client,
    /// Whether it left the table of live requests.
    has_left: bool,
    /// Whether its client has all of the answer and only the provider's end is still to come.
    is_served: bool,
    /// Whether a task drives it on because its client does not.
    has_farewell: bool,
}

/// What the request holds of admission.
enum Seat {
    Nowhere,
    Queued(Queued),
    Held(Held),
}

/// The client's side of it.
struct Client {
    idle: ClientIdle,
    /// Bytes that were handed over last and are not known to be accepted.
    handed: u64,
    /// Whoever polls on the client's behalf.
    waker: Option<Waker>,
}

impl Request {
    /// Asks for capacity and begins.
    pub(crate) fn begin(
        core: &Arc<Core>,
        call: Call,
        original: Original,
        peer: Peer,
    ) -> Attendance {
        core.history.received(call.receipt.clone());
        let asked = core.desk.ask(&iop_admission::Request {
            model: call.routing.model(),
            need: call.operation.need,
            affinity: call.affinity,
        });
        let whole = asked.as_ref().ok().and_then(|(route, _)| route.settings.timeout);
        let limits = &core.file.limits;
        let spec = Spec {
            received: call.received,
            deadlines: Deadlines { first_progress: Some(limits.first_progress), whole },
            streamed: call.is_stream(),
            has_finish: call.operation.text.is_some(),
        };
        let rule =
            IdleRule { bytes: limits.client_stall_bytes, within: limits.client_stall_timeout };
        let run_id = call.receipt.run_id;
        let request = Arc::new(Self {
            core: Arc::clone(core),
            call,
            peer,
            state: Mutex::new(State {
                machine: Dispatch::new(spec),
                seat: Seat::Nowhere,
                original: Some(original),
                attempt: None,
                answer: Answer::default(),
                timer: Timer::default(),
                client: Client { idle: ClientIdle::new(rule), handed: 0, waker: None },
                has_left: false,
                is_served: false,
                has_farewell: false,
            }),
        });
        core.live.enter(run_id, &request);
        request.with(|state, now| {
            state.stand(&request, now, asked.map(|(_, standing)| standing));
            state.follow(&request, now);
        });
        Attendance(request)
    }

    /// Ready when the head of the answer is known, or the whole of it.
    pub(crate) fn poll_head(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<Head> {
        self.with(|state, now| {
            loop {
                if let Some(head) = state.answer.take_head() {
                    return Poll::Ready(head);
                }
                if state.machine.outcome().is_some() || state.advance(self, now, cx).is_pending() {
                    state.client.note(cx);
                    return Poll::Pending;
                }
            }
        })
    }

    /// Yields the next piece of the answer.
    pub(crate) fn poll_frame(
        self: &Arc<Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.with(|state, now| {
            loop {
                match state.answer.poll_frame(cx) {
                    Poll::Ready(frame) => {
                        if let Some(Ok(frame)) = &frame {
                            state.client.handle_handed(now, frame.data_ref().map_or(0, Bytes::len));
                            state.answer.note_written(now);
                        }
                        return Poll::Ready(frame);
                    }
                    // A failing body waits once, so that what was handed over gets out.
                    Poll::Pending if state.machine.outcome().is_some() => return Poll::Pending,
                    Poll::Pending => {}
                }
                if state.advance(self, now, cx).is_pending() {
                    state.client.handle_caught_up(now);
                    state.client.note(cx);
                    return Poll::Pending;
                }
            }
        })
    }

    /// Looks after a request whose client may not poll it: ends a client that does not read, and one
    /// whose time is over.
    pub(crate) fn look_after(self: &Arc<Self>, now: Instant) {
        let has_stalled = self.with(|state, _| {
            if state.machine.outcome().is_some() {
                return false;
            }
            let has_stalled = state.client.idle.is_stalled(now);
            if has_stalled {
                state.machine.handle_client_stalled(now);
            }
            state.machine.handle_timeout(now);
            state.follow(self, now);
            if state.machine.outcome().is_some() {
                state.client.wake();
            }
            has_stalled
        });
        // A connection of HTTP/2 has other streams; there the broken body ends this one.
        if has_stalled && self.call.version < Version::HTTP_2 {
            self.peer.abort();
        }
    }

    /// Ends the request because the drain is over.
    pub(crate) fn shut_down(self: &Arc<Self>) {
        self.with(|state, now| {
            state.machine.handle_shutdown(now);
            state.follow(self, now);
            state.client.wake();
        });
    }

    fn handle_client_gone(self: &Arc<Self>) {
        self.with(|state, now| {
            state.client.waker = None;
            if state.machine.outcome().is_some() {
                return;
            }
            // hyper drops a body of known length once it has its bytes, before asking for the end.
            if state.answer.is_handed_over() {
                state.is_served = true;
                return;
            }
            state.machine.handle_client_gone(now);
            state.follow(self, now);
        });
    }

    /// Ready once the last attempt has returned.
    fn poll_returned(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.with(|state, now| {
            while !state.machine.is_over() {
                std::task::ready!(state.advance(self, now, cx));
            }
            Poll::Ready(())
        })
    }

    /// Takes one step under the lock.
    fn with<T>(self: &Arc<Self>, step: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = step(&mut state, crate::now());
        let is_alone = state.is_served || state.machine.outcome().is_some();
        let needs_farewell = is_alone && !state.machine.is_over() && !state.has_farewell;
        state.has_farewell |= needs_farewell;
        drop(state);
        if needs_farewell {
            let request = Arc::clone(self);
            self.core.farewells.spawn_on(
                async move { std::future::poll_fn(|cx| request.poll_returned(cx)).await },
                &self.core.runtime,
            );
        }
        result
    }
}

impl Call {
    /// Says whether the client wants its answer piece by piece; vectors come whole whatever it says.
    fn is_stream(&self) -> bool {
        self.operation.text.is_some() && self.routing.is_stream()
    }
}

impl State {
    /// Goes one step on; pending when nothing can be done before something happens.
    fn advance(&mut self, request: &Request, now: Instant, cx: &mut Context<'_>) -> Poll<()> {
        if let Seat::Queued(queued) = &mut self.seat
            && let Poll::Ready(settled) = queued.poll(cx)
        {
            self.seat = Seat::Nowhere;
            self.stand(request, now, settled.map(Standing::Granted));
            self.follow(request, now);
            return Poll::Ready(());
        }
        if let Some(attempt) = &mut self.attempt
            && let Poll::Ready(answer) = attempt.poll(cx)
        {
            self.handle_answer(request, now, answer);
            self.follow(request, now);
            return Poll::Ready(());
        }
        self.poll_timer(request, now, cx)
    }

    fn poll_timer(&mut self, request: &Request, now: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let keep_alive = self.answer.keep_alive_at(request.core.timing.keep_alive);
        let due = self.machine.poll_timeout().into_iter().chain(keep_alive).min();
        let reached = std::task::ready!(self.timer.poll(due, cx));
        let now = now.max(reached);
        self.answer.handle_time(now, request.core.timing.keep_alive);
        self.machine.handle_timeout(now);
        self.follow(request, now);
        Poll::Ready(())
    }

    /// Takes in what admission said.
    fn stand(
        &mut self,
        request: &Request,
        now: Instant,
        standing: Result<Standing, iop_admission::Refused>,
    ) {
        match standing {
            Ok(Standing::Granted(held)) => {
                let grant = attempt::grant(&request.call, held.candidate());
                self.seat = Seat::Held(held);
                self.machine.handle_granted(now, grant);
            }
            Ok(Standing::Waiting(queued)) => self.seat = Seat::Queued(queued),
            Err(refused) => self.machine.handle_refused(now, refused.failure()),
        }
    }

    /// Does what the machine says.
    fn follow(&mut self, request: &Request, now: Instant) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Send(send) => self.send(request, now, &send),
                Output::Cancel(cause) => {
                    if let Some(attempt) = &mut self.attempt {
                        attempt.cancel(cause);
                    }
                }
                Output::LeaveQueue => self.seat = Seat::Nowhere,
                Output::Requeue(cause) => self.requeue(request, now, cause),
                Output::Release => {
                    self.attempt = None;
                    self.seat = Seat::Nowhere;
                }
                Output::RememberUsageRefusal => {
                    if let Seat::Held(held) = &self.seat {
                        held.remember_usage_refused();
                    }
                }
                Output::Finish(finish) => self.finish(request, now, finish),
            }
        }
        if self.machine.is_over() && !std::mem::replace(&mut self.has_left, true) {
            request.core.live.leave(request.call.receipt.run_id);
        }
    }

    fn requeue(&mut self, request: &Request, now: Instant, cause: Requeue) {
        self.attempt = None;
        request.core.metrics.count_requeue(cause.as_str());
        if let Seat::Held(held) = std::mem::replace(&mut self.seat, Seat::Nowhere) {
            self.stand(request, now, held.requeue(cause));
        }
    }

    /// The request is over for its client.
    fn finish(&mut self, request: &Request, now: Instant, finish: iop_dispatch::Finish) {
        let usage = self.answer.finish(request, now, finish.client);
        let core = &request.core;
        let receipt = &request.call.receipt;
        let outcome = finish.outcome.failure().map_or("ok", |failure| failure.code.as_str());
        let age = now.saturating_duration_since(request.call.received);
        core.metrics.count_request(request.call.operation.name, outcome, age);
        for attempt in self.machine.attempts() {
            let end = attempt.end.as_ref().map_or("", iop_dispatch::AttemptEnd::as_str);
            core.metrics.count_attempt(attempt.grant.form.as_str(), end);
        }
        if let Some(first) = self.machine.attempts().first() {
            core.metrics.observe_queue_wait(first.sent_at);
        }
        if let Some(at) = self.machine.attempts().last().and_then(|last| last.first_token_at) {
            core.metrics.observe_first_token(at);
        }
        if let Some((usage, source)) = usage {
            core.metrics.count_tokens(source, usage);
        }
        let ended = history::ended(&self.machine, &finish.outcome, usage);
        core.history.ended(receipt.clone(), ended);
    }
}

impl Client {
    /// Bytes were handed over: the ones before them have found room.
    fn handle_handed(&mut self, now: Instant, bytes: usize) {
        self.idle.handle_accepted(now, std::mem::replace(&mut self.handed, bytes as u64), true);
    }

    /// More was asked for than there is: all that was handed over has found room.
    fn handle_caught_up(&mut self, now: Instant) {
        self.idle.handle_accepted(now, std::mem::take(&mut self.handed), false);
    }

    fn note(&mut self, cx: &Context<'_>) {
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

/// The client's presence: held by the handler, then by the response body. Dropping it means that the
/// client is gone.
pub(crate) struct Attendance(Arc<Request>);

impl Attendance {
    /// Waits for the head of the answer.
    pub(crate) async fn head(&self) -> Head {
        std::future::poll_fn(|cx| self.0.poll_head(cx)).await
    }

    /// As [`Request::poll_frame`].
    fn poll_frame(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.0.poll_frame(cx)
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        self.0.handle_client_gone();
    }
}
