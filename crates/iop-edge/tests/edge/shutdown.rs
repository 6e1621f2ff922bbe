//! Stopping: what runs finishes, what is new is refused, what is left gets one terminal.

use std::time::{Duration, Instant};

use iop_testkit::http::{self, Client};
use serde_json::json;

use crate::support::{
    CONTENT, DONE, FINISH, World, refused, run, soon, streamed, tunnel, unary, until,
};

#[tokio::test]
async fn fifty_streams_finish_within_the_drain_while_new_work_is_refused() {
    let mut world = World::new().await;
    let mut node = world.node("box", vec![tunnel("p", &["m"], 50)]).await;
    let mut clients = Vec::new();
    let mut streams = Vec::new();
    for _ in 0..50 {
        let mut client = world.chat(&streamed()).await;
        let mut taken = node.next().await;
        taken.begin_stream().await;
        taken.data(CONTENT).await;
        client.head().await.unwrap();
        clients.push(client);
        streams.push(taken);
    }
    // One more waits; it was accepted before.
    let mut waiting = world.chat(&unary()).await;
    until("it waits", async || world.metric("iop_queue_waiting").await == Some(1.0)).await;
    let begun = Instant::now();
    world.edge.stop();
    until("it is not ready", async || {
        http::get(world.clients, "/ready").await.unwrap().0.status == 503
    })
    .await;
    let mut late = world.chat(&unary()).await;
    let (head, _) = refused(&mut late, 503, "shutting_down").await;
    assert!(head.header("retry-after").is_some());
    assert_eq!(world.admin("/api/v1/status").await["state"], "draining");
    for mut taken in streams {
        taken.data(FINISH).await;
        taken.data(DONE).await;
        taken.end();
    }
    for client in &mut clients {
        assert_eq!(client.body().await.unwrap(), [CONTENT, FINISH, DONE].concat());
    }
    node.next().await.unary(200, "{}").await;
    assert_eq!(waiting.head().await.unwrap().status, 200);
    soon("the edge stops", world.edge.stopped()).await;
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert!(Client::connect(world.clients).await.is_err());
}

#[tokio::test]
async fn what_is_left_after_the_drain_gets_one_terminal_each() {
    let mut world = World::with("version: 1\nlimits: { drain: 100ms }\n").await;
    let mut node = world.node("box", vec![tunnel("p", &["m"], 2), run("q", &["r"], 1)]).await;
    let mut headless = world.chat(&unary()).await;
    let before_head = node.next().await;
    let mut relayed = world.chat(&streamed()).await;
    let mut in_tunnel = node.next().await;
    in_tunnel.begin_stream().await;
    relayed.head().await.unwrap();
    let mut written = world.chat(&json!({ "model": "r", "stream": true })).await;
    let mut in_run = node.next().await;
    in_run.text("hel").await;
    written.head().await.unwrap();
    let mut waiting = world.chat(&json!({ "model": "r" })).await;
    until("it waits", async || world.metric("iop_queue_waiting").await == Some(1.0)).await;
    world.edge.stop();
    refused(&mut headless, 503, "shutting_down").await;
    refused(&mut waiting, 503, "shutting_down").await;
    assert!(relayed.body_and_end().await.1.is_err());
    let body = String::from_utf8(written.body().await.unwrap().to_vec()).unwrap();
    assert!(body.contains("shutting_down") && !body.contains("[DONE]"), "{body}");
    for taken in [before_head, in_tunnel, in_run] {
        assert_eq!(taken.cancelled().await, iop_wire::v1::CancelReason::ShuttingDown);
    }
    soon("the edge stops", world.edge.stopped()).await;
}

#[tokio::test]
async fn an_idle_edge_stops_at_once_and_its_nodes_look_for_it_again() {
    let (mut world, node) = World::tunnelling("version: 1\n").await;
    let _open = world.client().await;
    world.edge.stop();
    soon("the edge stops", world.edge.stopped()).await;
    node.leave().await;
}
