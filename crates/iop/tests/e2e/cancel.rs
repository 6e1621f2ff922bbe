//! A client that leaves: the provider sees it within a second, in every phase and form, and nothing
//! stays counted.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use iop_testkit::http::Client;
use iop_testkit::script::{OnCancel, Script};
use iop_testkit::{ScriptedProvider, answer};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::support::{CHAT, Edge, MODEL, SEEN, Up, stream, streamed, unary};

/// How a client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    /// It closes its sending side and waits.
    Fin,
    /// It closes the connection, with or without bytes that it has not read.
    Close,
    /// It resets the connection.
    Reset,
}

const WAYS: [Leaves; 3] = [Leaves::Fin, Leaves::Close, Leaves::Reset];

/// Lets a client leave and returns when it did, and what must be kept of it meanwhile.
async fn leave(mut client: Client, how: Leaves) -> (Instant, Option<Client>) {
    let at = Instant::now();
    match how {
        Leaves::Fin => {
            client.finish_sending().await.unwrap();
            return (at, Some(client));
        }
        Leaves::Close => drop(client),
        Leaves::Reset => client.reset(),
    }
    (at, None)
}

/// Waits until the provider has seen the end of this exchange's connection; asserts that it saw it
/// within the time that is promised.
async fn seen(provider: &ScriptedProvider, exchange: usize, left: Instant) {
    let log = provider
        .wait_until("the provider sees the client leave", |log| {
            log.connection_of(exchange).left_at().is_some()
        })
        .await;
    let after = log.connection_of(exchange).left_at().unwrap().duration_since(left);
    assert!(after <= SEEN, "seen only after {after:?}");
}

/// Asserts that history has exactly this end of the newest run, with one attempt at most.
async fn gone(edge: &Edge, attempts: usize) -> Value {
    let run = edge.run_where("the request whose client left", |_| true).await;
    assert_eq!(run["terminal"]["kind"], "cancelled", "{run}");
    assert_eq!(run["terminal"]["code"], "client_gone", "{run}");
    assert_eq!(run["attempts"].as_array().unwrap().len(), attempts, "{run}");
    run
}

#[tokio::test]
async fn a_provider_sees_within_a_second_that_a_client_left_mid_stream() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |request| answer::chat_stream(request, 2_000, Duration::from_millis(10)));
    let up = Up::serving(&provider, 4).await;
    for (index, how) in WAYS.into_iter().enumerate() {
        let mut client = up.edge.chat(&streamed(MODEL)).await;
        assert_eq!(client.head().await.unwrap().status, 200);
        client.json_event().await.unwrap();
        let (left, _kept) = leave(client, how).await;
        seen(&provider, index, left).await;
        up.edge.idle().await;
        let run = gone(&up.edge, 1).await;
        assert!(run["attempts"][0]["first_token_ms"].is_u64(), "{run}");
    }
    assert_eq!(provider.log().exchanges.len(), WAYS.len(), "nothing is tried again");
}

#[tokio::test]
async fn a_provider_sees_within_a_second_that_a_client_left_before_the_head() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| Script::new().hold());
    let up = Up::serving(&provider, 4).await;
    let mut index = 0;
    for body in [streamed(MODEL), unary(MODEL)] {
        for how in WAYS {
            let client = up.edge.chat(&body).await;
            provider.wait_for_requests(index + 1).await;
            let (left, _kept) = leave(client, how).await;
            seen(&provider, index, left).await;
            up.edge.idle().await;
            let run = gone(&up.edge, 1).await;
            assert!(run["attempts"][0]["head_ms"].is_null(), "{run}");
            index += 1;
        }
    }
    assert_eq!(provider.log().exchanges.len(), index, "nothing is tried again");
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_is_never_sent_anywhere() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| stream::held(2));
    let up = Up::serving(&provider, 1).await;
    let mut holder = up.edge.chat(&streamed(MODEL)).await;
    holder.head().await.unwrap();
    for how in WAYS {
        let client = up.edge.chat(&unary(MODEL)).await;
        up.edge.wait_for_metric("iop_queue_waiting", 1.0).await;
        let (_, _kept) = leave(client, how).await;
        up.edge.wait_for_metric("iop_queue_waiting", 0.0).await;
        up.edge.wait_for_metric("iop_requests_in_flight", 1.0).await;
        gone(&up.edge, 0).await;
    }
    provider.release(1);
    assert_eq!(holder.body().await.unwrap(), stream::held_body(2));
    up.edge.idle().await;
    assert_eq!(provider.log().exchanges.len(), 1);
}

/// A provider that takes no more of an upload cannot be told by a FIN, which would wait behind the
/// bytes that it does not read: it sees a reset.
#[tokio::test]
async fn a_client_that_leaves_during_its_upload_is_noticed_though_the_provider_reads_nothing() {
    let provider = ScriptedProvider::start().await;
    provider.at_head(CHAT, |_| Script::new().hold().read_body());
    let up = Up::serving(&provider, 1).await;
    let mut body = unary(MODEL);
    body["messages"][0]["content"] = json!("x".repeat(12 << 20));
    let client = up.edge.chat(&body).await;
    provider.wait_until("the head arrives", |log| log.exchanges.len() == 1).await;
    let (left, _) = leave(client, Leaves::Close).await;
    seen(&provider, 0, left).await;
    up.edge.idle().await;
    gone(&up.edge, 1).await;
}

/// The provider ignores the FIN and only a reset ends it: nobody saw it return, so its permit stays
/// out, and visible, until the provider shows that it is idle.
#[tokio::test]
async fn a_provider_that_ignores_a_cancellation_is_reset_and_its_permit_is_a_zombie() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| {
        let ignores = stream::head().on_cancel(OnCancel::Ignore);
        (0..2_000).fold(ignores, |script, _| {
            script.wait(Duration::from_millis(10)).chunk(stream::content("on and on"))
        })
    });
    let up = Up::serving(&provider, 2).await;
    let mut client = up.edge.chat(&streamed(MODEL)).await;
    client.head().await.unwrap();
    client.json_event().await.unwrap();
    let (left, _) = leave(client, Leaves::Close).await;
    // A failed write may notice the reset first.
    let log = provider
        .wait_until("the connection is reset", |log| log.connection_of(0).closed_at.is_some())
        .await;
    let connection = log.connection_of(0);
    let (fin, reset) = (connection.fin_at.unwrap(), connection.closed_at.unwrap());
    assert!(fin.duration_since(left) <= SEEN, "{:?}", fin.duration_since(left));
    let grace = reset.duration_since(fin);
    assert!((1_500..4_000).contains(&grace.as_millis()), "the close grace was {grace:?}");
    up.edge.wait_for_metric("iop_requests_in_flight", 0.0).await;
    let zombies = "iop_provider_zombies{node=\"local\",provider=\"script\"}";
    up.edge.wait_for_metric(zombies, 1.0).await;
}

/// On one connection of HTTP/2 each stream is a client of its own.
#[tokio::test]
async fn a_stream_of_http_2_that_is_reset_is_a_client_that_left_and_the_others_go_on() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |request| {
        if request.json()["stream"] == true { stream::held(5) } else { Script::new().hold() }
    });
    let up = Up::serving(&provider, 8).await;
    let socket = TcpStream::connect(up.edge.clients).await.unwrap();
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
    let connection = tokio::spawn(connection);
    let ask = |body: &Value| {
        let request = Request::post(format!("http://{}{CHAT}", up.edge.clients))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .unwrap();
        let mut sender = sender.clone();
        async move { sender.send_request(request).await.unwrap() }
    };
    let kept = ask(&streamed(MODEL)).await;
    let left = ask(&streamed(MODEL)).await;
    let silent = tokio::spawn(ask(&unary(MODEL)));
    provider.wait_for_requests(3).await;

    // One in the middle of its stream, one before its head.
    let at = Instant::now();
    drop(left);
    seen(&provider, 1, at).await;
    let at = Instant::now();
    silent.abort();
    seen(&provider, 2, at).await;
    up.edge.wait_for_metric("iop_requests_in_flight", 1.0).await;
    provider.release(1);
    let body = kept.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, stream::held_body(5));
    up.edge.idle().await;
    drop(sender);
    connection.await.unwrap().unwrap();
}
