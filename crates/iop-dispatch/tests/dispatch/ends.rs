//! How requests end, and what their clients see of it.

use iop_dispatch::{
    AttemptEnd, CancelCause, ClientEnd, Deadlines, Ended, Evidence, Outcome, Output, Relay, Spec,
};
use iop_types::{Attempt, ErrorCode, Failure, Form, Refusal};

use crate::request::{MILLI, Request, SECOND, code, error_code, grant, spec, whole};

#[test]
fn a_relayed_stream_runs_from_the_queue_to_its_end() {
    let mut request = Request::new(spec());
    request.jump(40 * MILLI);
    request.granted(grant(Form::Tunnel));
    let send = request.expect_send();
    assert_eq!(send.attempt, Attempt::FIRST);
    assert_eq!(send.first_progress_within, Some(900 * SECOND - 40 * MILLI));
    assert_eq!(send.ends_within, None);

    request.jump(60 * MILLI);
    assert_eq!(request.head(200), Relay::Forward);
    assert_eq!(request.body(false), Relay::Forward, "a keep-alive is the client's too");
    request.jump(100 * MILLI);
    assert_eq!(request.body(true), Relay::Forward);
    request.jump(100 * MILLI);
    assert_eq!(request.body(true), Relay::Forward);
    request.completed();

    let finish = request.expect_end();
    assert_eq!((finish.client, finish.outcome), (ClientEnd::Clean, Outcome::Completed));
    assert_eq!(request.dispatch.queued(), 40 * MILLI);
    let attempt = request.attempt(0);
    assert_eq!(attempt.sent_at, 40 * MILLI);
    assert_eq!(attempt.head_at, Some(100 * MILLI));
    assert_eq!(attempt.first_token_at, Some(200 * MILLI));
    assert_eq!(attempt.ended_at, Some(300 * MILLI));
    assert_eq!(attempt.end, Some(AttemptEnd::Completed));
    assert!(!attempt.recovery_eligible);
    assert_eq!(request.dispatch.late(), 0);
}

#[test]
fn admissions_refusal_is_the_clients_answer() {
    let mut request = Request::new(spec());
    request.jump(30 * SECOND);
    request.refused(Failure::new(ErrorCode::QueueTimeout, "too long"));
    let told = request.take_told();
    let [Output::Finish(finish)] = &told[..] else { panic!("{told:?}") };
    assert_eq!(error_code(&finish.client), ErrorCode::QueueTimeout);
    assert_eq!(request.dispatch.queued(), 30 * SECOND);
    assert!(request.dispatch.attempts().is_empty());
}

#[test]
fn a_failure_before_the_head_is_an_answer_with_a_status() {
    for form in [Form::Tunnel, Form::Run] {
        let mut request = Request::sent(form);
        request.failed(ErrorCode::ConnectFailed);
        let finish = request.expect_end();
        assert!(
            matches!(&finish.client, ClientEnd::Error(f) if f.code == ErrorCode::ConnectFailed)
        );
        assert_eq!(code(&finish), ErrorCode::ConnectFailed);
    }
}

#[test]
fn a_failure_behind_a_relayed_head_cuts_the_body() {
    let mut request = Request::tunnel();
    request.failed(ErrorCode::ProviderError);
    let finish = request.expect_end();
    assert_eq!(finish.client, ClientEnd::Abort);
    assert_eq!(code(&finish), ErrorCode::ProviderError);
}

#[test]
fn a_failure_behind_the_head_of_a_run_is_one_error_event() {
    let mut request = Request::run();
    assert_eq!(request.body(true), Relay::Forward);
    request.failed(ErrorCode::ProviderError);
    let finish = request.expect_end();
    assert!(matches!(finish.client, ClientEnd::ErrorEvent(_)));
}

#[test]
fn a_run_that_is_not_streamed_can_fail_with_a_status_until_its_end() {
    let mut request = Request::new(Spec { streamed: false, ..spec() });
    request.granted(grant(Form::Run));
    request.expect_send();
    assert_eq!(request.start(), Relay::Forward);
    assert_eq!(request.body(true), Relay::Forward);
    request.failed(ErrorCode::ProviderError);
    assert!(matches!(request.expect_end().client, ClientEnd::Error(_)));
}

#[test]
fn a_run_may_answer_without_a_start() {
    let mut request = Request::sent(Form::Run);
    assert_eq!(request.body(true), Relay::Forward);
    request.completed();
    assert_eq!(request.expect_end().client, ClientEnd::Clean);
    assert!(request.attempt(0).first_token_at.is_some());
}

#[test]
fn a_body_before_any_head_is_nobodys() {
    let mut request = Request::sent(Form::Tunnel);
    assert_eq!(request.body(true), Relay::Discard);
    assert_eq!(request.dispatch.late(), 1);
}

#[test]
fn the_providers_own_error_passes_as_it_is_and_is_a_failure_in_history() {
    for status in [302, 404, 503] {
        let mut request = Request::sent(Form::Tunnel);
        assert_eq!(request.head(status), Relay::Forward);
        assert_eq!(request.body(true), Relay::Forward);
        request.ended(Ended::Completed(Evidence::default()));
        let finish = request.expect_end();
        assert_eq!(finish.client, ClientEnd::Clean);
        assert_eq!(code(&finish), ErrorCode::ProviderError);
        assert_eq!(finish.outcome.failure().and_then(|f| f.provider_status), Some(status));
    }
}

#[test]
fn an_error_object_inside_a_success_is_a_failure_in_history() {
    let mut request = Request::tunnel();
    let error = Some(Failure::new(ErrorCode::ProviderError, "quota"));
    request.ended(Ended::Completed(Evidence { error, ..Evidence::default() }));
    let finish = request.expect_end();
    assert_eq!(finish.client, ClientEnd::Clean, "its bytes are the provider's");
    assert_eq!(code(&finish), ErrorCode::ProviderError);
}

#[test]
fn a_stream_without_a_finish_reason_is_truncated() {
    let cases = [(false, ClientEnd::Abort), (true, ClientEnd::Clean)];
    for (done_seen, client) in cases {
        let mut request = Request::tunnel();
        assert_eq!(request.body(true), Relay::Forward);
        request.ended(Ended::Completed(Evidence { done_seen, ..Evidence::default() }));
        let finish = request.expect_end();
        assert_eq!(finish.client, client, "[DONE] seen: {done_seen}");
        assert_eq!(code(&finish), ErrorCode::Truncated);
    }
    let mut request = Request::run();
    request.ended(Ended::Completed(Evidence::default()));
    assert_eq!(error_code(&request.expect_end().client), ErrorCode::Truncated);
}

#[test]
fn a_finish_reason_without_done_is_a_whole_answer() {
    let mut request = Request::tunnel();
    request.ended(Ended::Completed(Evidence { done_seen: false, ..whole() }));
    let finish = request.expect_end();
    assert_eq!((finish.client, finish.outcome), (ClientEnd::Clean, Outcome::Completed));
}

#[test]
fn only_streams_and_runs_of_chats_and_completions_need_a_finish_reason() {
    let relayed_whole = Spec { streamed: false, ..spec() };
    let embedding = Spec { streamed: false, has_finish: false, ..spec() };
    for (spec, form) in [(relayed_whole, Form::Tunnel), (embedding, Form::Run)] {
        let mut request = Request::new(spec);
        request.granted(grant(form));
        request.expect_send();
        match form {
            Form::Tunnel => assert_eq!(request.head(200), Relay::Forward),
            Form::Run => assert_eq!(request.start(), Relay::Forward),
        }
        request.ended(Ended::Completed(Evidence::default()));
        assert_eq!(request.expect_end().outcome, Outcome::Completed);
    }
}

#[test]
fn a_lost_node_is_named_as_such() {
    let mut request = Request::tunnel();
    request.node_lost();
    let finish = request.expect_end();
    assert_eq!(finish.client, ClientEnd::Abort);
    assert_eq!(code(&finish), ErrorCode::NodeLost);
    assert_eq!(request.ends(), ["node_lost"]);
}

#[test]
fn a_node_that_cancels_unasked_has_lost_the_request() {
    let mut request = Request::tunnel();
    request.ended(Ended::Cancelled);
    assert_eq!(code(&request.expect_end()), ErrorCode::NodeLost);
}

#[test]
fn a_refusal_that_another_turn_cannot_cure_ends_the_request() {
    let refusals = [
        (Refusal::Duplicate, ErrorCode::ProviderError),
        (Refusal::UnknownProvider { provider: "p".into() }, ErrorCode::NoReadyProvider),
        (Refusal::Unsupported { what: "rerank".into() }, ErrorCode::InvalidRequest),
    ];
    for (refusal, expected) in refusals {
        let mut request = Request::sent(Form::Run);
        request.node_refused(refusal);
        assert_eq!(error_code(&request.expect_end().client), expected);
    }
}

#[test]
fn a_client_that_leaves_the_queue_is_cancelled_there() {
    let mut request = Request::new(spec());
    request.client_gone();
    let finish = request.expect_left_queue();
    assert_eq!(finish.client, ClientEnd::Nothing);
    assert_eq!(finish.outcome.kind(), "cancelled");
    assert_eq!(code(&finish), ErrorCode::ClientGone);
}

#[test]
fn a_client_that_leaves_cancels_the_attempt_in_every_phase_and_the_permit_waits_for_its_return() {
    let phases: [fn() -> Request; 4] = [
        || Request::sent(Form::Tunnel),
        || Request::sent(Form::Run),
        Request::tunnel,
        || {
            let mut request = Request::run();
            assert_eq!(request.body(true), Relay::Forward);
            request
        },
    ];
    for phase in phases {
        let mut request = phase();
        request.client_gone();
        let (cause, finish) = request.expect_cut();
        assert_eq!((cause, finish.client), (CancelCause::ClientGone, ClientEnd::Nothing));
        assert_eq!(request.ends(), ["client_gone"]);

        request.advance(2 * SECOND);
        assert_eq!(request.body(true), Relay::Discard, "late bytes are nobody's");
        assert_eq!(request.take_told(), []);
        request.ended(Ended::Cancelled);
        assert_eq!(request.take_told(), [Output::Release]);
        assert!(request.dispatch.is_over());
        assert_eq!(request.ends(), ["client_gone"], "what came later changes nothing");
    }
}

#[test]
fn a_permit_does_not_wait_for_ever_for_an_attempt_that_does_not_return() {
    let mut request = Request::tunnel();
    request.client_gone();
    request.expect_cut();
    request.advance(10 * SECOND - MILLI);
    assert_eq!(request.take_told(), []);
    request.advance(MILLI);
    assert_eq!(request.take_told(), [Output::Release]);
    request.ended(Ended::Cancelled);
    assert_eq!(request.take_told(), []);
    assert_eq!(request.dispatch.late(), 1);
}

#[test]
fn a_head_that_was_cancelled_unsent_gives_its_permit_back() {
    let mut request = Request::sent(Form::Tunnel);
    request.client_gone();
    request.expect_cut();
    request.unsent(iop_types::Requeue::Fenced);
    assert_eq!(request.take_told(), [Output::Release], "and goes to no queue");
}

#[test]
fn a_client_that_stopped_reading_is_cut_off() {
    let mut request = Request::run();
    request.dispatch.handle_client_stalled(request.now);
    request.advance(MILLI);
    let told = request.take_told();
    assert_eq!(told, []);
    // The outputs are drained by the next call of the fixture.
    request.client_gone();
    let (cause, finish) = request.expect_cut();
    assert_eq!(cause, CancelCause::ClientStalled);
    assert_eq!(finish.client, ClientEnd::Abort);
    assert_eq!(code(&finish), ErrorCode::ClientStalled);
}

#[test]
fn without_progress_a_request_ends_after_fifteen_minutes_of_queue_and_execution() {
    let mut request = Request::new(spec());
    request.advance(600 * SECOND);
    request.granted(grant(Form::Tunnel));
    assert_eq!(request.expect_send().first_progress_within, Some(300 * SECOND));
    request.advance(300 * SECOND - MILLI);
    assert_eq!(request.take_told(), []);
    request.advance(MILLI);
    let (cause, finish) = request.expect_cut();
    assert_eq!(cause, CancelCause::Deadline);
    assert_eq!(error_code(&finish.client), ErrorCode::DeadlineExceeded);
    assert!(code(&finish).is_retryable() || finish.outcome.kind() == "failed");
}

#[test]
fn with_progress_a_request_may_last_for_ever() {
    let mut request = Request::tunnel();
    assert_eq!(request.body(true), Relay::Forward);
    request.advance(24 * 3600 * SECOND);
    request.completed();
    assert_eq!(request.expect_end().outcome, Outcome::Completed);
}

#[test]
fn a_request_that_waits_past_its_deadline_leaves_the_queue() {
    let whole = Some(20 * SECOND);
    let mut request =
        Request::new(Spec { deadlines: Deadlines { whole, ..Deadlines::default() }, ..spec() });
    request.advance(20 * SECOND);
    let finish = request.expect_left_queue();
    assert_eq!(error_code(&finish.client), ErrorCode::DeadlineExceeded);
}

#[test]
fn a_routes_timeout_ends_a_stream_that_is_getting_on_and_names_itself() {
    let whole = Some(20 * SECOND);
    let spec = Spec { deadlines: Deadlines { whole, ..Deadlines::default() }, ..spec() };
    for (form, expected) in [(Form::Tunnel, true), (Form::Run, false)] {
        let mut request = Request::new(spec.clone());
        request.granted(grant(form));
        assert_eq!(request.expect_send().ends_within, whole);
        match form {
            Form::Tunnel => assert_eq!(request.head(200), Relay::Forward),
            Form::Run => assert_eq!(request.start(), Relay::Forward),
        }
        request.advance(19 * SECOND);
        assert_eq!(request.body(true), Relay::Forward);
        request.advance(SECOND);
        let (cause, finish) = request.expect_cut();
        assert_eq!(cause, CancelCause::Deadline);
        assert_eq!(finish.client == ClientEnd::Abort, expected, "{form:?}");
        let failure = finish.outcome.failure().expect("a failure");
        assert!(failure.message.contains("20 s, the timeout of its route"), "{failure}");
    }
}

#[test]
fn the_end_of_the_drain_ends_what_is_left() {
    let mut waiting = Request::new(spec());
    waiting.dispatch.handle_shutdown(waiting.now);
    waiting.client_gone();
    assert_eq!(error_code(&waiting.expect_left_queue().client), ErrorCode::ShuttingDown);

    let mut streaming = Request::run();
    streaming.dispatch.handle_shutdown(streaming.now);
    streaming.client_gone();
    let (cause, finish) = streaming.expect_cut();
    assert_eq!(cause, CancelCause::ShuttingDown);
    assert_eq!(error_code(&finish.client), ErrorCode::ShuttingDown);
}
