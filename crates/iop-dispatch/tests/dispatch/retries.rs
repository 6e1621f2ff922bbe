//! Failures after which another candidate is asked, and those that are the end.

use std::time::Instant;

use iop_dispatch::{
    AttemptEnd, Budget, ClientEnd, Deadlines, Ended, Evidence, Finish, Outcome, Output, Policy,
    Reason, Relay, Spec,
};
use iop_types::{Attempt, ErrorCode, Failure, Form, Ownership, Recovery, Refusal, Requeue};

use crate::request::{
    MILLI, Request, SECOND, code, error_code, grant, policy, recoverable, spec, stalled, whole,
};

/// What a Node says last when a try failed for this reason.
fn failure(reason: Reason) -> Failure {
    let failed = |code| Failure::new(code, "it went wrong");
    let answered =
        |status| Failure { provider_status: Some(status), ..failed(ErrorCode::ProviderError) };
    match reason {
        Reason::ConnectFailed => failed(ErrorCode::ConnectFailed),
        Reason::ConnectionLost => {
            Failure { connection_lost: true, ..failed(ErrorCode::ProviderError) }
        }
        Reason::NodeLost => failed(ErrorCode::NodeLost),
        Reason::ResponseStalled => stalled(Ownership::Confirmed),
        Reason::Provider429 => answered(429),
        Reason::Provider502 => answered(502),
        Reason::Provider503 => answered(503),
        Reason::Provider504 => answered(504),
    }
}

fn fails(request: &mut Request, reason: Reason) {
    request.ended(Ended::Failed(failure(reason)));
}

/// A recoverable tunnel whose provider answers with this status and a body, and waits for a verdict.
fn refused_with(status: u16) -> Request {
    let mut request = Request::sent_with(recoverable(), Form::Tunnel);
    assert_eq!(request.head(status), Relay::Hold);
    assert_eq!(request.body(true), Relay::Hold);
    assert_eq!(request.take_told(), []);
    request.ended(Ended::Completed(Evidence::default()));
    request
}

/// A streamed request whose success is held for its first progress.
fn held(form: Form) -> Request {
    let mut request = Request::sent_with(recoverable(), form);
    let relay = match form {
        Form::Tunnel => request.head(200),
        Form::Run => request.start(),
    };
    assert_eq!(relay, Relay::Hold);
    assert_eq!(request.take_told(), []);
    request
}

/// A recoverable request at the only candidate that is ready.
fn alone(form: Form) -> Request {
    let mut request = Request::new(recoverable());
    request.granted(iop_dispatch::Grant { has_others: false, ..grant(form) });
    request.expect_send();
    request
}

/// What the client and history are told of a failure.
fn message(finish: &Finish) -> (&str, &str) {
    let (ClientEnd::Error(client), Outcome::Failed(kept)) = (&finish.client, &finish.outcome)
    else {
        panic!("not an error of both: {finish:?}");
    };
    (&client.message, &kept.message)
}

fn only_finish(request: &mut Request) -> Finish {
    match request.take_told().as_slice() {
        [Output::Finish(finish)] => finish.clone(),
        other => panic!("not one finish: {other:?}"),
    }
}

#[test]
fn every_reason_leads_to_another_attempt_that_names_it() {
    for reason in Reason::ALL {
        let mut request = Request::sent_with(recoverable(), Form::Run);
        request.jump(40 * MILLI);
        fails(&mut request, *reason);
        let retry = request.expect_retry();
        assert_eq!((retry.reason, retry.keeps_answer), (*reason, false));
        request.granted(grant(Form::Run));
        assert_eq!(request.expect_send().attempt, Attempt(2));
        assert_eq!(request.start(), Relay::Hold);
        request.completed();
        let told = request.take_told();
        assert!(
            matches!(&told[..], [Output::ReleaseHead, Output::Release, Output::Finish(finish)]
                if finish.outcome == Outcome::Completed),
            "{told:?}"
        );
        assert_eq!(request.attempt(1).grant.why, reason.as_str());
        assert!(request.attempt(0).recovery_eligible && !request.attempt(1).recovery_eligible);
        assert_eq!(request.ends(), [failure(*reason).code.as_str(), "completed"]);
    }
}

#[test]
fn a_failure_that_has_no_reason_is_the_end() {
    let others = [
        Failure::new(ErrorCode::ProviderError, "no HTTP"),
        Failure::new(ErrorCode::Truncated, "framing"),
        Failure { provider_status: Some(500), ..Failure::new(ErrorCode::ProviderError, "500") },
        Failure { provider_status: Some(404), ..Failure::new(ErrorCode::ProviderError, "404") },
        stalled(Ownership::Unconfirmed),
        Failure::new(ErrorCode::ResponseStalled, "a stall of which nothing is known"),
        Failure::new(ErrorCode::CredentialUnavailable, "no lease"),
    ];
    for failure in others {
        let mut request = Request::sent_with(recoverable(), Form::Run);
        request.ended(Ended::Failed(failure.clone()));
        assert_eq!(code(&request.expect_end()), failure.code);
        assert!(!request.attempt(0).recovery_eligible);
    }
}

#[test]
fn a_refusal_of_the_node_that_no_queue_can_cure_is_the_end() {
    let mut request = Request::sent_with(recoverable(), Form::Run);
    request.node_refused(Refusal::Duplicate);
    assert_eq!(error_code(&request.expect_end().client), ErrorCode::ProviderError);
}

#[test]
fn a_third_attempt_is_the_last() {
    let mut request = Request::sent_with(recoverable(), Form::Tunnel);
    fails(&mut request, Reason::ConnectFailed);
    request.expect_again(Reason::ConnectFailed, Form::Tunnel);
    fails(&mut request, Reason::ConnectionLost);
    request.expect_again(Reason::ConnectionLost, Form::Tunnel);
    fails(&mut request, Reason::NodeLost);
    assert_eq!(error_code(&request.expect_end().client), ErrorCode::NodeLost);
    let eligible: Vec<_> =
        request.dispatch.attempts().iter().map(|attempt| attempt.recovery_eligible).collect();
    assert_eq!(eligible, [true, true, false]);
}

#[test]
fn sends_that_a_gate_refused_count_towards_nothing_and_keep_the_reason() {
    let mut request = Request::sent_with(recoverable(), Form::Tunnel);
    for _ in 0..5 {
        request.node_refused(Refusal::CapacityExceeded { capacity: 1 });
        assert_eq!(request.take_told(), [Output::Requeue(Requeue::CapacityExceeded)]);
        request.granted(grant(Form::Tunnel));
        request.expect_send();
    }
    fails(&mut request, Reason::ConnectFailed);
    request.expect_again(Reason::ConnectFailed, Form::Tunnel);
    request.node_refused(Refusal::Draining);
    request.take_told();
    request.granted(grant(Form::Tunnel));
    request.expect_send();
    assert_eq!(request.attempt(7).grant.why, "connect_failed");
    fails(&mut request, Reason::ConnectFailed);
    request.expect_again(Reason::ConnectFailed, Form::Tunnel);
    fails(&mut request, Reason::ConnectFailed);
    request.expect_end();
}

#[test]
fn connect_only_follows_nothing_that_may_have_reached_a_provider() {
    for reason in Reason::ALL {
        let spec = Spec { policy: policy(Recovery::ConnectOnly), ..spec() };
        let mut request = Request::sent_with(spec, Form::Run);
        fails(&mut request, *reason);
        match reason {
            Reason::ConnectFailed => assert_eq!(request.expect_retry().reason, *reason),
            _ => assert_eq!(code(&request.expect_end()), failure(*reason).code),
        }
    }
}

#[test]
fn where_nobody_else_is_ready_only_a_lost_connection_or_link_is_followed() {
    for reason in Reason::ALL {
        let mut request = alone(Form::Run);
        fails(&mut request, *reason);
        match reason {
            Reason::ConnectionLost | Reason::NodeLost => {
                assert_eq!(request.expect_retry().reason, *reason);
            }
            _ => {
                assert_eq!(code(&request.expect_end()), failure(*reason).code);
                assert!(!request.attempt(0).recovery_eligible);
            }
        }
    }
}

#[test]
fn the_last_failure_says_how_many_attempts_there_were_and_what_they_failed_for() {
    let mut request = Request::sent_with(recoverable(), Form::Tunnel);
    fails(&mut request, Reason::ConnectionLost);
    request.expect_again(Reason::ConnectionLost, Form::Tunnel);
    request.node_refused(Refusal::Draining);
    request.take_told();
    request.granted(grant(Form::Tunnel));
    request.expect_send();
    fails(&mut request, Reason::ResponseStalled);
    request.expect_again(Reason::ResponseStalled, Form::Tunnel);
    fails(&mut request, Reason::NodeLost);
    let finish = request.expect_end();
    let said = "after 3 attempts (connection_lost, response_stalled): it went wrong";
    assert_eq!(message(&finish), (said, said));
    let last = request.attempt(3).end.clone();
    assert_eq!(last, Some(AttemptEnd::Failed(failure(Reason::NodeLost))), "its own words");
}

#[test]
fn a_deadline_that_ends_a_second_attempt_names_the_first() {
    let deadlines = Deadlines { whole: Some(20 * SECOND), ..Deadlines::default() };
    let mut request = Request::sent_with(Spec { deadlines, ..recoverable() }, Form::Tunnel);
    fails(&mut request, Reason::ConnectFailed);
    request.expect_again(Reason::ConnectFailed, Form::Tunnel);
    request.advance(20 * SECOND);
    let (_, finish) = request.expect_cut();
    assert!(message(&finish).0.starts_with("after 2 attempts (connect_failed): "), "{finish:?}");
}

#[test]
fn a_silent_call_that_may_still_be_at_work_says_why_nobody_else_was_asked() {
    let silent = |mut request: Request| {
        request.ended(Ended::Failed(stalled(Ownership::Unconfirmed)));
        let finish = request.expect_end();
        assert_eq!(message(&finish).0, message(&finish).1);
        message(&finish).0.to_owned()
    };
    let why = "silent; not tried elsewhere: the call may still be at work at n/p";
    assert_eq!(silent(Request::sent_with(recoverable(), Form::Tunnel)), why);
    assert_eq!(silent(alone(Form::Tunnel)), "silent", "nobody else was there");
    assert_eq!(silent(Request::sent(Form::Tunnel)), "silent", "its route tries nobody else");
}

#[test]
fn an_operation_that_may_not_happen_twice_is_not_tried_again() {
    let policy = Policy { is_repeatable: false, ..policy(Recovery::Full) };
    let mut request = Request::sent_with(Spec { policy, ..spec() }, Form::Tunnel);
    fails(&mut request, Reason::ConnectFailed);
    request.expect_end();
}

#[test]
fn the_budget_of_the_edge_ends_retries_for_all() {
    let policy = Policy { budget: Budget::new(Instant::now()), ..policy(Recovery::Full) };
    for request in 0..11 {
        let spec = Spec { policy: policy.clone(), ..spec() };
        let mut request_ = Request::sent_with(spec, Form::Tunnel);
        fails(&mut request_, Reason::ConnectFailed);
        if request < 10 {
            request_.expect_retry();
        } else {
            assert_eq!(error_code(&request_.expect_end().client), ErrorCode::ConnectFailed);
            assert!(!request_.attempt(0).recovery_eligible);
        }
    }
}

#[test]
fn a_deadline_that_leaves_no_time_leaves_no_retry() {
    let whole = Some(20 * SECOND);
    let deadlines = Deadlines { whole, ..Deadlines::default() };
    for (at, is_retried) in [(19 * SECOND, true), (20 * SECOND - 50 * MILLI, false)] {
        let mut request = Request::sent_with(Spec { deadlines, ..recoverable() }, Form::Tunnel);
        request.jump(at);
        fails(&mut request, Reason::ConnectFailed);
        match is_retried {
            true => assert_eq!(request.expect_retry().reason, Reason::ConnectFailed),
            false => assert_eq!(code(&request.expect_end()), ErrorCode::ConnectFailed),
        }
    }
}

#[test]
fn the_next_attempt_has_what_is_left_of_the_deadlines() {
    let mut request = held(Form::Tunnel);
    request.jump(10 * SECOND);
    fails(&mut request, Reason::ConnectionLost);
    request.expect_retry();
    request.jump(5 * SECOND);
    request.granted(grant(Form::Tunnel));
    let send = request.expect_send();
    assert_eq!(send.first_progress_within, Some(885 * SECOND), "the lost head was no progress");
}

#[test]
fn a_queue_that_ends_a_retry_leaves_the_failure_as_the_clients_answer() {
    let mut request = Request::sent_with(recoverable(), Form::Tunnel);
    fails(&mut request, Reason::ConnectFailed);
    request.expect_retry();
    request.refused(Failure::new(ErrorCode::QueueTimeout, "nobody was free"));
    let finish = only_finish(&mut request);
    assert_eq!(error_code(&finish.client), ErrorCode::ConnectFailed);
    assert_eq!(code(&finish), ErrorCode::ConnectFailed);
}

// ---- a provider's refusal ----

#[test]
fn a_refusal_in_a_tunnel_is_kept_back_and_replaced() {
    for status in [429, 502, 503, 504] {
        let mut request = refused_with(status);
        let retry = request.expect_retry();
        assert!(retry.keeps_answer && retry.reason.is_answer());
        request.granted(grant(Form::Tunnel));
        request.expect_send();
        assert_eq!(request.head(200), Relay::Hold);
        assert_eq!(request.body(true), Relay::Forward);
        assert_eq!(request.take_told(), [Output::ReleaseHead]);
        request.completed();
        assert_eq!(request.expect_end().outcome, Outcome::Completed);
    }
}

#[test]
fn the_last_refusal_is_the_clients_as_it_came() {
    let mut request = refused_with(503);
    request.expect_again(Reason::Provider503, Form::Tunnel);
    assert_eq!(request.head(429), Relay::Hold);
    request.ended(Ended::Completed(Evidence::default()));
    request.expect_again(Reason::Provider429, Form::Tunnel);
    assert_eq!(request.head(504), Relay::Forward, "no further attempt could follow it");
    request.ended(Ended::Completed(Evidence::default()));
    let finish = request.expect_end();
    assert_eq!(finish.client, ClientEnd::Clean);
    assert_eq!(finish.outcome.failure().and_then(|failure| failure.provider_status), Some(504));
}

#[test]
fn a_refusal_that_finds_no_other_candidate_is_the_clients_as_it_came() {
    let mut request = refused_with(503);
    assert!(request.expect_retry().keeps_answer);
    request.refused(Failure::new(ErrorCode::NoReadyProvider, "nobody else"));
    let finish = only_finish(&mut request);
    assert_eq!(finish.client, ClientEnd::KeptAnswer);
    assert_eq!(finish.outcome.failure().and_then(|failure| failure.provider_status), Some(503));
}

#[test]
fn a_providers_refusal_says_more_than_that_the_next_one_could_not_be_reached() {
    let mut request = refused_with(429);
    request.expect_again(Reason::Provider429, Form::Tunnel);
    fails(&mut request, Reason::ConnectFailed);
    request.expect_again(Reason::ConnectFailed, Form::Tunnel);
    fails(&mut request, Reason::ConnectFailed);
    let finish = request.expect_end();
    assert_eq!(finish.client, ClientEnd::KeptAnswer);
    assert_eq!(finish.outcome.failure().and_then(|failure| failure.provider_status), Some(429));
    assert_eq!(request.ends(), ["provider_error", "connect_failed", "connect_failed"]);
}

#[test]
fn where_nobody_else_is_ready_a_refusal_passes_at_once() {
    assert_eq!(alone(Form::Tunnel).head(503), Relay::Forward);
}

#[test]
fn a_refusal_of_which_too_much_comes_passes_as_it_comes() {
    let mut request = Request::sent_with(recoverable(), Form::Tunnel);
    assert_eq!(request.head(503), Relay::Hold);
    request.dispatch.handle_full();
    request.advance(MILLI);
    assert_eq!(request.body(true), Relay::Forward);
    request.ended(Ended::Completed(Evidence::default()));
    request.expect_passed_on();
}

#[test]
fn a_refusal_that_does_not_end_is_passed_on_after_two_seconds() {
    let mut request = Request::sent_with(recoverable(), Form::Tunnel);
    assert_eq!(request.head(503), Relay::Hold);
    request.advance(2 * SECOND - MILLI);
    assert_eq!(request.take_told(), []);
    request.advance(MILLI);
    assert_eq!(request.take_told(), [Output::ReleaseHead]);
}

#[test]
fn a_refusal_that_breaks_off_is_followed_like_any_lost_connection() {
    let mut request = Request::sent_with(recoverable(), Form::Tunnel);
    assert_eq!(request.head(503), Relay::Hold);
    fails(&mut request, Reason::ConnectionLost);
    let retry = request.expect_retry();
    assert_eq!((retry.reason, retry.keeps_answer), (Reason::ConnectionLost, false));
}

#[test]
fn the_answer_of_a_refusal_is_no_reason_where_the_budget_is_spent() {
    let budget = Budget::new(Instant::now());
    while budget.take(Instant::now()) {}
    let policy = Policy { budget, ..policy(Recovery::Full) };
    let mut request = Request::sent_with(Spec { policy, ..spec() }, Form::Tunnel);
    assert_eq!(request.head(503), Relay::Hold);
    request.ended(Ended::Completed(Evidence::default()));
    request.expect_passed_on();
}

// ---- the held head ----

#[test]
fn a_head_is_held_until_the_first_progress_and_then_it_is_final() {
    for form in [Form::Tunnel, Form::Run] {
        let mut request = held(form);
        assert_eq!(request.body(false), Relay::Hold, "a keep-alive stays behind it");
        assert_eq!(request.body(true), Relay::Forward);
        assert_eq!(request.take_told(), [Output::ReleaseHead]);
        fails(&mut request, Reason::ConnectionLost);
        let finish = request.expect_end();
        match form {
            Form::Tunnel => assert_eq!(finish.client, ClientEnd::Abort),
            Form::Run => assert!(matches!(finish.client, ClientEnd::ErrorEvent(_))),
        }
        assert!(!request.attempt(0).recovery_eligible);
    }
}

#[test]
fn a_head_is_held_no_longer_than_the_route_says_and_then_it_is_final() {
    for form in [Form::Tunnel, Form::Run] {
        let mut request = held(form);
        request.advance(15 * SECOND - MILLI);
        assert_eq!(request.take_told(), []);
        request.advance(MILLI);
        assert_eq!(request.take_told(), [Output::ReleaseHead]);
        fails(&mut request, Reason::NodeLost);
        assert!(!matches!(request.expect_end().client, ClientEnd::Error(_)));
    }
}

#[test]
fn a_route_that_holds_no_head_lets_it_through_at_once() {
    let policy = Policy { hold_head: std::time::Duration::ZERO, ..policy(Recovery::Full) };
    let mut request = Request::sent_with(Spec { policy, ..spec() }, Form::Tunnel);
    assert_eq!(request.head(200), Relay::Forward);
}

#[test]
fn a_head_behind_which_nothing_can_be_tried_again_is_held_for_its_status() {
    let unrepeatable = Policy { is_repeatable: false, ..policy(Recovery::Full) };
    for policy in [policy(Recovery::Off), policy(Recovery::ConnectOnly), unrepeatable] {
        let mut request = Request::sent_with(Spec { policy, ..spec() }, Form::Tunnel);
        assert_eq!(request.head(200), Relay::Hold);
        assert!(!request.dispatch.may_send_again(), "its body may go");
        fails(&mut request, Reason::ConnectionLost);
        assert_eq!(error_code(&request.expect_end().client), ErrorCode::ProviderError);
    }
    let mut third = Request::sent_with(recoverable(), Form::Run);
    for _ in 0..2 {
        fails(&mut third, Reason::NodeLost);
        third.expect_again(Reason::NodeLost, Form::Run);
    }
    assert_eq!(third.start(), Relay::Hold);
    fails(&mut third, Reason::NodeLost);
    assert_eq!(error_code(&third.expect_end().client), ErrorCode::NodeLost);
}

#[test]
fn a_head_of_an_answer_that_comes_at_once_is_not_held() {
    let mut request = Request::sent_with(Spec { streamed: false, ..recoverable() }, Form::Tunnel);
    assert_eq!(request.head(200), Relay::Forward);
}

#[test]
fn every_early_loss_behind_a_held_head_is_recovered() {
    for reason in [Reason::ConnectionLost, Reason::NodeLost, Reason::ResponseStalled] {
        for form in [Form::Tunnel, Form::Run] {
            let mut request = held(form);
            fails(&mut request, reason);
            request.expect_again(reason, form);
        }
    }
}

#[test]
fn a_loss_behind_a_held_head_that_is_not_recovered_is_an_answer_with_a_status() {
    for form in [Form::Tunnel, Form::Run] {
        let mut request = held(form);
        request.ended(Ended::Failed(stalled(Ownership::Unconfirmed)));
        assert_eq!(error_code(&request.expect_end().client), ErrorCode::ResponseStalled);
        let mut request = held(form);
        request.ended(Ended::Completed(Evidence::default()));
        assert_eq!(error_code(&request.expect_end().client), ErrorCode::Truncated);
    }
}

#[test]
fn an_answer_that_is_written_at_its_end_can_be_replaced_until_then() {
    let mut request = Request::sent_with(Spec { streamed: false, ..recoverable() }, Form::Run);
    assert_eq!(request.start(), Relay::Forward);
    assert_eq!(request.body(true), Relay::Forward);
    assert!(request.dispatch.may_send_again());
    fails(&mut request, Reason::NodeLost);
    request.expect_again(Reason::NodeLost, Form::Run);
    request.completed();
    assert_eq!(request.expect_end().outcome, Outcome::Completed);
}

#[test]
fn a_second_try_without_an_option_of_ours_is_outside_the_count() {
    let mut request = Request::new(recoverable());
    request.granted(iop_dispatch::Grant { asks_usage: true, ..grant(Form::Run) });
    request.expect_send();
    let refused =
        Failure { provider_status: Some(400), ..Failure::new(ErrorCode::ProviderError, "400") };
    request.ended(Ended::Failed(refused));
    assert!(!request.expect_send().asks_usage);
    for _ in 0..2 {
        fails(&mut request, Reason::ConnectFailed);
        request.expect_again(Reason::ConnectFailed, Form::Run);
    }
    fails(&mut request, Reason::ConnectFailed);
    request.expect_end();
    assert_eq!(request.dispatch.attempts().len(), 4);
    assert_eq!(whole().error, None);
}
