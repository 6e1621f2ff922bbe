//! What is sent again although nothing failed, and what is not.

use iop_dispatch::{ClientEnd, Ended, Evidence, Outcome, Output, Relay};
use iop_types::{Attempt, ErrorCode, Failure, Form, Refusal, Requeue};

use crate::request::{MILLI, Request, SECOND, code, error_code, grant, spec, whole};

#[test]
fn a_request_that_no_provider_saw_goes_back_to_its_place_and_its_attempts_count_on() {
    let mut request = Request::sent(Form::Tunnel);
    request.jump(10 * MILLI);
    request.node_refused(Refusal::CapacityExceeded { capacity: 1 });
    assert_eq!(request.take_told(), [Output::Requeue(Requeue::CapacityExceeded)]);
    request.jump(50 * MILLI);
    request.granted(grant(Form::Run));
    assert_eq!(request.expect_send().attempt, Attempt(2));
    request.unsent(Requeue::Fenced);
    assert_eq!(request.take_told(), [Output::Requeue(Requeue::Fenced)]);
    request.granted(grant(Form::Run));
    assert_eq!(request.expect_send().attempt, Attempt(3));
    request.completed();

    assert_eq!(request.expect_end().outcome, Outcome::Completed);
    assert_eq!(request.ends(), ["capacity_exceeded", "fenced", "completed"]);
    assert_eq!(request.dispatch.queued(), 50 * MILLI);
}

#[test]
fn every_cause_to_queue_again_is_followed() {
    let refusals = [
        (Refusal::CapacityExceeded { capacity: 2 }, Requeue::CapacityExceeded),
        (Refusal::StaleConfig { revision: 7 }, Requeue::StaleConfig),
        (Refusal::Draining, Requeue::Draining),
    ];
    for (refusal, cause) in refusals {
        let mut request = Request::sent(Form::Run);
        request.node_refused(refusal);
        assert_eq!(request.take_told(), [Output::Requeue(cause)]);
    }
}

#[test]
fn a_node_that_refuses_after_it_answered_is_not_believed() {
    let mut request = Request::tunnel();
    request.node_refused(Refusal::CapacityExceeded { capacity: 1 });
    assert_eq!(request.expect_end().client, ClientEnd::Abort);

    let mut request = Request::run();
    request.unsent(Requeue::Fenced);
    assert_eq!(error_code(&request.expect_end().client), ErrorCode::NodeLost);
}

#[test]
fn a_request_that_is_refused_without_end_ends() {
    let mut request = Request::new(spec());
    for send in 1..=64 {
        request.granted(grant(Form::Tunnel));
        assert_eq!(request.expect_send().attempt, Attempt(send));
        request.node_refused(Refusal::CapacityExceeded { capacity: 1 });
        if send < 64 {
            assert_eq!(request.take_told(), [Output::Requeue(Requeue::CapacityExceeded)]);
        }
    }
    assert_eq!(error_code(&request.expect_end().client), ErrorCode::NoReadyProvider);
}

#[test]
fn a_request_that_went_back_can_be_refused_by_admission() {
    let mut request = Request::sent(Form::Tunnel);
    request.unsent(Requeue::Draining);
    request.take_told();
    request.refused(Failure::new(ErrorCode::NoReadyProvider, "nobody left"));
    let told = request.take_told();
    assert!(matches!(&told[..], [Output::Finish(f)] if code(f) == ErrorCode::NoReadyProvider));
}

#[test]
fn with_recovery_off_a_failure_is_not_tried_again_and_history_says_so() {
    for code in [ErrorCode::ConnectFailed, ErrorCode::ProviderError, ErrorCode::NodeLost] {
        let mut request = Request::sent(Form::Tunnel);
        request.failed(code);
        request.expect_end();
        assert_eq!(request.dispatch.attempts().len(), 1);
        assert!(!request.attempt(0).recovery_eligible);
    }
}

fn asks_usage(form: Form) -> Request {
    let mut request = Request::new(spec());
    request.granted(iop_dispatch::Grant { asks_usage: true, ..grant(form) });
    assert!(request.expect_send().asks_usage);
    request
}

#[test]
fn a_refused_usage_option_is_left_out_and_the_client_never_sees_the_refusal() {
    let mut request = asks_usage(Form::Tunnel);
    assert_eq!(request.head(400), Relay::Discard);
    assert_eq!(request.body(true), Relay::Discard);
    assert_eq!(request.take_told(), [], "the first call has to return first");
    request.ended(Ended::Completed(Evidence::default()));
    let send = request.expect_send();
    assert_eq!((send.attempt, send.asks_usage), (Attempt(2), false));

    assert_eq!(request.head(200), Relay::Forward);
    assert_eq!(request.take_told(), [Output::RememberUsageRefusal]);
    request.ended(Ended::Completed(whole()));
    assert_eq!(request.expect_end().outcome, Outcome::Completed);
    assert_eq!(request.ends(), ["usage_option_refused", "completed"]);
    assert_eq!(request.attempt(1).grant.why, "usage_option_refused");
}

#[test]
fn a_refused_usage_option_is_left_out_of_a_run_too() {
    let mut request = asks_usage(Form::Run);
    let refused = Failure {
        provider_status: Some(400),
        ..Failure::new(ErrorCode::ProviderError, "unknown field stream_options")
    };
    request.ended(Ended::Failed(refused));
    assert!(!request.expect_send().asks_usage);
    assert_eq!(request.start(), Relay::Forward);
    assert_eq!(request.take_told(), [Output::RememberUsageRefusal]);
}

#[test]
fn a_request_that_is_wrong_anyway_gets_the_second_refusal() {
    let mut request = asks_usage(Form::Tunnel);
    assert_eq!(request.head(400), Relay::Discard);
    request.ended(Ended::Completed(Evidence::default()));
    request.expect_send();
    assert_eq!(request.head(400), Relay::Forward);
    assert_eq!(request.take_told(), [], "nothing was learned about the option");
    request.ended(Ended::Completed(Evidence::default()));
    let finish = request.expect_end();
    assert_eq!(finish.client, ClientEnd::Clean);
    assert_eq!(finish.outcome.failure().and_then(|f| f.provider_status), Some(400));
}

#[test]
fn an_option_of_the_clients_own_is_never_left_out() {
    let mut request = Request::sent(Form::Tunnel);
    assert_eq!(request.head(400), Relay::Forward);
}

#[test]
fn other_statuses_say_nothing_about_the_option() {
    for status in [401, 404, 422, 429, 500, 503] {
        let mut request = asks_usage(Form::Tunnel);
        assert_eq!(request.head(status), Relay::Forward, "{status}");
    }
}

#[test]
fn a_node_lost_between_the_two_is_lost() {
    let mut request = asks_usage(Form::Tunnel);
    assert_eq!(request.head(400), Relay::Discard);
    request.node_lost();
    assert_eq!(error_code(&request.expect_end().client), ErrorCode::NodeLost);
}

#[test]
fn a_client_that_leaves_between_the_two_is_not_asked_for_again() {
    let mut request = asks_usage(Form::Tunnel);
    assert_eq!(request.head(400), Relay::Discard);
    request.client_gone();
    request.expect_cut();
    request.ended(Ended::Completed(Evidence::default()));
    assert_eq!(request.take_told(), [Output::Release]);
    assert_eq!(request.dispatch.attempts().len(), 1);
}

#[test]
fn a_discarded_refusal_is_no_first_progress() {
    let mut request = asks_usage(Form::Tunnel);
    request.jump(10 * SECOND);
    assert_eq!(request.head(400), Relay::Discard);
    request.ended(Ended::Completed(Evidence::default()));
    assert_eq!(request.expect_send().first_progress_within, Some(890 * SECOND));
    request.advance(890 * SECOND);
    let (_, finish) = request.expect_cut();
    assert_eq!(code(&finish), ErrorCode::DeadlineExceeded);
}

#[test]
fn the_second_asking_may_be_refused_for_want_of_capacity() {
    let mut request = asks_usage(Form::Tunnel);
    assert_eq!(request.head(400), Relay::Discard);
    request.ended(Ended::Completed(Evidence::default()));
    request.expect_send();
    request.node_refused(Refusal::CapacityExceeded { capacity: 1 });
    assert_eq!(request.take_told(), [Output::Requeue(Requeue::CapacityExceeded)]);
}
