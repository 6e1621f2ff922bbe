//! An Edge and two Nodes as three processes, one of which is killed.

use std::time::{Duration, Instant};

use iop_testkit::ScriptedProvider;
use serde_json::json;

use crate::support::{Apart, CHAT, MODEL, Pass, Proxy, Running, stream, streamed, unary};

/// Two Nodes, each with a provider that lists a model of its own, and a mock on the first.
struct Two {
    group: Apart,
    one: Running,
    _two: Running,
    first: ScriptedProvider,
    second: ScriptedProvider,
}

impl Two {
    async fn start() -> Self {
        let (first, second) = (ScriptedProvider::start().await, ScriptedProvider::start().await);
        first.set_models(&["model-one"]);
        second.set_models(&["model-two"]);
        let file = format!(
            "version: 1
nodes:
  one:
    providers:
      p: {{ adapter: openai_compat, endpoint: '{}', max_concurrency: 1 }}
      m:
        adapter: mock
        script: {{ targets: [words], answer: {{ text: 'word ', repeat: 10000, chunk_delay_ms: 5 }} }}
  two:
    providers:
      p: {{ adapter: openai_compat, endpoint: '{}' }}
routes:
  impatient:
    candidates: [{{ node: one, provider: p, target: model-one }}]
    queue: {{ wait_for_node: 300ms }}
  patient:
    candidates: [{{ node: one, provider: p, target: model-one }}]
    queue: {{ wait_for_node: 20s }}
",
            first.endpoint(),
            second.endpoint()
        );
        let group = Apart::start(&file).await;
        let one = group.node("one").await;
        let two = group.node("two").await;
        for model in ["patient", "words", "model-two"] {
            group.edge.serves(model).await;
        }
        Self { group, one, _two: two, first, second }
    }
}

#[tokio::test]
async fn a_killed_node_ends_its_streams_once_touches_no_other_and_rejoins_under_a_larger_generation()
 {
    let Two { group, mut one, _two, first, second } = Two::start().await;
    let edge = group.edge;
    first.on(CHAT, |_| stream::held(2));
    second.on(CHAT, |_| stream::held(200));
    let generation = edge.generation("one").await;
    let other = edge.generation("two").await;

    let mut tunnel = edge.chat(&streamed("patient")).await;
    let tunnel_head = tunnel.head().await.unwrap();
    stream::read_first(&mut tunnel).await;
    let mut run = edge.chat(&streamed("words")).await;
    let run_head = run.head().await.unwrap();
    assert!(run.json_event().await.unwrap().is_some());
    let mut untouched = edge.chat(&streamed("model-two")).await;
    assert_eq!(untouched.head().await.unwrap().status, 200);
    stream::read_first(&mut untouched).await;
    // These wait for the one permit of the provider, one only briefly once its node is away.
    let mut hopeless = edge.chat(&unary("impatient")).await;
    edge.wait_for_metric("iop_queue_waiting", 1.0).await;
    let mut hopeful = edge.chat(&streamed("patient")).await;
    edge.wait_for_metric("iop_queue_waiting", 2.0).await;

    let killed = Instant::now();
    one.end().await;

    // A tunnel breaks off: nothing that looks like an end, and nothing that is not the provider's.
    let (rest, end) = tunnel.body_and_end().await;
    assert!(rest.is_empty() && end.unwrap_err().is_early_end(), "{rest:?}");
    // A run that the Edge writes ends with one error event and no mark of success.
    let mut last = Vec::new();
    while let Some(event) = run.event().await.unwrap() {
        last.push(event);
    }
    let errors: Vec<_> = last.iter().filter(|event| event.contains("\"error\"")).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(last.last().unwrap().contains("\"code\":\"node_lost\""), "{last:?}");
    assert!(last.iter().all(|event| !event.contains("[DONE]")), "{last:?}");
    for head in [&tunnel_head, &run_head] {
        let run = edge.run(head).await;
        assert_eq!(run["terminal"]["code"], "node_lost", "{run}");
        assert_eq!(run["attempts"].as_array().unwrap().len(), 1, "{run}");
    }
    // The queue is judged again at once, not when its own time is over.
    let head = hopeless.head().await.unwrap();
    let body = hopeless.json().await.unwrap();
    assert_eq!((head.status, &body["error"]["code"]), (503, &json!("no_ready_provider")), "{body}");
    assert!(killed.elapsed() < Duration::from_secs(3), "{:?}", killed.elapsed());
    assert!(edge.link("one").await.is_null());

    second.release(1);
    let rest = untouched.body().await.unwrap();
    assert_eq!(rest, stream::held_rest(200), "the other node's stream goes on");
    assert_eq!(edge.generation("two").await, other);

    let again = group.node("one").await;
    assert!(edge.generation("one").await > generation);
    // Whoever waited for the node is sent to it.
    assert_eq!(hopeful.head().await.unwrap().status, 200);
    first.release(1);
    assert_eq!(hopeful.body().await.unwrap(), stream::held_body(2));
    let log = first.log();
    assert_eq!(log.exchanges.len(), 2, "the first and the one that waited");
    assert!(log.connection_of(0).left_at().is_some());
    edge.idle().await;
    drop(again);
}

#[tokio::test]
async fn nothing_is_dispatched_before_the_edge_has_said_ready() {
    let provider = ScriptedProvider::start().await;
    let file = format!(
        "version: 1
nodes:
  one:
    providers:
      p: {{ adapter: openai_compat, endpoint: '{}', targets: [mock-model] }}
routes:
  patient:
    candidates: [{{ node: one, provider: p, target: mock-model }}]
    queue: {{ wait_for_node: 20s }}
  impatient:
    candidates: [{{ node: one, provider: p, target: mock-model }}]
    queue: {{ wait_for_node: 300ms }}
",
        provider.endpoint()
    );
    let group = Apart::start(&file).await;
    let proxy = Proxy::start(group.edge.nodes).await;
    // The registration passes; what comes after it (NodeReadyRequest) waits.
    proxy.set(Pass::HoldAfter(1));
    let _node = group.node_towards("one", proxy.address());
    provider.wait_until("the node looks at its provider", |log| log.model_lists > 0).await;
    let mut waiting = group.edge.chat(&streamed("patient")).await;
    group.edge.wait_for_metric("iop_queue_waiting", 1.0).await;
    let mut refused = group.edge.chat(&unary("impatient")).await;
    let head = refused.head().await.unwrap();
    let body = refused.json().await.unwrap();
    assert_eq!((head.status, &body["error"]["code"]), (503, &json!("no_ready_provider")), "{body}");
    assert!(group.edge.link("one").await.is_null(), "registered is not ready");
    assert_eq!(provider.log().exchanges.len(), 0);

    proxy.set(Pass::All);
    assert_eq!(waiting.head().await.unwrap().status, 200);
    waiting.body().await.unwrap();
    assert_eq!(provider.log().exchanges.len(), 1);
    assert_eq!(proxy.accepted(), 1);
    group.edge.idle().await;
}

#[tokio::test]
async fn a_second_process_under_the_same_name_is_refused_and_the_first_keeps_its_streams() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| stream::held(3));
    let file = format!(
        "version: 1\nnodes:\n  one:\n    providers:\n      \
         p: {{ adapter: openai_compat, endpoint: '{}' }}\n",
        provider.endpoint()
    );
    let group = Apart::start(&file).await;
    let _first = group.node("one").await;
    group.edge.serves(MODEL).await;
    let generation = group.edge.generation("one").await;
    let mut client = group.edge.chat(&streamed(MODEL)).await;
    client.head().await.unwrap();
    // As on a cloned disk, but for the directory, which has one owner.
    let second = group.twin("one");
    second.wait_for_line("duplicate_node").await;
    group.process.wait_for_line("refused a second live instance of a node").await;
    assert_eq!(group.edge.generation("one").await, generation);
    provider.release(1);
    assert_eq!(client.body().await.unwrap(), stream::held_body(3));
    group.edge.idle().await;
}
