//! Capacity, waiting, and what a full Edge still answers.

use std::time::{Duration, Instant};

use iop_testkit::http;
use iop_types::{ProviderState, ProviderStatus, Refusal};
use serde_json::json;

use crate::support::{CONTENT, FINISH, World, refused, streamed, tunnel, unary, until};

const SMALL: &str = "version: 1
nodes: { box: { providers: { p: { adapter: openai_compat, endpoint: 'http://127.0.0.1:1' } } } }
routes:
  small:
    candidates: [{ node: box, provider: p, target: m }]
    queue: { max_waiting: 2, timeout: 300ms, wait_for_node: 10s }
";

fn to(model: &str) -> serde_json::Value {
    json!({ "model": model, "messages": [] })
}

#[tokio::test]
async fn a_second_request_waits_until_the_first_ones_stream_has_ended() {
    let world = World::new().await;
    let mut node = world.node("box", vec![tunnel("p", &["m"], 1)]).await;
    let mut first = world.chat(&streamed()).await;
    let mut taken = node.next().await;
    taken.begin_stream().await;
    taken.data(CONTENT).await;
    first.head().await.unwrap();
    let mut second = world.chat(&unary()).await;
    until("it waits", async || world.metric("iop_queue_waiting").await == Some(1.0)).await;
    assert_eq!(world.metric("iop_permits_in_use").await, Some(1.0));
    assert!(!node.has_request());
    taken.data(FINISH).await;
    taken.end();
    first.body().await.unwrap();
    node.next().await.unary(200, "{}").await;
    assert_eq!(second.head().await.unwrap().status, 200);
    let run = world.last_run().await;
    assert!(run["queued_ms"].as_u64().is_some());
    world.idle().await;
}

#[tokio::test]
async fn a_full_queue_refuses_at_once_and_a_long_wait_has_its_own_code() {
    let world = World::with(SMALL).await;
    let mut node = world.node("box", vec![tunnel("p", &["m"], 1)]).await;
    let mut busy = world.chat(&to("small")).await;
    let taken = node.next().await;
    let mut waiting = [world.chat(&to("small")).await, world.chat(&to("small")).await];
    until("two wait", async || world.metric("iop_queue_waiting").await == Some(2.0)).await;
    let asked = Instant::now();
    let mut fourth = world.chat(&to("small")).await;
    let (head, message) = refused(&mut fourth, 429, "queue_full").await;
    assert!(asked.elapsed() < Duration::from_millis(250));
    assert!(head.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
    assert_eq!(head.header("x-should-retry"), Some("true"));
    assert!(message.contains("`small`"), "{message}");
    for client in &mut waiting {
        let (head, _) = refused(client, 503, "queue_timeout").await;
        assert!(head.header("retry-after").is_some());
    }
    taken.unary(200, "{}").await;
    assert_eq!(busy.head().await.unwrap().status, 200);
    world.idle().await;
}

#[tokio::test]
async fn a_full_edge_still_answers_what_needs_no_slot() {
    let world = World::with(SMALL).await;
    let mut node = world.node("box", vec![tunnel("p", &["m"], 1)]).await;
    let _busy = world.chat(&streamed()).await;
    let _taken = node.next().await;
    let _waiting = world.chat(&unary()).await;
    until("one waits", async || world.metric("iop_queue_waiting").await == Some(1.0)).await;
    for (address, path) in [
        (world.clients, "/v1/models"),
        (world.clients, "/health"),
        (world.clients, "/ready"),
        (world.admin, "/metrics"),
        (world.admin, "/api/v1/status"),
        (world.admin, "/api/v1/nodes"),
        (world.admin, "/api/v1/providers"),
        (world.admin, "/api/v1/models"),
    ] {
        let asked = Instant::now();
        let (head, _) = http::get(address, path).await.unwrap();
        assert_eq!(head.status, 200, "{path}");
        assert!(asked.elapsed() < Duration::from_millis(200), "{path}: {:?}", asked.elapsed());
    }
    let status = world.admin("/api/v1/status").await;
    assert_eq!((&status["in_flight"], &status["waiting"]), (&json!(2), &json!(1)));
}

#[tokio::test]
async fn a_refusal_at_the_nodes_gate_puts_the_request_back_to_its_old_place() {
    let world = World::new().await;
    let mut node = world.node("box", vec![tunnel("p", &["m"], 2)]).await;
    let mut first = world.chat(&unary()).await;
    node.next().await.refuse(&Refusal::CapacityExceeded { capacity: 2 });
    until("it waits again", async || world.metric("iop_queue_waiting").await == Some(1.0)).await;
    let mut second = world.chat(&unary()).await;
    until("both wait", async || world.metric("iop_queue_waiting").await == Some(2.0)).await;
    assert!(!node.has_request(), "the provider counts as full until it reports");
    node.report(tunnel("p", &["m"], 1));
    let taken = node.next().await;
    assert_eq!(taken.head().work.attempt.0, 2, "attempt numbers grow with every send");
    taken.unary(200, "{\"first\":1}").await;
    first.head().await.unwrap();
    assert_eq!(first.body().await.unwrap(), "{\"first\":1}");
    node.next().await.unary(200, "{}").await;
    assert_eq!(second.head().await.unwrap().status, 200);
    let metric = "iop_requeues_total{reason=\"capacity_exceeded\"}";
    assert_eq!(world.metric(metric).await, Some(1.0));
    world.idle().await;
}

#[tokio::test]
async fn requests_wait_for_a_node_that_is_only_away_for_a_moment() {
    let (world, node) = World::tunnelling(SMALL).await;
    node.die().await;
    until("the node is gone", async || {
        world.metric("iop_node_linked{node=\"box\"}").await == Some(0.0)
    })
    .await;
    let mut client = world.chat(&unary()).await;
    until("it waits", async || world.metric("iop_queue_waiting").await == Some(1.0)).await;
    let mut node = world.node("box", vec![tunnel("p", &["m"], 1)]).await;
    let taken = node.next().await;
    assert_eq!(taken.head().work.attempt.0, 1, "nothing was sent before");
    taken.unary(200, "{}").await;
    assert_eq!(client.head().await.unwrap().status, 200);
}

#[tokio::test]
async fn without_anybody_to_wait_for_the_answer_says_why() {
    let (world, node) = World::tunnelling("version: 1\n").await;
    let absent = ProviderStatus {
        state: ProviderState::Failed,
        reason: "secret `lab` is missing".to_owned(),
        targets: Vec::new(),
        ..tunnel("p", &[], 1)
    };
    node.report(absent);
    until("the provider has failed", async || {
        world.metric("iop_provider_ready{node=\"box\",provider=\"p\"}").await == Some(0.0)
    })
    .await;
    let mut client = world.chat(&unary()).await;
    let (head, message) = refused(&mut client, 503, "no_ready_provider").await;
    assert!(head.header("retry-after").is_some());
    assert!(message.contains("failed"), "{message}");
    let (ready, body) = http::get(world.clients, "/ready").await.unwrap();
    assert_eq!(ready.status, 503);
    assert!(String::from_utf8_lossy(&body).contains("no provider is ready"));
}

#[tokio::test]
async fn nobody_is_dispatched_to_who_has_not_joined() {
    let world = World::new().await;
    let mut client = world.chat(&unary()).await;
    let (head, message) = refused(&mut client, 503, "no_ready_provider").await;
    assert!(message.contains("no node has joined yet"), "{message}");
    assert!(head.header("retry-after").is_some());
}

#[tokio::test]
async fn two_nodes_share_a_model_and_one_serves_on_when_the_other_dies() {
    let world = World::new().await;
    let mut left = world.node("left", vec![tunnel("p", &["m"], 1)]).await;
    let mut right = world.node("right", vec![tunnel("p", &["m"], 1)]).await;
    let mut clients = [world.chat(&streamed()).await, world.chat(&streamed()).await];
    let mut on_left = left.next().await;
    let mut on_right = right.next().await;
    on_left.begin_stream().await;
    on_right.begin_stream().await;
    for client in &mut clients {
        assert_eq!(client.head().await.unwrap().status, 200);
    }
    left.die().await;
    let mut ends = Vec::new();
    on_right.data(FINISH).await;
    on_right.end();
    for client in &mut clients {
        ends.push(client.body_and_end().await.1.is_ok());
    }
    ends.sort_unstable();
    assert_eq!(ends, [false, true], "one broke off with its node, the other finished");
    let mut next = world.chat(&unary()).await;
    right.next().await.unary(200, "{}").await;
    assert_eq!(next.head().await.unwrap().status, 200);
}
