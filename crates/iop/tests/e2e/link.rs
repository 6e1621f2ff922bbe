//! The link between two processes: cut at every step, half dead, slow, and abused.

use std::time::{Duration, Instant};

use iop_testkit::{ScriptedProvider, answer, kernel};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{
    Apart, CHAT, MODEL, Pass, Proxy, Running, SEEN, stream, streamed, time_for, unary,
};

fn file(provider: &ScriptedProvider) -> String {
    format!("version: 1\nnodes:\n{}", file_of("one", provider))
}

/// The entry of one Node.
fn file_of(node: &str, provider: &ScriptedProvider) -> String {
    let endpoint = provider.endpoint();
    format!(
        "  {node}: {{ providers: {{ p: {{ adapter: openai_compat, endpoint: '{endpoint}' }} }} }}\n"
    )
}

/// A group whose Node dials through a relay.
async fn relayed(provider: &ScriptedProvider, pass: Pass) -> (Apart, Proxy, Running) {
    let group = Apart::start(&file(provider)).await;
    let proxy = Proxy::start(group.edge.nodes).await;
    proxy.set(pass);
    let node = group.node_towards("one", proxy.address());
    (group, proxy, node)
}

#[tokio::test]
async fn a_link_that_is_cut_or_half_dead_ends_its_stream_once_and_a_new_one_takes_over() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| stream::held(2));
    let (group, proxy, _node) = relayed(&provider, Pass::All).await;
    group.edge.serves(MODEL).await;
    let mut generation = group.edge.generation("one").await;
    for (index, half) in [false, true, false, true].into_iter().enumerate() {
        let mut client = group.edge.chat(&streamed(MODEL)).await;
        let head = client.head().await.unwrap();
        stream::read_first(&mut client).await;
        let cut = Instant::now();
        // A half-dead link: the Edge hears nothing of its end and believes in it until the Node,
        // which knows, comes back.
        if half {
            proxy.lose_node();
        } else {
            proxy.reset();
        }

        let (rest, end) = client.body_and_end().await;
        assert!(rest.is_empty() && end.unwrap_err().is_early_end(), "{rest:?}");
        let run = group.edge.run(&head).await;
        assert_eq!(run["terminal"]["code"], "node_lost", "{run}");
        assert_eq!(run["attempts"][0]["generation"], generation, "{run}");
        let log = provider
            .wait_until("the node closes the call", |log| {
                log.connection_of(index).left_at().is_some()
            })
            .await;
        let after = log.connection_of(index).left_at().unwrap().duration_since(cut);
        assert!(after <= SEEN, "closed only after {after:?}");

        group
            .edge
            .until("the node is back", async |edge| edge.generation("one").await > generation)
            .await;
        generation = group.edge.generation("one").await;
        group.edge.idle().await;
    }
    assert_eq!(provider.log().exchanges.len(), 4, "nothing is tried again after its first byte");
    assert_eq!((proxy.accepted(), proxy.most_at_once()), (5, 1));
    let (head, _) = {
        provider.on(CHAT, |request| answer::chat(request, "again"));
        iop_testkit::http::post(group.edge.clients, CHAT, &unary(MODEL)).await.unwrap()
    };
    assert_eq!(head.status, 200);
}

#[tokio::test]
async fn a_request_whose_link_is_cut_before_the_head_waits_for_its_node_and_is_answered() {
    let provider = ScriptedProvider::start().await;
    let (group, proxy, _node) = relayed(&provider, Pass::All).await;
    group.edge.serves(MODEL).await;
    for body in [unary(MODEL), streamed(MODEL)] {
        let before = provider.log().exchanges.len();
        provider.on(CHAT, move |request| match request.json()["stream"] == true {
            true => answer::chat_stream(request, 3, Duration::ZERO),
            false => answer::chat(request, "again"),
        });
        provider.once(CHAT, |_| iop_testkit::Script::new().hold());
        let mut client = group.edge.chat(&body).await;
        provider.wait_for_requests(before + 1).await;
        proxy.reset();
        let head = client.head().await.unwrap();
        assert_eq!(head.status, 200);
        client.body().await.unwrap();
        provider
            .wait_until("the node closes the first call", |log| {
                log.connection_of(before).left_at().is_some()
            })
            .await;
        let run = group.edge.run(&head).await;
        let attempts = run["attempts"].as_array().unwrap();
        assert_eq!(attempts[0]["terminal"]["code"], "node_lost", "{run:#}");
        let last = attempts.last().unwrap();
        assert_eq!(
            (&last["why"], &last["terminal"]["kind"]),
            (&json!("node_lost"), &json!("completed"))
        );
        assert_ne!(attempts[0]["generation"], last["generation"]);
    }
    group.edge.idle().await;
}

/// Nodes whose first connections are reset after more and more bytes, so that the birth of a link
/// breaks at each of its steps; none of it leaves a second link or a second dial behind.
#[tokio::test]
async fn a_drop_at_any_step_of_birth_ends_in_one_link() {
    let provider = ScriptedProvider::start().await;
    let names: Vec<_> = (0..8).map(|step| format!("step-{step}")).collect();
    let mut file = file(&provider);
    for name in &names {
        file += &file_of(name, &provider);
    }
    let group = Apart::start(&file).await;
    let proxy = Proxy::start(group.edge.nodes).await;
    let mut whole = group.node_towards("one", proxy.address());
    group.edge.linked("one").await;
    // What a birth takes, in both directions; the last part of it may be news of a provider.
    let birth = proxy.passed();
    whole.end().await;

    let mut nodes = Vec::new();
    for (step, name) in names.into_iter().enumerate() {
        let proxy = Proxy::start(group.edge.nodes).await;
        proxy.set(Pass::ResetAfter(birth * step / 9));
        let node = group.node_towards(&name, proxy.address());
        nodes.push((name, proxy, node));
    }
    for (name, proxy, _) in &nodes {
        group.edge.until(&format!("{name} dials again"), async |_| proxy.accepted() > 1).await;
        proxy.set(Pass::All);
    }
    for (name, proxy, node) in &mut nodes {
        group.edge.linked(name).await;
        assert_eq!(proxy.most_at_once(), 1, "{name}");
        let port = proxy.address().port();
        let what = format!("{name} has one connection");
        group.edge.until(&what, async |_| kernel::connections_to(port) == 1).await;
        node.terminate();
        assert!(node.wait_for_exit().await.success());
        let what = format!("{name} has left");
        group.edge.until(&what, async |edge| edge.link(name).await.is_null()).await;
    }
    group
        .edge
        .until("no link is left", async |edge| kernel::connections_to(edge.nodes.port()) == 0)
        .await;
}

#[tokio::test]
async fn a_drop_during_shutdown_ends_the_node_and_it_dials_no_more() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| stream::held(2));
    let (group, proxy, mut node) = relayed(&provider, Pass::All).await;
    group.edge.serves(MODEL).await;
    let mut client = group.edge.chat(&streamed(MODEL)).await;
    let head = client.head().await.unwrap();
    node.terminate();
    node.wait_for_line("stopping").await;
    group
        .edge
        .until("the node drains", async |edge| edge.link("one").await["draining"] == true)
        .await;
    proxy.reset();
    assert!(node.wait_for_exit().await.success());
    assert!(client.body_and_end().await.1.unwrap_err().is_early_end());
    assert_eq!(group.edge.run(&head).await["terminal"]["code"], "node_lost");
    assert_eq!((proxy.accepted(), proxy.most_at_once()), (1, 1));
    group.edge.idle().await;
}

/// 1 Mbit/s, which a large request and a large answer fill for two seconds each.
#[tokio::test]
async fn on_a_slow_link_a_small_request_is_not_delayed_by_a_large_one() {
    const RATE: u32 = 125_000;
    const LARGE: usize = 250_000;
    let provider = ScriptedProvider::start().await;
    let (group, _proxy, _node) = relayed(&provider, Pass::Slowly(RATE)).await;
    group.edge.serves(MODEL).await;
    let mut large = unary(MODEL);
    large["messages"][0]["content"] = json!("x".repeat(LARGE));
    let began = Instant::now();
    let mut bulk = group.edge.chat(&large).await;
    group
        .edge
        .until("its body fills the link", async |edge| {
            edge.metric("iop_link_queued_bytes{node=\"one\"}").await > 0.0
        })
        .await;
    for _ in 0..3 {
        let asked = Instant::now();
        let mut small = group.edge.chat(&unary(MODEL)).await;
        assert_eq!(small.head().await.unwrap().status, 200);
        small.body().await.unwrap();
        let took = asked.elapsed();
        assert!(took < Duration::from_secs(1), "a small request took {took:?}");
    }
    let log = provider.log();
    let whole = log.exchanges.iter().filter(|exchange| exchange.body_at.is_some());
    assert_eq!(whole.count(), 3, "the small ones overtook the large one");
    assert_eq!(bulk.head().await.unwrap().status, 200);
    bulk.body().await.unwrap();
    assert!(
        began.elapsed() >= time_for(LARGE, RATE),
        "the link was not slow: {:?}",
        began.elapsed()
    );
    group.edge.idle().await;
}

// ---- strangers on the port for Nodes ----

/// A frame: length, class, envelope.
fn frame(class: u8, envelope: &[u8]) -> Vec<u8> {
    let length = u32::try_from(envelope.len() + 1).unwrap();
    [&length.to_be_bytes()[..], &[class], envelope].concat()
}

/// A message of the envelope's `oneof` on the link itself, by its field number.
fn message(field: u16, bytes: &[u8]) -> Vec<u8> {
    // The key (field and wire type 2) as a varint of two bytes, then the length in one.
    let [high, low] = (field << 3 | 2).to_be_bytes();
    let key = [low | 0x80, high << 1 | low >> 7];
    [&key[..], &[u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

/// A registration by this name.
fn register(node: &str) -> Vec<u8> {
    let name = [&[0x12, u8::try_from(node.len()).unwrap()], node.as_bytes()].concat();
    let instance = [&[0x1a, 16][..], &[7; 16]].concat();
    frame(1, &message(10, &[&[0x08, 1][..], &name, &instance].concat()))
}

#[tokio::test]
async fn garbage_and_frames_out_of_order_close_their_connection_and_touch_nothing_else() {
    const HEARTBEAT: u16 = 14;
    const READY: u16 = 12;
    const TUNNEL_FRAME: u16 = 34;
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| stream::held(50));
    let group = Apart::start(&file(&provider)).await;
    let node = group.node("one").await;
    group.edge.serves(MODEL).await;
    let generation = group.edge.generation("one").await;
    let mut client = group.edge.chat(&streamed(MODEL)).await;
    client.head().await.unwrap();

    let ready = frame(1, &message(READY, &[0x08, 1]));
    let strangers = [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "malformed_frame"),
        (vec![0xff; 64], "malformed_frame"),
        (vec![0xff, 0xff, 0xff, 0xff, 1], "frame_too_large"),
        (vec![0, 2, 0, 0, 2], "frame_too_large"),
        (vec![0, 0, 0, 0, 1], "malformed_frame"),
        (frame(9, b""), "malformed_frame"),
        (frame(1, &[0xff; 40]), "malformed_frame"),
        (frame(0, &message(HEARTBEAT, &[0x08, 1])), "protocol_error"),
        (ready.clone(), "protocol_error"),
        (frame(2, &message(TUNNEL_FRAME, &[])), "protocol_error"),
        ([register("s10"), register("s10")].concat(), "protocol_error"),
        ([register("s11"), frame(2, &message(TUNNEL_FRAME, &[]))].concat(), "protocol_error"),
        ([register("s12"), frame(1, &message(45, &[]))].concat(), "unsupported_message"),
    ];
    for (index, (bytes, reason)) in strangers.iter().enumerate() {
        let mut stranger = TcpStream::connect(group.edge.nodes).await.unwrap();
        let port = stranger.local_addr().unwrap().port();
        stranger.write_all(bytes).await.unwrap();
        let mut told = Vec::new();
        // A reset is as good an end.
        let ended = tokio::time::timeout(SEEN * 5, stranger.read_to_end(&mut told)).await;
        assert!(ended.is_ok(), "stranger {index} is still connected");
        let line = group
            .process
            .wait_for(&format!("why stranger {index} was closed ({reason})"), |lines| {
                let (peer, name) = (format!("127.0.0.1:{port}"), format!("node=s{index} "));
                let about = |line: &&str| line.contains(&peer) || line.contains(&name);
                let mut lines = lines.iter().map(|(_, line)| line.as_str()).filter(about);
                lines.find(|line| line.contains(reason)).map(str::to_owned)
            })
            .await;
        assert!(!line.contains("panicked"), "{line}");
    }
    // Somebody who says nothing at all is no reason to wait, and a name in use none to give way.
    let _silent = TcpStream::connect(group.edge.nodes).await.unwrap();

    provider.release(1);
    assert_eq!(client.body().await.unwrap(), stream::held_body(50));
    assert_eq!(group.edge.generation("one").await, generation);
    group.edge.idle().await;
    assert!(!group.process.output().contains("panicked"));
    drop(node);
}
