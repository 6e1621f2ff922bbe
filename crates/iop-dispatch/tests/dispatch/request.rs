//! One request with a clock in the test's hand, and a host that only takes notes.

use std::time::{Duration, Instant};

use iop_dispatch::{
    AttemptRecord, Budget, CancelCause, ClientEnd, Deadlines, Dispatch, Ended, Evidence, Finish,
    Grant, Output, Policy, Reason, Relay, Retry, Send, Spec,
};
use iop_types::{
    CloseReason, ErrorCode, Failure, Form, Generation, HealthEvidence, Ownership, Recovery,
    Refusal, Requeue, Stall, StallPhase,
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MILLI: Duration = Duration::from_millis(1);

pub(crate) struct Request {
    pub(crate) dispatch: Dispatch,
    pub(crate) now: Instant,
    /// What the host was told to do since it was last asked for.
    pub(crate) told: Vec<Output>,
}

/// A streamed chat of a route that neither recovers nor holds a head.
pub(crate) fn spec() -> Spec {
    Spec {
        received: Instant::now(),
        deadlines: Deadlines::default(),
        streamed: true,
        has_finish: true,
        policy: Policy { hold_head: Duration::ZERO, ..policy(Recovery::Off) },
    }
}

/// A policy that holds heads for 15 s and has a fresh budget.
pub(crate) fn policy(recovery: Recovery) -> Policy {
    Policy {
        recovery,
        hold_head: 15 * SECOND,
        is_repeatable: true,
        budget: Budget::new(Instant::now()),
    }
}

/// A streamed chat that may be tried again.
pub(crate) fn recoverable() -> Spec {
    Spec { policy: policy(Recovery::Full), ..spec() }
}

pub(crate) fn grant(form: Form) -> Grant {
    Grant {
        node: "n".into(),
        provider: "p".into(),
        target: "m".into(),
        generation: Generation(1),
        form,
        why: "least_loaded",
        has_others: true,
        asks_usage: false,
    }
}

impl Request {
    pub(crate) fn new(spec: Spec) -> Self {
        Self { now: spec.received, dispatch: Dispatch::new(spec), told: Vec::new() }
    }

    /// A request whose first attempt is out.
    pub(crate) fn sent_with(spec: Spec, form: Form) -> Self {
        let mut request = Self::new(spec);
        request.granted(grant(form));
        request.expect_send();
        request
    }

    /// A streamed chat whose first attempt is out.
    pub(crate) fn sent(form: Form) -> Self {
        Self::sent_with(spec(), form)
    }

    /// A tunnel whose 200 head is the client's.
    pub(crate) fn tunnel() -> Self {
        let mut request = Self::sent(Form::Tunnel);
        assert_eq!(request.head(200), Relay::Forward);
        request
    }

    /// A streamed run that has started.
    pub(crate) fn run() -> Self {
        let mut request = Self::sent(Form::Run);
        assert_eq!(request.start(), Relay::Forward);
        request
    }

    pub(crate) fn granted(&mut self, grant: Grant) {
        self.dispatch.handle_granted(self.now, grant);
        self.drain();
    }

    pub(crate) fn refused(&mut self, failure: Failure) {
        self.dispatch.handle_refused(self.now, failure);
        self.drain();
    }

    pub(crate) fn unsent(&mut self, cause: Requeue) {
        self.dispatch.handle_unsent(self.now, cause);
        self.drain();
    }

    pub(crate) fn head(&mut self, status: u16) -> Relay {
        let relay = self.dispatch.handle_head(self.now, status);
        self.drain();
        relay
    }

    pub(crate) fn start(&mut self) -> Relay {
        let relay = self.dispatch.handle_start(self.now);
        self.drain();
        relay
    }

    pub(crate) fn body(&mut self, progress: bool) -> Relay {
        let relay = self.dispatch.handle_body(self.now, progress);
        self.drain();
        relay
    }

    pub(crate) fn ended(&mut self, ended: Ended) {
        self.dispatch.handle_ended(self.now, ended);
        self.drain();
    }

    pub(crate) fn completed(&mut self) {
        self.ended(Ended::Completed(whole()));
    }

    pub(crate) fn failed(&mut self, code: ErrorCode) {
        self.ended(Ended::Failed(Failure::new(code, "it went wrong")));
    }

    pub(crate) fn node_refused(&mut self, refusal: Refusal) {
        self.ended(Ended::Refused(refusal));
    }

    pub(crate) fn node_lost(&mut self) {
        self.dispatch.handle_node_lost(self.now, CloseReason::ConnectionLost);
        self.drain();
    }

    pub(crate) fn client_gone(&mut self) {
        self.dispatch.handle_client_gone(self.now);
        self.drain();
    }

    pub(crate) fn client_stalled(&mut self) {
        self.dispatch.handle_client_stalled(self.now);
        self.drain();
    }

    pub(crate) fn shut_down(&mut self) {
        self.dispatch.handle_shutdown(self.now);
        self.drain();
    }

    pub(crate) fn full(&mut self) {
        self.dispatch.handle_full();
        self.drain();
    }

    pub(crate) fn cancel(&mut self) {
        self.dispatch.handle_cancel(self.now);
        self.drain();
    }

    /// Lets time pass, stopping at every instant at which the request wants to be called.
    pub(crate) fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(due) = self.dispatch.poll_timeout().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.dispatch.handle_timeout(self.now);
            self.drain();
            assert!(self.dispatch.poll_timeout().is_none_or(|next| next > self.now));
        }
        self.now = end;
    }

    /// Lets time pass without anybody noticing.
    pub(crate) fn jump(&mut self, by: Duration) {
        self.now += by;
    }

    fn drain(&mut self) {
        while let Some(output) = self.dispatch.poll_output() {
            self.told.push(output);
        }
    }

    pub(crate) fn take_told(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.told)
    }

    pub(crate) fn expect_send(&mut self) -> Send {
        match &self.take_told()[..] {
            [Output::Send(send)] => *send,
            other => panic!("not one send: {other:?}"),
        }
    }

    /// The one retry, and the send under the next grant.
    pub(crate) fn expect_retry(&mut self) -> Retry {
        match self.take_told().as_slice() {
            [Output::Retry(retry)] => *retry,
            other => panic!("not one retry: {other:?}"),
        }
    }

    /// Is tried again for this reason, and granted again.
    pub(crate) fn expect_again(&mut self, reason: Reason, form: Form) {
        assert_eq!(self.expect_retry().reason, reason);
        self.granted(grant(form));
        self.expect_send();
    }

    /// The end of a request whose attempt has returned: the permit, then the finish.
    pub(crate) fn expect_end(&mut self) -> Finish {
        assert!(self.dispatch.is_over());
        match self.take_told().as_slice() {
            [Output::Release, Output::Finish(finish)] => finish.clone(),
            other => panic!("not a release and a finish: {other:?}"),
        }
    }

    /// The end of a request whose held answer is the client's as it came.
    pub(crate) fn expect_passed_on(&mut self) {
        let told = self.take_told();
        assert!(
            matches!(&told[..], [Output::ReleaseHead, Output::Release, Output::Finish(finish)]
                if finish.client == ClientEnd::Clean),
            "{told:?}"
        );
    }

    /// The end of a request whose attempt was cut and has not returned yet.
    pub(crate) fn expect_cut(&mut self) -> (CancelCause, Finish) {
        assert!(!self.dispatch.is_over());
        match self.take_told().as_slice() {
            [Output::Cancel(cause), Output::Finish(finish)] => (*cause, finish.clone()),
            other => panic!("not a cancel and a finish: {other:?}"),
        }
    }

    /// The end of a request that waited.
    pub(crate) fn expect_left_queue(&mut self) -> Finish {
        assert!(self.dispatch.is_over());
        match self.take_told().as_slice() {
            [Output::LeaveQueue, Output::Finish(finish)] => finish.clone(),
            other => panic!("not a ticket and a finish: {other:?}"),
        }
    }

    pub(crate) fn attempt(&self, index: usize) -> &AttemptRecord {
        &self.dispatch.attempts()[index]
    }

    pub(crate) fn ends(&self) -> Vec<&'static str> {
        let attempts = self.dispatch.attempts().iter();
        attempts.map(|a| a.end.as_ref().map_or("", iop_dispatch::AttemptEnd::as_str)).collect()
    }
}

/// A provider that fell silent before its head.
pub(crate) fn stalled(ownership: Ownership) -> Failure {
    let stall = Stall {
        timeout: 3 * SECOND,
        silent: 3 * SECOND,
        phase: StallPhase::BeforeHead,
        ownership,
        health: HealthEvidence::Unavailable,
        observation_seq: Some(1),
    };
    Failure { stall: Some(stall), ..Failure::new(ErrorCode::ResponseStalled, "silent") }
}

/// A response with all that belongs to it.
pub(crate) fn whole() -> Evidence {
    Evidence { finish_seen: true, done_seen: true, error: None }
}

pub(crate) fn code(finish: &Finish) -> ErrorCode {
    finish.outcome.failure().map_or_else(|| panic!("{finish:?} is no failure"), |f| f.code)
}

pub(crate) fn error_code(client: &ClientEnd) -> ErrorCode {
    match client {
        ClientEnd::Error(failure) | ClientEnd::ErrorEvent(failure) => failure.code,
        ClientEnd::Clean | ClientEnd::KeptAnswer | ClientEnd::Abort | ClientEnd::Nothing => {
            panic!("{client:?} is no error")
        }
    }
}
