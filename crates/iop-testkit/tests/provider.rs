//! The scripted provider, seen through the raw client: both are checked against each other and
//! against the kernel.

use iop_testkit::http::{Client, Error, post};
use iop_testkit::provider::Ended;
use iop_testkit::script::{Cut, OnCancel};
use iop_testkit::{Script, ScriptedProvider, answer, kernel};
use serde_json::{Value, json};
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";

fn chat(stream: bool) -> Value {
    json!({"model": "m", "stream": stream, "messages": [{"role": "user", "content": "hi"}]})
}

async fn client(provider: &ScriptedProvider) -> Client {
    Client::connect(provider.address()).await.expect("the provider listens")
}

#[tokio::test]
async fn an_unprogrammed_provider_answers_like_a_small_openai_server() {
    let provider = ScriptedProvider::start().await;
    provider.set_models(&["a", "b"]);
    let mut client = client(&provider).await;

    client.request("GET", "/v1/models", &[], "").await.expect("sent");
    assert_eq!(client.head().await.expect("head").status, 200);
    let models = client.json().await.expect("json");
    assert_eq!(models["data"][1]["id"], "b");

    // The same connection carries the next requests.
    client.post(CHAT, &chat(false)).await.expect("sent");
    client.head().await.expect("head");
    assert_eq!(client.json().await.expect("json")["model"], "m");

    let with_usage = json!({
        "model": "m", "stream": true, "messages": [], "stream_options": {"include_usage": true},
    });
    client.post(CHAT, &with_usage).await.expect("sent");
    client.head().await.expect("head");
    let (mut text, mut usage) = (String::new(), Value::Null);
    while let Some(event) = client.json_event().await.expect("event") {
        text.push_str(event["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
        usage = event["usage"].clone();
    }
    assert_eq!(text, "piece-0 piece-1 piece-2 piece-3 piece-4 ");
    assert_eq!(usage["completion_tokens"], 5);
    assert!(client.piece().await.expect("a clean end").is_none());

    let log = provider.log();
    assert_eq!((log.model_lists, log.exchanges.len(), log.connections.len()), (1, 2, 1));
    assert_eq!(log.exchanges[0].request.json(), chat(false));
}

#[tokio::test]
async fn embeddings_are_the_same_numbers_as_floats_and_as_base64() {
    use base64::Engine as _;
    let provider = ScriptedProvider::start().await;
    let body = json!({"model": "e", "input": ["x", "y"]});
    let (_, floats) = post(provider.address(), "/v1/embeddings", &body).await.expect("answer");
    let floats: Value = serde_json::from_slice(&floats).expect("json");
    let body = json!({"model": "e", "input": ["x", "y"], "encoding_format": "base64"});
    let (_, packed) = post(provider.address(), "/v1/embeddings", &body).await.expect("answer");
    let packed: Value = serde_json::from_slice(&packed).expect("json");

    let text = packed["data"][1]["embedding"].as_str().expect("text");
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).expect("base64");
    let numbers: Vec<f32> = bytes
        .chunks_exact(4)
        .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
        .collect();
    assert_eq!(json!(numbers), floats["data"][1]["embedding"]);
}

#[tokio::test]
async fn a_client_that_leaves_is_noticed_and_stops_the_answer() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |request| answer::chat_stream(request, 10_000, Duration::from_millis(5)));
    let mut client = client(&provider).await;
    client.post(CHAT, &chat(true)).await.expect("sent");
    client.head().await.expect("head");
    client.event().await.expect("event");
    // Unread pipelined bytes must not hide the FIN.
    client.send("GET /v1/mod").await.expect("sent");
    client.finish_sending().await.expect("half-closed");

    let log = provider
        .wait_until("the FIN is noticed and the connection closed", |log| {
            log.connection_of(0).fin_at.is_some() && log.open_connections() == 0
        })
        .await;
    assert_eq!(log.exchanges[0].ended.map(|(_, how)| how), Some(Ended::PeerLeft));
}

#[tokio::test]
async fn a_provider_that_ignores_cancellation_goes_on_until_the_reset() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |request| {
        Script::new().on_cancel(OnCancel::Ignore).chain(answer::chat_stream(
            request,
            10_000,
            Duration::from_millis(2),
        ))
    });
    let mut client = client(&provider).await;
    client.post(CHAT, &chat(true)).await.expect("sent");
    client.head().await.expect("head");
    client.finish_sending().await.expect("half-closed");
    let log = provider
        .wait_until("the FIN is noticed", |log| log.connection_of(0).fin_at.is_some())
        .await;
    let sent = log.exchanges[0].sent;
    provider.wait_until("it goes on", |log| log.exchanges[0].sent > sent + 10_000).await;
    client.reset();
    let log = provider.wait_until("it ends", |log| log.in_flight() == 0).await;
    assert!(log.connection_of(0).reset_at.is_some());
    assert_eq!(log.exchanges[0].ended.map(|(_, how)| how), Some(Ended::WriteFailed));
}

#[tokio::test]
async fn faults_reach_the_client_as_they_were_scripted() {
    let provider = ScriptedProvider::start().await;
    let ends = async |script: fn() -> Script| {
        provider.once(CHAT, move |_| script());
        let mut client = client(&provider).await;
        client.post(CHAT, &chat(true)).await.expect("sent");
        client.head().await.expect("head");
        client.body_and_end().await
    };
    let (body, end) = ends(|| answer::short(200, "text/plain", "abc", 5)).await;
    assert_eq!((&body[..], matches!(end, Err(Error::Truncated))), (&b"abc"[..], true));

    let unfinished = || Script::new().head(200, answer::STREAM_HEADERS).event("{}").fin();
    let (body, end) = ends(unfinished).await;
    assert_eq!((&body[..], matches!(end, Err(Error::Truncated))), (&b"data: {}\n\n"[..], true));

    let reset = || Script::new().head(200, answer::STREAM_HEADERS).reset();
    let (_, end) = ends(reset).await;
    assert!(end.expect_err("a reset").is_early_end());

    let bytewise = || Script::new().cut(Cut::EveryByte).chain(answer::sized(200, "a/b", "whole"));
    let (body, end) = ends(bytewise).await;
    assert_eq!((&body[..], end.is_ok()), (&b"whole"[..], true));
}

#[tokio::test]
async fn a_script_holds_until_it_is_released() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |request| Script::new().hold().chain(answer::chat(request, "late")));
    let mut client = client(&provider).await;
    client.set_patience(Duration::from_millis(50));
    client.post(CHAT, &chat(false)).await.expect("sent");
    provider.wait_for_requests(1).await;
    assert!(matches!(client.head().await, Err(Error::Silent(_))));
    assert_eq!(kernel::connections_to(provider.address().port()), 1);
    provider.release(1);
    client.set_patience(iop_testkit::PATIENCE);
    assert_eq!(client.head().await.expect("head").status, 200);
}

#[tokio::test]
async fn an_early_script_answers_while_the_body_is_unread() {
    let provider = ScriptedProvider::start().await;
    provider.at_head(CHAT, |_| answer::error(413, "invalid_request_error", "too_large", "no"));
    let mut client = client(&provider).await;
    client
        .send(format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n{{"))
        .await
        .expect("sent");
    assert_eq!(client.head().await.expect("head").status, 413);
    client.body().await.expect("body");
    let log = provider.wait_until("it closes", |log| log.open_connections() == 0).await;
    assert_eq!(log.exchanges[0].body_at, None);
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_keep_alive() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |request| answer::chat(request, "x").keep_alive(Duration::from_millis(20)));
    let mut client = client(&provider).await;
    client.post(CHAT, &chat(false)).await.expect("sent");
    client.head().await.expect("head");
    client.body().await.expect("body");
    client.wait_for_end().await.expect("a FIN");
}

#[tokio::test]
async fn what_is_not_http_is_noted_and_refused() {
    let provider = ScriptedProvider::start().await;
    let mut client = client(&provider).await;
    client.send("\x00\x01\x02\x03\r\n\r\n").await.expect("sent");
    assert_eq!(client.head().await.expect("head").status, 400);
    assert_eq!(provider.log().malformed.len(), 1);
}

#[tokio::test]
async fn a_stopped_provider_frees_its_port_for_its_successor() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| Script::new().hold());
    let address = provider.address();
    let mut client = client(&provider).await;
    client.post(CHAT, &chat(false)).await.expect("sent");
    provider.wait_for_requests(1).await;
    let log = provider.stop().await;
    assert_eq!(log.open_connections(), 0);
    assert_eq!(log.exchanges[0].ended.map(|(_, how)| how), Some(Ended::Stopped));
    assert!(client.head().await.expect_err("no answer").is_early_end());
    assert_eq!(ScriptedProvider::start_on(address).await.address(), address);
}
