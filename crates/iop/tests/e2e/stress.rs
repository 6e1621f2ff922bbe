//! Many at once: nobody gets bytes of another, nobody waits for ever, whatever breaks meanwhile.

use std::time::Duration;

use fastrand::Rng;
use iop_testkit::http::Client;
use iop_testkit::provider::Request;
use iop_testkit::script::{Cut, Script};
use iop_testkit::{ScriptedProvider, answer};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{Apart, CHAT, Edge, MODEL, Proxy, Up, stream, unary};

/// A stream that only the request with this number gets.
fn own_stream(number: u64, pieces: usize, length: usize) -> String {
    let text = format!("{number:x}-").repeat(length);
    let pieces = (0..pieces).map(|index| stream::content(&format!("{index}:{text}")));
    pieces.chain([stream::FINISH, stream::DONE].map(str::to_owned)).collect()
}

/// What the request's number says that its answer is.
fn asked(request: &Request) -> (u64, usize, usize) {
    let body = request.json();
    let number = |key: &str| body[key].as_u64().unwrap();
    let size = |key: &str| usize::try_from(number(key)).unwrap();
    (number("x_number"), size("x_pieces"), size("x_length"))
}

/// A streamed chat with a number and the size of its answer.
fn numbered(number: u64, pieces: usize, length: usize) -> Value {
    json!({
        "model": MODEL, "stream": true, "messages": [],
        "x_number": number, "x_pieces": pieces, "x_length": length,
    })
}

#[tokio::test]
async fn streams_of_every_size_at_once_each_carry_their_own_bytes() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let provider = ScriptedProvider::start().await;
    let cuts = std::sync::Mutex::new(rng.fork());
    provider.on(CHAT, move |request| {
        let (number, pieces, length) = asked(request);
        let body = own_stream(number, pieces, length);
        let sizes = {
            let mut rng = cuts.lock().unwrap();
            (0..5).map(|_| rng.usize(1..20_000)).collect()
        };
        stream::head().cut(Cut::Sizes(sizes)).chunk(body).last_chunk()
    });
    let up = Up::serving(&provider, 64).await;
    let mut clients = JoinSet::new();
    for number in 0..48 {
        // From some bytes to some megabytes, several times what a stream may have in flight.
        let (pieces, length) = (rng.usize(1..40), rng.usize(1..20_000));
        let (edge, mut rng) = (up.edge, rng.fork());
        clients.spawn(async move {
            let mut client =
                Client::connect_with_small_buffer(edge.clients, 16 << 10).await.unwrap();
            client.post(CHAT, &numbered(number, pieces, length)).await.unwrap();
            assert_eq!(client.head().await.unwrap().status, 200);
            let mut body = Vec::new();
            while let Some(piece) = client.piece().await.unwrap() {
                body.extend(piece);
                if rng.u8(..) == 0 {
                    // A reader that is busy with something else now and then.
                    tokio::time::sleep(Duration::from_millis(rng.u64(0..20))).await;
                }
            }
            assert!(
                body == own_stream(number, pieces, length).as_bytes(),
                "stream {number} differs"
            );
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    up.edge.idle().await;
}

#[tokio::test]
async fn large_requests_at_once_arrive_whole_and_are_let_go() {
    let provider = ScriptedProvider::start().await;
    let up = Up::serving(&provider, 4).await;
    let mut clients = JoinSet::new();
    for number in 0..10_u64 {
        let edge = up.edge;
        clients.spawn(async move {
            let mut body = unary(MODEL);
            body["messages"][0]["content"] = json!(format!("{number:05}").repeat(1 << 20));
            let mut client = edge.chat(&body).await;
            assert_eq!(client.head().await.unwrap().status, 200);
            client.body().await.unwrap();
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    let log = provider.log();
    let mut seen: Vec<_> = log
        .exchanges
        .iter()
        .map(|exchange| {
            let text = exchange.request.last_message();
            let first = text[..5].to_owned();
            assert!(text == first.repeat(1 << 20), "the request of {first} differs");
            first
        })
        .collect();
    seen.sort();
    assert_eq!(seen, (0..10).map(|number| format!("{number:05}")).collect::<Vec<_>>());
    up.edge.idle().await;
}

/// How a request in the storm ended for its client.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Whole,
    Broken,
    Refused(u16, String),
    Left,
}

/// One request in the storm: whatever happens, its bytes are its own and it ends.
async fn weather(edge: Edge, number: u64, mut rng: Rng) -> End {
    let (pieces, length) = (rng.usize(1..20), rng.usize(1..4_000));
    let mut client = edge.chat(&numbered(number, pieces, length)).await;
    if rng.u8(..) < 50 {
        tokio::time::sleep(Duration::from_millis(rng.u64(0..30))).await;
        return End::Left;
    }
    let head = client.head().await.unwrap();
    let (body, end) = client.body_and_end().await;
    if head.status != 200 {
        end.unwrap();
        let error: Value = serde_json::from_slice(&body).unwrap();
        // As a client does that has to try again.
        tokio::time::sleep(Duration::from_millis(50)).await;
        return End::Refused(head.status, error["error"]["code"].as_str().unwrap().to_owned());
    }
    let whole = own_stream(number, pieces, length);
    assert!(whole.as_bytes().starts_with(&body), "stream {number} has bytes that are not its own");
    match end {
        Ok(()) => {
            assert_eq!(body.len(), whole.len(), "stream {number} ended early and looks whole");
            End::Whole
        }
        Err(error) => {
            assert!(error.is_early_end(), "stream {number}: {error}");
            End::Broken
        }
    }
}

#[tokio::test]
async fn a_storm_of_broken_links_providers_and_clients_ends_each_request_once_and_leaves_nothing() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let provider = ScriptedProvider::start().await;
    let scripts = std::sync::Mutex::new(rng.fork());
    provider.on(CHAT, move |request| {
        let mut rng = scripts.lock().unwrap();
        let (number, pieces, length) = asked(request);
        let body = own_stream(number, pieces, length);
        let half = rng.usize(0..=body.len());
        let script =
            Script::new().wait(Duration::from_millis(rng.u64(0..20))).chain(stream::head());
        let script = script.chunk(&body[..half]).wait(Duration::from_millis(rng.u64(0..20)));
        // An empty chunk would be the last one.
        let script = if half < body.len() { script.chunk(&body[half..]) } else { script };
        match rng.u8(0..10) {
            0 => script.reset(),
            1 => script.fin(),
            _ => script.last_chunk(),
        }
    });
    let file = format!(
        "version: 1
nodes:
  one:
    providers:
      p: {{ adapter: openai_compat, endpoint: '{}', max_concurrency: 6 }}
routes:
  {MODEL}:
    candidates: [{{ node: one, provider: p, target: {MODEL} }}]
    queue: {{ max_waiting: 20, timeout: 4s, wait_for_node: 4s }}
",
        provider.endpoint()
    );
    let group = Apart::start(&file).await;
    let proxy = Proxy::start(group.edge.nodes).await;
    let _node = group.node_towards("one", proxy.address());
    group.edge.serves(MODEL).await;

    let mut number = 0;
    let mut ends = Vec::new();
    let mut clients = JoinSet::new();
    let mut calm = 0;
    // No more than these: the Node waits longer after each.
    let mut cuts = 0;
    while cuts < 3 {
        while clients.len() < 16 {
            number += 1;
            clients.spawn(weather(group.edge, number, rng.fork()));
        }
        let end = clients.join_next().await.unwrap().unwrap();
        calm += usize::from(end == End::Whole);
        ends.push(end);
        // Some come through, then the link breaks, at both ends or for the Node only.
        if calm > 30 {
            calm = 0;
            cuts += 1;
            match rng.bool() {
                true => proxy.reset(),
                false => proxy.lose_node(),
            }
        }
    }
    while let Some(end) = clients.join_next().await {
        ends.push(end.unwrap());
    }
    ends.sort();
    let mut counted: Vec<(&End, usize)> = Vec::new();
    for end in &ends {
        match counted.last_mut() {
            Some((last, count)) if *last == end => *count += 1,
            _ => counted.push((end, 1)),
        }
    }
    println!("{} links: {counted:?}", proxy.accepted());
    let known = [
        "node_lost",
        "queue_full",
        "queue_timeout",
        "no_ready_provider",
        "provider_error",
        "truncated",
    ];
    for end in &ends {
        if let End::Refused(_, code) = end {
            assert!(known.contains(&code.as_str()), "{end:?}");
        }
    }
    assert!(ends.contains(&End::Whole) && ends.contains(&End::Broken), "{counted:?}");
    assert_eq!(proxy.most_at_once(), 1, "never two links");
    group.edge.idle().await;
    group.edge.serves(MODEL).await;
    provider.on(CHAT, |request| answer::chat(request, "calm"));
    let mut client = group.edge.chat(&unary(MODEL)).await;
    assert_eq!(client.head().await.unwrap().status, 200);
    group.edge.idle().await;
    assert_eq!(provider.log().in_flight(), 0);
    assert!(provider.log().malformed.is_empty(), "{:?}", provider.log().malformed);
    assert!(!group.process.output().contains("panicked"));
}
