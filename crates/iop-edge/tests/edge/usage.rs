//! What a request consumed: asked for, taken out again, refused, estimated.

use iop_types::Operation;
use serde_json::{Value, json};

use crate::support::{CHAT, CONTENT, DONE, FINISH, USAGE, World, streamed, tunnel, unary};

fn with_option(value: &Value) -> Value {
    let mut body = streamed();
    body["stream_options"] = json!({ "include_usage": value });
    body
}

#[tokio::test]
async fn a_client_sees_the_usage_chunk_exactly_when_it_asked_and_history_always_knows() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    for (asked, sees) in [
        (with_option(&json!(true)), true),
        (with_option(&json!(false)), false),
        (streamed(), false),
    ] {
        let mut client = world.chat(&asked).await;
        let taken = node.next().await;
        assert_eq!(taken.json()["stream_options"]["include_usage"], true, "{asked}");
        taken.stream(&[CONTENT, FINISH, USAGE, DONE]).await;
        client.head().await.unwrap();
        let expected = if sees {
            [CONTENT, FINISH, USAGE, DONE].concat()
        } else {
            [CONTENT, FINISH, DONE].concat()
        };
        assert_eq!(client.body().await.unwrap(), expected);
        let usage = world.last_run().await["usage"].clone();
        assert_eq!(usage, json!({ "input_tokens": 5, "output_tokens": 2, "source": "provider" }));
    }
    assert_eq!(
        world.metric("iop_tokens_total{direction=\"output\",source=\"provider\"}").await,
        Some(6.0)
    );
    world.idle().await;
}

#[tokio::test]
async fn observed_usage_touches_neither_request_nor_answer() {
    const OBSERVED: &str = "version: 1
nodes: { box: { providers: { p: { adapter: openai_compat, endpoint: 'http://127.0.0.1:1', usage: observed } } } }
";
    let (world, mut node) = World::tunnelling(OBSERVED).await;
    let mut client = world.client().await;
    let body = streamed().to_string();
    client.request("POST", CHAT, &[("accept-encoding", "gzip")], &body).await.unwrap();
    let taken = node.next().await;
    assert_eq!(taken.body, body);
    assert_eq!(taken.header("accept-encoding").as_deref(), Some("gzip"));
    taken.stream(&[CONTENT, FINISH, USAGE, DONE]).await;
    client.head().await.unwrap();
    assert_eq!(client.body().await.unwrap(), [CONTENT, FINISH, USAGE, DONE].concat());
    assert_eq!(world.last_run().await["usage"]["output_tokens"], 2);
}

#[tokio::test]
async fn a_provider_that_refuses_the_option_is_asked_once_more_without_it_and_remembered() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let mut client = world.chat(&streamed()).await;
    let first = node.next().await;
    assert_eq!(first.json()["stream_options"]["include_usage"], true);
    let permits = world.metric("iop_permits_in_use").await;
    assert_eq!(permits, Some(1.0));
    first.unary(400, "{\"error\":{\"message\":\"unknown field stream_options\"}}").await;
    let second = node.next().await;
    assert_eq!(second.json().get("stream_options"), None);
    assert_eq!(second.head().work.attempt.0, 2);
    second.stream(&[CONTENT, FINISH, DONE]).await;
    let head = client.head().await.unwrap();
    assert_eq!(head.status, 200, "the client never sees the refusal");
    assert_eq!(client.body().await.unwrap(), [CONTENT, FINISH, DONE].concat());
    let run = world.last_run().await;
    assert_eq!(run["attempts"][0]["terminal"]["message"], "usage_option_refused");
    assert_eq!(run["attempts"][1]["why"], "usage_option_refused");
    assert_eq!(run["usage"]["source"], "estimated");
    // Remembered: the next stream is not burdened with it.
    let mut client = world.chat(&streamed()).await;
    let third = node.next().await;
    assert_eq!(third.json().get("stream_options"), None);
    third.stream(&[CONTENT, FINISH, DONE]).await;
    client.head().await.unwrap();
    client.body().await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn a_400_that_is_the_clients_own_reaches_it_after_one_second_try() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let mut client = world.chat(&streamed()).await;
    for body in ["{\"error\":\"one\"}", "{\"error\":\"two\"}"] {
        node.next().await.unary(400, body).await;
    }
    assert_eq!(client.head().await.unwrap().status, 400);
    assert_eq!(client.body().await.unwrap(), "{\"error\":\"two\"}");
    // Its own option is its own affair: no second try.
    let mut client = world.chat(&with_option(&json!(false))).await;
    node.next().await.unary(400, "{\"error\":\"three\"}").await;
    assert_eq!(client.head().await.unwrap().status, 400);
    assert_eq!(client.body().await.unwrap(), "{\"error\":\"three\"}");
    world.idle().await;
    assert!(!node.has_request());
}

#[tokio::test]
async fn running_totals_replace_each_other() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let mut client = world.chat(&with_option(&json!(true))).await;
    let totals = |tokens: u32| {
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"a\"}}}}],\"usage\":{{\"prompt_tokens\":9,\"completion_tokens\":{tokens},\"total_tokens\":{}}}}}\n\n",
            9 + tokens
        )
    };
    let mut taken = node.next().await;
    taken.begin_stream().await;
    for tokens in [1, 2, 3] {
        taken.data(totals(tokens)).await;
    }
    taken.data(FINISH).await;
    taken.data(totals(3)).await;
    taken.data(DONE).await;
    taken.end();
    client.head().await.unwrap();
    client.body().await.unwrap();
    let usage = world.last_run().await["usage"].clone();
    assert_eq!(usage, json!({ "input_tokens": 9, "output_tokens": 3, "source": "provider" }));
}

#[tokio::test]
async fn a_client_that_leaves_midway_leaves_an_estimate_and_no_success() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let mut client = world.chat(&streamed()).await;
    let mut taken = node.next().await;
    taken.begin_stream().await;
    for _ in 0..20 {
        taken.data(CONTENT).await;
    }
    client.head().await.unwrap();
    for _ in 0..20 {
        client.event().await.unwrap().unwrap();
    }
    drop(client);
    taken.cancelled().await;
    let run = world.last_run().await;
    assert_eq!(run["terminal"]["kind"], "cancelled");
    assert_eq!(run["terminal"]["code"], "client_gone");
    assert_eq!(run["usage"]["source"], "estimated");
    assert_eq!(run["usage"]["output_tokens"], 20);
    world.idle().await;
}

#[tokio::test]
async fn where_nothing_could_be_counted_usage_is_absent_and_no_zero() {
    let world = World::new().await;
    let mut provider = tunnel("p", &["m"], 1);
    let spoken = ["audio/speech", "images/generations", "moderations", "rerank"];
    provider.capabilities.tunnel.extend(
        spoken.map(|name| Operation { method: "POST".to_owned(), path: format!("/v1/{name}") }),
    );
    let mut node = world.node("box", vec![provider]).await;
    let silent = "{\"choices\":[]}";
    for (path, body, answer) in [
        ("/v1/audio/speech", json!({ "model": "m", "input": "hello" }), "sound"),
        ("/v1/images/generations", json!({ "model": "m", "prompt": "a cat" }), "{}"),
        ("/v1/moderations", json!({ "model": "m", "input": "hello" }), "{}"),
        ("/v1/rerank", json!({ "model": "m", "query": "q", "documents": ["d"] }), "{}"),
        ("/v1/chat/completions", unary(), silent),
    ] {
        let mut client = world.client().await;
        client.post(path, &body).await.unwrap();
        node.next().await.unary(200, answer).await;
        assert_eq!(client.head().await.unwrap().status, 200, "{path}");
        client.body().await.unwrap();
        let run = world.last_run().await;
        assert_eq!(
            (&run["terminal"]["kind"], run.get("usage")),
            (&json!("completed"), None),
            "{path}"
        );
    }
    // Of what went into a vector the estimate says as much as of a prompt.
    let mut client = world.client().await;
    let body = json!({ "model": "m", "input": "hello" });
    client.post("/v1/embeddings", &body).await.unwrap();
    node.next().await.unary(200, "{}").await;
    client.head().await.unwrap();
    client.body().await.unwrap();
    let tokens = body.to_string().len().div_ceil(4);
    let usage = json!({ "input_tokens": tokens, "output_tokens": 0, "source": "estimated" });
    assert_eq!(world.last_run().await["usage"], usage);
    world.idle().await;
}

#[tokio::test]
async fn the_usage_of_a_unary_answer_is_read_off_its_body() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let mut client = world.chat(&unary()).await;
    let body = "{\"choices\":[{\"message\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":1,\"total_tokens\":9}}";
    node.next().await.unary(200, body).await;
    client.head().await.unwrap();
    assert_eq!(client.body().await.unwrap(), body);
    let usage = world.last_run().await["usage"].clone();
    assert_eq!(usage, json!({ "input_tokens": 8, "output_tokens": 1, "source": "provider" }));
}
