//! What the Edge makes of stalls and of providers that ask to be left alone.

use std::time::Duration;

use iop_types::{ErrorCode, Failure, HealthEvidence, Ownership, Stall, StallPhase, TunnelFrame};
use serde_json::Value;

use crate::support::{World, tunnel, unary};

/// Two providers of one model, in this order.
const FILE: &str = "version: 1
nodes: { box: { providers: { a: { adapter: mock }, b: { adapter: mock } } } }
routes:
  r:
    policy: ordered
    recovery: off
    candidates:
      - { node: box, provider: a, target: m }
      - { node: box, provider: b, target: m }
";

/// A chat with the route.
fn chat() -> Value {
    let mut chat = unary();
    chat["model"] = "r".into();
    chat
}

/// What is known of the health of provider `a`.
async fn health(edge: &World) -> Value {
    edge.admin("/api/v1/providers").await["providers"][0]["health"][0].clone()
}

#[tokio::test]
async fn what_a_stalls_terminal_says_of_its_provider_is_heeded_at_once() {
    let edge = World::with(FILE).await;
    let mut node = edge.node("box", vec![tunnel("a", &["m"], 4), tunnel("b", &["m"], 4)]).await;
    let mut client = edge.chat(&chat()).await;
    let taken = node.next().await;
    assert_eq!(taken.head().provider.as_str(), "a");
    let stall = Stall {
        timeout: Duration::from_secs(3),
        silent: Duration::from_secs(3),
        phase: StallPhase::BeforeHead,
        ownership: Ownership::Unconfirmed,
        health: HealthEvidence::Unavailable,
        observation_seq: Some(1),
    };
    let failure = Failure::new(ErrorCode::ResponseStalled, "the provider was silent");
    taken.finish(TunnelFrame::Error(Failure { stall: Some(stall), ..failure }));
    assert_eq!(client.head().await.unwrap().status, 504);
    let seen = health(&edge).await;
    assert_eq!((&seen["health"], &seen["left_out"]), (&"unavailable".into(), &true.into()));
    assert_eq!(seen["health_observation_seq"], 1);
    let mut client = edge.chat(&chat()).await;
    let taken = node.next().await;
    assert_eq!(taken.head().provider.as_str(), "b");
    taken.unary(200, "{}").await;
    assert_eq!(client.head().await.unwrap().status, 200);
}

#[tokio::test]
async fn a_429_leaves_its_provider_alone_for_as_long_as_it_asks() {
    let edge = World::with(FILE).await;
    let mut node = edge.node("box", vec![tunnel("a", &["m"], 4), tunnel("b", &["m"], 4)]).await;
    let mut client = edge.chat(&chat()).await;
    let mut taken = node.next().await;
    assert_eq!(taken.head().provider.as_str(), "a");
    taken.respond(429, &[("retry-after", "100"), ("content-length", "0")]).await;
    taken.end();
    assert_eq!(client.head().await.unwrap().status, 429);
    let seen = health(&edge).await;
    assert!(seen["cooling_ms"].as_u64().is_some_and(|left| left > 90_000), "{seen}");
    assert_eq!(seen["left_out"], false, "it is busy, not ill");
    let mut client = edge.chat(&chat()).await;
    let taken = node.next().await;
    assert_eq!(taken.head().provider.as_str(), "b");
    taken.unary(200, "{}").await;
    assert_eq!(client.head().await.unwrap().status, 200);
}

#[tokio::test]
async fn a_date_in_retry_after_counts_by_the_providers_clock_and_a_503_may_ask_too() {
    // Its clock stands at another decade: what counts is the time between the two.
    let date = ("date", "Mon, 01 Jan 1990 00:00:00 GMT");
    let until = ("retry-after", "Mon, 01 Jan 1990 00:01:40 GMT");
    for status in [429, 503] {
        let edge = World::with(FILE).await;
        let mut node = edge.node("box", vec![tunnel("a", &["m"], 4), tunnel("b", &["m"], 4)]).await;
        let mut client = edge.chat(&chat()).await;
        let mut taken = node.next().await;
        taken.respond(status, &[date, until, ("content-length", "0")]).await;
        taken.end();
        let head = client.head().await.unwrap();
        assert_eq!(head.status, status);
        assert_eq!(head.header("retry-after"), Some(until.1), "the answer is the provider's");
        let seen = health(&edge).await;
        let left = seen["cooling_ms"].as_u64();
        assert!(left.is_some_and(|left| (90_000..=100_000).contains(&left)), "{status}: {seen}");
        let _client = edge.chat(&chat()).await;
        assert_eq!(node.next().await.head().provider.as_str(), "b", "{status}");
    }
}
