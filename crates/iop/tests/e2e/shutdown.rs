//! The order to stop: what runs may finish, what is new is refused, and a second order does not wait.

use std::time::{Duration, Instant};

use iop_testkit::http;
use iop_testkit::{ScriptedProvider, answer};

use crate::support::{Apart, CHAT, Edge, MODEL, Running, Up, stream, streamed, unary};

/// An Edge and a Node over a provider with many permits and this drain time.
async fn group(provider: &ScriptedProvider, drain: &str) -> (Apart, Running) {
    let file = format!(
        "version: 1\nlimits: {{ drain: {drain} }}\nnodes:\n  one:\n    providers:\n      \
         p: {{ adapter: openai_compat, endpoint: '{}', max_concurrency: 64 }}\n",
        provider.endpoint()
    );
    let group = Apart::start(&file).await;
    let node = group.node("one").await;
    group.edge.serves(MODEL).await;
    (group, node)
}

#[tokio::test]
async fn fifty_streams_finish_while_new_requests_are_refused_and_then_the_edge_ends_well() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| stream::held(30));
    let (mut group, mut node) = group(&provider, "20s").await;
    let mut streams = Vec::new();
    for _ in 0..50 {
        let mut client = group.edge.chat(&streamed(MODEL)).await;
        assert_eq!(client.head().await.unwrap().status, 200);
        streams.push(client);
    }
    let mut kept = group.edge.client().await;
    kept.request("GET", "/health", &[], "").await.unwrap();
    assert_eq!(kept.head().await.unwrap().status, 200);
    kept.body().await.unwrap();

    group.process.terminate();
    // From here on nothing new is taken.
    group.process.wait_for_status(group.edge.clients, "/ready", 503).await;
    // On a connection of its own and on one that was open before.
    for _ in 0..2 {
        let (head, body) = http::post(group.edge.clients, CHAT, &unary(MODEL)).await.unwrap();
        let body = String::from_utf8_lossy(&body);
        assert_eq!(head.status, 503, "{body}");
        assert!(body.contains("\"code\":\"shutting_down\""), "{body}");
        assert!(head.header("retry-after").is_some());
    }
    kept.post(CHAT, &unary(MODEL)).await.unwrap();
    assert_eq!(kept.head().await.unwrap().status, 503);

    provider.release(50);
    for client in &mut streams {
        assert_eq!(client.body().await.unwrap(), stream::held_body(30));
    }
    assert!(group.process.wait_for_exit().await.success());
    assert_eq!(provider.log().exchanges.len(), 50);
    // The Node outlives its Edge and waits for the next one.
    group.start_again().await;
    group.edge.linked("one").await;
    let runs = group.edge.admin("/api/v1/runs?limit=1000").await;
    let runs = runs["runs"].as_array().unwrap().clone();
    let completed = runs.iter().filter(|run| run["terminal"]["kind"] == "completed").count();
    assert_eq!(completed, 50, "{:?}", runs.last());
    node.terminate();
    assert!(node.wait_for_exit().await.success());
}

#[tokio::test]
async fn what_is_left_after_the_drain_time_gets_one_end_and_the_exit_is_still_clean() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| stream::held(2));
    let (mut group, _node) = group(&provider, "300ms").await;
    let mut client = group.edge.chat(&streamed(MODEL)).await;
    let head = client.head().await.unwrap();
    stream::read_first(&mut client).await;
    let asked = Instant::now();
    group.process.terminate();
    let (rest, end) = client.body_and_end().await;
    assert!(rest.is_empty() && end.unwrap_err().is_early_end(), "{rest:?}");
    assert!(asked.elapsed() >= Duration::from_millis(300), "{:?}", asked.elapsed());
    provider
        .wait_until("the provider sees the end", |log| log.connection_of(0).left_at().is_some())
        .await;
    assert!(group.process.wait_for_exit().await.success());
    group.start_again().await;
    let run = group.edge.run(&head).await;
    assert_eq!(run["terminal"]["code"], "shutting_down", "{run}");
}

#[tokio::test]
async fn a_second_order_does_not_wait() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| stream::held(2));
    for code in [130, 143] {
        let (mut group, mut node) = group(&provider, "20s").await;
        let mut client = group.edge.chat(&streamed(MODEL)).await;
        client.head().await.unwrap();
        let process = if code == 130 { &mut node } else { &mut group.process };
        process.terminate();
        process.wait_for_line("a second signal ends it at once").await;
        if code == 143 {
            // The same signal is a second order once it cannot be an echo of the first.
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        let asked = Instant::now();
        if code == 130 {
            process.interrupt();
        } else {
            process.terminate();
        }
        let status = process.wait_for_exit().await;
        assert_eq!(status.code(), Some(code));
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        assert!(client.body_and_end().await.1.unwrap_err().is_early_end());
    }
}

#[tokio::test]
async fn an_order_that_arrives_twice_at_once_is_one_order() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| stream::held(2));
    let (mut group, _node) = group(&provider, "20s").await;
    let mut client = group.edge.chat(&streamed(MODEL)).await;
    client.head().await.unwrap();
    group.process.terminate();
    group.process.wait_for_line("a second signal ends it at once").await;
    group.process.terminate();
    provider.release(1);
    assert_eq!(client.body().await.unwrap(), stream::held_body(2));
    assert!(group.process.wait_for_exit().await.success());
}

#[tokio::test]
async fn one_process_for_both_lets_its_streams_finish_too() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |request| {
        if request.json()["stream"] == true { stream::held(9) } else { answer::chat(request, "x") }
    });
    let mut up = Up::serving(&provider, 8).await;
    let mut streams = Vec::new();
    for _ in 0..8 {
        let mut client = up.edge.chat(&streamed(MODEL)).await;
        client.head().await.unwrap();
        streams.push(client);
    }
    // The ninth waits for a permit: it was accepted, so it is served.
    let mut queued = up.edge.chat(&unary(MODEL)).await;
    up.edge.wait_for_metric("iop_queue_waiting", 1.0).await;
    up.process.terminate();
    up.process.wait_for_line("edge drains").await;
    provider.release(8);
    for client in &mut streams {
        assert_eq!(client.body().await.unwrap(), stream::held_body(9));
    }
    let status = queued.head().await.unwrap().status;
    assert!([200, 503].contains(&status), "{status}");
    assert!(up.process.wait_for_exit().await.success());
}

#[tokio::test]
async fn a_node_that_is_told_to_stop_finishes_what_it_has_and_gets_nothing_new() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| stream::held(20));
    let (group, mut node) = group(&provider, "20s").await;
    let mut streams = Vec::new();
    for _ in 0..5 {
        let mut client = group.edge.chat(&streamed(MODEL)).await;
        client.head().await.unwrap();
        streams.push(client);
    }
    node.terminate();
    let drains = async |edge: &Edge| edge.link("one").await["draining"] == true;
    group.edge.until("the node drains", drains).await;
    let mut late = group.edge.chat(&unary(MODEL)).await;
    group.edge.wait_for_metric("iop_queue_waiting", 1.0).await;
    provider.release(5);
    for client in &mut streams {
        assert_eq!(client.body().await.unwrap(), stream::held_body(20));
    }
    assert!(node.wait_for_exit().await.success());
    assert_eq!(provider.log().exchanges.len(), 5, "nothing new");
    // Whoever waited is served by the next process of the node.
    let _next = group.node("one").await;
    provider.release(1);
    assert_eq!(late.head().await.unwrap().status, 200);
    group
        .edge
        .until("the late one is done", async |edge| edge.metric("iop_queue_waiting").await == 0.0)
        .await;
}
