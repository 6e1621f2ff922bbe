//! Providers that stand still, as processes and on real sockets: how long a client waits, what it is
//! told, and what becomes of the provider's capacity.

use std::time::{Duration, Instant};

use iop_testkit::http;
use iop_testkit::script::{OnCancel, Script};
use iop_testkit::{ScriptedProvider, answer};
use serde_json::{Value, json};

use crate::support::{Apart, CHAT, MODEL, Running, streamed, unary};

const STALL: Duration = Duration::from_secs(3);
/// Close grace and probe run side by side; the longer of them is the probe.
const JOIN: Duration = Duration::from_secs(5);

/// The end of a run whose provider fell silent, with the fields that history has of it.
async fn stalled(group: &Apart) -> Value {
    let run = group.edge.run_where("the stalled run", |_| true).await;
    assert_eq!(run["terminal"]["code"], "response_stalled", "{run}");
    run
}

/// SIGSTOP in the middle of a stream: its sockets stay open and nobody answers.
#[tokio::test]
async fn a_provider_that_is_frozen_mid_stream_ends_its_request_once_and_serves_again_when_it_thaws()
{
    // Another group is the provider: a process of its own that speaks OpenAI's API.
    let engine = Apart::start(
        "version: 1
nodes:
  engine:
    providers:
      mock:
        adapter: mock
        script:
          targets: [m]
          answer: { text: 'word ', repeat: 2000, chunk_chars: 5, chunk_delay_ms: 20 }
",
    )
    .await;
    let _engine_node = engine.node("engine").await;
    engine.edge.serves("m").await;
    let group = Apart::start(&format!(
        "version: 1
nodes:
  one:
    providers:
      lab: {{ adapter: openai_compat, endpoint: 'http://{}', response_stall_timeout: 3s }}
",
        engine.edge.clients
    ))
    .await;
    let _node = group.node("one").await;
    group.edge.serves("m").await;

    let mut client = group.edge.chat(&streamed("m")).await;
    assert_eq!(client.head().await.unwrap().status, 200);
    client.json_event().await.unwrap();
    let frozen = Instant::now();
    engine.process.freeze().await;
    let ended = async { while client.json_event().await.is_ok_and(|event| event.is_some()) {} };
    let bound = STALL + JOIN + Duration::from_secs(1);
    tokio::time::timeout(bound, ended).await.expect("the stream ends within the bound");
    assert!(frozen.elapsed() >= STALL, "{:?}", frozen.elapsed());
    let run = stalled(&group).await;
    let terminal = &run["terminal"];
    assert_eq!(terminal["phase"], "mid_stream", "{run}");
    assert_eq!(terminal["ownership"], "unconfirmed", "{run}");
    assert_eq!(terminal["provider_health"], "unavailable", "{run}");
    assert_eq!(terminal["liveness_classification"], "provider_unhealthy", "{run}");
    assert_eq!(terminal["health_observation_seq"], 1, "{run}");
    assert_eq!(terminal["stall_timeout_ms"], 3_000, "{run}");

    engine.process.thaw();
    group
        .edge
        .until("the provider serves again by itself", async |edge| {
            let mut client = edge.chat(&streamed("m")).await;
            client.head().await.is_ok_and(|head| head.status == 200)
        })
        .await;
}

/// F50.
#[tokio::test]
async fn a_provider_that_ignores_fin_is_reset_its_permit_is_a_visible_zombie_and_the_others_serve()
{
    let provider = ScriptedProvider::start().await;
    provider.once(CHAT, |request| {
        answer::stream_start(request)
            .event(answer::content(request, "a"))
            .on_cancel(OnCancel::Ignore)
            .hold()
    });
    let group = Apart::start(&format!(
        "version: 1
nodes:
  one:
    providers:
      lab:
        adapter: openai_compat
        endpoint: '{}'
        max_concurrency: 2
        response_stall_timeout: 1s
",
        provider.endpoint()
    ))
    .await;
    let _node = group.node("one").await;
    group.edge.serves(MODEL).await;
    let mut client = group.edge.chat(&streamed(MODEL)).await;
    client.head().await.unwrap();
    provider
        .wait_until("a reset at the end of the grace", |log| {
            log.connections.iter().any(|connection| connection.reset_at.is_some())
        })
        .await;
    while client.json_event().await.is_ok_and(|event| event.is_some()) {}
    let run = stalled(&group).await;
    assert_eq!(run["terminal"]["ownership"], "unconfirmed", "{run}");
    assert_eq!(run["terminal"]["retryable"], json!(false), "{run}");

    group.edge.wait_for_metric("iop_provider_zombies{node=\"one\",provider=\"lab\"}", 1.0).await;
    let admin = format!("http://{}", group.edge.admin);
    let mut status = Running::start("iop status", &["status", "--admin", &admin]);
    status.wait_for_line("zombie").await;
    assert!(status.wait_for_exit().await.success());
    for _ in 0..3 {
        let (head, _) = http::post(group.edge.clients, CHAT, &unary(MODEL)).await.unwrap();
        assert_eq!(head.status, 200, "the other permit serves");
    }
}

/// A provider that is done owes its end, and has 2 s for it instead of a stall timeout of five minutes.
/// What was lacking in its answer is lacking still.
#[tokio::test]
async fn a_stream_that_said_done_ends_in_time_though_its_provider_leaves_the_body_open() {
    let provider = ScriptedProvider::start().await;
    let group = Apart::start(&format!(
        "version: 1
nodes:
  one:
    providers:
      lab: {{ adapter: openai_compat, endpoint: '{}' }}
",
        provider.endpoint()
    ))
    .await;
    let _node = group.node("one").await;
    group.edge.serves(MODEL).await;
    let finish = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    for (last, kind, code) in
        [(Some(finish), "completed", Value::Null), (None, "failed", Value::from("truncated"))]
    {
        provider.once(CHAT, move |request| {
            let content = answer::content(request, "a");
            let script = answer::stream_start(request).event(content);
            let script = last.into_iter().fold(script, Script::event);
            script.event("[DONE]").hold()
        });
        let mut client = group.edge.chat(&streamed(MODEL)).await;
        let began = Instant::now();
        assert_eq!(client.head().await.unwrap().status, 200);
        let (body, end) = client.body_and_end().await;
        assert!(end.is_ok(), "the body ends cleanly: {end:?}");
        assert!(body.ends_with(b"data: [DONE]\n\n"), "{body:?}");
        assert!(began.elapsed() < STALL, "{:?}", began.elapsed());
        let run = group.edge.run_where(kind, |run| run["terminal"]["kind"] == kind).await;
        assert_eq!(run["terminal"]["code"], code, "{run}");
        provider.wait_until("it was told to end", |log| log.in_flight() == 0).await;
    }
}

/// What came while the Node stood still lies in its sockets, and its timers are over: nobody was silent.
#[tokio::test]
async fn a_node_that_stood_still_for_longer_than_its_providers_may_be_silent_stalls_none_of_them() {
    const STREAMS: usize = 12;
    const PIECES: usize = 40;
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |request| {
        let script = (0..PIECES).fold(answer::stream_start(request), |script, _| {
            script.wait(Duration::from_millis(100)).event(answer::content(request, "piece"))
        });
        answer::stream_end(script, request, PIECES)
    });
    let group = Apart::start(&format!(
        "version: 1
nodes:
  one:
    providers:
      lab:
        adapter: openai_compat
        endpoint: '{}'
        max_concurrency: {STREAMS}
        response_stall_timeout: 800ms
",
        provider.endpoint()
    ))
    .await;
    let node = group.node("one").await;
    group.edge.serves(MODEL).await;
    let mut clients = Vec::new();
    for _ in 0..STREAMS {
        let mut client = group.edge.chat(&streamed(MODEL)).await;
        assert_eq!(client.head().await.unwrap().status, 200);
        client.json_event().await.unwrap();
        clients.push(client);
    }
    for pause in [900, 1_500] {
        node.freeze().await;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        node.thaw();
        clients[0].json_event().await.unwrap();
    }
    for mut client in clients {
        let whole = async { while client.json_event().await.unwrap().is_some() {} };
        whole.await;
    }
    group.edge.idle().await;
    let output = node.output();
    assert!(!output.contains("silent"), "{output}");
}

/// FC-023, FC-028: more than a minute without a byte, then half a minute of text, over several
/// heartbeats of the link. Two minutes long: `scripts/long-prefill` runs it.
#[tokio::test]
#[ignore = "takes two minutes: scripts/long-prefill"]
async fn a_minute_of_silent_prefill_and_a_long_stream_keep_their_link() {
    const SILENT: Duration = Duration::from_secs(75);
    const PIECES: usize = 400;
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |request| {
        let mut script = answer::stream_start(request);
        for _ in 0..PIECES {
            script =
                script.wait(Duration::from_millis(100)).event(answer::content(request, "piece"));
        }
        Script::new().wait(SILENT).chain(answer::stream_end(script, request, PIECES))
    });
    let group = Apart::start(&format!(
        "version: 1
nodes:
  one:
    providers:
      lab: {{ adapter: openai_compat, endpoint: '{}' }}
",
        provider.endpoint()
    ))
    .await;
    let node = group.node("one").await;
    group.edge.serves(MODEL).await;
    let generation = group.edge.generation("one").await;
    let began = Instant::now();
    let mut client = group.edge.chat(&streamed(MODEL)).await;
    client.set_patience(SILENT * 2);
    let head = client.head().await.unwrap();
    assert_eq!(head.status, 200);
    assert!(began.elapsed() >= SILENT);
    let mut pieces = 0;
    while let Some(event) = client.json_event().await.unwrap() {
        pieces += usize::from(event["choices"][0]["delta"]["content"] == "piece");
    }
    assert_eq!(pieces, PIECES);
    let run = group.edge.run(&head).await;
    assert_eq!(run["terminal"]["kind"], "completed", "{run}");
    assert_eq!(group.edge.generation("one").await, generation, "the same link all along");
    for process in [&group.process, &node] {
        assert!(!process.output().contains("heartbeat_timeout"), "{}", process.output());
    }
}
