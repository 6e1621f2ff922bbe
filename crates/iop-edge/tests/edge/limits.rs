//! Bounds on bodies, time and memory, and clients that do not read.

use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use iop_edge::Timing;
use iop_testkit::http::Client;
use iop_types::{EventKind, Part};
use iop_wire::v1::CancelReason;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{
    CHAT, CONTENT, DONE, FINISH, World, refused, run, soon, streamed, tunnel, unary, until,
};

const MIB: usize = 1024 * 1024;

fn padded(bytes: usize) -> String {
    let empty = json!({ "model": "m", "x": "" }).to_string();
    json!({ "model": "m", "x": "x".repeat(bytes - empty.len()) }).to_string()
}

#[tokio::test]
async fn bodies_up_to_the_limit_reach_the_provider_unchanged_and_one_byte_more_does_not() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    for bytes in [MIB, 10 * MIB, 31 * MIB, 32 * MIB] {
        let body = padded(bytes);
        let mut client = world.client().await;
        client.request("POST", CHAT, &[], &body).await.unwrap();
        let taken = node.next().await;
        assert!(taken.body == body, "{bytes} bytes were changed");
        assert_eq!(taken.tunnel().content_length, Some(bytes as u64));
        taken.unary(200, "{}").await;
        assert_eq!(client.head().await.unwrap().status, 200);
    }
    let mut client = world.client().await;
    // The answer arrives although the whole body is sent before anybody reads it.
    client.request("POST", CHAT, &[], padded(32 * MIB + 1)).await.unwrap();
    let (_, message) = refused(&mut client, 413, "body_too_large").await;
    assert!(message.contains("33554432") && message.contains("limits.json_body"), "{message}");
    world.idle().await;
    assert!(!node.has_request());
}

#[tokio::test]
async fn a_chunked_body_is_limited_as_well() {
    let (world, _node) = World::tunnelling("version: 1\nlimits: { json_body: 1KiB }\n").await;
    let mut client = world.client().await;
    client
        .send(format!(
            "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        ))
        .await
        .unwrap();
    client.send(format!("800\r\n{}\r\n0\r\n\r\n", "x".repeat(0x800))).await.unwrap();
    refused(&mut client, 413, "body_too_large").await;
    world.idle().await;
}

#[tokio::test]
async fn a_client_that_waits_for_permission_gets_it_and_one_that_does_not_is_served_too() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    const PERMISSION: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
    let body = padded(2 * MIB);
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    for waits in [true, false] {
        let mut client = TcpStream::connect(world.clients).await.unwrap();
        client.write_all(head.as_bytes()).await.unwrap();
        let mut answer = vec![0; PERMISSION.len()];
        if waits {
            soon("the permission", client.read_exact(&mut answer)).await.unwrap();
        }
        client.write_all(body.as_bytes()).await.unwrap();
        let taken = node.next().await;
        assert!(taken.body == body);
        assert_eq!(taken.header("expect"), None);
        taken.unary(200, "{}").await;
        if !waits {
            client.read_exact(&mut answer).await.unwrap();
        }
        assert_eq!(answer, PERMISSION);
        let mut status = [0; 12];
        soon("the answer", client.read_exact(&mut status)).await.unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
    }
    // What is too large is refused before it is sent.
    let mut client = world.client().await;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        33 * MIB
    );
    client.send(head).await.unwrap();
    refused(&mut client, 413, "body_too_large").await;
}

#[tokio::test]
async fn a_long_event_of_a_run_is_joined_within_the_memory_budget_and_not_beyond_it() {
    let file = "version: 1\nlimits: { json_body: 64KiB, buffered_bodies: 256KiB }\n";
    let (world, mut node) = World::running(file).await;
    let mut client = world.chat(&streamed()).await;
    let mut taken = node.next().await;
    taken.event(EventKind::Start).await;
    assert_eq!(client.head().await.unwrap().status, 200);
    taken.text(&"x".repeat(60 * 1024)).await;
    let event = client.json_event().await.unwrap().unwrap();
    assert_eq!(event["choices"][0]["delta"]["content"].as_str().unwrap().len(), 60 * 1024);
    let text = "x".repeat(MIB);
    let part = Part::Text(text);
    taken.try_event(EventKind::Delta { choice: 0, part }).await;
    assert_eq!(taken.cancelled().await, CancelReason::ClientGone);
    let body = client.body().await.unwrap();
    let body = String::from_utf8_lossy(&body);
    assert!(body.contains("over_memory_budget") && !body.contains("[DONE]"), "{body}");
    assert_eq!(world.last_run().await["terminal"]["code"], "over_memory_budget");
    world.idle().await;
}

#[tokio::test]
async fn a_full_memory_budget_refuses_the_next_body_until_there_is_room() {
    let file = "version: 1\nlimits: { json_body: 1MiB, buffered_bodies: 1MiB }\n";
    let (world, mut node) = World::tunnelling(file).await;
    let mut first = world.client().await;
    first.request("POST", CHAT, &[], padded(700 * 1024)).await.unwrap();
    let taken = node.next().await;
    let mut second = world.client().await;
    second.request("POST", CHAT, &[], padded(700 * 1024)).await.unwrap();
    let (head, message) = refused(&mut second, 503, "over_memory_budget").await;
    assert!(head.header("retry-after").is_some());
    assert!(message.contains("limits.buffered_bodies"), "{message}");
    let memory = world.admin("/api/v1/status").await["buffered_bodies"].clone();
    let used = memory["used_bytes"].as_u64().unwrap();
    assert!((700 * 1024..=MIB as u64).contains(&used), "{memory}");
    assert_eq!((&memory["limit_bytes"], &memory["refused"]), (&json!(MIB), &json!(1)));
    assert!(memory["peak_bytes"].as_u64().unwrap() >= used, "{memory}");
    assert_eq!(world.metric("iop_buffered_body_limit_bytes").await, Some(MIB as f64));
    assert_eq!(world.metric("iop_buffered_body_refusals_total").await, Some(1.0));
    taken.unary(200, "{}").await;
    first.head().await.unwrap();
    world.idle().await;
    let mut third = world.client().await;
    third.request("POST", CHAT, &[], padded(700 * 1024)).await.unwrap();
    node.next().await.unary(200, "{}").await;
    assert_eq!(third.head().await.unwrap().status, 200);
}

#[tokio::test]
async fn what_cannot_be_routed_is_refused_with_the_member_at_fault() {
    let (world, node) = World::tunnelling("version: 1\n").await;
    for (body, says) in [
        ("{\"model\":\"m\"", "not JSON"),
        ("[1]", "send a JSON object"),
        ("{\"messages\":[]}", "`model`"),
        ("{\"model\":\"m\",\"model\":\"n\"}", "more than once"),
        ("{\"model\":\"m\",\"Model\":\"n\"}", "spell it `model`"),
        ("{\"model\":7}", "`model`"),
        ("{\"model\":\"\"}", "`model`"),
        (&*json!({ "model": "m".repeat(513) }).to_string(), "513 bytes"),
    ] {
        let mut client = world.client().await;
        client.request("POST", CHAT, &[], body).await.unwrap();
        let (head, message) = refused(&mut client, 400, "invalid_request").await;
        assert!(message.contains(says), "{body}: {message}");
        assert_eq!(head.header("x-should-retry"), Some("false"));
    }
    let mut client = world.chat(&json!({ "model": "nope" })).await;
    let (_, message) = refused(&mut client, 404, "model_not_found").await;
    assert!(message.contains("`nope`") && message.contains("/v1/models"), "{message}");
    let mut client = world.client().await;
    let long = "s".repeat(129);
    client.request("POST", CHAT, &[("x-session-id", &long)], unary().to_string()).await.unwrap();
    let (head, message) = refused(&mut client, 400, "invalid_request").await;
    assert!(message.contains("x-session-id"), "{message}");
    assert_eq!(head.header("x-session-id"), None);
    world.idle().await;
    assert!(!node.has_request());
}

#[tokio::test]
async fn a_body_that_stops_arriving_is_refused() {
    let timing = Timing { body_pause: Duration::from_millis(50), ..Timing::default() };
    let world = World::timed("version: 1\n", timing).await;
    let mut client = world.client().await;
    client
        .send(format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{{"))
        .await
        .unwrap();
    let head = client.head().await.unwrap();
    assert_eq!(head.status, 408);
    let body = client.json().await.unwrap();
    assert!(body["error"]["message"].as_str().unwrap().contains("stopped arriving"), "{body}");
    world.idle().await;
}

const IMPATIENT: &str = "version: 1
nodes: { box: { providers: { p: { adapter: openai_compat, endpoint: 'http://127.0.0.1:1' }, q: { adapter: mock } } } }
routes:
  quick: { candidates: [{ node: box, provider: p, target: m }], timeout: 300ms }
  quick-run: { candidates: [{ node: box, provider: q, target: r }], timeout: 300ms }
limits: { first_progress: 400ms }
";

#[tokio::test]
async fn a_deadline_ends_a_request_in_every_phase_and_names_its_bound() {
    let world = World::with(IMPATIENT).await;
    let mut node = world.node("box", vec![tunnel("p", &["m"], 8), run("q", &["r"], 8)]).await;
    // Before the head: the whole-request bound of the route, then the bound on first progress.
    let mut client = world.chat(&json!({ "model": "quick", "stream": true })).await;
    let taken = node.next().await;
    let (_, message) = refused(&mut client, 504, "deadline_exceeded").await;
    assert!(message.contains("timeout of its route"), "{message}");
    assert_eq!(taken.cancelled().await, CancelReason::Deadline);
    let mut client = world.chat(&streamed()).await;
    let taken = node.next().await;
    let (_, message) = refused(&mut client, 504, "deadline_exceeded").await;
    assert!(message.contains("no progress within 0.4 s"), "{message}");
    assert_eq!(taken.cancelled().await, CancelReason::Deadline);
    // After the head: a relayed body breaks off, a written stream gets one error event.
    let mut client = world.chat(&json!({ "model": "quick", "stream": true })).await;
    let mut taken = node.next().await;
    taken.begin_stream().await;
    taken.data(CONTENT).await;
    client.head().await.unwrap();
    let (body, end) = client.body_and_end().await;
    assert_eq!((body.as_ref(), end.is_err()), (CONTENT.as_bytes(), true));
    assert_eq!(taken.cancelled().await, CancelReason::Deadline);
    let mut client = world.chat(&json!({ "model": "quick-run", "stream": true })).await;
    let mut taken = node.next().await;
    taken.text("hel").await;
    client.head().await.unwrap();
    let body = String::from_utf8(client.body().await.unwrap().to_vec()).unwrap();
    assert!(body.contains("deadline_exceeded") && !body.contains("[DONE]"), "{body}");
    assert_eq!(taken.cancelled().await, CancelReason::Deadline);
    world.idle().await;
}

#[tokio::test]
async fn a_stream_that_gets_on_outlives_the_bound_on_its_first_progress() {
    let world = World::with("version: 1\nlimits: { first_progress: 100ms }\n").await;
    let mut node = world.node("box", vec![tunnel("p", &["m"], 8)]).await;
    let mut client = world.chat(&streamed()).await;
    let mut taken = node.next().await;
    taken.begin_stream().await;
    taken.data(CONTENT).await;
    client.head().await.unwrap();
    client.event().await.unwrap();
    tokio::time::sleep(Duration::from_millis(250)).await;
    taken.data(FINISH).await;
    taken.end();
    assert_eq!(client.body().await.unwrap(), FINISH);
    assert_eq!(world.last_run().await["terminal"]["kind"], "completed");
}

const STALLING: &str =
    "version: 1\nlimits: { client_stall_bytes: 16KiB, client_stall_timeout: 400ms }\n";

#[tokio::test]
async fn a_client_that_stops_reading_ends_stalled_and_slows_nobody() {
    let (world, mut node) = World::tunnelling(STALLING).await;
    let mut idle = Client::connect_with_small_buffer(world.clients, 4096).await.unwrap();
    idle.post(CHAT, &streamed()).await.unwrap();
    let mut flood = node.next().await;
    flood.begin_stream().await;
    let flooding = tokio::spawn(async move {
        let piece = bytes::Bytes::from(vec![b'x'; 16 * 1024]);
        let mut offered = 0_usize;
        while offered < 200 * MIB {
            if flood.try_data(piece.clone()).await.is_err() {
                break;
            }
            offered += piece.len();
        }
        (offered, flood)
    });
    // Meanwhile others are served at once, over the same link.
    for _ in 0..20 {
        let asked = Instant::now();
        let mut client = world.chat(&streamed()).await;
        node.next().await.stream(&[CONTENT, FINISH, DONE]).await;
        client.head().await.unwrap();
        assert_eq!(client.body().await.unwrap(), [CONTENT, FINISH, DONE].concat());
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    }
    until("the client is given up", async || {
        world.metric("iop_requests_total{surface=\"openai.chat\",outcome=\"client_stalled\"}").await
            == Some(1.0)
    })
    .await;
    let (offered, flood) = soon("the flood ends", flooding).await.unwrap();
    assert!(offered < 16 * MIB, "back-pressure reached the provider after {offered} bytes");
    assert_eq!(flood.cancelled().await, CancelReason::ClientStalled);
    world.idle().await;
    // Its connection is reset: what was buffered for it is gone.
    idle.head().await.unwrap();
    let (_, end) = idle.body_and_end().await;
    assert!(end.is_err());
}

#[tokio::test]
async fn a_deadline_reaches_a_request_whose_client_does_not_read() {
    const QUICK: &str = "version: 1
nodes: { box: { providers: { p: { adapter: openai_compat, endpoint: 'http://127.0.0.1:1' } } } }
routes: { quick: { candidates: [{ node: box, provider: p, target: m }], timeout: 500ms } }
limits: { client_stall_timeout: 2s }
";
    let (world, mut node) = World::tunnelling(QUICK).await;
    let mut idle = Client::connect_with_small_buffer(world.clients, 4096).await.unwrap();
    idle.post(CHAT, &json!({ "model": "quick", "stream": true })).await.unwrap();
    let mut flood = node.next().await;
    flood.begin_stream().await;
    while flood.try_data(vec![b'x'; 16 * 1024]).await.is_ok() {}
    assert_eq!(flood.cancelled().await, CancelReason::Deadline);
    assert_eq!(world.last_run().await["terminal"]["code"], "deadline_exceeded");
    world.idle().await;
}

#[tokio::test]
async fn a_stalled_http_2_stream_ends_without_the_others_of_its_connection() {
    let (world, mut node) = World::tunnelling(STALLING).await;
    let mut sender = crate::http::http_2(&world).await;
    let idle = tokio::spawn(sender.send_request(crate::http::post(&world, &streamed())));
    let mut flood = node.next().await;
    flood.begin_stream().await;
    let idle = soon("the head", idle).await.unwrap().unwrap();
    while flood.try_data(vec![b'x'; 16 * 1024]).await.is_ok() {}
    assert_eq!(flood.cancelled().await, CancelReason::ClientStalled);
    let other = tokio::spawn(sender.send_request(crate::http::post(&world, &unary())));
    node.next().await.unary(200, "{}").await;
    assert_eq!(soon("the answer", other).await.unwrap().unwrap().status(), 200);
    // Once it reads, it finds that the body broke off.
    assert!(soon("the end", idle.into_body().collect()).await.is_err());
    world.idle().await;
}

#[tokio::test]
async fn a_prompt_is_let_go_once_its_answer_has_begun() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let mut client = world.client().await;
    let body = json!({ "model": "m", "stream": true, "x": "x".repeat(MIB) }).to_string();
    client.request("POST", CHAT, &[], &body).await.unwrap();
    let mut taken = node.next().await;
    assert!(world.metric("iop_buffered_body_bytes").await.unwrap() >= body.len() as f64);
    taken.begin_stream().await;
    client.head().await.unwrap();
    assert_eq!(world.metric("iop_buffered_body_bytes").await, Some(0.0));
    taken.data(FINISH).await;
    taken.end();
    client.body().await.unwrap();
}

#[tokio::test]
async fn a_slow_client_that_reads_enough_is_served_to_the_end() {
    let (world, mut node) = World::tunnelling(STALLING).await;
    let mut client = Client::connect_with_small_buffer(world.clients, 4096).await.unwrap();
    client.post(CHAT, &unary()).await.unwrap();
    let mut taken = node.next().await;
    taken.respond(200, &[("content-type", "text/plain")]).await;
    let sending = tokio::spawn(async move {
        for _ in 0..64 {
            taken.data(vec![b'x'; 16 * 1024]).await;
        }
        taken.end();
    });
    client.head().await.unwrap();
    let mut read = 0;
    let begun = Instant::now();
    while let Some(piece) = client.piece().await.unwrap() {
        read += piece.len();
        if begun.elapsed() < Duration::from_millis(1_500) {
            // About 32 KiB in each 100 ms.
            tokio::time::sleep(Duration::from_millis((piece.len() / 330) as u64)).await;
        }
    }
    assert_eq!(read, MIB);
    sending.await.unwrap();
    assert_eq!(world.last_run().await["terminal"]["kind"], "completed");
}
