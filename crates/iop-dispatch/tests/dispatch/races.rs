//! Two things at one instant: which of them counts.

use iop_dispatch::{CancelCause, ClientEnd, Deadlines, Ended, Outcome, Output, Relay, Spec};
use iop_types::{CloseReason, ErrorCode, Form};

use crate::request::{Request, SECOND, code, grant, spec, whole};

/// A tunnel that streams and has reached the instant of its route's timeout, unnoticed.
fn at_the_deadline() -> Request {
    let whole = Some(20 * SECOND);
    let mut request =
        Request::new(Spec { deadlines: Deadlines { whole, ..Deadlines::default() }, ..spec() });
    request.granted(grant(Form::Tunnel));
    request.expect_send();
    assert_eq!(request.head(200), Relay::Forward);
    request.jump(20 * SECOND);
    request
}

#[test]
fn a_client_that_left_beats_the_deadline() {
    let mut request = at_the_deadline();
    request.client_gone();
    let (cause, finish) = request.expect_cut();
    assert_eq!((cause, code(&finish)), (CancelCause::ClientGone, ErrorCode::ClientGone));
    request.advance(SECOND);
    assert_eq!(request.take_told(), [], "the deadline is no longer of interest");
}

#[test]
fn a_node_that_was_lost_beats_the_deadline() {
    let mut request = at_the_deadline();
    request.node_lost();
    assert_eq!(code(&request.expect_end()), ErrorCode::NodeLost);
}

#[test]
fn the_deadline_beats_the_providers_terminal() {
    let mut request = at_the_deadline();
    request.ended(Ended::Completed(whole()));
    assert!(request.dispatch.is_over());
    let told = request.take_told();
    let [Output::Cancel(CancelCause::Deadline), Output::Finish(finish), Output::Release] =
        &told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!(code(finish), ErrorCode::DeadlineExceeded);
}

#[test]
fn the_deadline_beats_a_piece_of_the_body() {
    let mut request = at_the_deadline();
    assert_eq!(request.body(true), Relay::Discard);
    let (cause, _) = request.expect_cut();
    assert_eq!(cause, CancelCause::Deadline);
}

#[test]
fn the_deadline_beats_a_client_that_stalled() {
    let mut request = at_the_deadline();
    request.dispatch.handle_client_stalled(request.now);
    request.advance(SECOND);
    request.client_gone();
    let (cause, _) = request.expect_cut();
    assert_eq!(cause, CancelCause::Deadline);
}

#[test]
fn a_permit_that_comes_at_the_deadline_goes_straight_back() {
    let mut request = Request::new(spec());
    request.jump(900 * SECOND);
    request.granted(grant(Form::Tunnel));
    let told = request.take_told();
    let [Output::LeaveQueue, Output::Finish(finish), Output::Release] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(code(finish), ErrorCode::DeadlineExceeded);
    assert!(request.dispatch.attempts().is_empty());
}

#[test]
fn a_permit_for_a_client_that_left_goes_straight_back() {
    let mut request = Request::new(spec());
    request.client_gone();
    request.expect_left_queue();
    request.granted(grant(Form::Tunnel));
    assert_eq!(request.take_told(), [Output::Release]);
}

#[test]
fn a_client_that_leaves_as_its_answer_ends_changes_nothing() {
    let mut request = Request::tunnel();
    request.completed();
    request.client_gone();
    let finish = request.expect_end();
    assert_eq!((finish.client, finish.outcome), (ClientEnd::Clean, Outcome::Completed));
    assert_eq!(request.dispatch.late(), 1);
}

#[test]
fn an_answer_that_ends_as_its_client_leaves_gives_the_permit_back_once() {
    let mut request = Request::tunnel();
    request.client_gone();
    request.expect_cut();
    request.completed();
    request.completed();
    request.dispatch.handle_node_lost(request.now, CloseReason::PeerClosed);
    request.advance(60 * SECOND);
    assert_eq!(request.take_told(), [Output::Release]);
    assert_eq!(request.dispatch.outcome().map(Outcome::kind), Some("cancelled"));
    assert_eq!(request.dispatch.late(), 2);
}

#[test]
fn a_second_terminal_is_counted_and_ignored() {
    let mut request = Request::run();
    request.completed();
    request.expect_end();
    request.failed(ErrorCode::ProviderError);
    request.node_lost();
    assert_eq!(request.take_told(), []);
    assert_eq!(request.dispatch.late(), 2);
    assert_eq!(request.dispatch.outcome(), Some(&Outcome::Completed));
}

#[test]
fn a_second_head_is_nobodys() {
    let mut request = Request::tunnel();
    assert_eq!(request.head(200), Relay::Discard);
    assert_eq!(request.start(), Relay::Discard);
    request.completed();
    assert_eq!(request.expect_end().outcome, Outcome::Completed);
}
