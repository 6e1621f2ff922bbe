//! What a probe concludes, row by row of the table in docs/health.md.

use std::time::Duration;

use iop_execution::{Look, ProbeOutcome};
use iop_testkit::script::Script;
use iop_testkit::{ScriptedProvider, answer};
use serde_json::json;

use crate::support::{adapter, built, look_at, settings};

const MODELS: &str = "/v1/models";
const CHAT: &str = "/v1/chat/completions";

fn well() -> Script {
    answer::json(200, &json!({"status": "ok"}))
}

fn has(id: &'static str) -> impl Fn() -> Script + Send + Sync + 'static {
    move || answer::json(200, &json!({"data": [{"id": id}]}))
}

fn says(status: u16) -> impl Fn() -> Script + Send + Sync + 'static {
    move || answer::error(status, "e", "e", "no")
}

fn silent() -> Script {
    Script::new().wait(Duration::from_secs(60))
}

fn one_token() -> Script {
    answer::json(
        200,
        &json!({"choices": [{"message": {"content": ""}, "finish_reason": "length"}]}),
    )
}

/// A server that is asked how it is, what it lists, and for a token.
async fn server(
    health: impl Fn() -> Script + Send + Sync + 'static,
    list: impl Fn() -> Script + Send + Sync + 'static,
    chat: impl Fn() -> Script + Send + Sync + 'static,
) -> ScriptedProvider {
    let provider = ScriptedProvider::start().await;
    provider.on("/health", move |_| health());
    provider.on(MODELS, move |_| list());
    provider.on(CHAT, move |_| chat());
    provider.on("/v1/completions", |_| answer::error(404, "e", "e", "no such path"));
    provider.on("/v1/embeddings", |_| answer::error(404, "e", "e", "no such path"));
    provider
}

async fn probe(provider: &ScriptedProvider, look: Look) -> ProbeOutcome {
    let adapter = adapter(provider);
    let outcome = adapter.probe().expect("the adapter has a probe").probe(look).await;
    provider.wait_until("nothing stays open", |log| log.open_connections() == 0).await;
    outcome
}

/// What is concluded from these answers of a server that speaks OpenAI's API.
async fn concluded(
    health: impl Fn() -> Script + Send + Sync + 'static,
    list: impl Fn() -> Script + Send + Sync + 'static,
    chat: impl Fn() -> Script + Send + Sync + 'static,
) -> ProbeOutcome {
    probe(&server(health, list, chat).await, look_at("m")).await
}

fn asked_for_a_token(provider: &ScriptedProvider) -> bool {
    provider.log().exchanges.iter().any(|exchange| exchange.request.path().contains("completions"))
}

#[tokio::test]
async fn one_generated_token_is_available_whatever_else_is_unclear() {
    assert_eq!(concluded(well, has("m"), one_token).await, ProbeOutcome::Available);
    for status in [401, 403, 404, 429] {
        assert_eq!(concluded(says(status), has("m"), one_token).await, ProbeOutcome::Available);
        assert_eq!(concluded(well, says(status), one_token).await, ProbeOutcome::Available);
    }
}

#[tokio::test]
async fn a_target_that_is_not_for_chats_proves_itself_by_what_it_is_for() {
    let provider = ScriptedProvider::start().await;
    provider.set_models(&["m"]);
    provider.on(CHAT, |_| answer::error(400, "e", "e", "the model has no chat template"));
    provider.on("/v1/completions", |_| answer::error(400, "e", "e", "not a generating model"));
    provider.on("/v1/embeddings", |request| answer::embeddings(request, 2));
    assert_eq!(probe(&provider, look_at("m")).await, ProbeOutcome::Available);
}

#[tokio::test]
async fn an_unknown_servers_word_on_its_health_proves_nothing() {
    for status in [401, 403, 404, 429, 500, 503] {
        let outcome = concluded(well, has("m"), says(status)).await;
        assert_eq!(outcome, ProbeOutcome::Unknown, "{status}");
    }
    let page = || answer::sized(200, "text/html; charset=utf-8", "<html>");
    assert_eq!(concluded(page, page, page).await, ProbeOutcome::Unknown);
    let nothing = || answer::json(200, &json!({"choices": []}));
    assert_eq!(concluded(well, has("m"), nothing).await, ProbeOutcome::Unknown);
}

#[tokio::test]
async fn a_list_without_the_target_a_sick_engine_and_a_reset_are_unavailable() {
    for list in ["m:latest", "other"] {
        let server = server(well, has(list), one_token).await;
        assert_eq!(probe(&server, look_at("m")).await, ProbeOutcome::Unavailable);
        assert!(!asked_for_a_token(&server), "it is settled already");
    }
    for status in [500, 502, 503] {
        let outcome = concluded(says(status), has("m"), one_token).await;
        assert_eq!(outcome, ProbeOutcome::Unavailable, "{status}");
    }
    let reset = || Script::new().reset();
    assert_eq!(concluded(reset, has("m"), one_token).await, ProbeOutcome::Unavailable);
    assert_eq!(concluded(says(404), reset, one_token).await, ProbeOutcome::Unavailable);
    assert_eq!(concluded(says(404), has("m"), reset).await, ProbeOutcome::Unavailable);
}

#[tokio::test]
async fn a_server_that_refuses_connections_is_unavailable() {
    let provider = ScriptedProvider::start().await;
    let gone = adapter(&provider);
    provider.stop().await;
    let outcome = gone.probe().unwrap().probe(look_at("m")).await;
    assert_eq!(outcome, ProbeOutcome::Unavailable);
}

#[tokio::test]
async fn fc_034_a_server_that_loads_is_unknown() {
    let loading = || answer::json(503, &json!({"error": {"message": "Loading model"}}));
    assert_eq!(concluded(loading, has("m"), loading).await, ProbeOutcome::Unknown);
}

#[tokio::test]
async fn a_server_that_answers_nothing_at_all_in_time_is_silent() {
    assert_eq!(concluded(silent, silent, silent).await, ProbeOutcome::Silent);
}

#[tokio::test]
async fn fc_032_a_busy_server_whose_list_answers_is_unknown_not_dead() {
    assert_eq!(concluded(silent, has("m"), silent).await, ProbeOutcome::Unknown);
    assert_eq!(concluded(says(404), has("m"), silent).await, ProbeOutcome::Unknown);
    assert_eq!(concluded(well, silent, silent).await, ProbeOutcome::Unknown);
}

#[tokio::test]
async fn no_token_is_asked_for_where_that_is_not_allowed() {
    let server = server(well, has("m"), one_token).await;
    let look = Look { may_generate: false, ..look_at("m") };
    assert_eq!(probe(&server, look).await, ProbeOutcome::Unknown);
    assert!(!asked_for_a_token(&server));
}

#[tokio::test]
async fn a_hosted_server_is_asked_for_its_list_alone() {
    let server = server(says(500), has("m"), one_token).await;
    let mut hosted = settings(&server.endpoint());
    hosted.is_hosted = true;
    let adapter = built(&hosted);
    let outcome = adapter.probe().unwrap().probe(look_at("m")).await;
    assert_eq!(outcome, ProbeOutcome::Unknown);
    // Lists are not in the log.
    assert_eq!(server.log().exchanges.len(), 0);
    let outcome = adapter.probe().unwrap().probe(look_at("n")).await;
    assert_eq!(outcome, ProbeOutcome::Unavailable);
}
