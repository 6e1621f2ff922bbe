//! vLLM and SGLang behind a whole group: what the engine says of itself decides where requests go, and
//! what it sends passes as it is.

use std::time::{Duration, Instant};

use iop_testkit::vllm::{Engine, KEEP_ALIVE};
use iop_testkit::{ScriptedProvider, ScriptedVllm, http};
use serde_json::{Value, json};

use crate::support::{Apart, CHAT, Edge, Running, SEEN, Up, stream, streamed, unary};

const M: &str = "org/m";

async fn vllm() -> ScriptedVllm {
    ScriptedVllm::start(Engine::Vllm, M).await
}

/// `iop up` in front of this server.
async fn up(server: &ScriptedVllm) -> Up {
    let up = Up::start(&["--provider", &format!("lab=vllm:{}", server.endpoint())]).await;
    up.edge.serves(M).await;
    up
}

/// A provider as the Edge shows it.
async fn provider(edge: &Edge, key: &str) -> Value {
    let all = edge.admin("/api/v1/providers").await;
    let mut all = all["providers"].as_array().unwrap().iter();
    all.find(|provider| provider["provider"] == key).cloned().unwrap_or_default()
}

/// Waits until the Edge shows a provider so.
async fn shown(edge: &Edge, key: &str, member: &str, value: Value) -> Value {
    let mut last = Value::Null;
    edge.until(&format!("{key} has {member} {value}"), async |edge| {
        last = provider(edge, key).await;
        last[member] == value
    })
    .await;
    last
}

#[tokio::test]
async fn a_stream_with_keep_alives_is_the_engines_byte_for_byte() {
    let server = vllm().await;
    server.stream_chats(20, Duration::from_millis(2));
    let up = up(&server).await;
    let (_, direct) = http::post(server.address(), CHAT, &streamed(M)).await.unwrap();
    let (head, body) = http::post(up.edge.clients, CHAT, &streamed(M)).await.unwrap();
    assert_eq!((head.status, body), (200, direct.clone()));
    assert_eq!(String::from_utf8_lossy(&direct).matches(KEEP_ALIVE).count(), 20);
    let run = up.edge.run(&head).await;
    assert_eq!((&run["form"], &run["usage"]["output_tokens"]), (&json!("tunnel"), &json!(20)));
}

#[tokio::test]
async fn keep_alives_are_no_progress() {
    let server = vllm().await;
    server.on(CHAT, |_| {
        let pause = Duration::from_millis(20);
        (0..20).fold(stream::head(), |script, _| script.wait(pause).chunk(KEEP_ALIVE)).hold()
    });
    let up = up(&server).await;
    let mut client = up.edge.chat(&streamed(M)).await;
    let head = client.head().await.unwrap();
    stream::read(&mut client, &KEEP_ALIVE.repeat(20)).await;
    drop(client);
    let run = up.edge.run(&head).await;
    let attempt = &run["attempts"][0];
    assert!(attempt["head_ms"].is_u64() && attempt["first_token_ms"].is_null(), "{run}");
}

#[tokio::test]
async fn an_engine_aborts_the_request_of_a_client_that_left_within_a_second() {
    let server = vllm().await;
    server.stream_chats(10_000, Duration::from_millis(10));
    let up = up(&server).await;
    let mut client = up.edge.chat(&streamed(M)).await;
    assert_eq!(client.head().await.unwrap().status, 200);
    client.json_event().await.unwrap();
    let left = Instant::now();
    drop(client);
    server.wait_until("the engine aborts it", |log| log.in_flight() == 0).await;
    let [aborted] = server.aborts()[..] else { panic!("{:?}", server.requests()) };
    assert!(aborted.duration_since(left) <= SEEN, "only after {:?}", aborted.duration_since(left));
    up.edge.idle().await;
}

#[tokio::test]
async fn an_engine_that_is_not_well_gets_nothing_until_it_is_well_again() {
    let server = vllm().await;
    let up = up(&server).await;
    for _ in 0..2 {
        server.set_health(503);
        let shown_so = shown(&up.edge, "lab", "ready", json!(false)).await;
        assert_eq!(shown_so["state"], "absent", "{shown_so}");
        assert!(
            shown_so["reason"].as_str().unwrap().contains("/health answered 503"),
            "{shown_so}"
        );
        let before = server.requests().len();
        let (head, body) = http::get(up.edge.clients, "/ready").await.unwrap();
        assert_eq!(head.status, 503, "{}", String::from_utf8_lossy(&body));
        assert_eq!(server.requests().len(), before);

        server.set_health(200);
        shown(&up.edge, "lab", "ready", json!(true)).await;
        let (head, _) = http::post(up.edge.clients, CHAT, &unary(M)).await.unwrap();
        assert_eq!((head.status, server.requests().len()), (200, before + 1));
    }
}

#[tokio::test]
async fn requests_go_where_none_wait_and_come_back_when_the_queue_is_gone() {
    let (busy, idle) = (vllm().await, ScriptedVllm::start(Engine::Sglang, M).await);
    busy.set_load(200, 20);
    let file = format!(
        "version: 1
nodes:
  one:
    providers:
      busy: {{ adapter: vllm, endpoint: '{}' }}
      idle: {{ adapter: vllm, endpoint: '{}' }}
",
        busy.endpoint(),
        idle.endpoint()
    );
    let group = Apart::start(&file).await;
    let _node = group.node("one").await;
    shown(&group.edge, "busy", "queued", json!(20)).await;
    shown(&group.edge, "idle", "queued", json!(0)).await;
    let queued = "iop_provider_queued{node=\"one\",provider=\"busy\"}";
    assert_eq!(group.edge.metric(queued).await, 20.0);
    let admin = format!("http://{}", group.edge.admin);
    let mut status = Running::start("iop status", &["status", "--admin", &admin]);
    status.wait_for_line("(+20 wait in the server)").await;
    assert!(status.wait_for_exit().await.success());
    let ask = async || {
        let (head, _) = http::post(group.edge.clients, CHAT, &unary(M)).await.unwrap();
        assert_eq!(head.status, 200);
    };
    for _ in 0..6 {
        ask().await;
    }
    assert_eq!((busy.requests().len(), idle.requests().len()), (0, 6));

    busy.set_load(200, 0);
    shown(&group.edge, "busy", "queued", json!(0)).await;
    for _ in 0..2 {
        ask().await;
    }
    assert_eq!((busy.requests().len(), idle.requests().len()), (1, 7), "equals take turns");
}

#[tokio::test]
async fn an_engine_that_comes_goes_and_comes_back_is_served_without_a_restart() {
    let gone = ScriptedProvider::start().await;
    let address = gone.address();
    gone.stop().await;
    let up = Up::start(&["--provider", &format!("lab=vllm:http://{address}")]).await;
    up.process.wait_for_line("none yet").await;
    for _ in 0..2 {
        let began = Instant::now();
        let server = ScriptedVllm::on(ScriptedProvider::start_on(address).await, Engine::Vllm, M);
        server.set_adapters(&["poet"]);
        up.edge.serves(M).await;
        up.edge.serves("poet").await;
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        let (head, _) = http::post(up.edge.clients, CHAT, &unary("poet")).await.unwrap();
        assert_eq!(head.status, 200);
        assert_eq!(server.requests()[0].request.model(), "poet");

        server.stop().await;
        // A request that finds nobody there has the server looked at now.
        let (head, _) = http::post(up.edge.clients, CHAT, &unary(M)).await.unwrap();
        assert!([502, 503].contains(&head.status), "{}", head.status);
        shown(&up.edge, "lab", "state", json!("absent")).await;
        let (head, _) = http::get(up.edge.clients, "/ready").await.unwrap();
        assert_eq!(head.status, 503);
    }
}
