//! Who waits, for how long, and who is next.

use iop_admission::{Entry, Refused, RouteSettings};
use iop_types::{Capabilities, ErrorCode, ProviderState, ProviderStatus, Requeue};

use crate::edge::{CHAT, EMBEDDINGS, Edge, SECOND, candidate, config, in_state, provider, route};

#[test]
fn two_requests_for_one_place_run_one_after_the_other() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    let first = edge.permit("m");
    let second = edge.ticket("m");
    edge.advance(10 * SECOND);
    assert!(edge.granted.is_empty(), "the place is held until the attempt has returned");

    edge.release(first);
    let second = edge.take(second);
    edge.release(second);
    assert_eq!((edge.in_flight(), edge.waiting()), (0, 0));
    assert_eq!(edge.admission.poll_timeout(), None, "nothing is left to be timed");
}

#[test]
fn who_came_first_is_served_first() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    let mut permit = edge.permit("m");
    let tickets: Vec<_> = (0..5).map(|_| edge.ticket("m")).collect();
    for ticket in &tickets {
        edge.release(permit);
        permit = edge.take(*ticket);
    }
    edge.release(permit);
    assert_eq!(edge.order, tickets);
}

#[test]
fn a_freed_place_goes_to_the_longest_wait_over_all_routes_that_can_use_it() {
    let mut edge = Edge::with(&[provider("p", 1, &["a", "b"]), provider("q", 1, &["c"])]);
    let p = edge.permit("a");
    let q = edge.permit("c");
    let for_b = edge.ticket("b");
    let for_c = edge.ticket("c");
    let for_a = edge.ticket("a");

    edge.release(p);
    assert_eq!(edge.order, [for_b]);
    let p = edge.take(for_b);
    edge.release(p);
    assert_eq!(edge.order, [for_b, for_a], "`c` is not served by this provider");
    edge.release(q);
    assert_eq!(edge.order, [for_b, for_a, for_c]);
}

#[test]
fn a_request_that_the_free_provider_cannot_do_holds_up_nobody() {
    let mut both = provider("both", 1, &["m"]);
    both.capabilities.runs = vec![iop_types::RunKind::Embedding];
    let mut edge = Edge::with(&[both, provider("chat", 1, &["m"])]);
    let Ok(Entry::Granted(embedding)) = edge.ask("m", EMBEDDINGS) else { panic!("not granted") };
    let chat = edge.permit("m");
    let Ok(Entry::Waiting(first)) = edge.ask("m", EMBEDDINGS) else { panic!("does not wait") };
    let second = edge.ticket("m");

    edge.release(chat);
    assert_eq!(edge.order, [second], "only the other provider embeds");
    edge.release(embedding);
    assert_eq!(edge.order, [second, first]);
}

#[test]
fn a_full_queue_refuses_at_once_and_says_when_to_come_back() {
    let mut settings = RouteSettings::default();
    settings.queue.max_waiting = 2;
    let mut full = route("m", &[candidate("p", "m")]);
    full.settings = settings;
    let mut edge = Edge::new(config(&[full]));
    edge.ready("n", 1, &[provider("p", 1, &["m"])]);
    let _held = edge.permit("m");
    let _waiting = [edge.ticket("m"), edge.ticket("m")];
    edge.advance(7 * SECOND);

    let refused = edge.refusal("m");
    assert_eq!(refused.code(), ErrorCode::QueueFull);
    assert_eq!(refused.retry_after(), Some(7 * SECOND), "as long as the oldest has waited");
    assert_eq!(refused.failure().code.status(), 429);
}

#[test]
fn a_queue_of_no_length_lets_nobody_wait() {
    let mut none = route("m", &[candidate("p", "m")]);
    none.settings.queue.max_waiting = 0;
    let mut edge = Edge::new(config(&[none]));
    edge.ready("n", 1, &[provider("p", 1, &["m"])]);
    let _held = edge.permit("m");
    assert_eq!(edge.refusal("m").code(), ErrorCode::QueueFull);
}

#[test]
fn a_wait_ends_after_thirty_seconds_with_a_code_of_its_own() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    let held = edge.permit("m");
    let ticket = edge.ticket("m");
    edge.advance(30 * SECOND - SECOND / 1000);
    assert!(edge.refused.is_empty());
    edge.advance(SECOND / 1000);

    let refused = &edge.refused[&ticket];
    assert_eq!(refused.code(), ErrorCode::QueueTimeout);
    assert_eq!(refused.retry_after(), Some(30 * SECOND));
    edge.release(held);
    assert!(edge.granted.is_empty(), "the ticket is gone");
}

#[test]
fn a_timeout_says_which_capacity_is_held_by_calls_that_nobody_saw_return() {
    for (zombies, words) in [(1, "1 permit is held by a call"), (2, "2 permits are held by calls")]
    {
        let mut edge = Edge::with(&[provider("p", 2, &["m"])]);
        let held: Vec<_> = (zombies..2).map(|_| edge.permit("m")).collect();
        edge.status("n", 1, ProviderStatus { zombies, ..provider("p", 2, &["m"]) });
        assert_eq!(edge.view("n", "p").in_use, 2, "they are in use");
        edge.advance(SECOND / 2);
        let ticket = edge.ticket("m");
        edge.advance(30 * SECOND);
        let told = edge.refused[&ticket].to_string();
        assert!(told.contains(words), "{told}");
        assert!(told.ends_with("not seen to return, free in at most 30 s"), "{told}");
        held.into_iter().for_each(|permit| edge.release(permit));
    }
}

#[test]
fn a_request_that_comes_back_has_its_old_place_and_its_old_deadline() {
    let mut edge = Edge::with(&[provider("p", 2, &["m"])]);
    let first = edge.permit("m");
    let second = edge.permit("m");
    edge.advance(10 * SECOND);
    let third = edge.ticket("m");

    let ticket = second.ticket();
    let waiting = edge.requeue_waits(second, Requeue::CapacityExceeded);
    assert_eq!(waiting, ticket);
    edge.release(first);
    assert_eq!(edge.order, [ticket, third], "before the one that came later");

    let permit = edge.take(ticket);
    edge.requeue_waits(permit, Requeue::CapacityExceeded);
    edge.advance(20 * SECOND);
    assert_eq!(edge.refused[&ticket].code(), ErrorCode::QueueTimeout, "30 s after it first came");
}

#[test]
fn a_request_that_comes_back_after_its_deadline_is_told_so() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    let permit = edge.permit("m");
    edge.advance(31 * SECOND);
    let refused = edge.requeue(permit, Requeue::CapacityExceeded).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::QueueTimeout);
    assert_eq!(edge.in_flight(), 0);
}

#[test]
fn coming_back_is_not_limited_by_a_full_queue() {
    let mut short = route("m", &[candidate("p", "m")]);
    short.settings.queue.max_waiting = 1;
    let mut edge = Edge::new(config(&[short]));
    edge.ready("n", 1, &[provider("p", 1, &["m"])]);
    let permit = edge.permit("m");
    let _waits = edge.ticket("m");
    edge.requeue_waits(permit, Requeue::CapacityExceeded);
    assert_eq!(edge.waiting(), 2);
}

#[test]
fn a_provider_that_said_full_is_left_alone_until_it_reports() {
    let mut edge = Edge::with(&[provider("p", 4, &["m"])]);
    let permit = edge.permit("m");
    let other = edge.permit("m");
    let ticket = edge.requeue_waits(permit, Requeue::CapacityExceeded);
    let newcomer = edge.ticket("m");
    edge.advance(9 * SECOND);
    assert!(edge.granted.is_empty());

    edge.status("n", 1, provider("p", 4, &["m"]));
    assert_eq!(edge.order, [ticket, newcomer]);
    edge.release(other);
}

#[test]
fn a_provider_that_said_full_is_asked_again_when_an_attempt_returned() {
    let mut edge = Edge::with(&[provider("p", 4, &["m"])]);
    let permit = edge.permit("m");
    let other = edge.permit("m");
    let ticket = edge.requeue_waits(permit, Requeue::CapacityExceeded);
    edge.release(other);
    assert_eq!(edge.order, [ticket]);
}

#[test]
fn a_refusal_that_nothing_can_follow_lapses() {
    let mut edge = Edge::with(&[provider("p", 4, &["m"])]);
    let permit = edge.permit("m");
    let ticket = edge.requeue_waits(permit, Requeue::CapacityExceeded);
    edge.advance(5 * SECOND - SECOND / 1000);
    assert!(edge.granted.is_empty());
    edge.advance(SECOND / 1000);
    assert_eq!(edge.order, [ticket]);
}

#[test]
fn a_newcomer_does_not_overtake_one_whose_time_has_come_unnoticed() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    let permit = edge.permit("m");
    let ticket = edge.requeue_waits(permit, Requeue::CapacityExceeded);
    edge.now += 5 * SECOND;
    let newcomer = edge.ticket("m");
    assert_eq!(edge.order, [ticket]);
    let permit = edge.take(ticket);
    edge.release(permit);
    assert_eq!(edge.order, [ticket, newcomer]);
}

#[test]
fn a_stale_revision_waits_for_a_report_and_then_carries_the_new_one() {
    let mut edge = Edge::with(&[provider("p", 4, &["m"])]);
    let other = edge.permit("m");
    let permit = edge.permit("m");
    let ticket = edge.requeue_waits(permit, Requeue::StaleConfig);
    edge.release(other);
    assert!(edge.granted.is_empty(), "a returned attempt says nothing about the revision");

    let mut newer = provider("p", 4, &["m"]);
    newer.revision = iop_types::ProviderRevision(2);
    edge.status("n", 1, newer);
    let permit = edge.take(ticket);
    assert_eq!(permit.candidate().instance.revision, iop_types::ProviderRevision(2));
}

#[test]
fn a_refusal_of_a_revision_that_is_no_longer_asked_for_marks_nobody() {
    let mut edge = Edge::with(&[provider("p", 4, &["m"])]);
    let permit = edge.permit("m");
    let mut newer = provider("p", 4, &["m"]);
    newer.revision = iop_types::ProviderRevision(2);
    edge.status("n", 1, newer);
    let entry = edge.requeue(permit, Requeue::StaleConfig);
    assert!(matches!(entry, Ok(Entry::Granted(_))), "{entry:?}");
}

#[test]
fn a_full_link_is_tried_again_after_a_second() {
    let mut edge = Edge::with(&[provider("p", 4, &["m"])]);
    let _other = edge.permit("m");
    let permit = edge.permit("m");
    let ticket = edge.requeue_waits(permit, Requeue::LinkFull);
    edge.advance(SECOND);
    assert_eq!(edge.order, [ticket]);
}

#[test]
fn a_client_that_leaves_the_queue_leaves_no_trace() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    let held = edge.permit("m");
    let ticket = edge.ticket("m");
    assert!(edge.cancel(ticket));
    assert!(!edge.cancel(ticket));
    edge.release(held);
    assert_eq!((edge.in_flight(), edge.waiting()), (0, 0));
    assert_eq!(edge.admission.gauges(edge.now).oldest_wait, None);
    assert_eq!(edge.admission.poll_timeout(), None);
}

#[test]
fn a_grant_on_its_way_to_a_client_that_leaves_goes_to_the_next() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    let held = edge.permit("m");
    let first = edge.ticket("m");
    let second = edge.ticket("m");
    edge.admission.release(edge.now, held);
    // The grant for `first` lies in the outputs and was not drained.
    assert!(edge.admission.cancel(edge.now, first));
    edge.drain();
    assert_eq!(edge.order, [second]);
    assert_eq!(edge.in_flight(), 1);
}

#[test]
fn a_node_that_is_away_for_a_moment_is_waited_for() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    edge.away("n", 1);
    edge.advance(3 * SECOND);
    let ticket = edge.ticket("m");
    edge.advance(2 * SECOND);
    edge.ready("n", 2, &[in_state(provider("p", 1, &[]), ProviderState::Starting)]);
    assert!(edge.refused.is_empty(), "a provider that starts is still on its way back");
    edge.status("n", 2, provider("p", 1, &["m"]));
    assert_eq!(edge.order, [ticket]);
}

#[test]
fn a_node_that_does_not_come_back_is_waited_for_ten_seconds() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    edge.advance(60 * SECOND);
    edge.away("n", 1);
    edge.advance(3 * SECOND);
    let ticket = edge.ticket("m");
    edge.advance(7 * SECOND - SECOND / 1000);
    assert!(edge.refused.is_empty());
    edge.advance(SECOND / 1000);
    let refused = &edge.refused[&ticket];
    assert_eq!(refused.code(), ErrorCode::NoReadyProvider);
    assert!(refused.retry_after().is_some());

    let at_once = edge.refusal("m");
    assert_eq!(at_once.to_string(), "no provider is ready for `m`: 1 of 1 on a node that is away");
}

#[test]
fn who_waited_for_capacity_is_told_when_the_last_provider_leaves() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    let held = edge.permit("m");
    let ticket = edge.ticket("m");
    edge.away("n", 1);
    edge.advance(10 * SECOND);
    assert_eq!(edge.refused[&ticket].code(), ErrorCode::NoReadyProvider);
    edge.release(held);
    assert_eq!(edge.in_flight(), 0);
}

#[test]
fn a_provider_that_failed_is_not_waited_for() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    edge.status("n", 1, in_state(provider("p", 1, &[]), ProviderState::Failed));
    assert_eq!(edge.refusal("m").to_string(), "no provider is ready for `m`: 1 of 1 failed");
}

#[test]
fn a_provider_that_could_not_be_set_up_has_failed_and_is_not_called_unable() {
    let broken = ProviderStatus {
        capabilities: Capabilities::default(),
        ..in_state(provider("p", 1, &[]), ProviderState::Failed)
    };
    let mut edge = Edge::new(config(&[route("chat", &[candidate("p", "m")])]));
    edge.ready("n", 1, &[broken]);
    let refused = edge.ask("chat", CHAT).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::NoReadyProvider);
    assert_eq!(refused.to_string(), "no provider is ready for `chat`: 1 of 1 failed");
}

#[test]
fn requests_right_after_a_restart_wait_for_the_nodes_of_their_routes() {
    let mut edge = Edge::new(config(&[route("chat", &[candidate("p", "m")])]));
    let ticket = edge.ticket("chat");
    edge.advance(2 * SECOND);
    edge.ready("n", 1, &[provider("p", 1, &["m"])]);
    assert_eq!(edge.order, [ticket]);
}

#[test]
fn an_operation_that_no_candidate_can_do_is_refused_for_good() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    let refused = edge.ask("m", EMBEDDINGS).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::InvalidRequest);
    assert_eq!(refused.to_string(), "no provider of `m` offers POST /v1/embeddings");
    assert_eq!(edge.ask("m", CHAT).map(|_| ()).ok(), Some(()));
}

#[test]
fn an_edge_that_stops_takes_nothing_new_and_serves_who_waits() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    let held = edge.permit("m");
    let first = edge.ticket("m");
    let second = edge.ticket("m");
    edge.admission.stop();
    assert_eq!(edge.refusal("m"), Refused::ShuttingDown);
    assert!(edge.admission.readiness().is_err());
    edge.release(held);
    assert_eq!(edge.order, [first]);
    edge.admission.refuse_waiting();
    edge.drain();
    assert_eq!(edge.refused[&second], Refused::ShuttingDown);
    assert_eq!(edge.waiting(), 0);
}

#[test]
fn gauges_tell_the_depth_and_the_oldest_wait_of_each_route() {
    let mut edge = Edge::with(&[provider("p", 1, &["a", "b"])]);
    let _held = edge.permit("a");
    let _b = edge.ticket("b");
    edge.advance(4 * SECOND);
    let _a = [edge.ticket("a"), edge.ticket("a")];
    edge.advance(SECOND);
    let gauges = edge.admission.gauges(edge.now);
    assert_eq!((gauges.waiting, gauges.oldest_wait), (3, Some(5 * SECOND)));
    let routes: Vec<_> = gauges
        .routes
        .iter()
        .map(|gauge| (gauge.route.as_str(), gauge.waiting, gauge.oldest_wait))
        .collect();
    assert_eq!(routes, [("a", 2, SECOND), ("b", 1, 5 * SECOND)]);
}
