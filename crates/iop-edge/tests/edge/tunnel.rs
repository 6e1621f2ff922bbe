//! Raw relay: what reaches the provider, and what of its answer reaches the client.

use bytes::Bytes;
use iop_testkit::http::Client;
use iop_types::{ErrorCode, Failure, Header, TunnelFrame};
use proptest::prelude::*;
use serde_json::json;

use crate::support::{
    CHAT, CONTENT, DONE, FINISH, USAGE, World, refused, soon, streamed, tunnel, unary,
};

const ALIAS: &str = "version: 1
nodes:
  box:
    providers:
      p: { adapter: openai_compat, endpoint: 'http://127.0.0.1:1', response_stall_timeout: 7s }
routes:
  alias:
    candidates: [{ node: box, provider: p, target: org/very-long-name }]
    timeout: 9m
";

#[tokio::test]
async fn an_answer_that_has_no_body_promises_none_and_the_connection_goes_on() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let mut client = world.client().await;
    for status in [204, 304, 204] {
        client.post(CHAT, &unary()).await.unwrap();
        let mut taken = node.next().await;
        let cookie = ("set-cookie", "a=b");
        taken.respond(status, &[("content-length", "12"), cookie, ("x-kept", "1")]).await;
        taken.end();
        let head = client.head().await.unwrap();
        assert_eq!((head.status, head.header("content-length")), (status, None));
        assert_eq!((head.header("set-cookie"), head.header("x-kept")), (None, Some("1")));
        assert_eq!(client.body().await.unwrap(), "");
    }
    assert_eq!(world.last_run().await["terminal"]["kind"], "completed");
}

#[tokio::test]
async fn only_the_models_name_changes_in_a_request_and_its_framing_is_made_anew() {
    let world = World::with(ALIAS).await;
    let mut node = world.node("box", vec![tunnel("p", &["org/very-long-name"], 1)]).await;
    let mut client = world.client().await;
    // Three chunks, unknown members, odd spacing, a query, and headers of every kind.
    client
        .send(
            "POST /v1/chat/completions?api-version=1&a=%20&a=2 HTTP/1.1\r\nHost: localhost\r\n\
             Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n\
             AUTHORIZATION: Bearer edge-token\r\nX-Api-Key: k\r\nCookie: c=1\r\nOpenAI-Beta: passes\r\nX-Custom: 1\r\n\
             Accept-Encoding: gzip\r\nConnection: X-Hop\r\nX-Hop: 1\r\nx-session-id: s-1\r\n\r\n\
             10\r\n{ \"min_p\" : 0.1 \r\n",
        )
        .await
        .unwrap();
    client.send("12\r\n, \"model\":\"alias\",\r\n").await.unwrap();
    client.send("1b\r\n \"x_vendor\":{\"a\":[1,null]}}\r\n0\r\n\r\n").await.unwrap();

    let taken = node.next().await;
    let expected =
        "{ \"min_p\" : 0.1 , \"model\":\"org/very-long-name\", \"x_vendor\":{\"a\":[1,null]}}";
    assert_eq!(taken.body, expected);
    let request = taken.tunnel();
    assert_eq!(request.method, "POST");
    assert_eq!(request.path_and_query, "/v1/chat/completions?api-version=1&a=%20&a=2");
    assert_eq!(request.content_length, Some(expected.len() as u64));
    assert_eq!(request.head.target.as_str(), "org/very-long-name");
    assert_eq!(request.head.provider.as_str(), "p");
    assert_eq!(request.head.stall_timeout.as_wire(), 7_000);
    assert_eq!(request.head.session_id.as_ref().unwrap().as_str(), "s-1");
    assert!(request.head.ends_within.unwrap().as_secs() > 500);
    assert!(request.head.first_progress_within.unwrap().as_secs() > 800);
    assert_eq!(taken.header("openai-beta").as_deref(), Some("passes"));
    assert_eq!(taken.header("content-type").as_deref(), Some("application/json"));
    assert_eq!(taken.header("accept-encoding").as_deref(), Some("identity"));
    for name in [
        "authorization",
        "x-api-key",
        "cookie",
        "x-custom",
        "x-hop",
        "connection",
        "host",
        "transfer-encoding",
        "content-length",
    ] {
        assert_eq!(taken.header(name), None, "{name}");
    }
    taken.unary(200, "{\"choices\":[]}").await;
    let head = client.head().await.unwrap();
    assert_eq!((head.status, head.header("x-session-id")), (200, Some("s-1")));
    assert!(head.header("x-request-id").is_some());
    assert_eq!(client.body().await.unwrap(), "{\"choices\":[]}");
    world.idle().await;
}

#[tokio::test]
async fn a_providers_error_passes_with_its_status_type_and_headers() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let cases = [
        (429, "application/json", "{\"error\":{\"message\":\"slow down\"}}"),
        (400, "application/json", "{\"error\":{\"message\":\"context too long\"}}"),
        (503, "text/html", "<h1>busy</h1>"),
        (200, "text/html", "<h1>hello</h1>"),
    ];
    for (status, media, body) in cases {
        // With its own option the client alone is to blame for a 400.
        let mut asked = streamed();
        asked["stream_options"] = json!({ "include_usage": true });
        let mut client = world.chat(&asked).await;
        let mut taken = node.next().await;
        taken
            .respond(
                status,
                &[
                    ("content-type", media),
                    ("retry-after", "7"),
                    ("x-ratelimit-remaining-requests", "0"),
                ],
            )
            .await;
        taken.data(body).await;
        taken.end();
        let head = client.head().await.unwrap();
        assert_eq!((head.status, head.header("content-type")), (status, Some(media)));
        assert_eq!(head.header("retry-after"), Some("7"));
        assert_eq!(head.header("x-ratelimit-remaining-requests"), Some("0"));
        assert_eq!(client.body().await.unwrap(), body);
        let run = world.last_run().await;
        let kind = if status == 200 { "completed" } else { "failed" };
        assert_eq!(run["terminal"]["kind"], kind, "{run}");
    }
    world.idle().await;
}

#[tokio::test]
async fn a_failure_before_the_head_is_an_answer_with_its_status() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let mut client = world.chat(&streamed()).await;
    let failure = Failure::new(ErrorCode::ConnectFailed, "cannot connect to provider `p`");
    // With nobody else to ask it is tried once.
    node.next().await.fail(failure);
    let (head, message) = refused(&mut client, 502, "connect_failed").await;
    assert!(message.contains("cannot connect"), "{message}");
    assert_eq!(head.header("x-should-retry"), Some("true"));
    assert_eq!(world.last_run().await["terminal"]["code"], "connect_failed");
    world.idle().await;
}

#[tokio::test]
async fn a_tunnel_that_breaks_after_its_head_ends_the_clients_body_abnormally() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let mut client = world.chat(&streamed()).await;
    let mut taken = node.next().await;
    taken.begin_stream().await;
    taken.data(CONTENT).await;
    assert_eq!(client.head().await.unwrap().status, 200);
    assert_eq!(client.event().await.unwrap().unwrap(), CONTENT.trim_end());
    // What is handed over together with the end still arrives.
    taken.data(CONTENT).await;
    taken.fail(Failure::new(ErrorCode::ProviderError, "connection reset"));
    let (rest, end) = client.body_and_end().await;
    assert_eq!(rest, CONTENT);
    assert!(end.unwrap_err().is_early_end());
    let run = world.last_run().await;
    assert_eq!((&run["terminal"]["kind"], &run["form"]), (&json!("failed"), &json!("tunnel")));
    world.idle().await;
}

#[tokio::test]
async fn an_http_1_0_client_sees_a_reset_where_an_end_would_look_clean() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let mut client = world.client().await;
    let body = streamed().to_string();
    let request = format!("POST {CHAT} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    client.send(request).await.unwrap();
    let mut taken = node.next().await;
    taken.begin_stream().await;
    taken.data(CONTENT).await;
    client.head().await.unwrap();
    assert_eq!(client.event().await.unwrap().unwrap(), CONTENT.trim_end());
    taken.fail(Failure::new(ErrorCode::ProviderError, "connection reset"));
    let (_, end) = client.body_and_end().await;
    assert!(end.is_err(), "an end of file would pass for a whole answer");
    world.idle().await;
}

#[tokio::test]
async fn a_node_that_dies_gives_its_clients_one_typed_end() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let mut early = world.chat(&streamed()).await;
    let _before_head = node.next().await;
    let mut late = world.chat(&streamed()).await;
    let mut after_head = node.next().await;
    after_head.begin_stream().await;
    assert_eq!(late.head().await.unwrap().status, 200);
    node.die().await;
    let (_, message) = refused(&mut early, 502, "node_lost").await;
    assert!(message.contains("the link to node `box` ended"), "{message}");
    let (_, end) = late.body_and_end().await;
    assert!(end.unwrap_err().is_early_end());
    world.idle().await;
    // It comes back under a larger generation and serves on.
    let mut node = world.node("box", vec![tunnel("p", &["m"], 8)]).await;
    let generation = &world.admin("/api/v1/nodes").await["nodes"][0]["link"]["generation"];
    assert!(generation.as_u64().unwrap() > 1);
    let mut client = world.chat(&unary()).await;
    node.next().await.unary(200, "{}").await;
    assert_eq!(client.head().await.unwrap().status, 200);
}

#[tokio::test]
async fn a_stream_without_a_finish_reason_is_truncated_even_after_its_end_mark() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    // Without the mark, the client's body ends abnormally.
    let mut client = world.chat(&streamed()).await;
    node.next().await.stream(&[CONTENT, CONTENT]).await;
    client.head().await.unwrap();
    let (body, end) = client.body_and_end().await;
    assert_eq!(body, [CONTENT, CONTENT].concat());
    assert!(end.unwrap_err().is_early_end());
    assert_eq!(world.last_run().await["terminal"]["code"], "truncated");
    // With it, the client has all there is.
    let mut client = world.chat(&streamed()).await;
    node.next().await.stream(&[CONTENT, DONE]).await;
    client.head().await.unwrap();
    assert_eq!(client.body().await.unwrap(), [CONTENT, DONE].concat());
    let run = world.last_run().await;
    assert_eq!(
        (&run["terminal"]["kind"], &run["terminal"]["code"]),
        (&json!("failed"), &json!("truncated"))
    );
    world.idle().await;
}

#[tokio::test]
async fn an_error_object_in_a_stream_passes_and_fails_the_run() {
    const ERROR: &str = "data: {\"error\":{\"message\":\"quota\",\"type\":\"insufficient_quota\",\"code\":429}}\n\n";
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let mut client = world.chat(&streamed()).await;
    node.next().await.stream(&[ERROR, DONE]).await;
    client.head().await.unwrap();
    assert_eq!(client.body().await.unwrap(), [ERROR, DONE].concat());
    let run = world.last_run().await;
    assert_eq!(run["terminal"]["kind"], "failed", "{run}");
    assert!(run["terminal"]["message"].as_str().unwrap().contains("quota"), "{run}");
}

#[tokio::test]
async fn each_event_arrives_as_it_is_sent_with_headers_that_tell_proxies_so() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let mut client = world.chat(&streamed()).await;
    let mut taken = node.next().await;
    taken.begin_stream().await;
    // The head comes before any event.
    let head = client.head().await.unwrap();
    assert_eq!(head.header("x-accel-buffering"), Some("no"));
    assert_eq!(head.header("cache-control"), Some("no-cache, no-transform"));
    for _ in 0..3 {
        taken.data(CONTENT).await;
        assert_eq!(client.event().await.unwrap().unwrap(), CONTENT.trim_end());
    }
    taken.data(FINISH).await;
    taken.end();
    assert_eq!(client.body().await.unwrap(), FINISH);
    world.idle().await;
}

#[tokio::test]
async fn an_encoded_answer_passes_with_header_and_bytes_untouched() {
    const GZIPPED: &[u8] = &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xff, 0xfe, 0];
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    for media in ["text/event-stream", "application/json"] {
        let mut client = world.chat(&streamed()).await;
        let mut taken = node.next().await;
        taken
            .respond(
                200,
                &[("content-type", media), ("content-encoding", "gzip"), ("content-length", "13")],
            )
            .await;
        taken.data(Bytes::from_static(GZIPPED)).await;
        taken.end();
        let head = client.head().await.unwrap();
        assert_eq!(head.header("content-encoding"), Some("gzip"));
        assert_eq!(head.header("content-length"), Some("13"));
        assert_eq!(client.body().await.unwrap(), GZIPPED);
        assert_eq!(world.last_run().await["terminal"]["kind"], "completed");
    }
}

#[tokio::test]
async fn hop_by_hop_headers_of_a_provider_stay_on_its_hop() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let mut client = world.chat(&unary()).await;
    let mut taken = node.next().await;
    taken
        .respond(
            200,
            &[
                ("content-type", "application/json"),
                ("keep-alive", "timeout=5"),
                ("transfer-encoding", "chunked"),
                ("access-control-allow-origin", "*"),
            ],
        )
        .await;
    taken.data("{}").await;
    taken.end();
    let head = client.head().await.unwrap();
    assert_eq!(head.header("keep-alive"), None);
    assert_eq!(head.header("access-control-allow-origin"), None);
    assert_eq!(client.body().await.unwrap(), "{}");
}

#[tokio::test]
async fn trailers_reach_a_client_that_asked_for_them() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let mut client = world.client().await;
    let body = unary().to_string();
    client.request("POST", CHAT, &[("te", "trailers"), ("connection", "te")], &body).await.unwrap();
    let mut taken = node.next().await;
    taken.respond(200, &[("content-type", "application/json")]).await;
    taken.data("{}").await;
    taken.frame(TunnelFrame::Trailers(vec![Header::from_static("x-sum", "1")])).await.unwrap();
    taken.end();
    client.head().await.unwrap();
    assert_eq!(client.body().await.unwrap(), "{}");
    world.idle().await;
}

#[tokio::test]
async fn a_large_answer_is_relayed_whole_whatever_its_usage_looks_like() {
    const MIB: usize = 1024 * 1024;
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    for usage in ["{\"prompt_tokens\":3,\"completion_tokens\":4}", "{\"prompt_tokens\":\"many\"}"] {
        let mut client = world.chat(&unary()).await;
        let mut taken = node.next().await;
        taken.respond(200, &[("content-type", "application/json")]).await;
        let sending = tokio::spawn(async move {
            taken.data("{\"data\":\"").await;
            for _ in 0..20 * MIB / 16_384 {
                taken.data(vec![b'x'; 16_384]).await;
            }
            taken.data(format!("\",\"usage\":{usage}}}")).await;
            taken.end();
        });
        client.head().await.unwrap();
        let body = client.body().await.unwrap();
        assert_eq!(body.len(), 20 * MIB + "{\"data\":\"\",\"usage\":}".len() + usage.len());
        sending.await.unwrap();
        let usage_seen = world.last_run().await["usage"]["output_tokens"].clone();
        // What cannot be read is unknown, and no zero.
        let expected = if usage.contains("many") { json!(null) } else { json!(4) };
        assert_eq!(usage_seen, expected);
    }
    world.idle().await;
}

#[tokio::test]
async fn requests_on_one_connection_follow_each_other() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let mut client = world.client().await;
    for _ in 0..3 {
        client.post(CHAT, &unary()).await.unwrap();
        node.next().await.unary(200, "{}").await;
        assert_eq!(client.head().await.unwrap().status, 200);
        assert_eq!(client.body().await.unwrap(), "{}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn bytes_are_the_providers_however_they_are_cut(
        cuts in proptest::collection::vec(1_usize..40, 1..60),
        asks_usage: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // A client that asks for usage gets the provider's chunk, whole like the rest.
        let usage = if asks_usage { USAGE } else { "" };
        let whole: Vec<u8> = [
            ": PROVIDER BUSY\n\n", CONTENT,
            "data:{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"안\"}}]}\r\n\r\n",
            "event: ping\ndata: {}\n\n", FINISH, usage, DONE,
        ]
        .concat()
        .into_bytes();
        let relayed = runtime.block_on(async {
            let (world, mut node) = World::tunnelling("version: 1\n").await;
            let mut asked = streamed();
            if asks_usage {
                asked["stream_options"] = json!({ "include_usage": true });
            }
            let mut client: Client = world.chat(&asked).await;
            let mut taken = node.next().await;
            taken.begin_stream().await;
            let mut rest = Bytes::from(whole.clone());
            for cut in cuts {
                let piece = rest.split_to(cut.min(rest.len()));
                if !piece.is_empty() {
                    taken.data(piece).await;
                }
            }
            if !rest.is_empty() {
                taken.data(rest).await;
            }
            taken.end();
            client.head().await.unwrap();
            soon("the whole body", client.body()).await.unwrap()
        });
        prop_assert_eq!(relayed, whole);
    }
}
