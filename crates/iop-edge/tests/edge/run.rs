//! Translated runs: what the Edge writes itself.

use std::time::Duration;

use iop_edge::Timing;
use iop_types::{ErrorCode, EventKind, Failure, Finish, Part, RunKind, Usage};
use serde_json::{Value, json};

use crate::support::{CHAT, World, refused, run, streamed, unary};

const USAGE: Usage = Usage { input_tokens: 5, output_tokens: 2 };

#[tokio::test]
async fn a_streamed_run_is_written_as_openai_events_with_one_end_mark() {
    let (world, mut node) = World::running("version: 1\n").await;
    let mut asked = streamed();
    asked["stream_options"] = json!({ "include_usage": true });
    asked["x_vendor"] = json!({ "a": [1, null] });
    let mut client = world.client().await;
    client
        .request(
            "POST",
            CHAT,
            &[("x-session-id", "s"), ("x-request-id", "mine")],
            asked.to_string(),
        )
        .await
        .unwrap();
    let mut taken = node.next().await;
    assert_eq!(taken.run().kind, RunKind::Chat);
    assert_eq!(taken.json()["x_vendor"], json!({ "a": [1, null] }), "unknown members are kept");
    assert_eq!(taken.head().session_id.as_ref().unwrap().as_str(), "s");
    taken.event(EventKind::Start).await;
    // The head does not wait for a first piece.
    let head = client.head().await.unwrap();
    assert_eq!(head.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(head.header("x-accel-buffering"), Some("no"));
    assert_eq!(
        (head.header("x-session-id"), head.header("x-request-id")),
        (Some("s"), Some("mine"))
    );
    taken.text("hel").await;
    taken.text("lo").await;
    taken.complete(Some(USAGE));
    let mut text = String::new();
    let mut last = Value::Null;
    let mut reasons = Vec::new();
    while let Some(event) = client.json_event().await.unwrap() {
        if let Some(choice) = event["choices"].get(0) {
            text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
            reasons.extend(choice["finish_reason"].as_str().map(str::to_owned));
        }
        assert_eq!(
            (&event["model"], &event["object"]),
            (&json!("m"), &json!("chat.completion.chunk"))
        );
        last = event;
    }
    assert_eq!((text.as_str(), reasons), ("hello", vec!["stop".to_owned()]));
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(2)));
    assert_eq!(client.body().await.unwrap(), "", "nothing follows the end mark");
    let run = world.last_run().await;
    assert_eq!(
        (&run["form"], &run["session_id"], &run["request_id"]),
        (&json!("run"), &json!("s"), &json!("mine"))
    );
    assert_eq!(
        run["usage"],
        json!({ "input_tokens": 5, "output_tokens": 2, "source": "provider" })
    );
    world.idle().await;
}

#[tokio::test]
async fn a_unary_run_is_one_object() {
    let (world, mut node) = World::running("version: 1\n").await;
    let mut client = world.chat(&unary()).await;
    let mut taken = node.next().await;
    taken.event(EventKind::Start).await;
    taken.text("hel").await;
    taken.text("lo").await;
    taken.complete(Some(USAGE));
    let head = client.head().await.unwrap();
    let answer = client.json().await.unwrap();
    assert_eq!((head.status, head.header("content-type")), (200, Some("application/json")));
    assert_eq!(answer["choices"][0]["message"]["content"], "hello");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["usage"]["total_tokens"], 7);
    world.idle().await;
}

#[tokio::test]
async fn embeddings_come_as_the_client_asked_for_them() {
    let (world, mut node) = World::running("version: 1\n").await;
    for (format, expected) in [
        (json!("base64"), json!("AACAPwAAAMA=")),
        (json!("float"), json!([1.0, -2.0])),
        (Value::Null, json!([1.0, -2.0])),
    ] {
        let mut client = world.client().await;
        let body = json!({ "model": "m", "input": "hi", "encoding_format": format });
        client.post("/v1/embeddings", &body).await.unwrap();
        let mut taken = node.next().await;
        assert_eq!(taken.run().kind, RunKind::Embedding);
        let part = Part::Embedding(vec![1.0, -2.0]);
        taken.event(EventKind::Start).await;
        taken.event(EventKind::Delta { choice: 0, part }).await;
        taken.conclude(EventKind::Complete { finish: Vec::new() });
        assert_eq!(client.head().await.unwrap().status, 200);
        let answer = client.json().await.unwrap();
        assert_eq!(answer["data"][0]["embedding"], expected);
        assert_eq!(answer["model"], "m");
    }
    world.idle().await;
}

#[tokio::test]
async fn a_long_vector_crosses_the_link_in_parts_and_is_whole() {
    let (world, mut node) = World::running("version: 1\n").await;
    let mut client = world.client().await;
    client.post("/v1/embeddings", &json!({ "model": "m", "input": "hi" })).await.unwrap();
    let mut taken = node.next().await;
    let vector: Vec<f32> = (0_u16..20_000).map(f32::from).collect();
    taken.event(EventKind::Delta { choice: 0, part: Part::Embedding(vector) }).await;
    taken.conclude(EventKind::Complete { finish: Vec::new() });
    client.head().await.unwrap();
    let answer = client.json().await.unwrap();
    let vector = answer["data"][0]["embedding"].as_array().unwrap();
    assert_eq!((vector.len(), vector[19_999].as_f64()), (20_000, Some(19_999.0)));
}

#[tokio::test]
async fn an_embeddings_request_that_cannot_be_translated_names_its_member() {
    let (world, node) = World::running("version: 1\n").await;
    let mut client = world.client().await;
    client.post("/v1/embeddings", &json!({ "model": "m", "input": 3 })).await.unwrap();
    let (_, message) = refused(&mut client, 400, "invalid_request").await;
    assert!(message.contains("`input`"), "{message}");
    world.idle().await;
    assert!(!node.has_request());
}

#[tokio::test]
async fn a_run_that_fails_after_its_head_sends_one_error_event_and_no_end_mark() {
    let (world, mut node) = World::running("version: 1\n").await;
    let mut client = world.chat(&streamed()).await;
    let mut taken = node.next().await;
    taken.event(EventKind::Start).await;
    taken.text("hel").await;
    taken.fail(Failure::new(ErrorCode::ProviderError, "out of memory"));
    client.head().await.unwrap();
    let body = String::from_utf8(client.body().await.unwrap().to_vec()).unwrap();
    assert_eq!(body.matches("\"error\"").count(), 1, "{body}");
    assert!(body.contains("hel") && body.contains("out of memory"), "{body}");
    assert!(!body.contains("[DONE]"), "{body}");
    assert_eq!(world.last_run().await["terminal"]["code"], "provider_error");
    world.idle().await;
}

#[tokio::test]
async fn a_run_that_fails_before_its_head_is_an_answer_with_the_providers_status() {
    let (world, mut node) = World::running("version: 1\n").await;
    for stream in [true, false] {
        let mut client =
            world.chat(&json!({ "model": "m", "stream": stream, "messages": [] })).await;
        node.next().await.fail(Failure {
            provider_status: Some(400),
            ..Failure::new(ErrorCode::ProviderError, "context too long")
        });
        let (head, message) = refused(&mut client, 400, "provider_error").await;
        assert!(message.contains("context too long"), "{message}");
        assert_eq!(head.header("x-should-retry"), Some("false"));
    }
    world.idle().await;
}

#[tokio::test]
async fn a_unary_run_that_fails_midway_has_no_half_answer() {
    let (world, mut node) = World::running("version: 1\n").await;
    let mut client = world.chat(&unary()).await;
    let mut taken = node.next().await;
    taken.event(EventKind::Start).await;
    taken.text("hel").await;
    taken.fail(Failure::new(ErrorCode::Truncated, "response ended before it was finished"));
    refused(&mut client, 502, "truncated").await;
    world.idle().await;
}

#[tokio::test]
async fn a_run_without_a_finish_reason_is_truncated() {
    let (world, mut node) = World::running("version: 1\n").await;
    let mut client = world.chat(&streamed()).await;
    let mut taken = node.next().await;
    taken.event(EventKind::Start).await;
    taken.text("hel").await;
    taken.conclude(EventKind::Complete { finish: Vec::new() });
    client.head().await.unwrap();
    let body = String::from_utf8(client.body().await.unwrap().to_vec()).unwrap();
    assert!(body.contains("truncated") && !body.contains("[DONE]"), "{body}");
    assert_eq!(world.last_run().await["terminal"]["code"], "truncated");
}

#[tokio::test]
async fn an_empty_run_is_a_whole_answer() {
    let (world, mut node) = World::running("version: 1\n").await;
    let finish = vec![Finish { choice: 0, reason: "stop".to_owned() }];
    let mut client = world.chat(&streamed()).await;
    node.next().await.conclude(EventKind::Complete { finish: finish.clone() });
    assert_eq!(client.head().await.unwrap().status, 200);
    let body = client.body().await.unwrap();
    assert!(body.ends_with(b"data: [DONE]\n\n"));
    let mut client = world.chat(&unary()).await;
    node.next().await.conclude(EventKind::Complete { finish });
    assert_eq!(client.head().await.unwrap().status, 200);
    assert_eq!(client.json().await.unwrap()["choices"][0]["finish_reason"], "stop");
    world.idle().await;
}

#[tokio::test]
async fn a_silent_provider_is_bridged_by_comments_after_the_head_and_only_in_streams() {
    let timing = Timing { keep_alive: Duration::from_millis(30), ..Timing::default() };
    let file = "version: 1\nnodes: { box: { providers: { p: { adapter: mock } } } }\n\
                routes: { r: { hold_head: 0s, candidates: [{ node: box, provider: p, target: m }] } }\n";
    let world = World::timed(file, timing).await;
    let mut node = world.node("box", vec![run("p", &["m"], 8)]).await;
    let mut client = world.chat(&json!({ "model": "r", "stream": true, "messages": [] })).await;
    let mut taken = node.next().await;
    // Before the head nothing may be sent: the status is not known.
    tokio::time::sleep(Duration::from_millis(100)).await;
    client.set_patience(Duration::from_millis(1));
    assert!(client.head().await.is_err(), "no head before the provider's");
    client.set_patience(iop_testkit::PATIENCE);
    taken.event(EventKind::Start).await;
    client.head().await.unwrap();
    for _ in 0..2 {
        assert_eq!(client.event().await.unwrap().unwrap(), ": keep-alive");
    }
    taken.complete(None);
    let body = client.body().await.unwrap();
    assert!(body.ends_with(b"data: [DONE]\n\n"));
    let run = world.last_run().await;
    assert_eq!(run["attempts"][0].get("first_token_ms"), None, "comments are no progress");
    world.idle().await;
}

#[tokio::test]
async fn requests_with_one_session_share_nothing_and_each_gets_its_echo() {
    let (world, mut node) = World::running("version: 1\n").await;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = world.client().await;
        let headers = [("x-session-id", "same")];
        client.request("POST", CHAT, &headers, unary().to_string()).await.unwrap();
        clients.push(client);
    }
    let first = node.next().await;
    let second = node.next().await;
    assert_ne!(first.head().work.run_id, second.head().work.run_id);
    second.fail(Failure::new(ErrorCode::ProviderError, "mine"));
    first.complete(None);
    let mut statuses = Vec::new();
    for client in &mut clients {
        let head = client.head().await.unwrap();
        assert_eq!(head.header("x-session-id"), Some("same"));
        statuses.push(head.status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 502]);
}

#[tokio::test]
async fn an_answer_that_makes_no_sense_fails_the_run_and_stops_the_node() {
    let (world, mut node) = World::running("version: 1\n").await;
    let mut client = world.chat(&streamed()).await;
    let taken = node.next().await;
    // A tunnel's end on a run.
    taken.finish(iop_types::TunnelFrame::End);
    let head = client.head().await.unwrap();
    assert_eq!(head.status, 502);
    world.idle().await;
    assert_eq!(world.last_run().await["terminal"]["kind"], "failed");
}
