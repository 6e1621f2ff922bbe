//! A provider that freezes and thaws, as a process of its own.

use std::time::Duration;

use iop_testkit::http;
use iop_testkit::{ScriptedProvider, answer};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Apart, CHAT, Edge, Up, streamed, unary};

/// The one target of both providers.
const TARGET: &str = "m";

/// A model server as a process: it talks for two seconds and can be frozen.
async fn server() -> (Up, TempDir) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("server.yaml");
    let file = format!(
        "version: 1
nodes:
  local:
    providers:
      engine:
        adapter: mock
        script:
          targets: [{TARGET}]
          answer: {{ text: 'word ', repeat: 100, chunk_delay_ms: 20 }}
"
    );
    std::fs::write(&path, file).unwrap();
    let server = Up::start(&["--config", path.to_str().unwrap()]).await;
    server.edge.serves(TARGET).await;
    (server, dir)
}

/// What the Edge knows of the health of the first provider's target; `null` where nothing.
async fn health(edge: &Edge) -> Value {
    let providers = edge.admin("/api/v1/providers").await;
    let mut providers = providers["providers"].as_array().unwrap().iter();
    let first = providers.find(|provider| provider["provider"] == "first").unwrap();
    first["health"].get(0).cloned().unwrap_or_default()
}

#[tokio::test]
async fn traffic_leaves_a_frozen_provider_and_returns_by_itself_when_it_thaws() {
    let (server, _dir) = server().await;
    let spare = ScriptedProvider::start().await;
    spare.set_models(&[TARGET]);
    spare.on(CHAT, |request| answer::chat(request, "from the spare"));
    let file = format!(
        "version: 1
nodes:
  one:
    providers:
      first: {{ adapter: openai_compat, endpoint: 'http://{}', response_stall_timeout: 1s }}
      spare: {{ adapter: openai_compat, endpoint: '{}' }}
routes:
  r:
    policy: ordered
    candidates:
      - {{ node: one, provider: first, target: {TARGET} }}
      - {{ node: one, provider: spare, target: {TARGET} }}
",
        server.edge.clients,
        spare.endpoint()
    );
    let group = Apart::start(&file).await;
    let _node = group.node("one").await;
    group
        .edge
        .until("both are ready", async |edge| {
            let ready = edge.metrics().await;
            ["first", "spare"].iter().all(|provider| {
                let series = format!("iop_provider_ready{{node=\"one\",provider=\"{provider}\"}}");
                ready.get(&series).is_some_and(|value| *value > 0.0)
            })
        })
        .await;

    let mut client = group.edge.chat(&streamed("r")).await;
    let head = client.head().await.unwrap();
    client.piece().await.unwrap();
    server.process.freeze().await;
    assert!(client.body_and_end().await.1.is_err(), "no regular end");
    let run = group.edge.run(&head).await;
    assert_eq!(run["terminal"]["code"], "response_stalled", "{run}");
    let seen = health(&group.edge).await;
    assert_eq!(
        (&seen["health"], &seen["left_out"]),
        (&"unavailable".into(), &true.into()),
        "{seen}"
    );
    assert!(seen["health_observation_seq"].as_u64().is_some_and(|seq| seq >= 1), "{seen}");

    let from_spare = async || {
        // A stream, because an answer in one piece would be silent for longer than is allowed.
        let (head, body) = http::post(group.edge.clients, CHAT, &streamed("r")).await.unwrap();
        assert_eq!(head.status, 200);
        String::from_utf8_lossy(&body).contains("from the spare")
    };
    assert!(from_spare().await, "the frozen one is left out");

    server.process.thaw();
    group
        .edge
        .until("the thawed one is taken again", async |edge| {
            let seen = health(edge).await;
            seen["left_out"] == false && !from_spare().await
        })
        .await;
    assert_eq!(group.edge.metric("iop_health_observations_refused_total").await, 0.0);
}

#[tokio::test]
async fn a_stall_of_a_healthy_provider_leaves_nobody_out() {
    let provider = ScriptedProvider::start().await;
    provider.set_models(&[TARGET]);
    provider.once(CHAT, |request| answer::stream_start(request).wait(Duration::from_secs(60)));
    let file = format!(
        "version: 1
nodes:
  one:
    providers:
      first: {{ adapter: openai_compat, endpoint: '{}', response_stall_timeout: 500ms }}
",
        provider.endpoint()
    );
    let group = Apart::start(&file).await;
    let _node = group.node("one").await;
    group.edge.serves(TARGET).await;
    let mut client = group.edge.chat(&streamed(TARGET)).await;
    let head = client.head().await.unwrap();
    let run = group.edge.run(&head).await;
    assert_eq!(run["terminal"]["code"], "response_stalled", "{run}");
    let seen = health(&group.edge).await;
    assert_eq!(
        (&seen["health"], &seen["left_out"]),
        (&"available".into(), &false.into()),
        "{seen}"
    );
    let (head, _) = http::post(group.edge.clients, CHAT, &unary(TARGET)).await.unwrap();
    assert_eq!(head.status, 200, "the next request goes there");
}
