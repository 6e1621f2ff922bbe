//! What changes about a request, and the steps that change it.

use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use iop_admission::Refused;
use iop_dispatch::{AttemptEnd, ClientEnd, Dispatch, Ended, Finish, IdleRule, Output, Retry, Spec};
use iop_types::Requeue;

use super::Request;
use super::answer::Answer;
use super::attempt::{self, Attempt};
use super::call::{Original, Payload};
use super::client::Client;
use super::upload::{Stop, Upload};
use crate::admit::{Held, Queued, Standing};
use crate::history;
use crate::timer::Timer;

/// How long a provider may take to end after its client was handed everything and has left: as long
/// as a cancelled one may.
const LAST_WORD: Duration = Duration::from_secs(2);

/// Everything about a request that changes.
pub(super) struct State {
    pub(super) machine: Dispatch,
    pub(super) seat: Seat,
    pub(super) original: Option<Kept>,
    /// The body, where it passes while it arrives.
    pub(super) upload: Option<Box<Upload>>,
    pub(super) attempt: Option<Attempt>,
    pub(super) answer: Answer,
    /// A provider's answer that another attempt may not better.
    pub(super) kept: Option<Box<Answer>>,
    pub(super) timer: Timer,
    pub(super) client: Client,
    /// Whether it left the table of live requests.
    pub(super) has_left: bool,
    /// Since when its client has all of the answer and only the provider's end is still to come.
    pub(super) served_at: Option<Instant>,
    /// Whether a task drives it on because its client does not.
    pub(super) has_farewell: bool,
}

/// What may have to be sent more than once; let go as soon as it cannot be any more, because a stream
/// may live long.
pub(super) struct Kept {
    /// Headers as the client sent them.
    pub(super) headers: HeaderMap,
    /// The body, unless it passes while it arrives.
    pub(super) body: Bytes,
}

/// What the request holds of admission.
pub(super) enum Seat {
    Nowhere,
    Queued(Queued),
    Held(Held),
}

impl State {
    /// A request that has not asked for capacity yet.
    pub(super) fn new(spec: Spec, rule: IdleRule, original: Original) -> Self {
        let Original { headers, payload } = original;
        let (body, upload) = match payload {
            Payload::Whole(body) => (body, None),
            Payload::Arriving(upload) => (Bytes::new(), Some(upload)),
        };
        Self {
            machine: Dispatch::new(spec),
            seat: Seat::Nowhere,
            original: Some(Kept { headers, body }),
            upload,
            attempt: None,
            answer: Answer::default(),
            kept: None,
            timer: Timer::default(),
            client: Client::new(rule),
            has_left: false,
            served_at: None,
            has_farewell: false,
        }
    }

    /// Goes one step on; pending when nothing can be done before something happens.
    pub(super) fn advance(
        &mut self,
        request: &Request,
        now: Instant,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
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
        if self.pump(request, now, cx).is_ready() {
            return Poll::Ready(());
        }
        self.poll_timer(request, now, cx)
    }

    /// Takes in what is there already, waiting for nothing. The end of a short answer mostly came with
    /// its body, and a request that is over needs no task to wait for it.
    pub(super) fn take_what_came(&mut self, request: &Request, now: Instant) {
        let mut nobody = Context::from_waker(Waker::noop());
        while !self.machine.is_over() && self.advance(request, now, &mut nobody).is_ready() {}
    }

    /// Passes on what the client sends of its body while there is room; ready when it went wrong.
    fn pump(&mut self, request: &Request, now: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let Some(upload) = &mut self.upload else { return Poll::Pending };
        let Some(attempt) = self.attempt.as_mut().filter(|_| self.machine.outcome().is_none())
        else {
            upload.rest();
            return Poll::Pending;
        };
        let stop = ready!(attempt.pump(upload, now, cx));
        self.stop_upload(request, now, stop);
        Poll::Ready(())
    }

    /// The client's body goes no further: the attempt that waits for it has failed.
    fn stop_upload(&mut self, request: &Request, now: Instant, stop: Stop) {
        // Letting go of the stream tells the Node to stop.
        self.attempt = None;
        self.answer.break_off();
        self.machine.handle_ended(now, Ended::Failed(stop.failure()));
        self.follow(request, now);
    }

    fn poll_timer(&mut self, request: &Request, now: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let keep_alive = self.answer.keep_alive_at(request.core.timing.keep_alive);
        let last_word = self.served_at.map(|at| at + LAST_WORD);
        let pause = self.upload.as_ref().and_then(|upload| upload.due());
        let due = self.machine.poll_timeout().into_iter();
        let due = due.chain(keep_alive).chain(last_word).chain(pause).min();
        let reached = ready!(self.timer.poll(due, cx));
        let now = now.max(reached);
        if last_word.is_some_and(|at| at <= now) && self.attempt.take().is_some() {
            // Letting go of the stream cancels what the provider still does.
            let evidence = self.answer.close();
            self.machine.handle_ended(now, Ended::Completed(evidence));
        }
        if let Some(stop) = self.upload.as_ref().and_then(|upload| upload.overdue(now)) {
            self.stop_upload(request, now, stop);
        }
        self.answer.handle_time(now, request.core.timing.keep_alive);
        self.machine.handle_timeout(now);
        self.follow(request, now);
        Poll::Ready(())
    }

    /// Takes in what admission said.
    pub(super) fn stand(
        &mut self,
        request: &Request,
        now: Instant,
        standing: Result<Standing, Refused>,
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
    pub(super) fn follow(&mut self, request: &Request, now: Instant) {
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
                Output::Retry(retry) => self.retry(request, now, retry),
                Output::ReleaseHead => {
                    self.answer.release(now);
                    self.original = None;
                }
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

    /// The attempt failed and the client has nothing of it: what came of it is discarded.
    fn retry(&mut self, request: &Request, now: Instant, retry: Retry) {
        self.attempt = None;
        let answer = std::mem::take(&mut self.answer);
        if retry.keeps_answer {
            self.kept = Some(Box::new(answer));
        }
        request.core.metrics.count_retry(retry.reason.as_str());
        let run_id = request.call.receipt.run_id;
        tracing::debug!(%run_id, reason = retry.reason.as_str(), "another attempt is made");
        if let Seat::Held(held) = std::mem::replace(&mut self.seat, Seat::Nowhere) {
            self.stand(request, now, held.retry(retry.reason.is_for_another()));
        }
    }

    /// The request is over for its client.
    fn finish(&mut self, request: &Request, now: Instant, finish: Finish) {
        if finish.client == ClientEnd::KeptAnswer {
            debug_assert!(self.kept.is_some(), "an answer is kept where the machine said so");
            self.answer = self.kept.take().map(|kept| *kept).unwrap_or_default();
        }
        self.kept = None;
        self.original = None;
        let usage = self.answer.finish(request, now, finish.client);
        let core = &request.core;
        let receipt = &request.call.receipt;
        let outcome = finish.outcome.failure().map_or("ok", |failure| failure.code.as_str());
        let age = now.saturating_duration_since(request.call.received);
        core.metrics.count_request(request.call.operation.name, outcome, age);
        for attempt in self.machine.attempts() {
            let end = attempt.end.as_ref().map_or("", AttemptEnd::as_str);
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
