//! Permits and the queue, counted against what the provider really has at work.

use std::time::{Duration, Instant};

use iop_testkit::script::Script;
use iop_testkit::{ScriptedProvider, answer};

use crate::support::{Apart, CHAT, MODEL, Up, stream, streamed, unary};

/// The Edge's file of a group with one Node, one provider with one permit, and this queue.
fn one_permit(provider: &ScriptedProvider, queue: &str) -> String {
    format!(
        "version: 1
nodes:
  one:
    providers:
      p: {{ adapter: openai_compat, endpoint: '{}', max_concurrency: 1 }}
routes:
  r:
    candidates: [{{ node: one, provider: p, target: {MODEL} }}]
    queue: {queue}
",
        provider.endpoint()
    )
}

#[tokio::test]
async fn the_second_of_two_waits_for_the_terminal_of_the_first_and_both_finish() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| stream::held(3));
    let up = Up::serving(&provider, 1).await;
    let mut first = up.edge.chat(&streamed(MODEL)).await;
    let head = first.head().await.unwrap();
    assert_eq!(head.status, 200);
    stream::read_first(&mut first).await;
    let mut second = up.edge.chat(&streamed(MODEL)).await;
    up.edge.wait_for_metric("iop_queue_waiting", 1.0).await;
    // Its head and a part of its body are through: the first still holds its permit.
    assert_eq!(up.edge.metric("iop_permits_in_use").await, 1.0);
    assert_eq!(provider.log().exchanges.len(), 1);

    provider.release(1);
    assert_eq!(first.body().await.unwrap(), stream::held_rest(3));
    provider.release(1);
    let head = second.head().await.unwrap();
    assert_eq!(head.status, 200);
    assert_eq!(second.body().await.unwrap(), stream::held_body(3));
    let log = provider.log();
    let first_ended = log.exchanges[0].ended.unwrap().0;
    assert!(log.exchanges[1].head_at >= first_ended, "never two at once");
    let run = up.edge.run(&head).await;
    assert!(run["queued_ms"].is_u64(), "{run}");
    up.edge.idle().await;
}

#[tokio::test]
async fn a_full_queue_refuses_at_once_and_a_place_in_it_is_good_for_its_time() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| stream::held(2));
    let file = one_permit(&provider, "{ max_waiting: 1, timeout: 700ms }");
    let group = Apart::start(&file).await;
    let _node = group.node("one").await;
    group.edge.serves("r").await;
    let mut first = group.edge.chat(&streamed("r")).await;
    first.head().await.unwrap();
    let asked = Instant::now();
    let mut waiting = group.edge.chat(&unary("r")).await;
    group.edge.wait_for_metric("iop_queue_waiting", 1.0).await;

    let mut refused = group.edge.chat(&unary("r")).await;
    let head = refused.head().await.unwrap();
    let body = refused.json().await.unwrap();
    assert_eq!((head.status, &body["error"]["code"]), (429, &"queue_full".into()), "{body}");
    let retry: u64 = head.header("retry-after").unwrap().parse().unwrap();
    assert!(retry >= 1);

    let head = waiting.head().await.unwrap();
    let waited = asked.elapsed();
    let body = waiting.json().await.unwrap();
    assert_eq!((head.status, &body["error"]["code"]), (503, &"queue_timeout".into()), "{body}");
    assert!(head.header("retry-after").is_some());
    assert!(waited >= Duration::from_millis(690), "too early: {waited:?}");
    provider.release(1);
    first.body().await.unwrap();
    group.edge.idle().await;
    assert_eq!(provider.log().exchanges.len(), 1);
}

#[tokio::test]
async fn what_needs_no_permit_answers_while_none_is_left() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| Script::new().hold());
    let file = one_permit(&provider, "{ max_waiting: 1 }");
    let group = Apart::start(&file).await;
    let _node = group.node("one").await;
    group.edge.serves("r").await;
    let _busy = group.edge.chat(&unary("r")).await;
    provider.wait_for_requests(1).await;
    let _waiting = group.edge.chat(&unary("r")).await;
    group.edge.wait_for_metric("iop_queue_waiting", 1.0).await;
    for path in ["/v1/models", "/health", "/ready"] {
        let asked = Instant::now();
        let (head, _) = iop_testkit::http::get(group.edge.clients, path).await.unwrap();
        assert_eq!(head.status, 200, "{path}");
        assert!(asked.elapsed() < Duration::from_millis(500), "{path}: {:?}", asked.elapsed());
    }
    let status = group.edge.admin("/api/v1/status").await;
    assert_eq!((&status["in_flight"], &status["waiting"]), (&2.into(), &1.into()));
}

#[tokio::test]
async fn permits_never_exceed_what_is_configured_and_all_are_used() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |request| answer::chat_stream(request, 3, Duration::from_millis(4)));
    let up = Up::serving(&provider, 3).await;
    let mut clients = Vec::new();
    for _ in 0..24 {
        clients.push(up.edge.chat(&streamed(MODEL)).await);
    }
    for client in &mut clients {
        assert_eq!(client.head().await.unwrap().status, 200);
        client.body().await.unwrap();
    }
    let log = provider.log();
    let mut steps: Vec<_> = log
        .exchanges
        .iter()
        .flat_map(|exchange| [(exchange.head_at, 1_i32), (exchange.ended.unwrap().0, -1)])
        .collect();
    // An end and a beginning at one instant are a hand-over.
    steps.sort();
    let mut at_work = 0;
    let most = steps
        .iter()
        .map(|(_, step)| {
            at_work += step;
            at_work
        })
        .max();
    assert_eq!((log.exchanges.len(), most), (24, Some(3)));
    up.edge.idle().await;
}
