//! A link that is cut behind each frame of a whole conversation, and links that are bad in every
//! other way, between real processes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use iop_testkit::proxy::{Fate, FaultProxy, FrameSeen, Towards, Toxic};
use iop_testkit::{PATIENCE, Script, ScriptedProvider, answer, http};
use serde_json::{Value, json};
use tokio::task::{JoinSet, LocalSet};

use crate::support::{Apart, CHAT, Edge, stream};

/// More Nodes than a conversation has frames.
const NODES: usize = 128;
/// Nodes at work at once: two busy cores are the bound.
const AT_ONCE: usize = 8;
/// More than the first window of a request body.
const PROMPT: usize = 320 << 10;
/// Together more than the first window of an answer.
const PIECE: usize = 16 << 10;
const PIECES: usize = 6;

/// An Edge that knows many Nodes, each with the one provider and a model of its own.
async fn group(provider: &ScriptedProvider) -> Apart {
    let mut file = "version: 1\nnodes:\n".to_owned();
    let endpoint = provider.endpoint();
    let models: Vec<_> = (0..NODES).map(model).collect();
    for index in 0..NODES {
        file += &format!(
            "  n{index}: {{ providers: {{ p: {{ adapter: openai_compat, endpoint: '{endpoint}', \
             targets: [{}] }} }} }}\n",
            model(index)
        );
    }
    provider.set_models(&models.iter().map(String::as_str).collect::<Vec<_>>());
    provider.on(CHAT, |request| match request.json()["messages"][0]["content"].as_str() {
        Some("next") => answer::chat(request, "as if nothing had been"),
        Some("leave") => stream::head().chunk(stream::content("once")).wait(PATIENCE),
        _ => long(),
    });
    Apart::start(&file).await
}

fn model(index: usize) -> String {
    format!("model-{index}")
}

fn long() -> Script {
    let piece = stream::content(&"z".repeat(PIECE));
    let pieces = (0..PIECES).fold(stream::head(), |script, _| script.chunk(&piece));
    pieces.chunk(stream::FINISH).chunk(stream::USAGE).chunk(stream::DONE).last_chunk()
}

fn long_body() -> String {
    let piece = stream::content(&"z".repeat(PIECE));
    [&piece.repeat(PIECES), stream::FINISH, stream::USAGE, stream::DONE].concat()
}

fn ask(model: &str, content: &str, streams: bool) -> Value {
    let mut body = json!({"model": model, "messages": [{"role": "user", "content": content}]});
    if streams {
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

/// A large request that is answered whole, and one whose client leaves in the middle of its answer.
/// Whatever the link does meanwhile, no client takes a part for the whole.
async fn converse(edge: Edge, model: &str) {
    let mut whole = edge.chat(&ask(model, &"x".repeat(PROMPT), true)).await;
    if let Some(head) = told(&mut whole, model).await {
        assert_eq!(head, 200);
        let (body, end) = whole.body_and_end().await;
        let expected = long_body();
        match end {
            Ok(()) => assert_eq!(body, expected, "{model}: an answer that is silently short"),
            Err(error) => {
                assert!(error.is_early_end(), "{model}: {error}");
                let same = expected.bytes().zip(&body).take_while(|(a, b)| a == *b).count();
                assert_eq!(same, body.len(), "{model}: bytes of nobody: {:?}", &body[same..]);
            }
        }
    }
    let mut leaves = edge.chat(&ask(model, "leave", true)).await;
    if told(&mut leaves, model).await.is_some() {
        // The first event, or the early end; then the client is gone.
        let _ = leaves.piece().await;
    }
}

/// Reads the head of a stream; an error has a status, a code and nothing behind it.
async fn told(client: &mut http::Client, model: &str) -> Option<u16> {
    let head = client.head().await.unwrap_or_else(|error| panic!("{model}: {error}"));
    if head.status == 200 {
        return Some(200);
    }
    let body = client.json().await.unwrap();
    let code = body["error"]["code"].as_str().unwrap_or_default();
    assert!(["node_lost", "no_ready_provider"].contains(&code), "{model}: {} {body}", head.status);
    None
}

/// Asserts that what was interrupted left nothing behind and that the next request is served.
async fn is_as_before(edge: Edge, provider: &ScriptedProvider, node: &str, model: &str) {
    let (head, body) = http::post(edge.clients, CHAT, &ask(model, "next", false)).await.unwrap();
    assert_eq!(head.status, 200, "{model}: {}", String::from_utf8_lossy(&body));
    let of_node = |series: &str| series.contains(&format!("node=\"{node}\""));
    edge.until(&format!("nothing of {node} is counted"), async |edge| {
        edge.metrics().await.iter().all(|(series, value)| {
            let counted = ["iop_provider_in_use", "iop_link_streams", "iop_link_buffered_bytes"];
            let counts = counted.iter().any(|name| series.starts_with(name)) && of_node(series);
            !counts || value.total_cmp(&0.0).is_eq()
        })
    })
    .await;
    let runs = async |edge: &Edge| {
        let runs = edge.admin("/api/v1/runs?limit=1000").await;
        let mut runs = runs["runs"].as_array().unwrap().clone();
        runs.retain(|run| run["route"] == model);
        runs
    };
    edge.until(&format!("history has three ends of {model}"), async |edge| {
        let runs = runs(edge).await;
        runs.len() == 3 && runs.iter().all(|run| run["terminal"]["kind"].is_string())
    })
    .await;
    provider
        .wait_until(&format!("the provider is rid of {model}"), |log| {
            let mut exchanges = log.exchanges.iter();
            exchanges.all(|one| one.request.model() != model || one.ended.is_some())
        })
        .await;
}

/// What names a frame in every run of the same conversation.
type Place = (Towards, &'static str, usize);

fn place(frame: &FrameSeen) -> Place {
    (frame.towards, frame.kind, frame.nth)
}

/// Whether a frame comes in every run: into how many pieces data falls is the scheduler's business.
fn is_certain((_, kind, nth): &Place) -> bool {
    match *kind {
        "HeartbeatRequest" | "HeartbeatResponse" | "ProviderStatus" | "HealthObservation"
        | "Credit" => false,
        "RequestBody" | "TunnelBody" => *nth == 0,
        _ => true,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_cut_behind_or_within_any_frame_ends_each_request_once_and_serves_the_next() {
    let provider = Arc::new(ScriptedProvider::start().await);
    let group = Arc::new(group(&provider).await);
    let edge = group.edge;

    let proxy = FaultProxy::start(edge.nodes).await;
    let node = group.node_towards("n0", proxy.address());
    edge.serves(&model(0)).await;
    converse(edge, &model(0)).await;
    let is_last = |frame: &FrameSeen| frame.kind == "TunnelCancelled";
    proxy.wait_until("the cancelled request has its end", |all| all.iter().any(is_last)).await;
    let places: Vec<_> = proxy.frames().iter().map(place).collect();
    is_as_before(edge, &provider, "n0", &model(0)).await;
    drop((proxy, node));
    let kinds = ["RegisterRequest", "RegisterResponse", "NodeReadyRequest", "NodeReadyResponse"];
    let of_streams = ["TunnelRequest", "RequestBody", "TunnelHead", "TunnelBody", "TunnelEnd"];
    for kind in kinds.iter().chain(&of_streams).chain(&["Credit", "Cancel", "TunnelCancelled"]) {
        assert!(places.iter().any(|(_, seen, _)| seen == kind), "no {kind} among {places:?}");
    }
    // Behind each frame, and within the first of each kind.
    let within = places.iter().filter(|place| is_certain(place) && place.2 == 0);
    let within: Vec<_> = within.map(|place| (*place, true)).collect();
    let behind = places.into_iter().map(|place| (place, false));
    let cuts: Vec<_> = behind.chain(within).collect();
    assert!(cuts.len() < NODES, "{} cuts", cuts.len());

    // Local tasks: nothing of a test needs to move between threads.
    let local = LocalSet::new();
    let mut tests = JoinSet::new();
    let mut slowest = Duration::ZERO;
    for (index, (place, is_within)) in cuts.into_iter().enumerate() {
        if tests.len() >= AT_ONCE {
            let ended = local.run_until(tests.join_next()).await;
            slowest = slowest.max(ended.unwrap().unwrap());
        }
        let (group, provider) = (Arc::clone(&group), Arc::clone(&provider));
        let cut = async move {
            let began = Instant::now();
            let (node, model) = (format!("n{}", index + 1), model(index + 1));
            let proxy = FaultProxy::start(group.edge.nodes).await;
            proxy.rule(move |frame| match frame.link == 0 && self::place(frame) == place {
                true if is_within => Fate::CutWithin(frame.length / 2),
                true => Fate::Cut,
                false => Fate::Pass,
            });
            let _process = group.node_towards(&node, proxy.address());
            group.edge.serves(&model).await;
            converse(group.edge, &model).await;
            proxy
                .wait_until("it is over", |all| all.iter().any(|one| one.link > 0 || is_last(one)))
                .await;
            let is_up = |one: &FrameSeen| one.link == 1 && one.kind == "NodeReadyResponse";
            let what = format!("the node is back after {place:?}");
            if is_certain(&place) || proxy.broken() > 0 {
                proxy.wait_until(&what, |all| all.iter().any(is_up)).await;
            } else {
                // The frame did not come this time, and must not come with the next request.
                proxy.rule(|_| Fate::Pass);
            }
            is_as_before(group.edge, &provider, &node, &model).await;
            assert!(proxy.broken() == 1 || !is_certain(&place), "{place:?} was not cut");
            began.elapsed()
        };
        tests.spawn_local_on(cut, &local);
    }
    while let Some(cut) = local.run_until(tests.join_next()).await {
        slowest = slowest.max(cut.unwrap());
    }
    println!("the slowest took {slowest:?}");
    edge.idle().await;
    assert!(!group.process.output().contains("panicked"));
}

/// Lines that are slow, cut up, limited, silent or reset: an answer is whole or says that it is not, and
/// what was wrong with one link is forgotten with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_line_delays_or_breaks_its_link_and_shortens_no_answer() {
    let provider = Arc::new(ScriptedProvider::start().await);
    let group = Arc::new(group(&provider).await);
    let pause = Duration::from_millis(100);
    // Each with whether a link survives it.
    let lines = [
        (Toxic::Latency(Duration::from_millis(30)), true),
        (Toxic::Bandwidth(1 << 20), true),
        (Toxic::Slicer(1000, Duration::ZERO), true),
        (Toxic::SlowClose(pause), true),
        (Toxic::LimitData(40 << 10), false),
        (Toxic::ResetPeer(pause), false),
        (Toxic::Timeout(pause), false),
    ];
    let local = LocalSet::new();
    let mut tests = JoinSet::new();
    let both = [Towards::Edge, Towards::Node];
    let all = lines.into_iter().flat_map(|line| both.map(|towards| (line, towards)));
    for (index, ((toxic, survives), towards)) in all.enumerate() {
        let (group, provider) = (Arc::clone(&group), Arc::clone(&provider));
        let test = async move {
            let (node, model) = (format!("n{index}"), model(index));
            let proxy = FaultProxy::start(group.edge.nodes).await;
            let _process = group.node_towards(&node, proxy.address());
            group.edge.serves(&model).await;
            proxy.add(towards, toxic);
            // The line is good again once it has broken a link.
            let recovers = async {
                if !survives {
                    let what = format!("{toxic:?} breaks the link");
                    group.edge.until(&what, async |_| proxy.broken() > 0).await;
                    proxy.clear();
                }
            };
            tokio::join!(converse(group.edge, &model), recovers);
            proxy.clear();
            let is_up = |one: &FrameSeen| one.kind == "NodeReadyResponse" && one.link > 0;
            if !survives {
                proxy.wait_until("the node is back", |all| all.iter().any(is_up)).await;
                group.edge.serves(&model).await;
            }
            is_as_before(group.edge, &provider, &node, &model).await;
            assert_eq!(proxy.broken() == 0, survives, "{toxic:?}");
        };
        tests.spawn_local_on(test, &local);
    }
    while let Some(test) = local.run_until(tests.join_next()).await {
        test.unwrap();
    }
    group.edge.idle().await;
}

/// What the Node said last is held, its connection dies, it comes back and takes its seat over; only
/// then the held frames arrive at the old connection. And what arrives twice breaks its stream alone.
#[tokio::test]
async fn frames_that_come_after_a_takeover_or_twice_change_nothing_for_others() {
    let provider = ScriptedProvider::start().await;
    let group = group(&provider).await;
    let proxy = FaultProxy::start(group.edge.nodes).await;
    proxy.rule(|frame| match (frame.link, frame.kind) {
        (0, "TunnelHead") => Fate::Hold,
        (1, "TunnelHead") => Fate::Twice,
        _ => Fate::Pass,
    });
    let _node = group.node_towards("n0", proxy.address());
    group.edge.serves(&model(0)).await;
    let mut late = group.edge.chat(&ask(&model(0), "late", false)).await;
    let is_held = |one: &FrameSeen| one.kind == "TunnelHead";
    proxy.wait_until("an answer is held", |all| all.iter().any(is_held)).await;
    let generation = group.edge.generation("n0").await;
    proxy.lose_node();
    group
        .edge
        .until("the node took its seat over", async |edge| edge.generation("n0").await > generation)
        .await;
    proxy.release();
    let head = late.head().await.unwrap();
    // Lost with its generation, or sent once more under the new one.
    let body = late.body_and_end().await.0;
    let told = String::from_utf8_lossy(&body);
    assert!(head.status == 200 || told.contains("node_lost"), "{} {told}", head.status);

    proxy.rule(|_| Fate::Pass);
    let (head, _) =
        http::post(group.edge.clients, CHAT, &ask(&model(0), "next", false)).await.unwrap();
    assert_eq!(head.status, 200);
    assert_eq!(proxy.links(), 2);
    group.edge.idle().await;
}

/// F76: what follows a frame that was lost has the wrong number. Its stream ends early and says so; the
/// stream beside it and the link go on.
#[tokio::test]
async fn a_frame_that_is_lost_breaks_its_stream_and_neither_another_nor_the_link() {
    let provider = ScriptedProvider::start().await;
    let group = group(&provider).await;
    provider.on(CHAT, |_| stream::held(3));
    let proxy = FaultProxy::start(group.edge.nodes).await;
    let _node = group.node_towards("n0", proxy.address());
    group.edge.serves(&model(0)).await;
    let generation = group.edge.generation("n0").await;
    let mut clients = Vec::new();
    for content in ["loses", "keeps"] {
        let mut client = group.edge.chat(&ask(&model(0), content, true)).await;
        let head = client.head().await.unwrap();
        stream::read_first(&mut client).await;
        clients.push((client, head));
    }
    let frames = proxy.frames();
    let stream = frames.iter().find(|frame| frame.kind == "TunnelHead").unwrap().stream;
    let mut is_lost = false;
    proxy.rule(move |frame| {
        let is_next = !is_lost && frame.stream == stream && frame.kind == "TunnelBody";
        is_lost |= is_next;
        if is_next { Fate::Swallow } else { Fate::Pass }
    });
    provider.release(2);
    let (mut keeps, _) = clients.pop().unwrap();
    assert_eq!(keeps.body().await.unwrap(), stream::held_rest(3));
    let (mut loses, head) = clients.pop().unwrap();
    let (body, end) = loses.body_and_end().await;
    assert!(end.is_err_and(|error| error.is_early_end()), "a part is not taken for the whole");
    assert!(stream::held_rest(3).as_bytes() != &body[..], "{body:?}");
    let run = group.edge.run(&head).await;
    assert_eq!(run["terminal"]["kind"], "failed", "{run}");
    assert_eq!(group.edge.generation("n0").await, generation);
    assert_eq!((proxy.links(), proxy.broken()), (1, 0));
    group.edge.idle().await;
}

/// Frozen for a few seconds, an Edge has missed nothing that it cannot read up: its link, its stream and
/// its Node are what they were.
#[tokio::test]
async fn an_edge_that_stood_still_keeps_its_links_and_their_streams() {
    let provider = ScriptedProvider::start().await;
    let group = group(&provider).await;
    provider.on(CHAT, |_| stream::held(3));
    let _node = group.node("n0").await;
    group.edge.serves(&model(0)).await;
    let generation = group.edge.generation("n0").await;
    let mut client = group.edge.chat(&ask(&model(0), "x", true)).await;
    client.head().await.unwrap();
    stream::read_first(&mut client).await;
    group.process.freeze().await;
    provider.release(1);
    // How long it stands still is what is tested: many times what a scheduler takes.
    tokio::time::sleep(Duration::from_secs(2)).await;
    group.process.thaw();
    assert_eq!(client.body().await.unwrap(), stream::held_rest(3));
    assert_eq!(group.edge.generation("n0").await, generation);
    group.edge.idle().await;
}

/// A frozen Node is believed in until its heartbeat fails; meanwhile its one permit is out and others
/// serve. Thawed, it ends what it had.
#[tokio::test]
async fn while_a_node_stands_still_another_serves_and_thawed_it_goes_on() {
    let provider = ScriptedProvider::start().await;
    provider.set_models(&["shared"]);
    let endpoint = provider.endpoint();
    let entry = format!(
        "{{ providers: {{ p: {{ adapter: openai_compat, endpoint: '{endpoint}', max_concurrency: 1 }} }} }}"
    );
    let group =
        Apart::start(&format!("version: 1\nnodes:\n  one: {entry}\n  two: {entry}\n")).await;
    let one = group.node("one").await;
    let edge = group.edge;
    edge.serves("shared").await;
    one.freeze().await;
    let mut stuck = edge.chat(&ask("shared", "stuck", false)).await;
    edge.wait_for_metric("iop_permits_in_use", 1.0).await;
    let _two = group.node("two").await;
    for _ in 0..3 {
        let asked = Instant::now();
        let (head, _) = http::post(edge.clients, CHAT, &ask("shared", "x", false)).await.unwrap();
        assert_eq!(head.status, 200);
        assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    }
    one.thaw();
    assert_eq!(stuck.head().await.unwrap().status, 200);
    stuck.body().await.unwrap();
    edge.idle().await;
}
