//! One request from its admission to the return of its last attempt.
//!
//! [`iop_dispatch::Dispatch`] decides; a [`Request`] carries out. It asks the desk for a permit, opens
//! a stream on the winner's link, turns what the Node sends into the client's answer, and tells
//! history how it ended.
//!
//! ```text
//! begin ─► queued ─► stream open ─► head kept back ─► head ─► body … end ─► over
//!           ▲ │            │   │         │             │       │             ▲
//!           └─┼── failed ──┴───┼─────────┘             │       │             │
//!             └────────────────┴── client gone, operator, deadline, drain ─► farewell: waits for
//!                                                                            the attempt's return
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
mod call;
mod client;
mod health;
mod passage;
mod state;
mod translation;
mod upload;

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Version;
use http_body::Frame;
use iop_dispatch::{Deadlines, IdleRule, Phase, Policy, Spec};
use iop_net::accept::Peer;
use iop_store::{AttemptRecord, Receipt};
use iop_types::RequestId;

pub(crate) use self::answer::Head;
pub(crate) use self::call::{Call, Original, Payload};
pub(crate) use self::client::{Attendance, RelayBody};
use self::state::State;
pub(crate) use self::upload::{Incoming, Limits, Stop, Upload};
use crate::core::Core;
use crate::history;

/// The body of a relayed answer ended without its regular end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answer broke off")]
pub(crate) struct Broken;

/// One request.
pub(crate) struct Request {
    core: Arc<Core>,
    call: Call,
    peer: Peer,
    state: Mutex<State>,
}

/// How far a request has come.
pub(crate) struct Progress {
    /// What history was told at receipt.
    pub(crate) receipt: Receipt,
    /// Where it stands.
    pub(crate) phase: Phase,
    /// Time since its receipt.
    pub(crate) age: Duration,
    /// Every attempt so far.
    pub(crate) attempts: Vec<AttemptRecord>,
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
        let settings = asked.as_ref().map(|(route, _)| route.settings).unwrap_or_default();
        let limits = &core.file.limits;
        let spec = Spec {
            received: call.received,
            deadlines: Deadlines {
                first_progress: Some(limits.first_progress),
                whole: settings.timeout,
            },
            streamed: call.is_stream(),
            has_finish: call.operation.text.is_some(),
            policy: Policy {
                recovery: settings.recovery,
                hold_head: settings.hold_head,
                is_repeatable: call.operation.is_repeatable && original.payload.is_whole(),
                budget: core.retries.clone(),
            },
        };
        let rule =
            IdleRule { bytes: limits.client_stall_bytes, within: limits.client_stall_timeout };
        let run_id = call.receipt.run_id;
        let request = Arc::new(Self {
            core: Arc::clone(core),
            call,
            peer,
            state: Mutex::new(State::new(spec, rule, original)),
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
            let has_stalled = state.client.is_stalled(now);
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

    /// Returns what its client's answer carries as `x-request-id`.
    pub(crate) fn request_id(&self) -> &RequestId {
        &self.call.receipt.request_id
    }

    /// Tells how far it has come.
    pub(crate) fn progress(&self) -> Progress {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Progress {
            receipt: self.call.receipt.clone(),
            phase: state.machine.phase(),
            age: crate::now().saturating_duration_since(self.call.received),
            attempts: state.machine.attempts().iter().map(history::attempt).collect(),
        }
    }

    /// Ends the request for an operator; `false` when it was over for its client already.
    pub(crate) fn cancel(self: &Arc<Self>) -> bool {
        self.with(|state, now| {
            if state.machine.outcome().is_some() {
                return false;
            }
            state.machine.handle_cancel(now);
            state.follow(self, now);
            state.client.wake();
            true
        })
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
            state.client.handle_gone();
            state.upload = None;
            if state.machine.outcome().is_some() {
                return;
            }
            // hyper drops a body of known length once it has its bytes, before asking for the end; and
            // clients close at `[DONE]`, while servers take another moment to end.
            if state.answer.is_handed_over() {
                state.served_at = Some(now);
                state.take_what_came(self, now);
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
        let is_alone = state.served_at.is_some() || state.machine.outcome().is_some();
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
