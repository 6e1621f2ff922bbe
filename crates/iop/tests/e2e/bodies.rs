//! Request bodies: large ones, refused ones, and every way in which HTTP sends them.

use std::time::Duration;

use iop_testkit::{ScriptedProvider, answer};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{Apart, CHAT, MODEL, Up, streamed, unary};

/// The default of `limits.json_body`.
const LIMIT: usize = 32 << 20;

/// A chat of exactly this many bytes.
fn sized(bytes: usize) -> String {
    let mut body = unary(MODEL);
    let rest = body.to_string().len() - "hello".len();
    body["messages"][0]["content"] = json!("x".repeat(bytes - rest));
    body.to_string()
}

#[tokio::test]
async fn a_json_body_up_to_the_limit_reaches_the_provider_unchanged_and_one_byte_more_is_413() {
    let provider = ScriptedProvider::start().await;
    let up = Up::serving(&provider, 1).await;
    let headers = [("content-type", "application/json")];
    for (index, bytes) in [1 << 20, 31 << 20, LIMIT].into_iter().enumerate() {
        let body = sized(bytes);
        let mut client = up.edge.client().await;
        client.request("POST", CHAT, &headers, &body).await.unwrap();
        let head = client.head().await.unwrap();
        assert_eq!(head.status, 200, "{bytes}");
        client.body().await.unwrap();
        let request = provider.log().exchanges[index].request.clone();
        assert!(request.body == body, "{bytes} bytes came as {}", request.body.len());
        assert_eq!(request.header("content-length"), Some(bytes.to_string().as_str()));
    }
    let mut client = up.edge.client().await;
    // Refused by its length: whether all of it can still be sent is the kernel's affair.
    let _ = client.request("POST", CHAT, &headers, sized(LIMIT + 1)).await;
    let head = client.head().await.unwrap();
    let body = client.json().await.unwrap();
    assert_eq!((head.status, &body["error"]["code"]), (413, &json!("body_too_large")), "{body}");
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains("33554432") && message.contains("limits.json_body"), "{message}");
    up.edge.idle().await;
    assert_eq!(provider.log().exchanges.len(), 3);
}

#[tokio::test]
async fn a_body_of_unknown_length_is_counted_as_it_comes() {
    let provider = ScriptedProvider::start().await;
    let file = format!(
        "version: 1\nlimits: {{ json_body: 1KiB }}\nnodes:\n  one:\n    providers:\n      \
         p: {{ adapter: openai_compat, endpoint: '{}' }}\n",
        provider.endpoint()
    );
    let group = Apart::start(&file).await;
    let _node = group.node("one").await;
    group.edge.serves(MODEL).await;
    let mut client = group.edge.client().await;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n"
    );
    client.send(&head).await.unwrap();
    client.send(format!("400\r\n{}\r\n", "x".repeat(0x400))).await.unwrap();
    client.send("1\r\nx\r\n0\r\n\r\n").await.unwrap();
    let head = client.head().await.unwrap();
    let body = client.json().await.unwrap();
    assert_eq!((head.status, &body["error"]["code"]), (413, &json!("body_too_large")), "{body}");
    assert_eq!(provider.log().exchanges.len(), 0);
    group.edge.idle().await;
}

#[tokio::test]
async fn a_client_that_waits_for_100_continue_gets_it_and_the_provider_never_hears_of_it() {
    let provider = ScriptedProvider::start().await;
    let up = Up::serving(&provider, 1).await;
    let body = sized(2 << 20);
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n",
        body.len()
    );
    for waits in [true, false] {
        let mut client = TcpStream::connect(up.edge.clients).await.unwrap();
        client.write_all(head.as_bytes()).await.unwrap();
        let mut got = Vec::new();
        if waits {
            while !got.windows(4).any(|end| end == b"\r\n\r\n") {
                assert_ne!(client.read_buf(&mut got).await.unwrap(), 0, "closed instead");
            }
            assert!(got.starts_with(b"HTTP/1.1 100"), "{}", String::from_utf8_lossy(&got));
        }
        client.write_all(body.as_bytes()).await.unwrap();
        client.read_to_end(&mut got).await.unwrap();
        let text = String::from_utf8_lossy(&got);
        assert!(text.contains("HTTP/1.1 200"), "{text}");
    }
    let log = provider.log();
    assert_eq!(log.exchanges.len(), 2);
    for exchange in &log.exchanges {
        assert!(exchange.request.body == body);
        assert_eq!(exchange.request.header("expect"), None);
    }
}

#[tokio::test]
async fn a_chunked_body_reaches_the_provider_as_one_with_a_length() {
    let provider = ScriptedProvider::start().await;
    let up = Up::serving(&provider, 1).await;
    let body = unary(MODEL).to_string();
    let (first, rest) = body.split_at(7);
    let (second, third) = rest.split_at(20);
    let mut client = up.edge.client().await;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n"
    );
    client.send(&head).await.unwrap();
    for part in [first, second, third] {
        client.send(format!("{:x}\r\n{part}\r\n", part.len())).await.unwrap();
        up.edge
            .until("the part is there", async |edge| {
                edge.metric("iop_buffered_body_bytes").await > 0.0
            })
            .await;
    }
    assert_eq!(provider.log().exchanges.len(), 0, "nothing is sent before it is whole");
    client.send("0\r\n\r\n").await.unwrap();
    assert_eq!(client.head().await.unwrap().status, 200);
    client.body().await.unwrap();
    let request = provider.log().exchanges[0].request.clone();
    assert_eq!(request.body, body);
    assert_eq!(request.header("content-length"), Some(body.len().to_string().as_str()));
    assert_eq!(request.header("transfer-encoding"), None);
}

#[tokio::test]
async fn what_cannot_be_understood_is_refused_before_any_provider_hears_of_it() {
    let provider = ScriptedProvider::start().await;
    let up = Up::serving(&provider, 1).await;
    for (body, status, code) in [
        ("{", 400, "invalid_request"),
        ("[]", 400, "invalid_request"),
        ("{\"messages\":[]}", 400, "invalid_request"),
        ("{\"model\":\"mock-model\",\"model\":\"other\"}", 400, "invalid_request"),
        ("{\"model\":\"mock-model\",\"Model\":\"other\"}", 400, "invalid_request"),
        ("{\"model\":\"no-such-model\"}", 404, "model_not_found"),
    ] {
        let mut client = up.edge.client().await;
        let headers = [("content-type", "application/json")];
        client.request("POST", CHAT, &headers, body).await.unwrap();
        let head = client.head().await.unwrap();
        let told = client.json().await.unwrap();
        assert_eq!((head.status, &told["error"]["code"]), (status, &json!(code)), "{body}: {told}");
        assert!(head.header("x-request-id").is_some());
        // The connection is as good as before.
        client.request("GET", "/health", &[], "").await.unwrap();
        assert_eq!(client.head().await.unwrap().status, 200, "{body}");
    }
    assert_eq!(provider.log().exchanges.len(), 0);
    up.edge.idle().await;
}

/// A provider that closes kept connections early: no request is lost, and none is executed twice.
#[tokio::test]
async fn a_pooled_connection_that_died_meanwhile_costs_no_request() {
    let provider = ScriptedProvider::start().await;
    let short = Duration::from_millis(150);
    provider.on(CHAT, move |request| {
        let answer = match request.json()["stream"] == true {
            true => answer::chat_stream(request, 2, Duration::ZERO),
            false => answer::chat(request, "hello"),
        };
        iop_testkit::Script::new().keep_alive(short).chain(answer)
    });
    let up = Up::serving(&provider, 1).await;
    for (index, body) in
        [unary(MODEL), streamed(MODEL), unary(MODEL), streamed(MODEL)].into_iter().enumerate()
    {
        let mut client = up.edge.chat(&body).await;
        assert_eq!(client.head().await.unwrap().status, 200);
        client.body().await.unwrap();
        provider
            .wait_until("the provider closes the connection", |log| {
                log.connection_of(index).closed_at.is_some()
            })
            .await;
    }
    assert_eq!(provider.log().exchanges.len(), 4);
    let attempts = up.edge.metric("iop_attempts_total{form=\"tunnel\",outcome=\"ok\"}").await;
    let metrics = up.edge.metrics().await;
    let all: f64 = metrics
        .iter()
        .filter(|(series, _)| series.starts_with("iop_attempts_total"))
        .map(|(_, value)| value)
        .sum();
    assert_eq!(all, 4.0, "no attempt more than requests ({attempts} of them well)");
}
