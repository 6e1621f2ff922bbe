//! Generations: what a link that ended may no longer touch.

use iop_admission::Entry;
use iop_types::{ErrorCode, Generation, ProviderState, Requeue};

use crate::edge::{Edge, SECOND, in_state, provider, winner};

#[test]
fn permits_of_a_generation_that_ended_do_not_count_in_the_next() {
    let mut edge = Edge::with(&[provider("p", 2, &["m"])]);
    let old = [edge.permit("m"), edge.permit("m")];
    edge.away("n", 1);
    edge.ready("n", 2, &[provider("p", 2, &["m"])]);

    let new = [edge.permit("m"), edge.permit("m")];
    assert_eq!(new[0].candidate().instance.generation, Generation(2));
    let view = edge.view("n", "p");
    assert_eq!((view.in_use, view.fenced_in_use), (2, 2));

    let ticket = edge.ticket("m");
    for permit in old {
        edge.release(permit);
    }
    assert!(edge.granted.is_empty(), "an old permit frees nothing of the new generation");
    let view = edge.view("n", "p");
    assert_eq!((view.in_use, view.fenced_in_use), (2, 0));
    for permit in new {
        edge.release(permit);
    }
    let last = edge.take(ticket);
    edge.release(last);
    assert_eq!(edge.in_flight(), 0);
}

#[test]
fn a_newer_link_takes_over_although_the_end_of_the_older_was_not_told_yet() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    let old = edge.permit("m");
    edge.ready("n", 2, &[provider("p", 1, &["m"])]);
    let new = edge.permit("m");
    edge.away("n", 1);
    assert!(edge.view("n", "p").ready, "the late end of the older link touches nothing");
    edge.release(old);
    edge.release(new);
    assert_eq!(edge.in_flight(), 0);
}

#[test]
fn reports_of_a_link_that_ended_are_ignored() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    edge.away("n", 1);
    edge.status("n", 1, provider("p", 9, &["m", "x"]));
    assert!(!edge.view("n", "p").ready);
    edge.ready("n", 3, &[provider("p", 1, &["m"])]);
    edge.ready("n", 2, &[provider("p", 9, &["x"])]);
    edge.status("n", 2, provider("p", 9, &["x"]));
    edge.draining("n", 2);
    edge.ready("n", 3, &[provider("p", 9, &["x"])]);
    let view = edge.view("n", "p");
    assert_eq!((view.generation, view.capacity, view.ready), (Some(Generation(3)), 1, true));
}

#[test]
fn a_request_whose_generation_died_unsent_goes_to_another_candidate() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    edge.ready("k", 2, &[provider("q", 1, &["m"])]);
    let on_k = edge.permit("m");
    assert_eq!(winner(&on_k).0, "q");
    let entry = edge.requeue(on_k, Requeue::Fenced);
    let Ok(Entry::Granted(permit)) = entry else { panic!("{entry:?}") };
    assert_eq!(winner(&permit).0, "p");
    assert!(!edge.view("k", "q").ready, "what one sender learned holds for all");
}

#[test]
fn a_request_whose_generation_died_unsent_waits_for_the_next_generation() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    let permit = edge.permit("m");
    let ticket = edge.requeue_waits(permit, Requeue::Fenced);
    edge.away("n", 1);
    edge.advance(SECOND);
    edge.ready("n", 2, &[provider("p", 1, &["m"])]);
    assert_eq!(edge.take(ticket).candidate().instance.generation, Generation(2));
}

#[test]
fn capacity_that_comes_back_unused_goes_to_the_longest_wait() {
    let mut edge = Edge::with(&[provider("p", 2, &["m"])]);
    let first = edge.permit("m");
    let second = edge.permit("m");
    let waits = edge.requeue_waits(first, Requeue::LinkFull);
    let mut smaller = provider("p", 1, &["m"]);
    smaller.revision = iop_types::ProviderRevision(2);
    edge.status("n", 1, smaller);
    assert!(edge.granted.is_empty());

    let back = edge.requeue_waits(second, Requeue::StaleConfig);
    assert_eq!(edge.order, [waits], "and not to the one that brought it back");
    assert!(waits < back);
}

#[test]
fn a_node_that_drains_gets_nothing_new() {
    let mut edge = Edge::with(&[provider("p", 2, &["m"])]);
    let held = edge.permit("m");
    edge.draining("n", 1);
    let ticket = edge.ticket("m");
    edge.status("n", 1, provider("p", 2, &["m"]));
    edge.release(held);
    assert!(edge.granted.is_empty(), "a report does not end the drain");
    edge.away("n", 1);
    edge.ready("n", 2, &[provider("p", 2, &["m"])]);
    assert_eq!(edge.order, [ticket]);
}

#[test]
fn a_node_that_comes_back_from_a_long_drain_is_waited_for() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    edge.draining("n", 1);
    edge.advance(30 * SECOND);
    edge.away("n", 1);
    edge.advance(SECOND);
    let ticket = edge.ticket("m");
    edge.ready("n", 2, &[provider("p", 1, &["m"])]);
    assert_eq!(edge.order, [ticket]);
}

#[test]
fn a_refusal_for_draining_takes_the_node_out_of_the_choice() {
    let mut edge = Edge::with(&[provider("p", 2, &["m"])]);
    let permit = edge.permit("m");
    let ticket = edge.requeue_waits(permit, Requeue::Draining);
    edge.advance(10 * SECOND);
    assert_eq!(edge.refused[&ticket].code(), ErrorCode::NoReadyProvider);
    assert!(edge.refused[&ticket].to_string().contains("1 of 1 draining"));
}

#[test]
fn zombies_take_room() {
    let mut edge = Edge::with(&[provider("p", 2, &["m"])]);
    let mut haunted = provider("p", 2, &["m"]);
    haunted.zombies = 1;
    edge.status("n", 1, haunted);
    let _held = edge.permit("m");
    let ticket = edge.ticket("m");
    edge.status("n", 1, provider("p", 2, &["m"]));
    assert_eq!(edge.order, [ticket]);
}

#[test]
fn fewer_places_than_are_in_use_is_no_fault() {
    let mut edge = Edge::with(&[provider("p", 3, &["m"])]);
    let mut held = vec![edge.permit("m"), edge.permit("m"), edge.permit("m")];
    edge.status("n", 1, provider("p", 1, &["m"]));
    let ticket = edge.ticket("m");
    while let Some(permit) = held.pop() {
        assert!(edge.granted.is_empty());
        edge.release(permit);
    }
    assert_eq!(edge.order, [ticket]);
}

#[test]
fn a_provider_that_becomes_absent_keeps_the_permits_that_are_out() {
    let mut edge = Edge::with(&[provider("p", 2, &["m"])]);
    let held = edge.permit("m");
    edge.status("n", 1, in_state(provider("p", 2, &[]), ProviderState::Absent));
    edge.status("n", 1, provider("p", 2, &["m"]));
    assert_eq!(edge.view("n", "p").in_use, 1);
    edge.release(held);
    assert_eq!(edge.in_flight(), 0);
}
