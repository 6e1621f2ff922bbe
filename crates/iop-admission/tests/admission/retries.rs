//! Where a request goes that failed.

use iop_admission::{Entry, Refused};
use iop_types::{ErrorCode, Requeue};

use crate::edge::{Edge, SECOND, candidate, config, provider, route, winner};

/// Providers `a` and `b`, of which `a` is always the better choice, with this capacity each.
fn ranked(capacity: u32) -> Edge {
    let mut spare = candidate("b", "m");
    spare.priority = 1;
    let mut edge = Edge::new(config(&[route("r", &[candidate("a", "m"), spare])]));
    edge.ready("n", 1, &[provider("a", capacity, &["m"]), provider("b", capacity, &["m"])]);
    edge
}

#[test]
fn a_request_that_failed_goes_to_a_candidate_where_it_has_not_even_a_lesser_one() {
    let mut edge = ranked(4);
    let permit = edge.permit("r");
    assert_eq!(winner(&permit).0, "a");
    assert!(permit.candidate().has_others);
    let second = edge.retried(permit);
    assert_eq!(winner(&second).0, "b");
    assert!(!second.candidate().has_others, "nobody is left at whom it has not failed");
    assert_eq!(edge.view("n", "a").in_use, 0, "the first permit is back");
    edge.release(second);
    let next = edge.permit("r");
    assert_eq!(winner(&next).0, "a", "other requests go where they went");
}

#[test]
fn the_last_candidate_is_asked_again() {
    let mut edge = Edge::with(&[provider("a", 1, &["m"])]);
    let permit = edge.permit("m");
    assert!(!permit.candidate().has_others);
    let permit = edge.retried(permit);
    assert_eq!(winner(&permit).0, "a");
}

#[test]
fn when_it_failed_everywhere_the_order_is_the_usual_one() {
    let mut edge = ranked(4);
    let permit = edge.permit("r");
    let permit = edge.retried(permit);
    let permit = edge.retried(permit);
    assert_eq!(winner(&permit).0, "a");
}

#[test]
fn a_request_that_must_go_elsewhere_ends_where_nobody_else_is_ready() {
    let mut edge = Edge::with(&[provider("a", 4, &["m"])]);
    let permit = edge.permit("m");
    let refused = edge.retry(permit, true).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::NoReadyProvider);
    assert_eq!((edge.in_flight(), edge.waiting()), (0, 0));
}

#[test]
fn a_request_waits_for_a_busy_candidate_rather_than_for_the_one_where_it_failed() {
    let mut edge = ranked(1);
    let first = edge.permit("r");
    let other = edge.permit("r");
    assert_eq!((winner(&first).0, winner(&other).0), ("a", "b"));
    let ticket = edge.retry_waits(first, false);
    assert_eq!(edge.view("n", "a").in_use, 0);
    edge.advance(SECOND);
    edge.release(other);
    assert_eq!(winner(&edge.take(ticket)).0, "b");
}

#[test]
fn a_request_that_waits_for_a_busy_candidate_takes_the_other_again_when_that_one_goes() {
    let mut edge = ranked(1);
    let first = edge.permit("r");
    let _other = edge.permit("r");
    let ticket = edge.retry_waits(first, false);
    edge.ready("n", 2, &[provider("a", 1, &["m"])]);
    assert_eq!(winner(&edge.take(ticket)).0, "a");
}

#[test]
fn a_request_that_must_go_elsewhere_is_refused_when_that_one_goes() {
    let mut edge = ranked(1);
    let first = edge.permit("r");
    let _other = edge.permit("r");
    let ticket = edge.retry_waits(first, true);
    edge.ready("n", 2, &[provider("a", 1, &["m"])]);
    assert!(matches!(edge.refused[&ticket], Refused::NoReadyProvider { .. }));
}

#[test]
fn the_place_and_its_deadline_are_the_old_ones() {
    let mut edge = ranked(1);
    let first = edge.permit("r");
    let other = edge.permit("r");
    let later = edge.ticket("r");
    edge.advance(10 * SECOND);
    let ticket = edge.retry_waits(first, false);
    assert!(ticket < later);
    // What the failed attempt held went to whoever waits for either.
    assert_eq!(winner(&edge.take(later)).0, "a");
    edge.advance(20 * SECOND);
    assert!(matches!(edge.refused[&ticket], Refused::QueueTimeout { .. }));
    edge.release(other);
}

#[test]
fn what_failed_is_remembered_over_a_refusal_of_the_gate() {
    let mut edge = ranked(1);
    let first = edge.permit("r");
    let second = edge.retried(first);
    assert_eq!(winner(&second).0, "b");
    let ticket = edge.requeue_waits(second, Requeue::CapacityExceeded);
    assert_eq!(edge.view("n", "a").in_use, 0, "`b` is ready and will be free again");
    edge.status("n", 1, provider("b", 1, &["m"]));
    assert_eq!(winner(&edge.take(ticket)).0, "b");
}

#[test]
fn the_same_provider_may_be_asked_for_another_target() {
    let candidates = [candidate("a", "m"), candidate("a", "spare")];
    let mut edge = Edge::new(config(&[route("r", &candidates)]));
    edge.ready("n", 1, &[provider("a", 4, &["m", "spare"])]);
    let permit = edge.permit("r");
    assert_eq!(winner(&permit), ("a", "m"));
    match edge.retry(permit, true) {
        Ok(Entry::Granted(permit)) => assert_eq!(winner(&permit), ("a", "spare")),
        other => panic!("not granted: {other:?}"),
    }
}

#[test]
fn a_permit_of_a_generation_that_ended_is_retried_without_touching_its_successor() {
    let mut edge = ranked(1);
    let first = edge.permit("r");
    edge.away("n", 1);
    edge.ready("n", 2, &[provider("a", 1, &["m"]), provider("b", 1, &["m"])]);
    let second = edge.retried(first);
    assert_eq!(winner(&second).0, "b");
    assert_eq!(edge.in_flight(), 1);
}
