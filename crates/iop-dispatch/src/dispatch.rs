//! The machine of one request.

mod output;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use iop_types::{Attempt, CloseReason, ErrorCode, Failure, Form, Recovery, Refusal, Requeue};

pub use self::output::{CancelCause, Output, Relay, Retry, Send};
use crate::attempt::{AttemptEnd, AttemptRecord, Grant, USAGE_OPTION_REFUSED};
use crate::deadline::{Clock, Deadlines};
use crate::outcome::{self, ClientEnd, Commitment, Ended, Evidence, Finish, Outcome};
use crate::recovery::{self, Facts, Next, Policy, Reason};

/// How long an attempt that was cancelled keeps its permit without having returned: the Node's close
/// grace is 2 s, the rest is for a slow link. The Node's gate stays the authority.
pub const RETURN_WAIT: Duration = Duration::from_secs(10);

/// How long the answer of a provider that refused is waited for before it passes as it comes: errors
/// are short and come with their head.
const REFUSAL_WAIT: Duration = Duration::from_secs(2);

/// What is known of a request when it was received.
#[derive(Debug, Clone)]
pub struct Spec {
    /// When it was received.
    pub received: Instant,
    /// How long it may take.
    pub deadlines: Deadlines,
    /// Whether the client asked for a stream.
    pub streamed: bool,
    /// Whether it is a chat or a completion, whose whole answer has a finish reason.
    pub has_finish: bool,
    /// How far it may be tried again.
    pub policy: Policy,
}

/// The life of one request.
///
/// Call a `handle_*` method for what happened, then drain [`poll_output`](Self::poll_output) before
/// the next call. Call [`handle_timeout`](Self::handle_timeout) when
/// [`poll_timeout`](Self::poll_timeout) is due. `now` never goes backwards. The host drops the value
/// once [`is_over`](Self::is_over).
#[derive(Debug)]
pub struct Dispatch {
    spec: Spec,
    clock: Clock,
    state: State,
    attempts: Vec<AttemptRecord>,
    queued: Duration,
    refused_sends: u32,
    /// Why further attempts are made, in their order.
    reasons: Vec<Reason>,
    /// What ends the request if no further attempt can be made.
    fallback: Option<Fallback>,
    outcome: Option<Outcome>,
    late: u32,
    outputs: VecDeque<Output>,
}

/// Where a request stands.
#[derive(Debug)]
enum State {
    /// It waits for a permit.
    Queued { since: Instant },
    /// An attempt is out.
    Out(Stage),
    /// The terminal is out.
    Done {
        /// Until when an attempt that was cut may still hold its permit.
        returning: Option<Instant>,
    },
}

/// How far the attempt that is out has got.
#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Nothing of its response is known.
    Sent,
    /// The response is not the client's; when it has ended, the candidate is asked again.
    Discarding,
    /// The provider's head is known and kept back until the first progress, or until then.
    HeadHeld { commitment: Commitment, until: Instant },
    /// A provider's refusal is kept back until it is whole, or until then: another provider may do
    /// better.
    RefusalHeld { status: u16, until: Instant },
    /// The provider's head is the client's, and nothing of the result is known.
    HeadKnown(Commitment),
    /// The result comes in.
    Streaming(Commitment),
}

/// Where a request stands, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It waits for a permit.
    Queued,
    /// An attempt is out, and its client has nothing.
    Sent,
    /// The answer comes in.
    Streaming,
    /// It is over for its client; its provider may still be waited for.
    Ended,
}

impl Phase {
    /// Returns the word that is shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Sent => "sent",
            Self::Streaming => "streaming",
            Self::Ended => "ended",
        }
    }
}

/// The end of an attempt that was followed by another.
#[derive(Debug)]
struct Fallback {
    failure: Failure,
    /// Whether it was a provider's answer, which says more than that nobody could be reached.
    is_answer: bool,
    /// Whether the host keeps that answer.
    is_kept: bool,
}

impl Dispatch {
    /// Begins with a request that asks admission for a permit.
    pub fn new(spec: Spec) -> Self {
        spec.policy.budget.note_request(spec.received);
        Self {
            clock: Clock::new(spec.received, spec.deadlines),
            state: State::Queued { since: spec.received },
            spec,
            attempts: Vec::new(),
            queued: Duration::ZERO,
            refused_sends: 0,
            reasons: Vec::new(),
            fallback: None,
            outcome: None,
            late: 0,
            outputs: VecDeque::new(),
        }
    }

    // ---- admission ----

    /// Admission granted a permit.
    ///
    /// A grant that comes too late is released at once.
    pub fn handle_granted(&mut self, now: Instant, mut grant: Grant) {
        self.claim_overdue(now);
        let State::Queued { since } = self.state else {
            self.late += 1;
            self.outputs.push_back(Output::Release);
            return;
        };
        self.queued += now.saturating_duration_since(since);
        if let Some(reason) = self.reasons.last() {
            grant.why = reason.as_str();
        }
        self.send(now, grant);
    }

    /// Admission refused the request, at once or after it waited. Where an attempt was made before,
    /// its end is the request's.
    pub fn handle_refused(&mut self, now: Instant, failure: Failure) {
        self.claim_overdue(now);
        match self.state {
            State::Queued { since } => {
                self.queued += now.saturating_duration_since(since);
                let finish = match self.fallback.take() {
                    Some(fallback) => fallback.finish(),
                    None => Finish {
                        client: ClientEnd::Error(failure.clone()),
                        outcome: Outcome::Failed(failure),
                    },
                };
                self.finish(finish);
            }
            State::Out(_) | State::Done { .. } => self.late += 1,
        }
    }

    // ---- the attempt ----

    /// The attempt was not sent and never will be.
    pub fn handle_unsent(&mut self, now: Instant, cause: Requeue) {
        self.claim_overdue(now);
        match self.state {
            State::Out(_) => {
                let next = recovery::judge_unsent(&self.facts(now), cause);
                self.follow(now, next);
            }
            // A head that was cancelled while it still waited in the link.
            State::Done { returning: Some(_) } => self.returned(),
            State::Queued { .. } | State::Done { returning: None } => self.late += 1,
        }
    }

    /// The head of a tunnel's response came.
    pub fn handle_head(&mut self, now: Instant, status: u16) -> Relay {
        self.claim_overdue(now);
        match self.state {
            State::Out(Stage::Sent) => {
                if let Some(attempt) = self.attempts.last_mut() {
                    attempt.head_at = Some(self.clock.since_receipt(now));
                }
                let facts = self.facts(now);
                if recovery::is_usage_refusal(&facts, Some(status)) {
                    self.state = State::Out(Stage::Discarding);
                    return Relay::Discard;
                }
                if recovery::is_held_refusal(&facts, status) {
                    self.state =
                        State::Out(Stage::RefusalHeld { status, until: now + REFUSAL_WAIT });
                    return Relay::Hold;
                }
                self.note_usage_answer(status);
                self.clock.note_progress();
                let is_held = self.spec.streamed && (200..300).contains(&status);
                self.know_head(now, Commitment::Tunnel { status }, is_held)
            }
            State::Queued { .. }
            | State::Out(
                Stage::Discarding
                | Stage::HeadHeld { .. }
                | Stage::RefusalHeld { .. }
                | Stage::HeadKnown(_)
                | Stage::Streaming(_),
            )
            | State::Done { .. } => self.ignore(),
        }
    }

    /// A run started: its provider answered with success. What is said of it is about the head of a
    /// streamed answer.
    pub fn handle_start(&mut self, now: Instant) -> Relay {
        self.claim_overdue(now);
        match self.state {
            State::Out(Stage::Sent) => self.start_run(now),
            State::Queued { .. }
            | State::Out(
                Stage::Discarding
                | Stage::HeadHeld { .. }
                | Stage::RefusalHeld { .. }
                | Stage::HeadKnown(_)
                | Stage::Streaming(_),
            )
            | State::Done { .. } => self.ignore(),
        }
    }

    /// A piece of the result came: tunnel body, trailers, or a delta of a run. `progress` is what the
    /// Node says of it. This is the hot path: one comparison for most pieces.
    pub fn handle_body(&mut self, now: Instant, progress: bool) -> Relay {
        self.claim_overdue(now);
        match self.state {
            State::Out(Stage::Streaming(_)) => Relay::Forward,
            State::Out(Stage::HeadKnown(commitment)) => {
                if progress {
                    self.note_first_token(now, commitment);
                }
                Relay::Forward
            }
            State::Out(Stage::HeadHeld { commitment, .. }) if progress => {
                self.note_first_token(now, commitment);
                self.outputs.push_back(Output::ReleaseHead);
                Relay::Forward
            }
            State::Out(Stage::HeadHeld { .. } | Stage::RefusalHeld { .. }) => Relay::Hold,
            // A run may answer without a start of its own.
            State::Out(Stage::Sent) if self.form() == Some(Form::Run) => {
                let relay = self.start_run(now);
                if !progress {
                    return relay;
                }
                self.note_first_token(now, self.commitment_of_run());
                Relay::Forward
            }
            State::Out(Stage::Discarding) => Relay::Discard,
            State::Queued { .. } | State::Out(Stage::Sent) | State::Done { .. } => self.ignore(),
        }
    }

    /// The host keeps as much of a held response as it may: it goes to the client now.
    pub fn handle_full(&mut self) {
        self.release_head();
    }

    /// The attempt has ended and returned.
    pub fn handle_ended(&mut self, now: Instant, ended: Ended) {
        self.claim_overdue(now);
        match self.state {
            State::Out(Stage::Discarding) => self.ask_without_usage(now),
            State::Out(
                Stage::Sent
                | Stage::HeadHeld { .. }
                | Stage::RefusalHeld { .. }
                | Stage::HeadKnown(_)
                | Stage::Streaming(_),
            ) => {
                let next = recovery::judge(&self.facts(now), ended);
                self.follow(now, next);
            }
            State::Done { returning: Some(_) } => self.returned(),
            State::Queued { .. } | State::Done { returning: None } => self.late += 1,
        }
    }

    /// The link that carries the attempt ended.
    pub fn handle_node_lost(&mut self, now: Instant, reason: CloseReason) {
        match self.state {
            State::Out(_) => {
                let node = self.attempts.last().map(|attempt| attempt.grant.node.as_str());
                let message = format!(
                    "the link to node `{}` ended ({reason}) before the answer was whole; send the \
                     request again: another node, or this one once it is back, may serve it",
                    node.unwrap_or_default(),
                );
                let ended = Ended::Failed(Failure::new(ErrorCode::NodeLost, message));
                let next = recovery::judge(&self.facts(now), ended);
                self.follow(now, next);
            }
            State::Done { returning: Some(_) } => self.returned(),
            State::Queued { .. } | State::Done { returning: None } => self.late += 1,
        }
    }

    // ---- the client, the operator, time ----

    /// The client left.
    pub fn handle_client_gone(&mut self, now: Instant) {
        let failure = Failure::new(ErrorCode::ClientGone, "the client left before the end");
        self.cut(now, CancelCause::ClientGone, |_| Finish {
            client: ClientEnd::Nothing,
            outcome: Outcome::Cancelled(failure),
        });
    }

    /// The client accepted too little for too long ([`crate::ClientIdle`]).
    pub fn handle_client_stalled(&mut self, now: Instant) {
        self.claim_overdue(now);
        let failure = Failure::new(ErrorCode::ClientStalled, "the client stopped reading");
        self.cut(now, CancelCause::ClientStalled, |_| Finish {
            client: ClientEnd::Abort,
            outcome: Outcome::Cancelled(failure),
        });
    }

    /// An operator ended the request.
    pub fn handle_cancel(&mut self, now: Instant) {
        self.claim_overdue(now);
        let failure = Failure::new(ErrorCode::Cancelled, "an operator cancelled the request");
        self.cut(now, CancelCause::Operator, |commitment| Finish {
            client: commitment.fail(&failure),
            outcome: Outcome::Cancelled(failure),
        });
    }

    /// The Edge's drain is over.
    pub fn handle_shutdown(&mut self, now: Instant) {
        self.claim_overdue(now);
        let message = "the edge shut down before the request was finished";
        let failure = Failure::new(ErrorCode::ShuttingDown, message);
        self.cut(now, CancelCause::ShuttingDown, |commitment| Finish {
            client: commitment.fail(&failure),
            outcome: Outcome::Failed(failure),
        });
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.claim_overdue(now);
        match self.state {
            State::Out(Stage::HeadHeld { until, .. } | Stage::RefusalHeld { until, .. })
                if until <= now =>
            {
                self.release_head();
            }
            State::Done { returning: Some(by) } if by <= now => self.returned(),
            State::Queued { .. } | State::Out(_) | State::Done { .. } => {}
        }
    }

    /// Returns when [`handle_timeout`](Self::handle_timeout) wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Done { returning } => returning,
            State::Out(Stage::HeadHeld { until, .. } | Stage::RefusalHeld { until, .. }) => {
                Some(self.clock.next().map_or(until, |next| next.min(until)))
            }
            State::Queued { .. }
            | State::Out(
                Stage::Sent | Stage::Discarding | Stage::HeadKnown(_) | Stage::Streaming(_),
            ) => self.clock.next(),
        }
    }

    /// Returns what the host is to do next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    // ---- questions ----

    /// Says whether the terminal is out and no permit is held; outputs may remain to be drained.
    pub const fn is_over(&self) -> bool {
        matches!(self.state, State::Done { returning: None })
    }

    /// Says whether the request may have to be sent again, so that its body must be kept.
    pub fn may_send_again(&self) -> bool {
        match self.state {
            State::Queued { .. }
            | State::Out(Stage::Sent | Stage::Discarding | Stage::RefusalHeld { .. }) => true,
            State::Out(Stage::HeadHeld { .. }) => self.follows_losses(),
            // Nothing of an answer that is written at its end has been released yet.
            State::Out(Stage::HeadKnown(commitment) | Stage::Streaming(commitment)) => {
                !commitment.is_released() && self.follows_losses()
            }
            State::Done { .. } => false,
        }
    }

    /// Says whether a failure after contact with a provider may be followed by another attempt.
    fn follows_losses(&self) -> bool {
        self.spec.policy.is_repeatable && self.spec.policy.recovery == Recovery::Full
    }

    /// Returns the outcome once the request is over for its client.
    pub const fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Returns where the request stands.
    pub const fn phase(&self) -> Phase {
        match self.state {
            State::Queued { .. } => Phase::Queued,
            State::Out(
                Stage::Sent
                | Stage::Discarding
                | Stage::HeadHeld { .. }
                | Stage::RefusalHeld { .. },
            ) => Phase::Sent,
            State::Out(Stage::HeadKnown(_) | Stage::Streaming(_)) => Phase::Streaming,
            State::Done { .. } => Phase::Ended,
        }
    }

    /// Returns every attempt, in order.
    pub fn attempts(&self) -> &[AttemptRecord] {
        &self.attempts
    }

    /// Returns the time spent waiting for permits.
    pub const fn queued(&self) -> Duration {
        self.queued
    }

    /// Counts what came after it could matter.
    pub const fn late(&self) -> u32 {
        self.late
    }

    // ---- steps ----

    fn send(&mut self, now: Instant, grant: Grant) {
        let attempt = self.attempts.last().map_or(Attempt::FIRST, |last| last.attempt.next());
        let (first_progress_within, ends_within) = self.clock.remaining(now);
        let asks_usage = grant.asks_usage;
        let sent_at = self.clock.since_receipt(now);
        self.attempts.push(AttemptRecord::new(attempt, grant, sent_at));
        self.state = State::Out(Stage::Sent);
        self.outputs.push_back(Output::Send(Send {
            attempt,
            asks_usage,
            first_progress_within,
            ends_within,
        }));
    }

    /// Asks the candidate that holds the permit once more, without the option that it refused.
    fn ask_without_usage(&mut self, now: Instant) {
        let at = self.clock.since_receipt(now);
        let Some(refused) = self.attempts.last_mut() else { return };
        refused.settle(at, AttemptEnd::UsageOptionRefused);
        let grant = Grant { asks_usage: false, why: USAGE_OPTION_REFUSED, ..refused.grant.clone() };
        self.send(now, grant);
    }

    fn start_run(&mut self, now: Instant) -> Relay {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.head_at = Some(self.clock.since_receipt(now));
        }
        self.note_usage_answer(200);
        self.clock.note_progress();
        self.know_head(now, self.commitment_of_run(), self.spec.streamed)
    }

    const fn commitment_of_run(&self) -> Commitment {
        match self.spec.streamed {
            true => Commitment::RunStream,
            false => Commitment::Nothing,
        }
    }

    /// Takes in a head that will be the client's: now, or, where it is to be held, later. It is held
    /// where no other attempt could follow too: an error with a status is worth as much as one.
    fn know_head(&mut self, now: Instant, commitment: Commitment, is_held: bool) -> Relay {
        let hold_head = self.spec.policy.hold_head;
        if is_held && !hold_head.is_zero() {
            self.state = State::Out(Stage::HeadHeld { commitment, until: now + hold_head });
            return Relay::Hold;
        }
        self.state = State::Out(Stage::HeadKnown(commitment));
        Relay::Forward
    }

    /// Lets the client have what was held.
    fn release_head(&mut self) {
        let commitment = match self.state {
            State::Out(Stage::HeadHeld { commitment, .. }) => commitment,
            State::Out(Stage::RefusalHeld { status, .. }) => {
                self.clock.note_progress();
                Commitment::Tunnel { status }
            }
            State::Queued { .. }
            | State::Out(
                Stage::Sent | Stage::Discarding | Stage::HeadKnown(_) | Stage::Streaming(_),
            )
            | State::Done { .. } => return,
        };
        self.state = State::Out(Stage::HeadKnown(commitment));
        self.outputs.push_back(Output::ReleaseHead);
    }

    fn note_first_token(&mut self, now: Instant, commitment: Commitment) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.first_token_at = Some(self.clock.since_receipt(now));
        }
        self.state = State::Out(Stage::Streaming(commitment));
    }

    /// A success without the option, after a refusal with it, proves what the refusal was about.
    fn note_usage_answer(&mut self, status: u16) {
        let is_second =
            self.attempts.last().is_some_and(|attempt| attempt.grant.why == USAGE_OPTION_REFUSED);
        if is_second && (200..300).contains(&status) {
            self.outputs.push_back(Output::RememberUsageRefusal);
        }
    }

    /// Does what the verdict on the attempt says; the attempt has returned.
    fn follow(&mut self, now: Instant, next: Next) {
        match next {
            Next::Requeue(cause) => {
                self.refused_sends += 1;
                self.settle_attempt(now, AttemptEnd::Requeued(cause));
                self.state = State::Queued { since: now };
                self.outputs.push_back(Output::Requeue(cause));
            }
            Next::AskWithoutUsage => self.ask_without_usage(now),
            Next::Retry(reason, failure) => self.retry(now, reason, failure),
            Next::End(ended) => {
                let finish = self.judge_end(now, ended);
                self.settle_attempt(now, attempt_end(&finish.outcome));
                // The permit first: whoever waits for it need not wait for this client.
                self.outputs.push_back(Output::Release);
                self.finish(finish);
            }
        }
    }

    fn retry(&mut self, now: Instant, reason: Reason, failure: Failure) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.recovery_eligible = true;
        }
        self.settle_attempt(now, AttemptEnd::Failed(failure.clone()));
        let keeps_answer =
            matches!(self.state, State::Out(Stage::RefusalHeld { .. })) && reason.is_answer();
        let is_answer = reason.is_answer();
        // That nobody could be reached says less than what a provider answered before.
        if is_answer || !self.fallback.as_ref().is_some_and(|earlier| earlier.is_answer) {
            self.fallback = Some(Fallback { failure, is_answer, is_kept: keeps_answer });
        }
        self.reasons.push(reason);
        self.clock.forget_progress();
        self.state = State::Queued { since: now };
        self.outputs.push_back(Output::Retry(Retry { reason, keeps_answer }));
    }

    fn judge_end(&mut self, now: Instant, ended: Ended) -> Finish {
        let mut failure = match ended {
            Ended::Completed(seen) => return self.judge_whole(seen),
            Ended::Failed(failure) => failure,
            Ended::Cancelled => Failure::new(ErrorCode::NodeLost, "the node cancelled the request"),
            Ended::Refused(refusal) => refused(&refusal),
        };
        if recovery::is_kept_from_others(&self.facts(now), &failure)
            && let Some(last) = self.attempts.last()
        {
            let Grant { node, provider, .. } = &last.grant;
            let why = format!(
                "; not tried elsewhere: the call may still be at work at {node}/{provider}"
            );
            failure.message.push_str(&why);
        }
        let commitment = self.commitment();
        let is_silent = !commitment.is_released()
            && failure.provider_status.is_none()
            && failure.code != ErrorCode::ResponseStalled;
        if is_silent && let Some(fallback) = self.fallback.take_if(|earlier| earlier.is_answer) {
            // The attempt keeps its own end.
            self.settle_attempt(now, AttemptEnd::Failed(failure));
            return fallback.finish();
        }
        Finish { client: commitment.fail(&failure), outcome: Outcome::Failed(failure) }
    }

    /// Judges a response that reached its end. One that is held is released if it is good for the
    /// client, and replaced by an error otherwise.
    fn judge_whole(&mut self, seen: Evidence) -> Finish {
        let held = match self.state {
            State::Out(Stage::HeadHeld { commitment, .. }) => Some(commitment),
            State::Out(Stage::RefusalHeld { status, .. }) => Some(Commitment::Tunnel { status }),
            State::Queued { .. }
            | State::Out(
                Stage::Sent | Stage::Discarding | Stage::HeadKnown(_) | Stage::Streaming(_),
            )
            | State::Done { .. } => None,
        };
        let commitment = held.unwrap_or_else(|| self.commitment());
        let is_checked = self.spec.streamed || self.form() == Some(Form::Run);
        let mut finish = outcome::completed(commitment, self.spec.has_finish && is_checked, seen);
        if held.is_some() {
            match (&finish.client, finish.outcome.failure()) {
                (ClientEnd::Abort | ClientEnd::ErrorEvent(_), Some(failure)) => {
                    finish.client = ClientEnd::Error(failure.clone());
                }
                _ => self.release_head(),
            }
        }
        finish
    }

    /// Ends the request from this side; the attempt, if one is out, is cancelled and still returns.
    fn cut(&mut self, now: Instant, cause: CancelCause, end: impl FnOnce(Commitment) -> Finish) {
        let commitment = self.commitment();
        match self.state {
            State::Queued { since } => {
                self.queued += now.saturating_duration_since(since);
                self.outputs.push_back(Output::LeaveQueue);
                self.finish(end(commitment));
            }
            State::Out(_) => {
                let finish = end(commitment);
                self.settle_attempt(now, attempt_end(&finish.outcome));
                self.outputs.push_back(Output::Cancel(cause));
                self.finish(finish);
                self.state = State::Done { returning: Some(now + RETURN_WAIT) };
            }
            State::Done { .. } => self.late += 1,
        }
    }

    /// Ends the request when one of its deadlines has passed.
    fn claim_overdue(&mut self, now: Instant) {
        if matches!(self.state, State::Done { .. }) {
            return;
        }
        if let Some(failure) = self.clock.overdue(now) {
            self.cut(now, CancelCause::Deadline, |commitment| Finish {
                client: commitment.fail(&failure),
                outcome: Outcome::Failed(failure),
            });
        }
    }

    fn finish(&mut self, mut finish: Finish) {
        self.state = State::Done { returning: None };
        if let Some(history) = self.told_attempts() {
            finish.prefix(&history);
        }
        self.outcome = Some(finish.outcome.clone());
        self.outputs.push_back(Output::Finish(finish));
    }

    /// What a failure's message begins with where several attempts were made: how many, and what each
    /// but the last one failed for.
    fn told_attempts(&self) -> Option<String> {
        let made = self.attempts.iter().filter(|attempt| attempt.has_passed()).count();
        if made < 2 {
            return None;
        }
        let reasons: Vec<_> =
            self.reasons.iter().take(made - 1).map(|reason| reason.as_str()).collect();
        Some(format!("after {made} attempts ({}): ", reasons.join(", ")))
    }

    fn returned(&mut self) {
        self.state = State::Done { returning: None };
        self.outputs.push_back(Output::Release);
    }

    fn settle_attempt(&mut self, now: Instant, end: AttemptEnd) {
        let at = self.clock.since_receipt(now);
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.settle(at, end);
        }
    }

    const fn ignore(&mut self) -> Relay {
        self.late += 1;
        Relay::Discard
    }

    fn form(&self) -> Option<Form> {
        self.attempts.last().map(|attempt| attempt.grant.form)
    }

    const fn commitment(&self) -> Commitment {
        match self.state {
            State::Out(Stage::HeadKnown(commitment) | Stage::Streaming(commitment)) => commitment,
            State::Queued { .. }
            | State::Out(
                Stage::Sent
                | Stage::Discarding
                | Stage::HeadHeld { .. }
                | Stage::RefusalHeld { .. },
            )
            | State::Done { .. } => Commitment::Nothing,
        }
    }

    fn facts(&self, now: Instant) -> Facts<'_> {
        let last = self.attempts.last();
        Facts {
            now,
            policy: &self.spec.policy,
            asks_usage: last.is_some_and(|attempt| attempt.grant.asks_usage),
            has_answered: match self.state {
                State::Out(
                    Stage::HeadHeld { .. }
                    | Stage::RefusalHeld { .. }
                    | Stage::HeadKnown(_)
                    | Stage::Streaming(_),
                ) => true,
                State::Queued { .. }
                | State::Out(Stage::Sent | Stage::Discarding)
                | State::Done { .. } => false,
            },
            is_released: self.commitment().is_released(),
            held_refusal: match self.state {
                State::Out(Stage::RefusalHeld { status, .. }) => Some(status),
                State::Queued { .. }
                | State::Out(
                    Stage::Sent
                    | Stage::Discarding
                    | Stage::HeadHeld { .. }
                    | Stage::HeadKnown(_)
                    | Stage::Streaming(_),
                )
                | State::Done { .. } => None,
            },
            refused_sends: self.refused_sends,
            passed: self.attempts.iter().filter(|attempt| attempt.has_passed()).count(),
            has_others: last.is_some_and(|attempt| attempt.grant.has_others),
            has_time: self.clock.has_time(now),
        }
    }
}

impl Fallback {
    fn finish(self) -> Finish {
        let client = match self.is_kept {
            true => ClientEnd::KeptAnswer,
            false => ClientEnd::Error(self.failure.clone()),
        };
        Finish { client, outcome: Outcome::Failed(self.failure) }
    }
}

/// A refusal that no other place in the queue can cure.
fn refused(refusal: &Refusal) -> Failure {
    let code = match refusal {
        Refusal::Unsupported { .. } => ErrorCode::InvalidRequest,
        Refusal::NotPermitted { .. } => ErrorCode::Forbidden,
        Refusal::CredentialDenied(_) => ErrorCode::CredentialUnavailable,
        Refusal::UnknownProvider { .. }
        | Refusal::AmbiguousProvider { .. }
        | Refusal::StaleConfig { .. }
        | Refusal::CapacityExceeded { .. }
        | Refusal::Draining => ErrorCode::NoReadyProvider,
        Refusal::StallTimeout(_) | Refusal::Malformed { .. } | Refusal::Duplicate => {
            ErrorCode::ProviderError
        }
    };
    Failure::new(code, format!("the node refused the request: {refusal}"))
}

fn attempt_end(outcome: &Outcome) -> AttemptEnd {
    match outcome {
        Outcome::Completed => AttemptEnd::Completed,
        Outcome::Cancelled(failure) => AttemptEnd::Cancelled(failure.code),
        Outcome::Failed(failure) => AttemptEnd::Failed(failure.clone()),
    }
}
