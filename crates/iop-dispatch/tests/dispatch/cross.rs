//! Every event in every state, and every pair of events: one terminal, and each permit back once.

use iop_dispatch::{ClientEnd, Ended, Evidence, Output, Reason, Relay};
use iop_types::{ErrorCode, Failure, Form, Refusal, Requeue};

use crate::request::{Request, SECOND, grant, recoverable, whole};

/// A state that a request can be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Queued,
    Sent,
    Discarding,
    HeadHeld,
    RefusalHeld,
    QueuedAgain,
    HeadKnown,
    Streaming,
    Cancelled,
    Over,
}

const PHASES: [Phase; 10] = [
    Phase::Queued,
    Phase::Sent,
    Phase::Discarding,
    Phase::HeadHeld,
    Phase::RefusalHeld,
    Phase::QueuedAgain,
    Phase::HeadKnown,
    Phase::Streaming,
    Phase::Cancelled,
    Phase::Over,
];

/// What can happen to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Granted,
    Refused,
    Unsent,
    Head(u16),
    Start,
    Body(bool),
    Completed,
    Stalled,
    Lost,
    NodeRefused,
    NodeLost,
    ClientGone,
    ClientStalled,
    Cancel,
    Shutdown,
    Deadline,
    Full,
}

const EVENTS: [Event; 20] = [
    Event::Granted,
    Event::Refused,
    Event::Unsent,
    Event::Head(200),
    Event::Head(400),
    Event::Head(503),
    Event::Start,
    Event::Body(true),
    Event::Body(false),
    Event::Completed,
    Event::Stalled,
    Event::Lost,
    Event::NodeRefused,
    Event::NodeLost,
    Event::ClientGone,
    Event::ClientStalled,
    Event::Cancel,
    Event::Shutdown,
    Event::Deadline,
    Event::Full,
];

fn bring_to(phase: Phase, form: Form) -> Request {
    let mut request = Request::new(recoverable());
    if phase == Phase::Queued {
        return request;
    }
    request.granted(iop_dispatch::Grant { asks_usage: phase == Phase::Discarding, ..grant(form) });
    match phase {
        Phase::Queued | Phase::Sent => {}
        Phase::Discarding => assert_eq!(request.head(400), Relay::Discard),
        Phase::RefusalHeld => assert_eq!(request.head(503), Relay::Hold),
        Phase::QueuedAgain => {
            request.node_lost();
            assert!(request.told.iter().any(|told| matches!(told, Output::Retry(_))));
        }
        Phase::HeadHeld | Phase::HeadKnown | Phase::Streaming => {
            let relay = match form {
                Form::Tunnel => request.head(200),
                Form::Run => request.start(),
            };
            assert_eq!(relay, Relay::Hold);
            match phase {
                Phase::HeadKnown => request.advance(15 * SECOND),
                Phase::Streaming => assert_eq!(request.body(true), Relay::Forward),
                _ => {}
            }
        }
        Phase::Cancelled => request.cancel(),
        Phase::Over => request.completed(),
    }
    request
}

fn happens(request: &mut Request, event: Event, form: Form) {
    let failed = |code| Ended::Failed(Failure::new(code, "it went wrong"));
    match event {
        Event::Granted => request.granted(grant(form)),
        Event::Refused => request.refused(Failure::new(ErrorCode::QueueTimeout, "too late")),
        Event::Unsent => request.unsent(Requeue::Fenced),
        Event::Head(status) => drop_relay(request.head(status)),
        Event::Start => drop_relay(request.start()),
        Event::Body(progress) => drop_relay(request.body(progress)),
        Event::Completed => request.ended(Ended::Completed(whole())),
        Event::Stalled => request.ended(failed(ErrorCode::ResponseStalled)),
        Event::Lost => request.ended(Ended::Failed(Failure {
            connection_lost: true,
            ..Failure::new(ErrorCode::ProviderError, "gone")
        })),
        Event::NodeRefused => request.node_refused(Refusal::CapacityExceeded { capacity: 1 }),
        Event::NodeLost => request.node_lost(),
        Event::ClientGone => request.client_gone(),
        Event::ClientStalled => request.client_stalled(),
        Event::Cancel => request.cancel(),
        Event::Shutdown => request.shut_down(),
        Event::Deadline => request.advance(900 * SECOND),
        Event::Full => request.full(),
    }
}

const fn drop_relay(_: Relay) {}

/// Ends what is left, and counts: one finish, and as many permits back as were granted.
fn check(mut request: Request, grants: usize, what: &str) {
    request.client_gone();
    request.advance(iop_dispatch::RETURN_WAIT);
    let told = request.take_told();
    let count = |is: fn(&Output) -> bool| told.iter().filter(|told| is(told)).count();
    assert_eq!(count(|told| matches!(told, Output::Finish(_))), 1, "{what}: {told:?}");
    let back =
        count(|told| matches!(told, Output::Release | Output::Requeue(_) | Output::Retry(_)));
    assert_eq!(back, grants, "{what}: {told:?}");
    assert!(request.dispatch.is_over(), "{what}");
    let finish = told.iter().position(|told| matches!(told, Output::Finish(_))).unwrap_or_default();
    assert!(
        told[finish + 1..].iter().all(|told| matches!(told, Output::Release)),
        "{what}: only a permit comes back after the end: {told:?}"
    );
    let is_released = told[..finish].iter().any(|told| matches!(told, Output::ReleaseHead));
    if let Output::Finish(end) = &told[finish]
        && matches!(end.client, ClientEnd::Error(_) | ClientEnd::KeptAnswer)
    {
        assert!(!is_released, "{what}: two answers: {told:?}");
    }
}

/// Whether a host could see this event: Nodes say nothing of an attempt that is not out, admission
/// nothing to who does not wait.
fn is_possible(request: &Request, event: Event, grants: &mut usize) -> bool {
    let back = request
        .told
        .iter()
        .filter(|told| matches!(told, Output::Release | Output::Requeue(_) | Output::Retry(_)));
    let is_out = *grants > back.count();
    match event {
        Event::Granted if !is_out => {
            *grants += 1;
            true
        }
        Event::Refused => !is_out,
        Event::Granted => false,
        Event::Unsent
        | Event::Head(_)
        | Event::Start
        | Event::Body(_)
        | Event::Completed
        | Event::Stalled
        | Event::Lost
        | Event::NodeRefused
        | Event::NodeLost => is_out,
        Event::ClientGone
        | Event::ClientStalled
        | Event::Cancel
        | Event::Shutdown
        | Event::Deadline
        | Event::Full => true,
    }
}

#[test]
fn any_three_events_in_any_state_end_a_request_once() {
    for form in [Form::Tunnel, Form::Run] {
        for phase in PHASES {
            for first in EVENTS {
                for second in EVENTS {
                    for third in EVENTS {
                        let mut request = bring_to(phase, form);
                        let mut grants = usize::from(phase != Phase::Queued);
                        for event in [first, second, third] {
                            if is_possible(&request, event, &mut grants) {
                                happens(&mut request, event, form);
                            }
                        }
                        let what = format!("{form:?} {phase:?} {first:?} {second:?} {third:?}");
                        check(request, grants, &what);
                    }
                }
            }
        }
    }
}

#[test]
fn an_operator_ends_a_request_in_every_phase_with_the_same_word() {
    for form in [Form::Tunnel, Form::Run] {
        for phase in PHASES {
            let mut request = bring_to(phase, form);
            if matches!(phase, Phase::Cancelled | Phase::Over) {
                let before = request.dispatch.outcome().cloned();
                request.cancel();
                assert_eq!(request.dispatch.outcome(), before.as_ref(), "it is over");
                continue;
            }
            request.cancel();
            let outcome = request.dispatch.outcome().expect("it is over for its client");
            assert_eq!(outcome.kind(), "cancelled", "{phase:?}");
            assert_eq!(outcome.failure().map(|f| f.code), Some(ErrorCode::Cancelled), "{phase:?}");
            let told = request.take_told();
            let finish = told.iter().find_map(|told| match told {
                Output::Finish(finish) => Some(&finish.client),
                _ => None,
            });
            match (phase, form, finish) {
                (Phase::HeadKnown | Phase::Streaming, Form::Tunnel, Some(ClientEnd::Abort))
                | (
                    Phase::HeadKnown | Phase::Streaming,
                    Form::Run,
                    Some(ClientEnd::ErrorEvent(_)),
                ) => {}
                (Phase::HeadKnown | Phase::Streaming, _, other) => panic!("{phase:?}: {other:?}"),
                (_, _, other) => assert!(matches!(other, Some(ClientEnd::Error(_))), "{phase:?}"),
            }
        }
    }
}

#[test]
fn a_client_that_leaves_as_its_attempt_fails_is_not_tried_for_again() {
    // It left first: the failure starts nothing.
    let mut request = bring_to(Phase::Sent, Form::Tunnel);
    request.client_gone();
    request.node_lost();
    assert!(!request.told.iter().any(|told| matches!(told, Output::Retry(_))));
    assert_eq!(request.dispatch.attempts().len(), 1);

    // The failure came first: the next attempt is not sent.
    let mut request = bring_to(Phase::QueuedAgain, Form::Tunnel);
    request.client_gone();
    request.granted(grant(Form::Tunnel));
    let sends = request.told.iter().filter(|told| matches!(told, Output::Send(_))).count();
    assert_eq!(sends, 1);
}

#[test]
fn a_retry_that_is_wanted_after_the_first_byte_is_refused() {
    for form in [Form::Tunnel, Form::Run] {
        let mut request = bring_to(Phase::Streaming, form);
        request.node_lost();
        assert!(!request.told.iter().any(|told| matches!(told, Output::Retry(_))));
        assert_eq!(request.dispatch.attempts().len(), 1);
        assert!(!request.attempt(0).recovery_eligible);
    }
}

#[test]
fn a_refusal_that_is_held_is_told_from_its_reason() {
    let mut request = bring_to(Phase::RefusalHeld, Form::Tunnel);
    request.ended(Ended::Completed(Evidence::default()));
    let retry = request.told.iter().find_map(|told| match told {
        Output::Retry(retry) => Some(retry.reason),
        _ => None,
    });
    assert_eq!(retry, Some(Reason::Provider503));
}
