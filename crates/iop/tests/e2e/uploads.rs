//! Files over slow lines, and a thousand streams over one link.

use std::time::{Duration, Instant};

use iop_testkit::http::{self, Client};
use iop_testkit::script::Script;
use iop_testkit::{PATIENCE, ScriptedProvider, answer, kernel};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::support::{Apart, CHAT, MODEL, Pass, Proxy, stream, streamed, time_for, unary};

const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";

fn file(provider: &ScriptedProvider, capacity: usize) -> String {
    format!(
        "version: 1\nnodes:\n  one:\n    providers:\n      p: {{ adapter: openai_compat, \
         endpoint: '{}', max_concurrency: {capacity} }}\n",
        provider.endpoint()
    )
}

/// A form of exactly this many bytes, as Python's client writes it.
fn form(bytes: usize) -> String {
    let head = format!(
        "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{MODEL}\r\n--b\r\n\
         Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n"
    );
    let tail = "\r\n--b--\r\n";
    format!("{head}{}{tail}", "x".repeat(bytes - head.len() - tail.len()))
}

/// 1 Mbit/s. `IOP_SLOW_UPLOAD_BYTES` makes the file as large as `scripts/slow-link` wants it; here it
/// takes a few seconds.
#[tokio::test]
async fn a_file_on_a_slow_link_arrives_whole_while_heartbeats_and_small_requests_pass_it() {
    const RATE: u32 = 125_000;
    let bytes = std::env::var("IOP_SLOW_UPLOAD_BYTES");
    let bytes = bytes.map_or(600_000, |bytes| bytes.parse().unwrap());
    let provider = ScriptedProvider::start().await;
    provider.on(TRANSCRIPTIONS, |_| answer::json(200, &serde_json::json!({ "text": "heard" })));
    let group = Apart::start(&file(&provider, 4)).await;
    let proxy = Proxy::start(group.edge.nodes).await;
    proxy.set(Pass::Slowly(RATE));
    let node = group.node_towards("one", proxy.address());
    group.edge.serves(MODEL).await;
    let generation = group.edge.generation("one").await;
    let began = Instant::now();
    let edge = group.edge;
    let upload = tokio::spawn(async move {
        let mut client = edge.client().await;
        let headers = [("content-type", "multipart/form-data; boundary=b")];
        client.request("POST", TRANSCRIPTIONS, &headers, form(bytes)).await.unwrap();
        // The kernel takes some megabytes of it early, for which the line needs its time.
        client.set_patience(PATIENCE + 2 * time_for(bytes, RATE));
        let head = client.head().await.unwrap();
        (head.status, client.json().await.unwrap())
    });
    edge.until("the file fills the link", async |edge| {
        edge.metric("iop_link_queued_bytes{node=\"one\"}").await > 0.0
    })
    .await;
    let (mut asked, mut slowest, mut memory) = (0, Duration::ZERO, 0);
    while !upload.is_finished() {
        let sent = Instant::now();
        let (head, _) = http::post(edge.clients, CHAT, &unary(MODEL)).await.unwrap();
        assert_eq!(head.status, 200);
        slowest = slowest.max(sent.elapsed());
        asked += 1;
        memory = memory.max(kernel::resident_bytes(group.process.pid()));
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let (status, heard): (u16, Value) = upload.await.unwrap();
    assert_eq!((status, &heard["text"]), (200, &serde_json::json!("heard")));
    let took = began.elapsed();
    let link = edge.link("one").await;
    println!(
        "{bytes} bytes in {took:?}; {asked} small requests meanwhile, the slowest {slowest:?}; \
         edge resident {} KiB; link {link}",
        memory / 1024
    );
    assert!(took >= time_for(bytes, RATE), "the link was not slow: {took:?}");
    assert!(asked > 2 && slowest < Duration::from_secs(2), "{asked} asked, {slowest:?}");
    assert_eq!(edge.generation("one").await, generation, "the link is the same");
    assert_eq!((proxy.accepted(), link["late_frames"].as_u64()), (1, Some(0)));
    let log = provider.log();
    let heard = log.exchanges.iter().find(|exchange| exchange.request.path() == TRANSCRIPTIONS);
    assert!(heard.unwrap().request.body == form(bytes).as_bytes());
    drop(node);
}

/// The bar for both processes together. Measured here: some 62 KB, of what the kernel calls resident.
const RESIDENT_PER_STREAM: u64 = 117_000;

#[tokio::test]
async fn a_thousand_paced_streams_over_one_link_all_complete_in_order() {
    const STREAMS: usize = 1_000;
    const CHUNKS: usize = 10;
    const PAUSE: Duration = Duration::from_millis(100);
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |request| {
        let number = request.json()["x_number"].as_u64().unwrap();
        let mut script: Script = stream::head();
        for index in 0..CHUNKS {
            script = script.wait(PAUSE).chunk(stream::content(&format!("{number}-{index} ")));
        }
        script.chunk(stream::FINISH).chunk(stream::USAGE).chunk(stream::DONE).last_chunk()
    });
    let group = Apart::start(&file(&provider, STREAMS)).await;
    let node = group.node("one").await;
    group.edge.serves(MODEL).await;
    let processes = [group.process.pid(), node.pid()];
    let resident = || processes.into_iter().map(kernel::resident_bytes).sum::<u64>();
    let idle = resident();
    let mut clients = JoinSet::new();
    for number in 0..STREAMS {
        let edge = group.edge;
        clients.spawn(async move {
            let mut asked = streamed(MODEL);
            asked["x_number"] = number.into();
            let mut client = Client::connect(edge.clients).await.unwrap();
            client.post(CHAT, &asked).await.unwrap();
            assert_eq!(client.head().await.unwrap().status, 200);
            let body = client.body().await.unwrap();
            let pieces = (0..CHUNKS).map(|index| stream::content(&format!("{number}-{index} ")));
            let ends = [stream::FINISH, stream::USAGE, stream::DONE].map(str::to_owned);
            let expected: String = pieces.chain(ends).collect();
            assert!(body == expected.as_bytes(), "stream {number} is short or out of order");
        });
    }
    let mut most = 0;
    let mut together = 0.0_f64;
    while !clients.is_empty() {
        tokio::select! {
            Some(ended) = clients.join_next() => ended.unwrap(),
            () = tokio::time::sleep(Duration::from_millis(50)) => {
                most = most.max(resident());
                let open = group.edge.metric("iop_link_streams{node=\"one\"}").await;
                together = together.max(open);
            }
        }
    }
    let each = most.saturating_sub(idle) / STREAMS as u64;
    println!("{together} streams at once, {each} bytes each");
    assert!(together > STREAMS as f64 / 2.0, "only {together} were open at once");
    assert!(each <= RESIDENT_PER_STREAM, "{each} bytes a stream");
    assert_eq!(group.edge.link("one").await["late_frames"], 0);
    group.edge.idle().await;
}
