//! Everything that is counted returns to where it was, however requests end: by IOP's figures, by
//! the provider's and by the kernel's.

use std::time::{Duration, Instant};

use fastrand::Rng;
use iop_testkit::http::Client;
use iop_testkit::kernel;
use iop_testkit::script::Script;
use iop_testkit::{ScriptedProvider, answer};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::support::{Apart, CHAT, Edge, MODEL, Up, stream, streamed, unary};

/// How many clients abort at the same time.
const AT_ONCE: usize = 24;
/// How many abort in all.
const ABORTS: usize = 1_000;

/// An answer that is slow enough to be left in every phase.
fn slow(rng: &mut Rng, request: &iop_testkit::provider::Request) -> Script {
    let wait = Duration::from_millis(rng.u64(0..25));
    if request.json()["stream"] == true {
        Script::new().wait(wait).chain(answer::chat_stream(request, 12, Duration::from_millis(3)))
    } else {
        Script::new().wait(wait).chain(answer::chat(request, "a whole answer"))
    }
}

/// One request that is left after a while, in a way and a phase that `rng` picks.
async fn abort(edge: Edge, mut rng: Rng) {
    let body = if rng.bool() { streamed(MODEL) } else { unary(MODEL) };
    let Ok(mut client) = Client::connect(edge.clients).await else { return };
    let bytes = body.to_string();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        bytes.len()
    );
    // One in eight leaves within its own request.
    let whole = [head, bytes].concat();
    let sent = if rng.u8(..) < 32 { rng.usize(0..whole.len()) } else { whole.len() };
    client.send(&whole.as_bytes()[..sent]).await.unwrap();
    let patience = Duration::from_millis(rng.u64(0..90));
    if rng.bool() {
        let reads = async {
            if client.head().await.is_ok() {
                let _ = client.body().await;
            }
        };
        let _ = tokio::time::timeout(patience, reads).await;
    } else {
        tokio::time::sleep(patience).await;
    }
    match rng.u8(0..3) {
        0 => client.reset(),
        1 => drop(client),
        _ => {
            let _ = client.finish_sending().await;
            let _ = client.wait_for_end().await;
        }
    }
}

/// What the kernel says of some processes and of the provider's connections.
#[derive(Debug, PartialEq, Eq)]
struct Levels {
    descriptors: Vec<usize>,
    provider_connections: usize,
}

impl Levels {
    fn of(pids: &[u32], provider: &ScriptedProvider) -> Self {
        Self {
            descriptors: pids.iter().map(|pid| kernel::descriptors(*pid)).collect(),
            provider_connections: kernel::connections_to(provider.address().port()),
        }
    }
}

/// Waits until no pooled connection is left and returns what is open then.
async fn at_rest(edge: &Edge, pids: &[u32], provider: &ScriptedProvider) -> Levels {
    edge.idle().await;
    edge.until("no connection to the provider is left", async |_| {
        kernel::connections_to(provider.address().port()) == 0
            && provider.log().open_connections() == 0
    })
    .await;
    Levels::of(pids, provider)
}

#[tokio::test]
async fn a_thousand_aborts_in_every_phase_leave_nothing_counted_and_nothing_open() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let provider = ScriptedProvider::start().await;
    let file = format!(
        "version: 1
nodes:
  one:
    providers:
      p: {{ adapter: openai_compat, endpoint: '{}', max_concurrency: 8 }}
",
        provider.endpoint()
    );
    let group = Apart::start(&file).await;
    let node = group.node("one").await;
    group.edge.serves(MODEL).await;
    let pids = [group.process.pid(), node.pid()];
    // A first request opens what stays open.
    group.edge.chat(&unary(MODEL)).await.head().await.unwrap();
    let before = at_rest(&group.edge, &pids, &provider).await;
    let scripts = std::sync::Mutex::new(rng.fork());
    provider.on(CHAT, move |request| slow(&mut scripts.lock().unwrap(), request));

    let mut clients = JoinSet::new();
    for _ in 0..ABORTS {
        if clients.len() >= AT_ONCE {
            clients.join_next().await.unwrap().unwrap();
        }
        clients.spawn(abort(group.edge, rng.fork()));
    }
    while let Some(left) = clients.join_next().await {
        left.unwrap();
    }

    let after = at_rest(&group.edge, &pids, &provider).await;
    for (after, before) in after.descriptors.iter().zip(&before.descriptors) {
        assert!(after <= before, "descriptors grew: {before:?}, {after:?}");
    }
    assert_eq!(provider.log().in_flight(), 0);
    let log = provider.log();
    assert!(log.exchanges.len() > ABORTS / 4, "too few came through: {}", log.exchanges.len());
    assert!(log.malformed.is_empty(), "{:?}", log.malformed);
    let runs = group.edge.admin("/api/v1/runs?limit=1000").await;
    let runs = runs["runs"].as_array().unwrap().clone();
    let open: Vec<&Value> = runs.iter().filter(|run| !run["terminal"].is_object()).collect();
    assert!(open.is_empty(), "every run has its one terminal: {open:?}");
    let dispatched = runs.iter().filter(|run| !run["attempts"].as_array().unwrap().is_empty());
    let (sent, seen) = (dispatched.count(), log.exchanges.len());
    assert!(seen <= sent + 1, "{seen} requests seen, {sent} sent: nothing is executed twice");
    assert_eq!(group.edge.metric("iop_provider_zombies{node=\"one\",provider=\"p\"}").await, 0.0);
    let (head, _) = iop_testkit::http::post(group.edge.clients, CHAT, &unary(MODEL)).await.unwrap();
    assert_eq!(head.status, 200);
}

#[tokio::test]
async fn after_fifty_aborts_at_random_points_the_only_permit_is_there_at_once() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let provider = ScriptedProvider::start().await;
    let scripts = std::sync::Mutex::new(rng.fork());
    provider.on(CHAT, move |request| slow(&mut scripts.lock().unwrap(), request));
    let up = Up::serving(&provider, 1).await;
    for _ in 0..50 {
        // Two, so that one of them may be waiting when it is left.
        tokio::join!(abort(up.edge, rng.fork()), abort(up.edge, rng.fork()));
        up.edge.idle().await;
    }
    provider.on(CHAT, |request| answer::chat(request, "at last"));
    let asked = Instant::now();
    let mut client = up.edge.chat(&unary(MODEL)).await;
    let head = client.head().await.unwrap();
    assert_eq!(head.status, 200);
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    let run = up.edge.run(&head).await;
    assert_eq!(run["attempts"].as_array().unwrap().len(), 1, "{run}");
    assert!(run["queued_ms"].as_u64().unwrap_or_default() < 500, "{run}");
}

#[tokio::test]
async fn what_the_edge_counts_while_requests_run_is_what_the_provider_has_at_work() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| stream::held(2));
    let up = Up::serving(&provider, 3).await;
    let mut clients = Vec::new();
    for index in 0..5 {
        clients.push(up.edge.chat(&streamed(MODEL)).await);
        let inside = (index + 1).min(3);
        provider.wait_for_requests(inside).await;
        up.edge.wait_for_metric("iop_requests_in_flight", (index + 1) as f64).await;
        for series in [
            "iop_permits_in_use",
            "iop_provider_in_use{node=\"local\",provider=\"script\"}",
            "iop_link_streams{node=\"local\"}",
        ] {
            up.edge.wait_for_metric(series, inside as f64).await;
        }
        let log = provider.log();
        assert_eq!(log.in_flight(), inside);
        assert_eq!(kernel::connections_to(provider.address().port()), log.open_connections());
    }
    assert_eq!(up.edge.metric("iop_queue_waiting").await, 2.0);
    provider.release(5);
    for client in &mut clients {
        client.head().await.unwrap();
        assert_eq!(client.body().await.unwrap(), stream::held_body(2));
    }
    up.edge.idle().await;
    assert_eq!(
        up.edge.metric("iop_requests_total{surface=\"openai.chat\",outcome=\"ok\"}").await,
        5.0
    );
}

#[tokio::test]
async fn streams_that_a_provider_resets_leave_nothing_behind() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| stream::head().chunk(stream::content("a")).reset());
    let up = Up::serving(&provider, 4).await;
    let broken = async |count: usize| {
        for _ in 0..count / 4 {
            let mut clients = Vec::new();
            for _ in 0..4 {
                clients.push(up.edge.chat(&streamed(MODEL)).await);
            }
            for mut client in clients {
                assert_eq!(client.head().await.unwrap().status, 200);
                let (body, end) = client.body_and_end().await;
                assert_eq!(body, stream::content("a"));
                assert!(end.unwrap_err().is_early_end());
            }
        }
    };
    broken(100).await;
    let before = at_rest(&up.edge, &[up.process.pid()], &provider).await;
    let memory = kernel::resident_bytes(up.process.pid());
    broken(300).await;
    let after = at_rest(&up.edge, &[up.process.pid()], &provider).await;
    assert!(after.descriptors <= before.descriptors, "{before:?}, {after:?}");
    let grown = kernel::resident_bytes(up.process.pid()).saturating_sub(memory);
    assert!(grown < memory / 5, "{grown} bytes more than {memory}");
}
