//! A client that leaves, in every phase: the Node hears of it within a second, and nothing stays.

use std::time::{Duration, Instant};

use iop_testkit::http::Client;
use iop_wire::v1::CancelReason;
use serde_json::json;

use crate::support::{
    CHAT, CONTENT, DONE, FINISH, FakeNode, Taken, World, run, soon, streamed, tunnel, unary, until,
};

/// How fast a provider must see that its client left.
const AT_ONCE: Duration = Duration::from_secs(1);

async fn hears_of_it(taken: Taken) {
    let left = Instant::now();
    assert_eq!(taken.cancelled().await, CancelReason::ClientGone);
    assert!(left.elapsed() < AT_ONCE, "{:?}", left.elapsed());
}

#[tokio::test]
async fn a_client_may_leave_while_it_waits_for_capacity() {
    let world = World::new().await;
    let mut node = world.node("box", vec![tunnel("p", &["m"], 1)]).await;
    let mut first = world.chat(&unary()).await;
    let busy = node.next().await;
    let waiting = world.chat(&unary()).await;
    until("it waits", async || world.metric("iop_queue_waiting").await == Some(1.0)).await;
    drop(waiting);
    until("it has left", async || world.metric("iop_queue_waiting").await == Some(0.0)).await;
    busy.unary(200, "{}").await;
    first.head().await.unwrap();
    world.idle().await;
    assert!(!node.has_request(), "who left is not dispatched");
    let last = world.last_run().await;
    assert_eq!((&last["terminal"]["code"], &last["attempts"]), (&json!("client_gone"), &json!([])));
}

#[tokio::test]
async fn a_client_may_leave_before_the_head_streaming_or_not() {
    let world = World::new().await;
    let mut node = world.node("box", vec![tunnel("p", &["m"], 1), run("q", &["r"], 1)]).await;
    for model in ["m", "r"] {
        for stream in [true, false] {
            let body = json!({ "model": model, "stream": stream, "messages": [] });
            let client = world.chat(&body).await;
            let taken = node.next().await;
            drop(client);
            hears_of_it(taken).await;
            world.idle().await;
            assert_eq!(world.last_run().await["terminal"]["code"], "client_gone");
        }
    }
}

#[tokio::test]
async fn a_client_may_leave_in_the_middle_of_a_stream() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    for reset in [true, false] {
        let mut client = world.chat(&streamed()).await;
        let mut taken = node.next().await;
        taken.begin_stream().await;
        taken.data(CONTENT).await;
        client.head().await.unwrap();
        client.event().await.unwrap();
        if reset {
            client.reset();
        } else {
            drop(client);
        }
        hears_of_it(taken).await;
        world.idle().await;
        let run = world.last_run().await;
        assert_eq!(
            (&run["terminal"]["kind"], &run["terminal"]["code"]),
            (&json!("cancelled"), &json!("client_gone"))
        );
    }
}

/// Reads a whole stream up to its `[DONE]`, as OpenAI's clients do before they close.
async fn reads_to_the_end_and_leaves(world: &World, node: &mut FakeNode) -> Taken {
    let mut client = world.chat(&streamed()).await;
    let mut taken = node.next().await;
    taken.begin_stream().await;
    for piece in [CONTENT, FINISH, DONE] {
        taken.data(piece).await;
    }
    client.head().await.unwrap();
    for _ in 0..3 {
        client.event().await.unwrap();
    }
    drop(client);
    taken
}

#[tokio::test]
async fn a_client_that_leaves_at_done_was_served_though_the_provider_ends_later() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let taken = reads_to_the_end_and_leaves(&world, &mut node).await;
    let port = world.clients.port();
    let is_closed = || iop_testkit::kernel::accepted_on(port).is_empty();
    until("its connection is closed on both sides", async || is_closed()).await;
    taken.end();
    world.idle().await;
    assert_eq!(world.last_run().await["terminal"]["kind"], "completed");
}

#[tokio::test]
async fn a_provider_that_never_ends_after_done_is_cancelled_and_its_client_was_served() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let taken = reads_to_the_end_and_leaves(&world, &mut node).await;
    taken.cancelled().await;
    world.idle().await;
    assert_eq!(world.last_run().await["terminal"]["kind"], "completed");
}

#[tokio::test]
async fn a_client_that_ends_its_sending_side_is_gone_whatever_it_sent_behind_its_request() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    for behind in ["", "\r\n", "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"] {
        for has_head in [false, true] {
            let mut client = world.chat(&streamed()).await;
            client.send(behind).await.unwrap();
            let mut taken = node.next().await;
            if has_head {
                taken.begin_stream().await;
                client.head().await.unwrap();
            }
            client.finish_sending().await.unwrap();
            hears_of_it(taken).await;
        }
    }
    world.idle().await;
}

#[tokio::test]
async fn a_client_that_leaves_within_its_body_leaves_nothing() {
    let (world, node) = World::tunnelling("version: 1\n").await;
    let mut client = world.client().await;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{\"model\""
    );
    client.send(head).await.unwrap();
    until("some of the body is held", async || {
        world.metric("iop_buffered_body_bytes").await > Some(0.0)
    })
    .await;
    drop(client);
    world.idle().await;
    assert!(!node.has_request());
}

#[tokio::test]
async fn capacity_is_held_until_the_provider_has_returned() {
    let world = World::new().await;
    let mut node = world.node("box", vec![tunnel("p", &["m"], 1)]).await;
    let client = world.chat(&unary()).await;
    let first = node.next().await;
    drop(client);
    until("the run is cancelled", async || world.sum("iop_requests_total{").await == 1.0).await;
    // The client is gone and the provider is not back: its slot is not free.
    let mut next = world.chat(&unary()).await;
    until("the next one waits", async || world.metric("iop_queue_waiting").await == Some(1.0))
        .await;
    assert!(!node.has_request());
    hears_of_it(first).await;
    node.next().await.unary(200, "{}").await;
    assert_eq!(next.head().await.unwrap().status, 200);
    world.idle().await;
}

#[tokio::test]
async fn after_fifty_aborts_at_any_point_the_one_slot_is_free_at_once() {
    let world = World::new().await;
    let mut node = world.node("box", vec![tunnel("p", &["m"], 1)]).await;
    for turn in 0..50 {
        let mut client: Client = world.chat(&streamed()).await;
        if turn % 4 == 0 {
            // Perhaps it was sent, perhaps not; a provider that got it returns at once.
            drop(client);
            until("it has left", async || {
                while node.has_request() {
                    drop(node.next().await);
                }
                world.metric("iop_requests_in_flight").await == Some(0.0)
            })
            .await;
            continue;
        }
        let mut taken = node.next().await;
        if turn % 4 > 1 {
            // Without progress the client has nothing of it.
            taken.begin_stream().await;
        }
        if turn % 4 > 2 {
            taken.data(CONTENT).await;
            client.head().await.unwrap();
            client.event().await.unwrap();
        }
        drop(client);
        hears_of_it(taken).await;
        world.idle().await;
    }
    let mut client = world.chat(&unary()).await;
    node.next().await.unary(200, "{}").await;
    assert_eq!(client.head().await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_random_aborts_leave_every_gauge_at_zero() {
    const ABORTS: u64 = 1_000;
    let (seed, _) = uuid::Uuid::new_v4().as_u64_pair();
    println!("seed {seed}");
    let world = World::new().await;
    let node = world.node("box", vec![tunnel("p", &["m"], 16), run("q", &["r"], 16)]).await;
    let serving = node.serve(|taken| async move {
        // What cannot be sent any more was cancelled; the drop says that the provider has returned.
        if let crate::support::node::Asked::Tunnel(_) = taken.asked {
            let mut taken = taken;
            if taken.try_head().await.is_err() {
                return;
            }
            for _ in 0..10 {
                if taken.try_data(CONTENT).await.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
            let _ = taken.try_data(FINISH).await;
            taken.end();
        } else {
            taken.complete(None);
        }
    });
    let mut aborts = tokio::task::JoinSet::new();
    for number in 0..ABORTS {
        let clients = world.clients;
        let mut dice = Dice(seed.wrapping_add(number));
        aborts.spawn(async move {
            let model = if dice.roll(2) == 0 { "m" } else { "r" };
            let body = json!({ "model": model, "stream": dice.roll(2) == 0, "messages": [] });
            let mut client = Client::connect(clients).await.unwrap();
            client.post(CHAT, &body).await.unwrap();
            let patience = Duration::from_micros(dice.roll(20_000));
            let _ = tokio::time::timeout(patience, async {
                client.head().await?;
                client.body().await
            })
            .await;
            if dice.roll(2) == 0 {
                client.reset();
            }
        });
        if aborts.len() >= 64 {
            aborts.join_next().await.unwrap().unwrap();
        }
    }
    soon("all have left", aborts.join_all()).await;
    world.idle().await;
    for series in [
        "iop_provider_in_use{node=\"box\",provider=\"p\"}",
        "iop_link_buffered_bytes{node=\"box\"}",
        "iop_link_queued_bytes{node=\"box\"}",
    ] {
        assert_eq!(world.metric(series).await, Some(0.0), "{series}");
    }
    let mut client = world.chat(&streamed()).await;
    assert_eq!(client.head().await.unwrap().status, 200);
    client.body().await.unwrap();
    serving.abort();
}

/// A small generator, so that a seed says everything.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % sides
    }
}
