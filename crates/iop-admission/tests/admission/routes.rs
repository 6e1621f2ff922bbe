//! Which names exist and where they lead.

use iop_admission::{Config, Entry, NotReady, Refused};
use iop_types::{ErrorCode, Form, ProviderState, UsageMode};

use crate::edge::{
    CHAT, Edge, SECOND, candidate, config, in_state, provider, provider_id, route, winner,
};

#[test]
fn every_target_of_a_ready_provider_is_a_model_under_its_own_name() {
    let mut edge = Edge::with(&[provider("p", 1, &["org/m-7b:q4", "b"])]);
    assert_eq!(edge.model_names(), ["b", "org/m-7b:q4"]);
    let permit = edge.permit("org/m-7b:q4");
    assert_eq!(winner(&permit), ("p", "org/m-7b:q4"));
    assert_eq!(permit.route().name.as_str(), "org/m-7b:q4");
}

#[test]
fn equal_names_are_one_model_with_several_candidates() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"]), provider("q", 1, &["m"])]);
    assert_eq!(edge.model_names(), ["m"]);
    let first = edge.permit("m");
    let second = edge.permit("m");
    assert_eq!([winner(&first).0, winner(&second).0], ["p", "q"]);
}

#[test]
fn a_refusal_tells_why_a_candidate_is_not_ready() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    let mut gone = in_state(provider("p", 1, &[]), ProviderState::Absent);
    gone.reason = "connection refused".to_owned();
    edge.status("n", 1, gone);
    let ticket = edge.ticket("m");
    edge.advance(10 * SECOND);
    assert_eq!(
        edge.refused[&ticket].to_string(),
        "no provider is ready for `m`: 1 of 1 not reachable; n/p: connection refused"
    );
}

#[test]
fn an_empty_group_lists_nothing() {
    let edge = Edge::new(Config::default());
    assert!(edge.model_names().is_empty());
    assert_eq!(edge.admission.readiness(), Err(NotReady::NoNodeYet));
}

#[test]
fn before_any_node_was_ready_nobody_can_say_that_a_model_does_not_exist() {
    let mut edge = Edge::new(Config::default());
    assert_eq!(edge.refusal("m").code(), ErrorCode::NoReadyProvider);
    edge.ready("n", 1, &[provider("p", 1, &["other"])]);
    assert_eq!(edge.refusal("m"), Refused::ModelNotFound { model: "m".into() });
    assert_eq!(edge.admission.resolve("m"), Err(Refused::ModelNotFound { model: "m".into() }));
}

#[test]
fn an_alias_beats_a_native_name_and_a_native_name_beats_a_pattern() {
    let routes = [
        route("m", &[candidate("p", "other")]),
        route("*", &[candidate("p", "fallback")]),
        route("n*", &[candidate("p", "fallback")]),
    ];
    let mut edge = Edge::new(config(&routes));
    edge.ready("n", 1, &[provider("p", 9, &["m", "other", "fallback", "native"])]);
    assert_eq!(winner(&edge.permit("m")).1, "other");
    assert_eq!(winner(&edge.permit("native")).1, "native");
    assert_eq!(winner(&edge.permit("nothing")).1, "fallback");
    assert_eq!(edge.permit("nothing").route().name.as_str(), "n*", "the longest pattern wins");
    assert_eq!(edge.permit("whatever").route().name.as_str(), "*");
}

#[test]
fn what_a_pattern_matched_can_be_the_target() {
    let mut edge = Edge::new(config(&[route("lab/*", &[candidate("p", "org/*")])]));
    edge.ready("n", 1, &[provider("p", 1, &["org/m"])]);
    let first = edge.permit("lab/m");
    assert_eq!(winner(&first).1, "org/m");
    let ticket = edge.ticket("lab/m");
    assert!(edge.refusal("lab/x").to_string().ends_with("1 of 1 without the target"));
    edge.release(first);
    assert_eq!(edge.order, [ticket]);
}

#[test]
fn aliases_are_listed_and_patterns_are_not() {
    let routes =
        [route("fast", &[candidate("p", "org/m-7b")]), route("x/*", &[candidate("p", "*")])];
    let mut edge = Edge::new(config(&routes));
    edge.ready("n", 1, &[provider("p", 1, &["org/m-7b"])]);
    assert_eq!(edge.model_names(), ["fast", "org/m-7b"]);
    let model = edge.admission.model("fast").unwrap();
    assert!(model.available);
    assert_eq!(model.providers, [provider_id("n", "p")]);
}

#[test]
fn without_discovery_only_configured_names_exist() {
    let mut edge = Edge::new(Config {
        discovered_routes: false,
        ..config(&[route("fast", &[candidate("p", "m")])])
    });
    edge.ready("n", 1, &[provider("p", 1, &["m"])]);
    assert_eq!(edge.model_names(), ["fast"]);
    assert_eq!(edge.refusal("m").code(), ErrorCode::ModelNotFound);
    assert_eq!(winner(&edge.permit("fast")).1, "m");
}

#[test]
fn a_name_without_a_tag_means_latest_where_the_provider_says_so_and_no_other_tag() {
    let mut ollama = provider("ollama", 9, &["m:latest", "k:q4"]);
    ollama.capabilities.implicit_latest = true;
    let mut edge = Edge::new(config(&[route("alias", &[candidate("ollama", "m")])]));
    edge.ready("n", 1, &[ollama, provider("vllm", 9, &["v:latest"])]);

    for name in ["m", "m:latest", "alias"] {
        assert_eq!(winner(&edge.permit(name)), ("ollama", "m:latest"), "{name}");
    }
    for name in ["m:q4", "k", "v"] {
        assert_eq!(edge.refusal(name).code(), ErrorCode::ModelNotFound, "{name}");
    }
    assert_eq!(edge.model_names(), ["alias", "k:q4", "m:latest", "v:latest"], "listed once");
    assert!(edge.admission.model("m").unwrap().available);
}

#[test]
fn the_list_comes_from_own_state_and_tells_what_is_away() {
    let mut busy = provider("p", 1, &["m"]);
    busy.loaded = vec!["m".into()];
    let mut edge = Edge::with(&[busy]);
    edge.ready("k", 2, &[provider("q", 1, &["m", "x"])]);
    let _held = edge.permit("m");
    edge.away("k", 2);

    let models = edge.admission.models();
    let summary: Vec<_> = models.iter().map(|m| (m.name.as_str(), m.available, m.loaded)).collect();
    assert_eq!(summary, [("m", true, true), ("x", false, false)]);
    assert_eq!(models[0].providers, [provider_id("k", "q"), provider_id("n", "p")]);
}

#[test]
fn names_of_a_node_that_left_stay_known_for_an_hour() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    edge.away("n", 1);
    edge.advance(3599 * SECOND);
    assert_eq!(edge.refusal("m").code(), ErrorCode::NoReadyProvider);
    assert_eq!(edge.model_names(), ["m"]);
    edge.advance(SECOND);
    assert_eq!(edge.refusal("m").code(), ErrorCode::ModelNotFound);
    assert!(edge.model_names().is_empty());
    assert!(edge.admission.providers(edge.now).is_empty(), "nothing is left of it");
    assert_eq!(edge.admission.poll_timeout(), None);
}

#[test]
fn a_node_that_left_for_long_and_comes_back_is_served_again() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    let held = edge.permit("m");
    edge.away("n", 1);
    edge.advance(2 * 3600 * SECOND);
    edge.ready("n", 2, &[provider("p", 1, &["m"])]);
    let again = edge.permit("m");
    edge.release(held);
    assert_eq!(edge.view("n", "p").in_use, 1);
    edge.release(again);
    assert_eq!(edge.in_flight(), 0);
}

#[test]
fn a_target_that_a_ready_provider_no_longer_lists_is_forgotten_at_once() {
    let mut edge = Edge::with(&[provider("p", 1, &["m", "x"])]);
    let held = edge.permit("m");
    let ticket = edge.ticket("m");
    edge.status("n", 1, provider("p", 1, &["x"]));
    assert_eq!(edge.refused[&ticket].code(), ErrorCode::NoReadyProvider);
    assert_eq!(edge.refusal("m").code(), ErrorCode::ModelNotFound);
    edge.release(held);
    assert_eq!(edge.in_flight(), 0);
}

#[test]
fn a_provider_that_cannot_be_reached_keeps_its_names() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    edge.advance(60 * SECOND);
    edge.status("n", 1, in_state(provider("p", 1, &[]), ProviderState::Absent));
    edge.advance(60 * SECOND);
    assert_eq!(edge.refusal("m").code(), ErrorCode::NoReadyProvider);
    assert!(!edge.admission.models()[0].available);
}

#[test]
fn a_provider_that_its_node_dropped_is_gone() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"]), provider("q", 1, &["x"])]);
    edge.away("n", 1);
    edge.ready("n", 2, &[provider("q", 1, &["x"])]);
    assert_eq!(edge.model_names(), ["x"]);
    assert_eq!(edge.refusal("m").code(), ErrorCode::ModelNotFound);
}

#[test]
fn readiness_needs_a_candidate_and_not_a_free_one() {
    let mut edge = Edge::with(&[in_state(provider("p", 1, &[]), ProviderState::Starting)]);
    assert_eq!(edge.admission.readiness(), Err(NotReady::NoReadyProvider));
    edge.status("n", 1, provider("p", 1, &["m"]));
    let _held = edge.permit("m");
    assert_eq!(edge.admission.readiness(), Ok(()));
    edge.draining("n", 1);
    assert_eq!(edge.admission.readiness(), Err(NotReady::NoReadyProvider));
}

#[test]
fn the_form_is_the_winners() {
    let mut runs = provider("p", 1, &["m"]);
    runs.capabilities.tunnel.clear();
    runs.capabilities.runs = vec![iop_types::RunKind::Chat];
    let mut edge = Edge::with(&[runs, provider("q", 1, &["x"])]);
    assert_eq!(edge.permit("m").candidate().form, Form::Run);
    assert_eq!(edge.permit("x").candidate().form, Form::Tunnel);
}

#[test]
fn usage_is_observed_where_either_side_says_so_or_the_target_refused() {
    let mut observed = route("observed", &[candidate("p", "m")]);
    observed.settings.usage = UsageMode::Observed;
    let mut edge = Edge::new(config(&[observed, route("exact", &[candidate("p", "m")])]));
    edge.ready("n", 1, &[provider("p", 9, &["m", "k"])]);
    assert_eq!(edge.permit("observed").candidate().usage, UsageMode::Observed);

    let permit = edge.permit("exact");
    assert_eq!(permit.candidate().usage, UsageMode::Exact);
    edge.admission.handle_usage_refused(&permit);
    assert_eq!(edge.permit("exact").candidate().usage, UsageMode::Observed);
    assert_eq!(edge.permit("k").candidate().usage, UsageMode::Exact, "another target");

    edge.away("n", 1);
    edge.ready("n", 2, &[provider("p", 9, &["m"])]);
    assert_eq!(edge.permit("exact").candidate().usage, UsageMode::Exact, "perhaps upgraded");
}

#[test]
fn the_winners_stall_timeout_is_its_own() {
    let settings = iop_admission::ProviderSettings {
        stall_timeout: iop_types::StallTimeout::from_config(3 * SECOND).unwrap(),
        ..Default::default()
    };
    let mut config = Config::default();
    config.providers.insert(provider_id("n", "q"), settings);
    let mut edge = Edge::new(config);
    edge.ready("n", 1, &[provider("p", 1, &["m"]), provider("q", 1, &["m"])]);
    let first = edge.permit("m");
    let _second = edge.permit("m");
    let Ok(Entry::Waiting(third)) = edge.ask("m", CHAT) else { panic!("does not wait") };
    assert_eq!(winner(&first).0, "p");
    assert_eq!(first.candidate().instance.stall_timeout, iop_types::StallTimeout::DEFAULT);
    edge.away("n", 1);
    edge.ready("n", 2, &[provider("q", 1, &["m"])]);
    let third = edge.take(third);
    assert_eq!(third.candidate().instance.stall_timeout.duration(), 3 * SECOND);
}
