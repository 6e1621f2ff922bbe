//! Methods, paths, Host, Origin, CORS, and HTTP/2.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use iop_testkit::http::{Client, Head};
use iop_types::{ErrorCode, Failure};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::support::{
    CHAT, CONTENT, DONE, FINISH, World, error, refused, soon, streamed, unary, until,
};

async fn ask(world: &World, method: &str, path: &str, headers: &[(&str, &str)]) -> (Head, Bytes) {
    let mut client = world.client().await;
    client.request(method, path, headers, "").await.unwrap();
    let head = client.head().await.unwrap();
    let body = client.body().await.unwrap();
    (head, body)
}

#[tokio::test]
async fn unknown_paths_and_wrong_methods_are_json_errors() {
    let world = World::new().await;
    for (method, path, status) in [
        ("GET", "/", 404),
        ("GET", "/v1/nope", 404),
        ("GET", "/v1/models/", 404),
        ("POST", "/v1/nope", 404),
        ("GET", CHAT, 405),
        ("PUT", CHAT, 405),
        ("DELETE", "/v1/models/m", 405),
        ("POST", "/health", 405),
    ] {
        let (head, body) = ask(&world, method, path, &[]).await;
        let body: Value = serde_json::from_slice(&body).unwrap();
        let code = if status == 404 { "not_found" } else { "invalid_request" };
        error(&head, &body, status, code);
        assert_eq!(head.header("allow").is_some(), status == 405, "{method} {path}");
    }
}

#[tokio::test]
async fn an_admin_path_among_the_clients_is_told_from_a_mistyped_one_and_no_address_is_given_away()
{
    let world = World::new().await;
    let (head, body) = ask(&world, "GET", "/api/v1/status", &[]).await;
    let body: Value = serde_json::from_slice(&body).unwrap();
    let message = body["error"]["message"].as_str().unwrap();
    assert_eq!((head.status, &body["error"]["code"]), (404, &json!("not_found")));
    assert!(message.contains("this is the clients' listener"), "{message}");
    assert!(!message.contains("127.0.0.1") && !message.contains("7402"), "{message}");
}

#[tokio::test]
async fn health_and_readiness_answer_on_both_listeners_to_get_and_head() {
    let (world, _node) = World::tunnelling("version: 1\n").await;
    for address in [world.clients, world.admin] {
        for path in ["/health", "/ready"] {
            let (head, body) = iop_testkit::http::get(address, path).await.unwrap();
            assert_eq!(head.status, 200, "{path}");
            assert!(!body.is_empty() && head.header("x-request-id").is_some());
        }
    }
    let mut client = world.client().await;
    client.send("HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    // The answer to HEAD has no body: the next answer follows its head.
    let first = client.head().await.unwrap();
    assert_eq!(first.status, 200);
}

#[tokio::test]
async fn a_foreign_host_or_origin_is_refused_on_every_listener() {
    let (world, node) = World::tunnelling("version: 1\nhosts: [edge.home]\n").await;
    for address in [world.clients, world.admin] {
        for (headers, status) in [
            ([("host", "evil.example"), ("x-a", "b")], 403),
            ([("host", "localhost"), ("origin", "https://evil.example")], 403),
            ([("host", "localhost"), ("origin", "null")], 403),
            ([("host", "edge.home:7400"), ("x-a", "b")], 200),
        ] {
            let mut client = Client::connect(address).await.unwrap();
            client.request("GET", "/health", &headers, "").await.unwrap();
            assert_eq!(client.head().await.unwrap().status, status, "{headers:?}");
        }
    }
    let mut client = world.client().await;
    let body = unary().to_string();
    client.request("POST", CHAT, &[("host", "evil.example")], body).await.unwrap();
    let (_, message) = refused(&mut client, 403, "forbidden").await;
    assert!(message.contains("evil.example") && message.contains("`hosts`"), "{message}");
    assert!(!node.has_request());
}

#[tokio::test]
async fn cors_lets_named_pages_in_and_tells_others_nothing() {
    const PAGE: (&str, &str) = ("origin", "https://app.example");
    let asks = [
        PAGE,
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type,x-stainless-os"),
    ];
    let (world, mut node) =
        World::tunnelling("version: 1\ncors: { origins: ['https://app.example'] }\n").await;
    let (head, _) = ask(&world, "OPTIONS", CHAT, &asks).await;
    assert_eq!(head.status, 204);
    assert_eq!(head.header("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!(
        head.header("access-control-allow-headers"),
        Some("authorization,content-type,x-stainless-os")
    );
    assert!(head.header("access-control-allow-methods").unwrap().contains("POST"));
    assert!(!node.has_request(), "nothing is dispatched");
    // Errors and streams carry the origin too.
    let (head, _) = ask(&world, "GET", "/v1/nope", &[PAGE]).await;
    assert_eq!(head.header("access-control-allow-origin"), Some("https://app.example"));
    let mut client = world.client().await;
    client.request("POST", CHAT, &[PAGE], streamed().to_string()).await.unwrap();
    let taken = node.next().await;
    assert_eq!(taken.header("origin"), None);
    taken.stream(&[CONTENT, FINISH, DONE]).await;
    let head = client.head().await.unwrap();
    assert_eq!(head.header("access-control-allow-origin"), Some("https://app.example"));
    // Off: no allow headers, whatever is asked.
    let off = World::new().await;
    let (head, _) = ask(&off, "OPTIONS", CHAT, &asks).await;
    assert_eq!(head.status, 403);
    assert!(head.headers.iter().all(|(name, _)| !name.starts_with("access-control-")));
    let (head, _) = ask(&off, "OPTIONS", CHAT, &[]).await;
    assert_eq!(head.status, 405);
}

/// A connection of an HTTP/2 client.
pub(crate) async fn http_2(world: &World) -> SendRequest<Full<Bytes>> {
    let socket = TcpStream::connect(world.clients).await.unwrap();
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// A chat for [`http_2`].
pub(crate) fn post(world: &World, body: &Value) -> hyper::Request<Full<Bytes>> {
    hyper::Request::post(format!("http://{}{CHAT}", world.clients))
        .header("authorization", "Bearer edge-token")
        .body(Full::new(Bytes::from(body.to_string())))
        .unwrap()
}

#[tokio::test]
async fn http_2_clients_are_served_and_see_an_abort_as_an_abort() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let mut sender = http_2(&world).await;
    // Served whole.
    let answer = tokio::spawn(sender.send_request(post(&world, &streamed())));
    let taken = node.next().await;
    assert_eq!(taken.header("authorization"), None);
    taken.stream(&[CONTENT, FINISH, DONE]).await;
    let response = soon("the answer", answer).await.unwrap().unwrap();
    assert!(response.headers().contains_key("x-request-id"));
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, [CONTENT, FINISH, DONE].concat());
    // Broken off: the stream is reset, the connection lives.
    let answer = tokio::spawn(sender.send_request(post(&world, &streamed())));
    let mut taken = node.next().await;
    taken.begin_stream().await;
    taken.data(CONTENT).await;
    let response = soon("the head", answer).await.unwrap().unwrap();
    taken.fail(Failure::new(ErrorCode::ProviderError, "connection reset"));
    assert!(response.into_body().collect().await.is_err());
    // A request that is dropped is a client that left.
    let answer = tokio::spawn(sender.send_request(post(&world, &json!({ "model": "m" }))));
    let taken = node.next().await;
    answer.abort();
    taken.cancelled().await;
    until("nothing is left", async || world.metric("iop_requests_in_flight").await == Some(0.0))
        .await;
}
