//! What a probe concludes, row by row of the table in docs/health.md.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use iop_adapters::{Forced, Tools};
use iop_execution::{Body, Look, ProbeOutcome, Provider};
use iop_net::memory::Budget;
use iop_testkit::script::Script;
use iop_testkit::{ScriptedOllama, ScriptedProvider, answer};
use iop_types::{AdapterType, RunKind};
use serde_json::json;

use crate::support::{adapter, built, look_at, run, settings, tools, tunnel, tunnel_request};

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
    assert_eq!(concluded(well, has("m"), one_token).await, ProbeOutcome::Served);
    for status in [401, 403, 404, 429] {
        assert_eq!(concluded(says(status), has("m"), one_token).await, ProbeOutcome::Served);
        assert_eq!(concluded(well, says(status), one_token).await, ProbeOutcome::Served);
    }
}

#[tokio::test]
async fn a_target_that_is_not_for_chats_proves_itself_by_what_it_is_for() {
    let provider = ScriptedProvider::start().await;
    provider.set_models(&["m"]);
    provider.on(CHAT, |_| answer::error(400, "e", "e", "the model has no chat template"));
    provider.on("/v1/completions", |_| answer::error(400, "e", "e", "not a generating model"));
    provider.on("/v1/embeddings", |request| answer::embeddings(request, 2));
    assert_eq!(probe(&provider, look_at("m")).await, ProbeOutcome::Served);
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

// ---- Ollama ----

/// The target of the test support's requests.
const MODEL: &str = "served-model";

async fn ollama() -> ScriptedOllama {
    let ollama = ScriptedOllama::start().await;
    ollama.set_models(&[MODEL, "embedder"]);
    ollama
}

fn speaks_to(ollama: &ScriptedOllama, forced: Forced, is_hosted: bool) -> Arc<dyn Provider> {
    let mut settings = settings(&ollama.endpoint());
    settings.adapter = AdapterType::Ollama;
    settings.forced = forced;
    settings.is_hosted = is_hosted;
    built(&settings)
}

fn forced(num_ctx: u32) -> Forced {
    Forced { num_ctx: NonZeroU32::new(num_ctx), keep_alive: Some("-1".to_owned()) }
}

async fn examined(adapter: &Arc<dyn Provider>, look: Look) -> ProbeOutcome {
    adapter.probe().expect("the adapter has a probe").probe(look).await
}

async fn chats(adapter: &Arc<dyn Provider>, members: &str) {
    let body =
        format!(r#"{{"model":"{MODEL}","messages":[{{"role":"user","content":"hi"}}]{members}}}"#);
    let ran = run(&**adapter, RunKind::Chat, &body).await;
    assert!(ran.result.is_ok(), "{:?}", ran.result);
}

fn generations(ollama: &ScriptedOllama) -> usize {
    let log = ollama.provider().log();
    log.exchanges.iter().filter(|exchange| exchange.request.path() == "/api/generate").count()
}

#[tokio::test]
async fn an_ollama_that_generates_is_available_with_the_forced_options() {
    let ollama = ollama().await;
    let adapter = speaks_to(&ollama, forced(8192), false);
    chats(&adapter, "").await;
    assert_eq!(examined(&adapter, look_at(MODEL)).await, ProbeOutcome::Served);
    assert_eq!(ollama.loads().len(), 1, "the look loads nothing anew");
    let log = ollama.provider().log();
    let asked = log.exchanges.last().unwrap().request.json();
    let options = json!({"num_predict": 1, "num_ctx": 8192});
    assert_eq!((&asked["options"], &asked["keep_alive"]), (&options, &json!(-1)));
}

#[tokio::test]
async fn a_look_at_ollama_asks_as_the_last_request_did_and_loads_nothing_anew() {
    for members in [r#","options":{"num_ctx":16384}"#, ""] {
        let ollama = ollama().await;
        let adapter = speaks_to(&ollama, Forced::default(), false);
        chats(&adapter, members).await;
        assert_eq!(examined(&adapter, look_at(MODEL)).await, ProbeOutcome::Served);
        assert_eq!(ollama.loads().len(), 1, "{members}");
    }
}

#[tokio::test]
async fn a_tunnelled_request_says_with_what_its_model_is_loaded_too() {
    let ollama = ollama().await;
    let adapter = speaks_to(&ollama, Forced::default(), false);
    let body = format!(r#"{{"model":"{MODEL}","prompt":"hi","options":{{"num_ctx":4097}}}}"#);
    let relayed = tunnel(&*adapter, tunnel_request("/api/generate", &[]), Body::Full(body.into()));
    assert!(relayed.await.result.is_ok());
    assert_eq!(examined(&adapter, look_at(MODEL)).await, ProbeOutcome::Served);
    assert_eq!(ollama.loads().len(), 1);
}

#[tokio::test]
async fn an_ollama_of_which_nothing_was_asked_is_asked_for_nothing() {
    let ollama = ollama().await;
    let adapter = speaks_to(&ollama, Forced::default(), false);
    assert_eq!(examined(&adapter, look_at(MODEL)).await, ProbeOutcome::Unknown);
    assert_eq!((ollama.loads().len(), generations(&ollama)), (0, 0));
}

#[tokio::test]
async fn a_hung_ollama_that_goes_on_listing_is_unknown() {
    let ollama = ollama().await;
    let adapter = speaks_to(&ollama, forced(8192), false);
    chats(&adapter, "").await;
    ollama.provider().on("/api/generate", |_| silent());
    assert_eq!(examined(&adapter, look_at(MODEL)).await, ProbeOutcome::Unknown);
    ollama.provider().on("/api/generate", |_| answer::json(503, &json!({"error": "server busy"})));
    assert_eq!(examined(&adapter, look_at(MODEL)).await, ProbeOutcome::Unknown);
}

#[tokio::test]
async fn an_ollama_that_says_nothing_is_silent_and_one_without_the_model_unavailable() {
    let ollama = ollama().await;
    let adapter = speaks_to(&ollama, forced(8192), false);
    chats(&adapter, "").await;
    assert_eq!(examined(&adapter, look_at("other")).await, ProbeOutcome::Unavailable);
    ollama.set_models(&["another"]);
    assert_eq!(examined(&adapter, look_at(MODEL)).await, ProbeOutcome::Unavailable);
    ollama.provider().on("/api/tags", |_| silent());
    assert_eq!(examined(&adapter, look_at(MODEL)).await, ProbeOutcome::Silent);
    ollama.provider().on("/api/tags", |_| Script::new().reset());
    assert_eq!(examined(&adapter, look_at(MODEL)).await, ProbeOutcome::Unavailable);
}

#[tokio::test]
async fn an_embedding_model_proves_itself_by_a_vector() {
    let ollama = ollama().await;
    let adapter = speaks_to(&ollama, Forced::default(), false);
    let mut request = tunnel_request("/api/embed", &[]);
    request.head.target = "embedder".into();
    let body = Body::Full(r#"{"model":"embedder","input":"hi"}"#.into());
    assert!(tunnel(&*adapter, request, body).await.result.is_ok());
    assert_eq!(examined(&adapter, look_at("embedder")).await, ProbeOutcome::Served);
}

#[tokio::test]
async fn no_token_is_asked_of_ollama_where_that_is_not_allowed() {
    let ollama = ollama().await;
    for (is_hosted, may_generate) in [(true, true), (false, false)] {
        let adapter = speaks_to(&ollama, forced(8192), is_hosted);
        chats(&adapter, "").await;
        let look = Look { may_generate, ..look_at(MODEL) };
        assert_eq!(examined(&adapter, look).await, ProbeOutcome::Unknown);
        assert_eq!(generations(&ollama), 0);
    }
}

/// A list of 8 MB, the target last.
fn long_list() -> Script {
    let mut list = r#"{"data":["#.to_owned();
    while list.len() < 7_900_000 {
        list.push_str(r#"{"id":"one of many models","object":"model","owned_by":"lab"},"#);
    }
    list.push_str(r#"{"id":"m"}]}"#);
    answer::sized(200, "application/json", list)
}

#[tokio::test]
async fn what_is_read_of_a_long_list_is_paid_for_and_given_back() {
    let lab = server(well, long_list, one_token).await;
    for (limit, has_room) in [(32 << 20, true), (1 << 20, false)] {
        let memory = Budget::new(limit);
        let tools = Tools { memory: memory.clone(), ..tools() };
        let adapter = iop_adapters::build(&settings(&lab.endpoint()), &tools).unwrap();
        let within = Duration::from_secs(10);
        let look = Look { may_generate: false, within, ..look_at("other") };
        let outcome = adapter.probe().unwrap().probe(look).await;
        // What could not be read speaks neither for the target nor against it.
        let expected = if has_room { ProbeOutcome::Unavailable } else { ProbeOutcome::Unknown };
        assert_eq!(outcome, expected);
        let looked = memory.stats();
        assert_eq!(adapter.discover().await.is_ok(), has_room);
        let stats = memory.stats();
        assert!(stats.peak <= limit && stats.peak >= 512 << 10, "{stats:?}");
        assert_eq!((looked.used, stats.used), (0, 0));
        assert_eq!((looked.refused, stats.refused), if has_room { (0, 0) } else { (1, 2) });
    }
}

#[tokio::test]
async fn a_node_that_holds_all_it_may_still_sees_its_servers() {
    let lab = server(well, has("m"), one_token).await;
    let memory = Budget::new(0);
    let tools = Tools { memory: memory.clone(), ..tools() };
    let adapter = iop_adapters::build(&settings(&lab.endpoint()), &tools).unwrap();
    assert_eq!(adapter.probe().unwrap().probe(look_at("m")).await, ProbeOutcome::Served);
    assert_eq!(adapter.discover().await.unwrap().targets, ["m".into()]);
    assert_eq!(memory.stats().refused, 0);
}
