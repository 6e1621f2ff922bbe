//! Which of several candidates wins, and why.

use std::collections::BTreeMap;

use iop_admission::{CandidateConfig, Permit, RouteConfig, Why};
use iop_types::Policy;

use crate::edge::{Edge, candidate, config, provider, route, winner};

fn with_policy(policy: Policy, candidates: &[CandidateConfig]) -> RouteConfig {
    let mut route = route("r", candidates);
    route.settings.policy = policy;
    route
}

fn edge(policy: Policy, candidates: &[CandidateConfig], capacities: &[(&str, u32)]) -> Edge {
    let mut edge = Edge::new(config(&[with_policy(policy, candidates)]));
    let providers: Vec<_> =
        capacities.iter().map(|(key, capacity)| provider(key, *capacity, &["m"])).collect();
    edge.ready("n", 1, &providers);
    edge
}

fn names(permits: &[Permit]) -> Vec<&str> {
    permits.iter().map(|permit| winner(permit).0).collect()
}

#[test]
fn the_smallest_share_in_use_wins() {
    let mut edge = edge(
        Policy::LeastLoaded,
        &[candidate("a", "m"), candidate("b", "m")],
        &[("a", 2), ("b", 4)],
    );
    let permits: Vec<_> = (0..6).map(|_| edge.permit("r")).collect();
    assert_eq!(names(&permits), ["a", "b", "b", "a", "b", "b"]);
    assert!(permits[..4].iter().all(|permit| permit.candidate().why == Why::LeastLoaded));
    assert_eq!(permits[4].candidate().why, Why::OnlyOneFit, "`a` was full");
}

#[test]
fn equals_take_turns() {
    let mut edge = edge(
        Policy::LeastLoaded,
        &[candidate("a", "m"), candidate("b", "m")],
        &[("a", 4), ("b", 4)],
    );
    let mut order = Vec::new();
    for _ in 0..4 {
        let permit = edge.permit("r");
        order.push(winner(&permit).0.to_owned());
        edge.release(permit);
    }
    assert_eq!(order, ["a", "b", "a", "b"]);
}

#[test]
fn a_loaded_target_is_worth_more_than_an_idle_provider() {
    let mut loaded = provider("b", 4, &["m"]);
    loaded.loaded = vec!["m".into()];
    let mut edge = Edge::with(&[provider("a", 4, &["m"]), loaded]);
    let permits: Vec<_> = (0..5).map(|_| edge.permit("m")).collect();
    assert_eq!(names(&permits), ["b", "b", "b", "b", "a"]);
    assert_eq!(permits[0].candidate().why, Why::Loaded);
}

#[test]
fn a_provider_in_whose_server_requests_wait_is_chosen_last_and_the_longest_queue_last_of_all() {
    let waiting = |key: &str, queued| {
        let mut status = provider(key, 8, &["m"]);
        status.queued = queued;
        status
    };
    let mut edge =
        Edge::with(&[waiting("a", Some(5)), waiting("b", Some(1)), waiting("c", Some(0))]);
    let permits: Vec<_> = (0..8).map(|_| edge.permit("m")).collect();
    assert!(names(&permits).iter().all(|name| *name == "c"), "what is in use there is no queue");
    let more: Vec<_> = (0..6).map(|_| edge.permit("m")).collect();
    assert_eq!(names(&more), ["b", "b", "b", "b", "a", "b"], "what waits counts as in use");

    let mut unknown = Edge::with(&[waiting("a", Some(1)), waiting("b", None)]);
    assert_eq!(winner(&unknown.permit("m")).0, "b", "a server that tells nothing has no queue");
}

#[test]
fn a_queue_that_is_told_steers_the_next_request() {
    let mut edge = Edge::with(&[provider("a", 8, &["m"]), provider("b", 8, &["m"])]);
    let report = |edge: &mut Edge, key: &str, queued| {
        let mut status = provider(key, 8, &["m"]);
        status.queued = Some(queued);
        edge.status("n", 1, status);
        let permit = edge.permit("m");
        let won = winner(&permit).0.to_owned();
        edge.release(permit);
        won
    };
    assert_eq!(report(&mut edge, "a", 3), "b");
    assert_eq!(report(&mut edge, "b", 4), "a");
    assert_eq!(report(&mut edge, "a", 0), "a");
}

#[test]
fn ordered_takes_the_first_with_capacity() {
    let mut edge =
        edge(Policy::Ordered, &[candidate("b", "m"), candidate("a", "m")], &[("a", 9), ("b", 2)]);
    let permits: Vec<_> = (0..3).map(|_| edge.permit("r")).collect();
    assert_eq!(names(&permits), ["b", "b", "a"]);
    assert_eq!(permits[0].candidate().why, Why::Ordered);
}

#[test]
fn a_larger_priority_number_waits_for_the_smaller_under_every_policy() {
    let second = CandidateConfig { priority: 1, ..candidate("a", "m") };
    for policy in [Policy::Ordered, Policy::LeastLoaded, Policy::Weighted] {
        let candidates = [second.clone(), candidate("b", "m")];
        let mut edge = edge(policy, &candidates, &[("a", 9), ("b", 1)]);
        let permits = [edge.permit("r"), edge.permit("r")];
        assert_eq!(names(&permits), ["b", "a"], "{policy}");
    }
}

#[test]
fn turns_follow_the_weights() {
    let heavy = CandidateConfig { weight: 3, ..candidate("a", "m") };
    let mut edge =
        edge(Policy::Weighted, &[heavy, candidate("b", "m")], &[("a", 1000), ("b", 1000)]);
    let permits: Vec<_> = (0..400).map(|_| edge.permit("r")).collect();
    let heavy = permits.iter().filter(|permit| winner(permit).0 == "a").count();
    assert_eq!(heavy, 300);
    let runs = names(&permits[..8]).join("");
    assert!(!runs.contains("aaaa") && !runs.contains("bb"), "turns are spread: {runs}");
}

#[test]
fn a_candidate_that_was_full_does_not_make_up_for_lost_turns() {
    let mut edge = edge(
        Policy::Weighted,
        &[candidate("a", "m"), candidate("b", "m")],
        &[("a", 1000), ("b", 1)],
    );
    let mut held: Vec<_> = (0..100).map(|_| edge.permit("r")).collect();
    let of_b = held.iter().position(|permit| winner(permit).0 == "b").unwrap();
    let permit = held.remove(of_b);
    edge.release(permit);
    edge.status("n", 1, provider("b", 1000, &["m"]));
    let next: Vec<_> = (0..10).map(|_| edge.permit("r")).collect();
    let of_b = next.iter().filter(|permit| winner(permit).0 == "b").count();
    assert!((5..=6).contains(&of_b), "{of_b} of 10");
}

#[test]
fn one_key_keeps_its_home_and_spills_while_that_is_full() {
    let candidates = ["a", "b", "c"].map(|key| candidate(key, "m"));
    let mut edge = edge(Policy::Affinity, &candidates, &[("a", 2), ("b", 2), ("c", 2)]);
    let first = edge.ask_key("r", 7);
    let second = edge.ask_key("r", 7);
    let third = edge.ask_key("r", 7);
    let home = winner(&first).0.to_owned();
    assert_eq!(winner(&second).0, home);
    assert_ne!(winner(&third).0, home);
    assert_eq!(
        [&first, &second, &third].map(|permit| permit.candidate().why),
        [Why::Affinity, Why::Affinity, Why::AffinitySpilled]
    );
    edge.release(first);
    assert_eq!(winner(&edge.ask_key("r", 7)).0, home, "back home");
}

#[test]
fn a_provider_that_leaves_moves_only_its_own_keys() {
    let candidates = ["a", "b", "c"].map(|key| candidate(key, "m"));
    let capacities = [("a", 999), ("b", 999), ("c", 999)];
    let mut edge = edge(Policy::Affinity, &candidates, &capacities);
    let homes = |edge: &mut Edge| -> BTreeMap<u32, String> {
        (0..200).map(|key| (key, winner(&edge.ask_key("r", key)).0.to_owned())).collect()
    };
    let before = homes(&mut edge);
    edge.ready("n", 2, &[provider("a", 999, &["m"]), provider("b", 999, &["m"])]);
    let after = homes(&mut edge);
    for (key, home) in &before {
        if home != "c" {
            assert_eq!(&after[key], home, "key {key}");
        }
    }
    assert!(before.values().any(|home| home == "c"));
}

#[test]
fn without_a_key_affinity_is_least_loaded() {
    let candidates = ["a", "b"].map(|key| candidate(key, "m"));
    let mut edge = edge(Policy::Affinity, &candidates, &[("a", 2), ("b", 2)]);
    let permits = [edge.permit("r"), edge.permit("r")];
    assert_eq!(names(&permits), ["a", "b"]);
    assert_eq!(permits[0].candidate().why, Why::LeastLoaded);
}
