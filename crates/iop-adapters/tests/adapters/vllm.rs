//! The vllm adapter: what a look takes from each engine, what the tunnel lets through, what a probe
//! asks, and that an engine sees its client leave.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use iop_adapters::recognise;
use iop_execution::{Body, CallError, DiscoverError, Discovery, ProbeOutcome, Provider};
use iop_testkit::script::Script;
use iop_testkit::vllm::{Engine, KEEP_ALIVE};
use iop_testkit::{ScriptedProvider, ScriptedVllm, answer};
use iop_types::{AdapterType, ErrorCode, RunKind, Target, TunnelFrame};
use serde_json::json;

use crate::support::{
    CHAT, built, look_at, run, settings, tools, tunnel, tunnel_request, tunnel_until,
};

fn adapter(server: &ScriptedProvider) -> Arc<dyn Provider> {
    let mut settings = settings(&server.endpoint());
    settings.adapter = AdapterType::Vllm;
    built(&settings)
}

async fn vllm() -> ScriptedVllm {
    ScriptedVllm::start(Engine::Vllm, "org/m").await
}

async fn look(server: &ScriptedProvider) -> Result<Discovery, DiscoverError> {
    adapter(server).discover().await
}

fn chat(stream: bool) -> Bytes {
    let message = json!([{"role": "user", "content": "hello"}]);
    json!({"model": "org/m", "stream": stream, "messages": message}).to_string().into()
}

#[tokio::test]
async fn the_served_names_and_the_lora_adapters_are_targets_and_the_queue_is_a_hint() {
    for engine in [Engine::Vllm, Engine::Sglang] {
        let server = ScriptedVllm::start(engine, "org/m").await;
        server.set_adapters(&["org/m-poet"]);
        server.set_load(90, 7);
        let found = look(&server).await.unwrap();
        assert_eq!(found.targets, ["org/m", "org/m-poet"].map(Target::from), "{engine:?}");
        assert_eq!(found.queued, Some(7), "{engine:?}");
        server.without_metrics();
        assert_eq!(look(&server).await.unwrap().queued, None, "{engine:?}");
    }
}

#[tokio::test]
async fn an_engine_that_nobody_configured_is_recognised_also_when_it_greets_like_ollama() {
    for engine in [Engine::Vllm, Engine::Sglang] {
        let server = ScriptedVllm::start(engine, "m").await;
        server.once("/", |_| answer::sized(200, "text/plain", "Ollama is running"));
        assert_eq!(recognise(&server.endpoint(), &tools()).await, Some(AdapterType::Vllm));
        assert_eq!(recognise(&server.endpoint(), &tools()).await, Some(AdapterType::Vllm));
    }
}

#[tokio::test]
async fn only_configured_targets_are_served() {
    let server = vllm().await;
    server.set_adapters(&["poet"]);
    let mut only = settings(&server.endpoint());
    only.adapter = AdapterType::Vllm;
    only.targets = iop_adapters::Targets::from_list(["poet", "absent"]);
    let found = built(&only).discover().await.unwrap();
    assert_eq!(found.targets, [Target::from("poet")]);
}

#[tokio::test]
async fn a_server_that_lists_and_is_not_well_says_so_and_is_looked_at_again() {
    let server = vllm().await;
    let adapter = adapter(&server);
    for status in [500, 503] {
        server.set_health(status);
        let error = adapter.discover().await.unwrap_err();
        assert!(matches!(error, DiscoverError::Unwell(_)), "{error:?}");
        assert!(error.to_string().contains(&status.to_string()), "{error}");
    }
    // Servers that speak the API without this path, or guard it, are served.
    for status in [404, 401, 200] {
        server.set_health(status);
        assert_eq!(adapter.discover().await.unwrap().targets, [Target::from("org/m")]);
    }
}

#[tokio::test]
async fn a_health_check_that_breaks_off_is_a_server_that_does_not_answer() {
    let server = vllm().await;
    server.once("/health", |_| Script::new().reset());
    let error = look(&server).await.unwrap_err();
    assert!(matches!(error, DiscoverError::Unreachable(_)), "{error:?}");
}

#[tokio::test]
async fn metrics_that_cannot_be_read_cost_the_hint_and_nothing_else() {
    let server = vllm().await;
    let huge = "# HELP x y\n".repeat(500_000) + "vllm:num_requests_waiting 3\n";
    let texts = ["vllm:num_requests_waiting{engine=\"0\"} NaN\n".to_owned(), "<html>".into(), huge];
    for text in texts {
        server.once("/metrics", move |_| answer::sized(200, "text/plain", &text));
        let found = look(&server).await.unwrap();
        assert_eq!((found.targets.len(), found.queued), (1, None));
    }
    server.once("/metrics", |_| Script::new().reset());
    assert_eq!(look(&server).await.unwrap().queued, None);
    server.wait_until("nothing stays open", |log| log.open_connections() == 0).await;
}

#[tokio::test]
async fn a_probe_asks_each_engine_where_it_proves_most() {
    for (engine, path) in [(Engine::Vllm, "/health"), (Engine::Sglang, "/health_generate")] {
        let server = ScriptedVllm::start(engine, "m").await;
        let adapter = adapter(&server);
        adapter.discover().await.unwrap();
        let before = server.log().exchanges.len();
        let probe = adapter.probe().expect("the adapter has a probe");
        assert_eq!(probe.probe(look_at("m")).await, ProbeOutcome::Available, "{engine:?}");
        let log = server.log();
        let asked: Vec<_> = log.exchanges[before..].iter().map(|e| e.request.path()).collect();
        assert_eq!(asked, [path], "{engine:?}");
        assert_eq!(probe.probe(look_at("other")).await, ProbeOutcome::Unavailable);
        server.set_health(503);
        assert_eq!(probe.probe(look_at("m")).await, ProbeOutcome::Unavailable);
    }
}

#[tokio::test]
async fn an_engine_that_only_its_metrics_show_is_known_by_them() {
    let server = ScriptedVllm::start(Engine::Sglang, "m").await;
    server.on("/v1/models", |_| answer::json(200, &json!({"data": [{"id": "m"}]})));
    let adapter = adapter(&server);
    adapter.discover().await.unwrap();
    let probe = adapter.probe().expect("the adapter has a probe");
    assert_eq!(probe.probe(look_at("m")).await, ProbeOutcome::Available);
    let asked = |path| {
        move |log: &iop_testkit::provider::Log| {
            log.exchanges.iter().any(|exchange| exchange.request.path() == path)
        }
    };
    server.wait_until("it was asked for a token", asked("/health_generate")).await;
}

#[tokio::test]
async fn what_the_engines_offer_beside_openais_api_is_relayed() {
    let server = vllm().await;
    let adapter = adapter(&server);
    for path in [
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v2/embed",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
        "/score",
        "/v1/score",
        "/classify",
        "/pooling",
        "/tokenize",
        "/detokenize",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
    ] {
        let body = Body::Full(r#"{"model":"org/m","prompt":"two words"}"#.into());
        let outcome = tunnel(&*adapter, tunnel_request(path, &[]), body).await;
        assert_eq!((outcome.head().status, &outcome.result), (200, &Ok(())), "{path}");
    }
    assert_eq!(server.requests().len(), 15);
}

#[tokio::test]
async fn what_manages_a_server_is_refused_without_a_connection() {
    let server = vllm().await;
    let adapter = adapter(&server);
    for path in [
        "/sleep",
        "/wake_up",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/flush_cache",
        "/reset_prefix_cache",
        "/invocations",
        "/start_profile",
        "/abort_request",
        "/update_weights_from_disk",
        "/metrics",
        "/health",
        "/v1/responses/resp_1",
        "/v1/Rerank",
        "//rerank",
    ] {
        let outcome = tunnel(&*adapter, tunnel_request(path, &[]), Body::Full("{}".into())).await;
        assert_eq!(outcome.failure().code, ErrorCode::NotFound, "{path}");
    }
    assert_eq!(server.log().connections.len(), 0);
}

#[tokio::test]
async fn keep_alives_pass_byte_for_byte_and_are_no_progress() {
    let server = vllm().await;
    server.stream_chats(3, Duration::from_millis(5));
    let request = tunnel_request(CHAT, &[]);
    let outcome = tunnel(&*adapter(&server), request, Body::Full(chat(true))).await;
    assert_eq!(outcome.result, Ok(()));
    let body = String::from_utf8(outcome.body().to_vec()).unwrap();
    assert_eq!(body.matches(KEEP_ALIVE).count(), 3);
    for item in &outcome.items {
        let TunnelFrame::Body { data, progress } = item else { continue };
        let is_keep_alive = data == KEEP_ALIVE.as_bytes();
        assert!(!(is_keep_alive && *progress), "a keep-alive counts as progress");
        assert!(*progress || data.starts_with(b":"), "{data:?}");
    }
}

#[tokio::test]
async fn a_run_reads_past_keep_alives_to_text_and_usage() {
    let server = vllm().await;
    server.stream_chats(3, Duration::ZERO);
    let input = String::from_utf8(chat(false).to_vec()).unwrap();
    let outcome = run(&*adapter(&server), RunKind::Chat, &input).await;
    assert_eq!(outcome.text(), "piece-0 piece-1 piece-2 ");
    assert!(outcome.result.unwrap().usage.is_some());
}

#[tokio::test]
async fn an_engine_aborts_the_request_of_a_client_that_left() {
    let server = vllm().await;
    server.stream_chats(10_000, Duration::from_millis(10));
    let stop = async {
        server.wait_until("it streams", |log| log.exchanges.iter().any(|e| e.sent > 500)).await;
    };
    let request = tunnel_request(CHAT, &[]);
    let outcome = tunnel_until(&*adapter(&server), request, Body::Full(chat(true)), stop).await;
    assert_eq!(outcome.result, Err(CallError::Cancelled));
    server.wait_until("the request is aborted", |log| log.in_flight() == 0).await;
    assert_eq!(server.aborts().len(), 1);
}
