//! Forms with files: they stream through, whatever their size, and only the model's name changes.

use std::time::Duration;

use bytes::Bytes;
use iop_edge::Timing;
use iop_testkit::http::Client;
use iop_types::Refusal;
use iop_wire::v1::CancelReason;
use serde_json::json;

use crate::support::{Taken, World, refused, soon, tunnel, until};

const PATH: &str = "/v1/audio/transcriptions";
const MIB: usize = 1024 * 1024;
const FORM: (&str, &str) = ("content-type", "multipart/form-data; boundary=b");

const ALIAS: &str = "version: 1
nodes:
  box:
    providers:
      p: { adapter: openai_compat, endpoint: 'http://127.0.0.1:1' }
routes:
  alias:
    candidates: [{ node: box, provider: p, target: org/whisper }]
";

fn field(name: &str, value: &str) -> String {
    format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
}

/// A file part; every second line looks like the beginning of a boundary.
fn file(bytes: usize) -> String {
    let head = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\
         Content-Type: audio/wav\r\n\r\n";
    format!("{head}{}\r\n", "0123456789\r\n--a\r\n".repeat(bytes / 17 + 1).split_at(bytes).0)
}

/// A form as Python's client writes it: fields first.
fn form(model: &str, file_bytes: usize) -> String {
    field("model", model) + &field("language", "en") + &file(file_bytes) + "--b--\r\n"
}

/// A form of exactly this many bytes.
fn exactly(bytes: usize) -> String {
    form("m", bytes - form("m", 0).len())
}

async fn post(world: &World, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Client {
    let mut client = world.client().await;
    let headers = [&[FORM], headers].concat();
    soon("the form is sent", client.request("POST", PATH, &headers, body)).await.unwrap();
    client
}

#[tokio::test]
async fn a_form_passes_byte_by_byte_but_for_the_models_name_and_has_its_new_length() {
    let world = World::with(ALIAS).await;
    let mut node = world.node("box", vec![tunnel("p", &["org/whisper"], 1)]).await;
    for bytes in [0, 100, MIB] {
        let mut client = post(&world, &[("openai-beta", "passes")], form("alias", bytes)).await;
        let taken = node.next().await;
        let expected = form("org/whisper", bytes);
        assert!(taken.body == expected, "{bytes}");
        assert_eq!(taken.tunnel().content_length, Some(expected.len() as u64));
        assert_eq!(taken.tunnel().path_and_query, PATH);
        assert_eq!(taken.header("content-type").as_deref(), Some(FORM.1));
        assert_eq!(taken.header("openai-beta").as_deref(), Some("passes"));
        taken.unary(200, "{\"text\":\"hello\"}").await;
        assert_eq!(client.head().await.unwrap().status, 200);
        assert_eq!(client.body().await.unwrap(), "{\"text\":\"hello\"}");
    }
    let run = world.last_run().await;
    assert_eq!(run["surface"], "openai.transcriptions");
    assert_eq!(run.get("usage"), None, "nobody counted tokens of sound");
    assert_eq!((&run["route"], &run["form"]), (&json!("alias"), &json!("tunnel")));
    world.idle().await;
}

#[tokio::test]
async fn a_file_that_comes_before_its_model_is_routed_by_header_query_or_the_only_model_there_is() {
    let late = |name: &str| file(MIB) + &field("model", name) + "--b--\r\n";
    let world = World::with(ALIAS).await;
    let mut node = world.node("box", vec![tunnel("p", &["org/whisper", "other"], 2)]).await;
    // The one configured route goes first; the length is not known before the name has come.
    let mut client = post(&world, &[], late("alias")).await;
    let taken = node.next().await;
    assert!(taken.body == late("org/whisper"));
    assert_eq!(taken.tunnel().content_length, None);
    taken.unary(200, "{}").await;
    assert_eq!(client.head().await.unwrap().status, 200);
    // Named by header: not for the provider's eyes, and the name is the target's own.
    let mut client = post(&world, &[("x-iop-model", "other")], late("other")).await;
    let taken = node.next().await;
    assert_eq!((taken.head().target.as_str(), taken.header("x-iop-model")), ("other", None));
    assert_eq!(taken.tunnel().content_length, Some(late("other").len() as u64));
    taken.unary(200, "{}").await;
    assert_eq!(client.head().await.unwrap().status, 200);
    // A form that then names another model is refused, and its attempt is cancelled.
    node.take_at_once();
    let mut client = post(&world, &[("x-iop-model", "other")], late("alias")).await;
    let mut taken = node.next().await;
    assert!(!taken.rest().await.1);
    assert_eq!(taken.cancelled().await, CancelReason::ClientGone);
    let (_, message) = refused(&mut client, 400, "invalid_request").await;
    assert!(message.contains("x-iop-model"), "{message}");
    world.idle().await;
}

#[tokio::test]
async fn a_form_that_nothing_routes_says_what_to_do() {
    let world = World::new().await;
    let _node = world.node("box", vec![tunnel("p", &["one", "two"], 2)]).await;
    let late = file(MIB) + &field("model", "one") + "--b--\r\n";
    let mut client = post(&world, &[], &late).await;
    let (_, message) = refused(&mut client, 400, "invalid_request").await;
    for told in ["`model` before the file", "x-iop-model", "one, two"] {
        assert!(message.contains(told), "{message}");
    }
    let mut client = post(&world, &[("x-iop-model", "two")], form("one", 10)).await;
    let (_, message) = refused(&mut client, 400, "invalid_request").await;
    assert!(message.contains("`two` and `one`"), "{message}");
    let mut client = post(&world, &[], form("three", 10)).await;
    refused(&mut client, 404, "model_not_found").await;
    let mut client = world.client().await;
    let broken = [("content-type", "multipart/form-data")];
    client.request("POST", PATH, &broken, form("one", 10)).await.unwrap();
    let (_, message) = refused(&mut client, 400, "invalid_request").await;
    assert!(message.contains("boundary"), "{message}");
    world.idle().await;
}

#[tokio::test]
async fn a_body_of_exactly_the_limit_passes_and_one_byte_more_does_not_declared_or_not() {
    let (world, mut node) = World::tunnelling("version: 1\nlimits: { other_body: 2MiB }\n").await;
    let mut client = post(&world, &[], exactly(2 * MIB)).await;
    let taken = node.next().await;
    assert!(taken.body == exactly(2 * MIB));
    taken.unary(200, "{}").await;
    assert_eq!(client.head().await.unwrap().status, 200);
    let mut client = post(&world, &[], exactly(2 * MIB + 1)).await;
    let (_, message) = refused(&mut client, 413, "body_too_large").await;
    assert!(message.contains("2097152") && message.contains("limits.other_body"), "{message}");
    assert!(!node.has_request());
    // Undeclared, it is on its way when it turns out to be too long.
    node.take_at_once();
    let mut client = world.client().await;
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nHost: localhost\r\n{}: {}\r\nTransfer-Encoding: chunked\r\n\r\n",
        FORM.0, FORM.1
    );
    client.send(head).await.unwrap();
    let body = exactly(2 * MIB + 1);
    client.send(format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len())).await.unwrap();
    let mut taken = node.next().await;
    assert_eq!(taken.tunnel().content_length, None);
    assert!(!taken.rest().await.1);
    refused(&mut client, 413, "body_too_large").await;
    taken.cancelled().await;
    world.idle().await;
}

#[tokio::test]
async fn sixty_four_mib_pass_and_neither_budget_nor_queues_grow_with_them() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    node.take_at_once();
    let body = exactly(64 * MIB);
    let sent = body.clone();
    let mut client = world.client().await;
    let sending = tokio::spawn(async move {
        client.request("POST", PATH, &[FORM], sent).await.unwrap();
        client
    });
    let mut taken = node.next().await;
    // Nobody reads at the node: the client is held back at the beginning of its file.
    let queued = "iop_link_queued_bytes{node=\"box\"}";
    until("the client is held back", async || {
        world.metric(queued).await.unwrap() >= (256 * 1024) as f64
    })
    .await;
    assert!(!sending.is_finished());
    let (read, is_whole) = taken.rest().await;
    assert!(is_whole && read == body.as_bytes());
    let mut client = sending.await.unwrap();
    taken.unary(200, "{}").await;
    assert_eq!(client.head().await.unwrap().status, 200);
    let memory = world.admin("/api/v1/status").await["buffered_bodies"].clone();
    assert!(memory["peak_bytes"].as_u64().unwrap() < MIB as u64, "{memory}");
    world.idle().await;
}

#[tokio::test]
async fn a_refusal_by_the_gate_sends_the_beginning_again_and_nothing_of_it_is_lost() {
    for bytes in [1_000, 400 * 1024, 3 * MIB] {
        let world = World::new().await;
        let mut one = world.node("box", vec![tunnel("p", &["m"], 1)]).await;
        one.take_at_once();
        let sending = tokio::spawn(async move {
            let mut client = world.client().await;
            client.request("POST", PATH, &[FORM], form("m", bytes)).await.unwrap();
            (world, client)
        });
        let taken = one.next().await;
        // The gate says no as real nodes do: at once, before anything of the body was taken.
        taken.refuse(&Refusal::CapacityExceeded { capacity: 1 });
        one.report(tunnel("p", &["m"], 1));
        let mut taken = one.next().await;
        assert_eq!(taken.head().work.attempt.to_string(), "2");
        let (body, is_whole) = taken.rest().await;
        assert!(is_whole && body == form("m", bytes).as_bytes(), "{bytes}");
        taken.unary(200, "{}").await;
        let (world, mut client) = sending.await.unwrap();
        assert_eq!(client.head().await.unwrap().status, 200);
        world.idle().await;
    }
}

#[tokio::test]
async fn a_client_that_pauses_or_leaves_within_its_file_ends_its_attempt_and_only_that() {
    let timing = Timing { body_pause: Duration::from_millis(300), ..Timing::default() };
    let world = World::timed("version: 1\n", timing).await;
    let mut node = world.node("box", vec![tunnel("p", &["m"], 4)]).await;
    node.take_at_once();
    let head = |bytes: usize| {
        format!(
            "POST {PATH} HTTP/1.1\r\nHost: localhost\r\n{}: {}\r\nContent-Length: {bytes}\r\n\r\n",
            FORM.0, FORM.1
        )
    };
    let body = form("m", 100_000);
    for leaves in [false, true] {
        let mut client = world.client().await;
        client.send(head(body.len())).await.unwrap();
        client.send(&body[..70_000]).await.unwrap();
        let mut taken = node.next().await;
        if leaves {
            drop(client);
            assert!(!taken.rest().await.1);
            taken.cancelled().await;
            assert_eq!(world.last_run().await["terminal"]["code"], "client_gone");
        } else {
            assert!(!taken.rest().await.1);
            taken.cancelled().await;
            let (_, message) = refused(&mut client, 400, "invalid_request").await;
            assert!(message.contains("stopped arriving"), "{message}");
        }
        world.idle().await;
    }
}

#[tokio::test]
async fn an_error_that_answers_a_file_before_its_end_reaches_a_client_that_still_sends() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    node.take_at_once();
    let sending = async {
        let mut client = world.client().await;
        // Whether all of it gets away does not matter to a client that looks for the answer.
        client.request("POST", PATH, &[FORM], form("m", 8 * MIB)).await.unwrap();
        client
    };
    let answering = async {
        let taken: Taken = node.next().await;
        taken.unary(415, "{\"error\":{\"message\":\"no such codec\"}}").await;
    };
    let (mut client, ()) = soon("both are done", async { tokio::join!(sending, answering) }).await;
    assert_eq!(client.head().await.unwrap().status, 415);
    let body: Bytes = client.body().await.unwrap();
    assert!(String::from_utf8_lossy(&body).contains("no such codec"));
    world.idle().await;
}
