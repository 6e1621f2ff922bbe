//! Properties: whatever happens in whatever order, a request ends once and every permit comes back
//! once.

use std::time::Duration;

use iop_dispatch::{
    ClientEnd, Deadlines, Dispatch, Ended, Evidence, Grant, Output, Policy, Relay, Spec,
};
use iop_types::{CloseReason, ErrorCode, Failure, Form, Recovery, Refusal, Requeue};
use proptest::prelude::*;

use crate::request::{grant, policy, spec};

#[derive(Debug, Clone)]
enum Step {
    Granted(Form, bool),
    Refused,
    Unsent(Requeue),
    Head(u16),
    Start,
    Body(bool),
    Ended(Ended),
    NodeLost,
    ClientGone,
    ClientStalled,
    Cancel,
    Shutdown,
    Full,
    Advance(u64),
}

fn ended() -> impl Strategy<Value = Ended> {
    let failure = |status| Failure {
        provider_status: status,
        ..Failure::new(ErrorCode::ProviderError, "failed")
    };
    prop_oneof![
        4 => (any::<bool>(), any::<bool>()).prop_map(|(finish_seen, done_seen)| {
            Ended::Completed(Evidence { finish_seen, done_seen, error: None })
        }),
        1 => Just(Ended::Cancelled),
        1 => Just(Ended::Failed(failure(None))),
        2 => Just(Ended::Failed(failure(Some(503)))),
        2 => Just(Ended::Failed(Failure::new(ErrorCode::ConnectFailed, "refused"))),
        2 => Just(Ended::Failed(Failure { connection_lost: true, ..failure(None) })),
        2 => Just(Ended::Failed(failure(Some(400)))),
        2 => Just(Ended::Refused(Refusal::CapacityExceeded { capacity: 1 })),
        1 => Just(Ended::Refused(Refusal::Draining)),
        1 => Just(Ended::Refused(Refusal::Duplicate)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let form = prop_oneof![Just(Form::Run), Just(Form::Tunnel)];
    prop_oneof![
        8 => (form, any::<bool>()).prop_map(|(form, usage)| Step::Granted(form, usage)),
        1 => Just(Step::Refused),
        1 => Just(Step::Unsent(Requeue::Fenced)),
        3 => prop_oneof![Just(200u16), Just(400), Just(503)].prop_map(Step::Head),
        2 => Just(Step::Start),
        4 => any::<bool>().prop_map(Step::Body),
        4 => ended().prop_map(Step::Ended),
        1 => Just(Step::NodeLost),
        1 => Just(Step::ClientGone),
        1 => Just(Step::ClientStalled),
        1 => Just(Step::Cancel),
        1 => Just(Step::Shutdown),
        1 => Just(Step::Full),
        2 => (1..400_000u64).prop_map(Step::Advance),
    ]
}

/// What the host knows: whether it holds a permit, whether an attempt is out, what the client has.
#[derive(Debug, Default)]
struct Host {
    holds_permit: bool,
    is_out: bool,
    sends: u32,
    finished: bool,
    /// Whether the client has a byte of a response.
    head_forwarded: bool,
    /// Whether a head waits for its release.
    head_held: bool,
    /// Whether a response was kept for the end.
    has_kept: bool,
    retries: u32,
    streamed: bool,
}

impl Host {
    fn carry_out(&mut self, dispatch: &mut Dispatch) {
        while let Some(output) = dispatch.poll_output() {
            match output {
                Output::Send(send) => {
                    assert!(self.holds_permit, "a send needs a permit");
                    assert!(!self.is_out, "one attempt at a time");
                    assert!(!self.finished, "nothing is sent after the end");
                    self.sends += 1;
                    assert_eq!(send.attempt.0, self.sends, "attempts count every send");
                    self.is_out = true;
                }
                Output::Cancel(_) => assert!(self.holds_permit && !self.finished),
                Output::LeaveQueue => assert!(!self.is_out && !self.finished),
                Output::Requeue(_) | Output::Retry(_) | Output::Release => {
                    assert!(std::mem::take(&mut self.holds_permit), "a permit comes back once");
                    self.is_out = false;
                    if !matches!(output, Output::Release) {
                        assert!(!self.finished && !self.head_forwarded);
                    }
                    if let Output::Retry(retry) = output {
                        self.retries += 1;
                        assert!(self.retries < 3, "three attempts pass the gate at most");
                        let was_held = std::mem::take(&mut self.head_held);
                        assert!(was_held || !retry.keeps_answer, "what is kept is there");
                        self.has_kept |= retry.keeps_answer;
                    }
                }
                Output::ReleaseHead => {
                    assert!(std::mem::take(&mut self.head_held), "only what is held is released");
                    assert!(!self.finished);
                    self.head_forwarded = true;
                }
                Output::RememberUsageRefusal => assert!(self.is_out && !self.finished),
                Output::Finish(finish) => {
                    assert!(!self.finished, "one terminal");
                    self.finished = true;
                    match finish.client {
                        ClientEnd::Error(_) => assert!(!self.head_forwarded, "one answer"),
                        ClientEnd::KeptAnswer => assert!(self.has_kept && !self.head_forwarded),
                        ClientEnd::ErrorEvent(_) => assert!(self.head_forwarded),
                        ClientEnd::Clean => assert!(!self.head_held),
                        ClientEnd::Abort | ClientEnd::Nothing => {}
                    }
                }
            }
        }
        assert_eq!(dispatch.outcome().is_some(), self.finished);
        assert_eq!(dispatch.is_over(), self.finished && !self.holds_permit);
        assert_eq!(dispatch.attempts().len(), self.sends as usize);
    }
}

fn take(step: &Step, now: std::time::Instant, dispatch: &mut Dispatch, host: &mut Host) {
    let relay = match step {
        // Admission grants one permit at a time.
        Step::Granted(form, asks_usage) if !host.holds_permit => {
            host.holds_permit = true;
            let grant = Grant { asks_usage: *asks_usage, ..grant(*form) };
            return dispatch.handle_granted(now, grant);
        }
        Step::Granted(..) => return,
        Step::Refused if host.holds_permit => return,
        Step::Refused => {
            return dispatch.handle_refused(now, Failure::new(ErrorCode::QueueTimeout, "late"));
        }
        // A Node says nothing about an attempt that is not out, and nothing after its terminal.
        Step::Unsent(_)
        | Step::Head(_)
        | Step::Start
        | Step::Body(_)
        | Step::Ended(_)
        | Step::NodeLost
            if !host.is_out =>
        {
            return;
        }
        Step::Unsent(_) | Step::Ended(_) | Step::NodeLost => {
            host.is_out = false;
            return match step {
                Step::Unsent(cause) => dispatch.handle_unsent(now, *cause),
                Step::Ended(ended) => dispatch.handle_ended(now, ended.clone()),
                _ => dispatch.handle_node_lost(now, CloseReason::ConnectionLost),
            };
        }
        Step::Head(status) => dispatch.handle_head(now, *status),
        Step::Start => dispatch.handle_start(now),
        Step::Body(progress) => dispatch.handle_body(now, *progress),
        Step::ClientGone => return dispatch.handle_client_gone(now),
        Step::ClientStalled => return dispatch.handle_client_stalled(now),
        Step::Cancel => return dispatch.handle_cancel(now),
        // A host keeps nothing and finds nothing full where it was not told to keep.
        Step::Full if !host.head_held => return,
        Step::Full => return dispatch.handle_full(),
        Step::Shutdown => return dispatch.handle_shutdown(now),
        Step::Advance(_) => return dispatch.handle_timeout(now),
    };
    match relay {
        Relay::Forward => {
            assert!(!host.finished, "nothing is forwarded after the end");
            // The progress that releases a head comes behind it; and a run that is answered at once
            // has no head of its own.
            let has_head = host.streamed || matches!(step, Step::Head(_));
            host.head_forwarded |= has_head && !host.head_held;
        }
        Relay::Hold => {
            assert!(
                !host.finished && !host.head_forwarded,
                "nothing is held behind a released head"
            );
            host.head_held = true;
        }
        Relay::Discard => {}
    }
}

/// Plays one request to its end.
fn play(steps: &[Step], spec: Spec) {
    let mut now = spec.received;
    let mut host = Host { streamed: spec.streamed, ..Host::default() };
    let mut dispatch = Dispatch::new(spec);
    for step in steps {
        if let Step::Advance(ms) = step {
            now += Duration::from_millis(*ms);
        }
        take(step, now, &mut dispatch, &mut host);
        host.carry_out(&mut dispatch);
    }
    // The client leaves at last, and time passes: everything must come back.
    dispatch.handle_client_gone(now);
    host.carry_out(&mut dispatch);
    assert!(host.finished);
    now += iop_dispatch::RETURN_WAIT;
    dispatch.handle_timeout(now);
    host.carry_out(&mut dispatch);
    assert!(!host.holds_permit, "no permit is left behind");
    assert!(dispatch.is_over());
    assert_eq!(dispatch.poll_timeout(), None);
    for attempt in dispatch.attempts() {
        assert!(attempt.end.is_some(), "every attempt has an end: {attempt:?}");
        assert!(attempt.ended_at >= Some(attempt.sent_at));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn a_request_ends_once_and_every_permit_comes_back_once(
        steps in prop::collection::vec(step(), 0..40),
        streamed in any::<bool>(),
        whole in prop::option::of(1..600u64),
        recovery in prop_oneof![
            1 => Just(Recovery::Off), 1 => Just(Recovery::ConnectOnly), 4 => Just(Recovery::Full),
        ],
        hold in prop_oneof![1 => Just(0), 3 => Just(15)],
    ) {
        let deadlines = Deadlines { whole: whole.map(Duration::from_secs), ..Deadlines::default() };
        let policy = Policy { hold_head: Duration::from_secs(hold), ..policy(recovery) };
        play(&steps, Spec { streamed, deadlines, policy, ..spec() });
    }
}
