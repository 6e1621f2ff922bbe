//! Peers that misbehave: a client that does not read, and providers that are down, slow or rude.

use std::time::{Duration, Instant};

use iop_testkit::http::{self, Client};
use iop_testkit::script::Script;
use iop_testkit::{PATIENCE, ScriptedProvider, answer, kernel};
use serde_json::{Value, json};

use crate::support::{Apart, CHAT, MODEL, stream, streamed, unary};

/// F29, F30, F31: half of them read nothing at all and half a byte now and then. Either pauses its provider
/// for longer than that may be silent, which is no stall.
#[tokio::test]
async fn a_client_that_stops_reading_slows_nobody_is_ended_and_costs_bounded_memory() {
    const CLIENTS: usize = 8;
    const OFFERED: u64 = 64 << 20;
    let provider = ScriptedProvider::start().await;
    provider.set_models(&["flood", "calm"]);
    let piece = stream::content(&"z".repeat(32 << 10));
    provider.on_matching(
        |request| request.model() == "flood",
        move |_| {
            let pieces = OFFERED / piece.len() as u64;
            (0..pieces).fold(stream::head(), |script, _| script.chunk(&piece)).last_chunk()
        },
    );
    let file = format!(
        "version: 1
limits: {{ client_stall_timeout: 2s }}
nodes:
  one:
    providers:
      p:
        adapter: openai_compat
        endpoint: '{}'
        max_concurrency: 64
        response_stall_timeout: 1s
",
        provider.endpoint()
    );
    let group = Apart::start(&file).await;
    let node = group.node("one").await;
    group.edge.serves("flood").await;
    // Whatever is allocated once for streams and their buffers.
    http::post(group.edge.clients, CHAT, &streamed("calm")).await.unwrap();
    let pids = [group.process.pid(), node.pid()];
    let before = pids.map(kernel::resident_bytes);
    let mut stalled = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = Client::connect_with_small_buffer(group.edge.clients, 4096).await.unwrap();
        client.post(CHAT, &streamed("flood")).await.unwrap();
        let head = client.head().await.unwrap();
        stalled.push((client, head));
    }
    // Others are served as if nothing were the matter, for as long as that lasts.
    let mut most = before;
    let mut slowest = Duration::ZERO;
    let began = Instant::now();
    while group.edge.metric("iop_requests_in_flight").await > 0.0 {
        assert!(began.elapsed() < PATIENCE, "somebody is borne with for ever");
        let asked = Instant::now();
        let (head, body) = http::post(group.edge.clients, CHAT, &streamed("calm")).await.unwrap();
        assert_eq!(head.status, 200);
        assert!(body.ends_with(b"data: [DONE]\n\n"));
        slowest = slowest.max(asked.elapsed());
        for (client, _) in stalled.iter_mut().step_by(2) {
            // Or it has been ended.
            let _ = client.trickle().await;
        }
        for (most, pid) in most.iter_mut().zip(pids) {
            *most = (*most).max(kernel::resident_bytes(pid));
        }
    }
    assert!(slowest < Duration::from_secs(1), "somebody else waited {slowest:?}");
    for (most, before) in most.into_iter().zip(before) {
        let each = most.saturating_sub(before) / CLIENTS as u64;
        assert!(each < 4 << 20, "{each} bytes for each client that does not read");
    }
    for (_, head) in &stalled {
        let run = group.edge.run(head).await;
        assert_eq!(run["terminal"]["code"], "client_stalled", "{run}");
    }
    // Its word would come behind what these clients do not read, and never be heard.
    assert!(!node.output().contains("silent"), "{}", node.output());
    let log = provider.wait_until("the provider is rid of them", |log| log.in_flight() == 0).await;
    let floods = log.exchanges.iter().filter(|exchange| exchange.request.model() == "flood");
    for exchange in floods {
        // Beside IOP's own credit these are the buffers of three sockets, each up to some MiB
        // where the kernel has its usual limits (tcp_wmem, tcp_rmem).
        assert!(exchange.sent < OFFERED / 2, "{} bytes taken from the provider", exchange.sent);
    }
    group.edge.idle().await;
    for (mut client, _) in stalled {
        assert!(client.body_and_end().await.1.is_err(), "no regular end");
    }
}

#[tokio::test]
async fn a_provider_that_goes_down_is_an_error_with_a_name_and_is_not_offered_any_more() {
    let gone = ScriptedProvider::start().await;
    let file = format!(
        "version: 1
nodes:
  one:
    providers:
      p: {{ adapter: openai_compat, endpoint: '{}', targets: [{MODEL}] }}
routes:
  r:
    candidates: [{{ node: one, provider: p, target: {MODEL} }}]
    queue: {{ wait_for_node: 200ms, timeout: 200ms }}
",
        gone.endpoint()
    );
    let group = Apart::start(&file).await;
    let _node = group.node("one").await;
    group.edge.serves("r").await;
    gone.stop().await;
    // First the refused connections themselves; each makes the Node look, and what it sees twice it
    // tells the Edge.
    let mut told = Vec::new();
    group
        .edge
        .until("the provider is known to be away", async |edge| {
            let (head, body) = http::post(edge.clients, CHAT, &unary("r")).await.unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap();
            let error = &body["error"];
            told.push((head.status, error["code"].as_str().unwrap().to_owned()));
            let message = error["message"].as_str().unwrap();
            assert!(head.status == 503 || message.contains("provider `p`"), "{message}");
            head.status == 503
        })
        .await;
    let (last, refused) = told.split_last().unwrap();
    assert_eq!(*last, (503, "no_ready_provider".to_owned()));
    assert!(!refused.is_empty());
    assert!(refused.iter().all(|end| *end == (502, "connect_failed".to_owned())), "{refused:?}");
    let (head, _) = http::get(group.edge.clients, "/ready").await.unwrap();
    assert_eq!(head.status, 503);
    group.edge.idle().await;
}

#[tokio::test]
async fn a_provider_that_talks_nonsense_costs_its_request_and_nothing_more() {
    let provider = ScriptedProvider::start().await;
    let file = format!(
        "version: 1\nnodes:\n  one:\n    providers:\n      \
         p: {{ adapter: openai_compat, endpoint: '{}', max_concurrency: 1 }}\nroutes:\n  r:\n    \
         candidates: [{{ node: one, provider: p, target: {MODEL} }}]\n    recovery: 'off'\n",
        provider.endpoint()
    );
    let group = Apart::start(&file).await;
    let _node = group.node("one").await;
    group.edge.serves("r").await;
    let nonsense = [
        Script::new().bytes("SSH-2.0-OpenSSH_9.6\r\n").fin(),
        Script::new().bytes(vec![0_u8; 4096]).fin(),
        Script::new().head(200, &[("content-length", "12"), ("content-length", "13")]).fin(),
        Script::new().head(200, &[("x", &"y".repeat(1 << 20))]).fin(),
        Script::new().fin(),
        Script::new().reset(),
    ];
    for (index, script) in nonsense.into_iter().enumerate() {
        provider.once(CHAT, move |_| script.clone());
        let (head, body) = http::post(group.edge.clients, CHAT, &unary("r")).await.unwrap();
        let told: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(head.status, 502, "{index}: {told}");
        assert_eq!(told["error"]["code"], json!("provider_error"), "{index}: {told}");
        group.edge.idle().await;
    }
    // The one permit is free.
    provider.on(CHAT, |request| answer::chat(request, "sense"));
    let (head, _) = http::post(group.edge.clients, CHAT, &unary("r")).await.unwrap();
    assert_eq!(head.status, 200);
    assert!(!group.process.output().contains("panicked"));
}
