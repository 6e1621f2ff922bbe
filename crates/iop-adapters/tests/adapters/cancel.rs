//! Cancelling in every phase: the provider sees FIN, the call returns with the provider, nothing
//! leaks.

use std::time::{Duration, Instant};

use bytes::Bytes;
use iop_execution::{Body, CallError, Gate};
use iop_testkit::script::{OnCancel, Script};
use iop_testkit::{ScriptedProvider, answer, kernel};
use iop_types::RunKind;

use crate::support::{
    CHAT, adapter, run, run_until, streamed, tunnel, tunnel_request, tunnel_until,
};

/// The bound of the design: FIN reaches the provider within this time of the cancel.
const FIN_WITHIN: Duration = Duration::from_secs(1);
const INPUT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;

fn full() -> Body {
    Body::Full(Bytes::from_static(INPUT.as_bytes()))
}

type Phase = (&'static str, fn() -> Script);

/// Providers that are somewhere in their answer when the client leaves.
async fn providers() -> Vec<(&'static str, ScriptedProvider)> {
    let mut providers = Vec::new();
    let phases: [Phase; 4] = [
        ("silent before the head", || Script::new().hold()),
        ("silent after the head", || Script::new().head(200, answer::STREAM_HEADERS).hold()),
        ("in the middle of the stream", || {
            let head = Script::new().head(200, answer::STREAM_HEADERS);
            let event = r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#;
            (0..2_000).fold(head, |script, _| script.event(event).wait(Duration::from_millis(10)))
        }),
        ("in the middle of a unary answer", || {
            let head = [("content-type", "application/json"), ("content-length", "100")];
            Script::new().head(200, &head).bytes("{").hold()
        }),
    ];
    for (phase, script) in phases {
        let provider = ScriptedProvider::start().await;
        provider.on(CHAT, move |_| script());
        providers.push((phase, provider));
    }
    providers
}

/// Completes when the provider has the request and had time to get into its answer.
async fn answering(provider: &ScriptedProvider) {
    provider.wait_for_requests(1).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
}

async fn assert_fin(provider: &ScriptedProvider, cancelled_at: Instant, phase: &str) {
    let log = provider
        .wait_until("the provider saw its client leave and closed", |log| {
            log.connections.iter().all(|connection| connection.closed_at.is_some())
        })
        .await;
    let connection = log.connection_of(0);
    // A provider that is still reading meets the FIN as end of file, and closes.
    let fin_at = connection.fin_at.or(connection.closed_at).expect("all are closed");
    let took = fin_at.duration_since(cancelled_at);
    assert!(took < FIN_WITHIN, "{phase}: FIN came {took:?} after the cancel");
    assert_eq!(connection.reset_at, None, "{phase}: a provider that returns is not reset");
    assert_eq!(kernel::connections_to(provider.address().port()), 0, "{phase}");
}

#[tokio::test]
async fn a_run_is_cancelled_in_every_phase_of_its_answer() {
    for (phase, provider) in providers().await {
        let mut cancelled_at = None;
        let stop = async {
            answering(&provider).await;
            cancelled_at = Some(Instant::now());
        };
        let outcome = run_until(&*adapter(&provider), RunKind::Chat, INPUT, stop).await;
        assert_eq!(outcome.result, Err(CallError::Cancelled), "{phase}");
        assert_fin(&provider, cancelled_at.unwrap(), phase).await;
    }
}

#[tokio::test]
async fn a_tunnel_is_cancelled_in_every_phase_of_its_answer() {
    for (phase, provider) in providers().await {
        let mut cancelled_at = None;
        let stop = async {
            answering(&provider).await;
            cancelled_at = Some(Instant::now());
        };
        let adapter = adapter(&provider);
        let outcome = tunnel_until(&*adapter, tunnel_request(CHAT, &[]), full(), stop).await;
        assert_eq!(outcome.result, Err(CallError::Cancelled), "{phase}");
        assert_fin(&provider, cancelled_at.unwrap(), phase).await;
    }
}

#[tokio::test]
async fn a_tunnel_is_cancelled_while_its_body_is_still_coming() {
    let provider = ScriptedProvider::start().await;
    let (sender, body) = streamed();
    sender.send(Bytes::from_static(b"{\"half")).unwrap();
    let mut cancelled_at = None;
    let stop = async {
        provider.wait_until("the head arrived", |log| !log.exchanges.is_empty()).await;
        cancelled_at = Some(Instant::now());
    };
    let adapter = adapter(&provider);
    let outcome = tunnel_until(&*adapter, tunnel_request(CHAT, &[]), body, stop).await;
    assert_eq!(outcome.result, Err(CallError::Cancelled));
    assert_fin(&provider, cancelled_at.unwrap(), "while sending").await;
}

#[tokio::test]
async fn a_fin_that_queues_behind_an_unread_body_is_overtaken_by_the_reset_of_the_drop() {
    let provider = ScriptedProvider::start().await;
    provider.at_head(CHAT, |_| Script::new().hold());
    let stop = async {
        provider.wait_until("the head arrived", |log| !log.exchanges.is_empty()).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let body = Body::Full(Bytes::from(vec![b'x'; 16 << 20]));
    let adapter = adapter(&provider);
    let call = tunnel_until(&*adapter, tunnel_request(CHAT, &[]), body, stop);
    let grace = Duration::from_millis(500);
    assert!(tokio::time::timeout(grace, call).await.is_err(), "nothing confirms the return");
    let log = provider.wait_until("the connection is gone", |log| log.open_connections() == 0);
    assert!(log.await.connections[0].reset_at.is_some());
    assert_eq!(kernel::connections_to(provider.address().port()), 0);
}

#[tokio::test]
async fn a_cancelled_call_returns_when_its_provider_does_and_not_before() {
    let provider = ScriptedProvider::start().await;
    let lag = Duration::from_millis(400);
    provider.on(CHAT, move |request| {
        answer::stream_start(request).on_cancel(OnCancel::StopAfter(lag)).hold()
    });
    let mut cancelled_at = None;
    let stop = async {
        answering(&provider).await;
        cancelled_at = Some(Instant::now());
    };
    let outcome = run_until(&*adapter(&provider), RunKind::Chat, INPUT, stop).await;
    assert_eq!(outcome.result, Err(CallError::Cancelled));
    let took = cancelled_at.unwrap().elapsed();
    assert!(took >= lag, "the call returned {took:?} after the cancel, before its provider");
    assert_eq!(provider.log().open_connections(), 0);
}

#[tokio::test]
async fn a_provider_that_ignores_the_end_of_its_client_is_reset_when_the_call_is_dropped() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |request| {
        let event = answer::content(request, "a");
        let start = answer::stream_start(request).on_cancel(OnCancel::Ignore);
        (0..10_000).fold(start, |script, _| script.event(&event).wait(Duration::from_millis(5)))
    });
    let adapter = adapter(&provider);
    let call = run_until(&*adapter, RunKind::Chat, INPUT, answering(&provider));
    let grace = Duration::from_millis(500);
    assert!(tokio::time::timeout(grace, call).await.is_err(), "nothing confirms the return");
    let log = provider
        .wait_until("the provider noticed a reset", |log| log.open_connections() == 0)
        .await;
    assert!(log.connection_of(0).fin_at.is_some(), "it was asked first");
    assert_eq!(kernel::connections_to(provider.address().port()), 0);
}

#[tokio::test]
async fn nothing_more_leaves_after_the_cancel_and_the_connection_is_not_used_again() {
    let provider = ScriptedProvider::start().await;
    provider.once(CHAT, |request| {
        answer::stream_start(request).on_cancel(OnCancel::StopAfter(Duration::ZERO)).hold()
    });
    let adapter = adapter(&provider);
    let outcome = run_until(&*adapter, RunKind::Chat, INPUT, answering(&provider)).await;
    assert!(outcome.items.len() <= 1, "start at most: {:?}", outcome.items);
    let next = run(&*adapter, RunKind::Chat, INPUT).await;
    assert!(next.result.is_ok());
    let log = provider.log();
    assert_ne!(log.exchanges[0].connection, log.exchanges[1].connection);
}

#[tokio::test]
async fn a_call_that_is_cancelled_before_it_is_polled_dials_nothing() {
    let provider = ScriptedProvider::start().await;
    let adapter = adapter(&provider);
    let outcome = run_until(&*adapter, RunKind::Chat, INPUT, std::future::ready(())).await;
    // Which of the two is polled first is the race of real life; neither may leave anything behind.
    if outcome.result.is_err() {
        assert_eq!(outcome.result, Err(CallError::Cancelled));
    }
    provider.wait_until("no answer is going on", |log| log.in_flight() == 0).await;
}

#[tokio::test]
async fn fifty_aborts_at_random_points_leave_the_only_permit_free() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |request| answer::chat_stream(request, 50, Duration::from_millis(2)));
    let adapter = adapter(&provider);
    let gate = Gate::new(1);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..50 {
        let permit = gate.try_acquire().unwrap();
        let after = Duration::from_micros(random.u64(0..60_000));
        let call = run_until(&*adapter, RunKind::Chat, INPUT, tokio::time::sleep(after));
        call.await.result.expect_err("a stream of 100 ms is cut within 60");
        assert!(gate.try_acquire().is_err(), "the permit is held to the return");
        drop(permit);
        assert_eq!(gate.in_use(), 0);
        provider.wait_until("no answer is going on", |log| log.in_flight() == 0).await;
    }
    let permit = gate.try_acquire().unwrap();
    run(&*adapter, RunKind::Chat, INPUT).await.result.unwrap();
    drop(permit);
}

#[tokio::test]
async fn mixed_calls_leave_no_connection_behind_but_the_idle_one() {
    let provider = ScriptedProvider::start().await;
    let number = std::sync::atomic::AtomicUsize::new(0);
    provider.on(CHAT, move |request| {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        match number % 5 {
            0 => answer::chat_stream(request, 3, Duration::ZERO),
            1 => answer::error(429, "rate_limit", "rate_limit_exceeded", "slow down"),
            2 => answer::stream_start(request).reset(),
            3 => answer::stream_start(request).hold(),
            _ => answer::sized(200, "text/html", "<html>"),
        }
    });
    let adapter = adapter(&provider);
    for _ in 0..40 {
        for form in 0..2 {
            let stop = tokio::time::sleep(Duration::from_millis(20));
            if form == 0 {
                let _ = run_until(&*adapter, RunKind::Chat, INPUT, stop).await;
            } else {
                let _ = tunnel_until(&*adapter, tunnel_request(CHAT, &[]), full(), stop).await;
            }
        }
    }
    let port = provider.address().port();
    assert!(kernel::connections_to(port) <= 1, "one idle connection at most");
    adapter.stop().await;
    provider.wait_until("all connections are closed", |log| log.open_connections() == 0).await;
    assert_eq!(kernel::connections_to(port), 0);
}

#[tokio::test]
async fn a_pooled_connection_that_died_is_replaced_and_nothing_is_executed_twice() {
    let provider = ScriptedProvider::start().await;
    let keep = Duration::from_millis(100);
    provider
        .on(CHAT, move |request| answer::chat_stream(request, 1, Duration::ZERO).keep_alive(keep));
    let adapter = adapter(&provider);
    for round in 1..=3 {
        let outcome = tunnel(&*adapter, tunnel_request(CHAT, &[]), full()).await;
        assert_eq!(outcome.result, Ok(()), "round {round}");
        assert_eq!(provider.log().exchanges.len(), round);
        provider.wait_until("it closed", |log| log.open_connections() == 0).await;
    }
}
