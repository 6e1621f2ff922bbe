//! Tunnels: what the provider sees and what comes back.

use std::time::{Duration, Instant};

use bytes::Bytes;
use iop_execution::{Body, CallError, cancellation};
use iop_testkit::script::{Cut, Script};
use iop_testkit::{PATIENCE, ScriptedProvider, answer};
use iop_types::{ErrorCode, TunnelFrame};
use proptest::prelude::*;
use serde_json::json;

use crate::support::{
    CHAT, Items, adapter, built, cut_off, header, settings, streamed, tunnel, tunnel_request, watch,
};

fn full(text: &str) -> Body {
    Body::Full(Bytes::copy_from_slice(text.as_bytes()))
}

#[tokio::test]
async fn the_provider_sees_path_query_listed_headers_and_body_as_the_client_sent_them() {
    let provider = ScriptedProvider::start().await;
    // FC-055: parameters that only some servers know stay where they are.
    let body = r#"{"model":"m", "min_p":0.1,"x_vendor":{"a":[1,null]},
        "chat_template_kwargs":{"t":true},"guided_json":{} }"#;
    let path = format!("{CHAT}?a=1&a=2&b=%20");
    let sent = [
        ("content-type", "application/json"),
        ("OpenAI-Beta", "1"),
        ("X-Custom", "1"),
        ("accept", "*/*"),
    ];
    let outcome = tunnel(&*adapter(&provider), tunnel_request(&path, &sent), full(body)).await;
    assert_eq!(outcome.result, Ok(()));

    let log = provider.log();
    let request = &log.exchanges[0].request;
    assert_eq!((request.method.as_str(), &request.target), ("POST", &path));
    assert_eq!(request.body, body);
    assert_eq!(request.header("openai-beta"), Some("1"));
    assert_eq!(request.header("x-custom"), None, "what is on no list stays here");
    assert_eq!(request.header("host"), Some(provider.address().to_string().as_str()));
    assert_eq!(request.header("content-length"), Some(body.len().to_string().as_str()));
    assert_eq!(request.header("transfer-encoding"), None);
    assert!(log.malformed.is_empty(), "{:?}", log.malformed);
}

#[tokio::test]
async fn the_clients_credentials_end_here_and_the_providers_own_are_added() {
    let provider = ScriptedProvider::start().await;
    let sent = [
        ("Authorization", "Bearer edge-token"),
        ("AUTHORIZATION", "Bearer edge-token"),
        ("X-API-Key", "edge-token"),
        ("cookie", "s=edge-token"),
        ("proxy-authorization", "edge-token"),
        ("expect", "100-continue"),
        ("connection", "close, x-hop"),
        ("x-hop", "edge-token"),
        ("content-length", "999"),
        ("transfer-encoding", "chunked"),
    ];
    tunnel(&*adapter(&provider), tunnel_request(CHAT, &sent), full("{}")).await;
    let mut own = settings(&provider.endpoint());
    own.secret = Some(iop_adapters::Secret::new("sk-provider").unwrap());
    own.headers = vec![header("X-Title", "home")];
    tunnel(&*built(&own), tunnel_request(CHAT, &sent), full("{}")).await;

    let log = provider.log();
    let [without, with] = &log.exchanges[..] else { panic!("two requests") };
    for exchange in [without, with] {
        let request = &exchange.request;
        let leaked = request.headers.iter().any(|(_, value)| value.contains("edge-token"));
        assert!(!leaked, "{:?}", request.headers);
        let names = ["expect", "connection", "x-hop", "transfer-encoding", "cookie", "x-api-key"];
        for name in names {
            assert_eq!(request.header(name), None, "{name}");
        }
        assert_eq!(request.header("content-length"), Some("2"));
    }
    assert_eq!(without.request.header("authorization"), None);
    assert_eq!(with.request.header("authorization"), Some("Bearer sk-provider"));
    assert_eq!(with.request.header("x-title"), Some("home"));
}

#[tokio::test]
async fn what_is_not_on_the_list_of_operations_opens_no_connection() {
    let provider = ScriptedProvider::start().await;
    let adapter = adapter(&provider);
    let paths = [
        "/v1/files",
        "/v1/chat/../files",
        "/v1/chat%2Fcompletions",
        "//v1/chat/completions",
        "/v1/chat/completions/",
        "/V1/chat/completions",
        "/v1/chat/completions#x",
        "http://elsewhere/v1/chat/completions",
        "",
    ];
    for path in paths {
        let outcome = tunnel(&*adapter, tunnel_request(path, &[]), full("{}")).await;
        assert_eq!(outcome.failure().code, ErrorCode::NotFound, "{path}");
    }
    let mut request = tunnel_request(CHAT, &[]);
    request.method = "GET".to_owned();
    assert_eq!(tunnel(&*adapter, request, full("")).await.failure().code, ErrorCode::NotFound);
    assert!(provider.log().connections.is_empty());
}

#[tokio::test]
async fn a_body_of_unknown_length_arrives_as_one_well_framed_request() {
    let provider = ScriptedProvider::start().await;
    let (sender, body) = streamed();
    let parts = async move {
        for part in ["{\"model\"", ":\"m\"", "}"] {
            sender.send(Bytes::from_static(part.as_bytes())).unwrap();
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    };
    let adapter = adapter(&provider);
    let (outcome, ()) = tokio::join!(tunnel(&*adapter, tunnel_request(CHAT, &[]), body), parts);
    assert_eq!(outcome.result, Ok(()));
    let log = provider.log();
    let request = &log.exchanges[0].request;
    assert_eq!(request.body, "{\"model\":\"m\"}");
    assert_eq!(request.header("transfer-encoding"), Some("chunked"));
    assert_eq!(request.header("content-length"), None);
}

#[tokio::test]
async fn a_body_of_known_length_arrives_with_it_although_it_comes_in_parts() {
    let provider = ScriptedProvider::start().await;
    let (sender, body) = streamed();
    for part in ["{\"a\"", ":1}"] {
        sender.send(Bytes::from_static(part.as_bytes())).unwrap();
    }
    drop(sender);
    let mut request = tunnel_request(CHAT, &[]);
    request.content_length = Some(7);
    tunnel(&*adapter(&provider), request, body).await.result.unwrap();
    let log = provider.log();
    assert_eq!(log.exchanges[0].request.header("content-length"), Some("7"));
    assert_eq!(log.exchanges[0].request.body, "{\"a\":1}");
}

#[tokio::test]
async fn a_body_that_is_lost_ends_the_call_and_the_connection() {
    let provider = ScriptedProvider::start().await;
    let (sender, body) = cut_off();
    sender.send(Bytes::from_static(b"{\"half")).unwrap();
    drop(sender);
    let outcome = tunnel(&*adapter(&provider), tunnel_request(CHAT, &[]), body).await;
    assert_eq!(outcome.failure().code, ErrorCode::ClientGone);
    assert!(outcome.items.is_empty());
    let log = provider.wait_until("the connection is gone", |log| log.open_connections() == 0);
    assert!(log.await.exchanges.iter().all(|exchange| exchange.body_at.is_none()));
}

#[tokio::test]
async fn headers_of_one_connection_are_not_relayed_and_others_are_in_order() {
    let provider = ScriptedProvider::start().await;
    for status in [200, 500] {
        provider.once(CHAT, move |_| {
            let headers = [
                ("Connection", "keep-alive, X-Hop"),
                ("Keep-Alive", "timeout=5"),
                ("X-Hop", "1"),
                ("Transfer-Encoding", "chunked"),
                ("X-RateLimit-Remaining-Requests", "0"),
                ("Retry-After", "7"),
                ("Content-Type", "application/json"),
            ];
            Script::new().head(status, &headers).chunk("{}").last_chunk()
        });
    }
    let adapter = adapter(&provider);
    for status in [500, 200] {
        let outcome = tunnel(&*adapter, tunnel_request(CHAT, &[]), full("{}")).await;
        assert_eq!(outcome.result, Ok(()));
        assert_eq!(outcome.head().status, status);
        let names: Vec<_> = outcome.head().headers.iter().map(|header| &header.name[..]).collect();
        let expected: [&[u8]; 3] =
            [b"x-ratelimit-remaining-requests", b"retry-after", b"content-type"];
        assert_eq!(names, expected);
        assert_eq!(outcome.body(), "{}");
    }
}

#[tokio::test]
async fn an_error_passes_with_its_status_type_and_body() {
    let provider = ScriptedProvider::start().await;
    let refusal = r#"{"error":{"message":"context too long"}}"#;
    let page = "<html>bad gateway</html>";
    provider.once(CHAT, move |_| answer::sized(502, "text/html", page));
    provider.once(CHAT, move |_| answer::sized(200, "text/html", page));
    provider.once(CHAT, move |_| answer::sized(400, "application/json", refusal));
    let adapter = adapter(&provider);
    let expected =
        [(400, "application/json", refusal), (200, "text/html", page), (502, "text/html", page)];
    for (status, content_type, body) in expected {
        let outcome = tunnel(&*adapter, tunnel_request(CHAT, &[]), full("{}")).await;
        assert_eq!(outcome.result, Ok(()));
        assert_eq!(outcome.head().status, status);
        assert_eq!(outcome.header("content-type"), Some(content_type));
        assert_eq!(outcome.body(), body);
    }
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let provider = ScriptedProvider::start().await;
    let elsewhere = ScriptedProvider::start().await;
    let location = format!("{}{CHAT}", elsewhere.endpoint());
    provider.on(CHAT, move |_| {
        Script::new().head(307, &[("location", &location), ("content-length", "0")])
    });
    let outcome = tunnel(&*adapter(&provider), tunnel_request(CHAT, &[]), full("{}")).await;
    assert_eq!(outcome.head().status, 307);
    assert!(outcome.header("location").is_some());
    assert!(elsewhere.log().connections.is_empty());
}

#[tokio::test]
async fn extra_members_and_an_encoded_body_come_back_untouched() {
    let provider = ScriptedProvider::start().await;
    let extras = json!({"stop_reason": null, "logprobs": [1], "timings": {"a": 1}, "zz": 1});
    let text = extras.to_string();
    // FC-009: a body that is encoded passes with its header; nothing is decoded on the way.
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\x05\x00\x43\xbf\xa6\xa3\x02\0\0\0";
    provider.once(CHAT, move |request| {
        assert_eq!(request.header("accept-encoding"), Some("gzip"));
        let length = gzip.len().to_string();
        let headers = [
            ("content-type", "text/event-stream"),
            ("content-encoding", "gzip"),
            ("content-length", length.as_str()),
        ];
        Script::new().head(200, &headers).bytes(&gzip[..])
    });
    provider.once(CHAT, move |_| answer::json(200, &extras));
    let adapter = adapter(&provider);
    let plain = tunnel(&*adapter, tunnel_request(CHAT, &[]), full("{}")).await;
    assert_eq!(plain.body(), text);
    assert_eq!(plain.header("content-length"), Some(text.len().to_string().as_str()));

    let accepts = tunnel_request(CHAT, &[("accept-encoding", "gzip")]);
    let encoded = tunnel(&*adapter, accepts, full("{}")).await;
    assert_eq!(encoded.header("content-encoding"), Some("gzip"));
    assert_eq!(encoded.body(), &gzip[..]);
    let is_progress = |frame: &TunnelFrame| frame.is_progress();
    assert!(encoded.items.iter().all(is_progress), "encoded bytes cannot be told apart");
}

#[tokio::test]
async fn comments_and_pings_pass_as_they_are_and_are_no_progress() {
    let provider = ScriptedProvider::start().await;
    let pieces = [
        (": PROVIDER BUSY\n\n", false),
        ("event: ping\ndata: {}\n\n", false),
        ("\n\n", false),
        ("data: {\"choices\":[]}\n\n", true),
    ];
    provider.on(CHAT, move |_| {
        let head = Script::new().head(200, answer::STREAM_HEADERS);
        let between = Duration::from_millis(20);
        let body = pieces.iter().fold(head, |script, (piece, _)| script.chunk(piece).wait(between));
        body.last_chunk()
    });
    let outcome = tunnel(&*adapter(&provider), tunnel_request(CHAT, &[]), full("{}")).await;
    let marks: Vec<_> = outcome
        .items
        .iter()
        .filter_map(|frame| match frame {
            TunnelFrame::Body { data, progress } => Some((data.clone(), *progress)),
            _ => None,
        })
        .collect();
    assert_eq!(
        marks,
        pieces.map(|(piece, progress)| (Bytes::from_static(piece.as_bytes()), progress))
    );
}

#[tokio::test]
async fn trailers_come_after_the_body() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| {
        let headers = [("transfer-encoding", "chunked"), ("trailer", "x-sum")];
        Script::new().head(200, &headers).chunk("a").bytes("0\r\nx-sum: 1\r\n\r\n")
    });
    let outcome = tunnel(&*adapter(&provider), tunnel_request(CHAT, &[]), full("{}")).await;
    assert_eq!(outcome.result, Ok(()));
    assert_eq!(outcome.items.last(), Some(&TunnelFrame::Trailers(vec![header("x-sum", "1")])));
    assert_eq!(outcome.header("trailer"), None);
}

#[tokio::test]
async fn a_length_beside_a_transfer_coding_is_not_relayed() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| {
        let headers = [("transfer-encoding", "chunked"), ("content-length", "3")];
        Script::new().head(200, &headers).chunk("all of it").last_chunk()
    });
    let outcome = tunnel(&*adapter(&provider), tunnel_request(CHAT, &[]), full("{}")).await;
    assert_eq!(outcome.result, Ok(()));
    // With it, the client would get three bytes that look like a whole answer.
    assert_eq!(outcome.header("content-length"), None);
    assert_eq!(outcome.body(), "all of it");
}

#[tokio::test]
async fn an_answer_that_is_cut_off_never_ends_cleanly() {
    let provider = ScriptedProvider::start().await;
    let stream = || Script::new().head(200, answer::STREAM_HEADERS).event("{\"a\":1}");
    provider.once(CHAT, move |_| stream().fin());
    provider.once(CHAT, move |_| stream().wait(Duration::from_millis(50)).reset());
    provider.once(CHAT, |_| answer::short(200, "application/json", "{\"a\"", 3));
    let adapter = adapter(&provider);
    for body in ["{\"a\"", "data: {\"a\":1}\n\n", "data: {\"a\":1}\n\n"] {
        let outcome = tunnel(&*adapter, tunnel_request(CHAT, &[]), full("{}")).await;
        assert_eq!(outcome.failure().code, ErrorCode::Truncated);
        assert_eq!(outcome.body(), body, "what came before the cut was passed on");
    }
}

/// An answer whose end nothing marks but the end of the connection.
async fn unmarked(status: u16, headers: &[(&str, &str)], body: &'static str) -> (Bytes, bool) {
    let provider = ScriptedProvider::start().await;
    let script = Script::new().head(status, headers).cut(Cut::EveryByte).bytes(body).fin();
    provider.once(CHAT, move |_| script.clone());
    let outcome = tunnel(&*adapter(&provider), tunnel_request(CHAT, &[]), full("{}")).await;
    let is_whole = outcome.result.is_ok();
    if !is_whole {
        assert_eq!(outcome.failure().code, ErrorCode::Truncated);
        assert!(outcome.failure().connection_lost);
    }
    (outcome.body(), is_whole)
}

#[tokio::test]
async fn a_body_that_ends_with_the_connection_ends_cleanly() {
    let stream = ("content-type", "text/event-stream");
    let text = ("content-type", "text/plain");
    for (head, body) in [(stream, "data: 1\n\n"), (text, "{\"a\"")] {
        assert_eq!(unmarked(200, &[head], body).await, (body.into(), true));
    }
}

#[tokio::test]
async fn json_that_ends_with_the_connection_is_whole_or_cut_and_its_bytes_pass_either_way() {
    let json = ("content-type", "application/json; charset=utf-8");
    for (body, is_whole) in [
        ("{\"a\":[1,2]}", true),
        ("{\"a\":[1,2]}\r\n", true),
        ("{\"a\":[1,2]", false),
        ("{\"a\":\"}", false),
        ("", false),
    ] {
        assert_eq!(unmarked(200, &[json], body).await, (body.into(), is_whole), "{body:?}");
    }
    // What says nothing of its end, or says that it is an error, is not judged.
    let zipped = [json, ("content-encoding", "gzip")];
    assert_eq!(unmarked(200, &zipped, "{").await, ("{".into(), true));
    assert_eq!(unmarked(500, &[json], "{").await, ("{".into(), true));
    assert_eq!(unmarked(204, &[json], "").await, ("".into(), true));
}

/// HTTP says where these end; what is between is the client's to read.
#[tokio::test]
async fn json_whose_end_is_marked_is_not_judged() {
    let provider = ScriptedProvider::start().await;
    provider.once(CHAT, |_| answer::sized(200, "application/json", "{\"a\""));
    provider.once(CHAT, |_| {
        let headers = [("content-type", "application/json"), ("transfer-encoding", "chunked")];
        Script::new().head(200, &headers).chunk("{\"a\"").last_chunk()
    });
    for _ in 0..2 {
        let outcome = tunnel(&*adapter(&provider), tunnel_request(CHAT, &[]), full("{}")).await;
        assert_eq!((outcome.body(), outcome.result), ("{\"a\"".into(), Ok(())));
    }
}

#[tokio::test]
async fn each_event_is_passed_on_when_it_comes_and_the_head_before_the_first() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| {
        let head = Script::new().head(200, answer::STREAM_HEADERS).hold();
        (0..3).fold(head, |script, _| script.event("x".repeat(250)).hold()).last_chunk()
    });
    let adapter = adapter(&provider);
    let items = Items::default();
    let seen = items.clone();
    let stepping = async {
        for expected in 1..=4 {
            let begun = Instant::now();
            while seen.len() < expected {
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert!(begun.elapsed() < PATIENCE, "item {expected} is missing");
            }
            assert_eq!(seen.len(), expected, "nothing comes before the provider sent it");
            provider.release(1);
        }
    };
    let relay = adapter.tunnel().unwrap();
    let calling = watch(
        items.clone(),
        async |outlet, cancelled| {
            relay.tunnel(tunnel_request(CHAT, &[]), full("{}"), outlet, cancelled).await
        },
        std::future::pending(),
    );
    let (outcome, ()) = tokio::join!(calling, stepping);
    assert_eq!(outcome.result, Ok(()));
}

#[tokio::test]
async fn a_large_answer_and_a_very_long_line_pass_whole() {
    let provider = ScriptedProvider::start().await;
    let large = "0123456789abcdef".repeat(20 << 16);
    let line = format!("data: {}\n\ndata: [DONE]\n\n", "x".repeat(3 << 20));
    let (body, stream) = (large.clone(), line.clone());
    provider.once(CHAT, move |_| answer::sized(200, "text/event-stream", &stream));
    provider.once(CHAT, move |_| answer::sized(200, "application/json", &body));
    let adapter = adapter(&provider);
    for expected in [large, line] {
        let outcome = tunnel(&*adapter, tunnel_request(CHAT, &[]), full("{}")).await;
        assert_eq!(outcome.result, Ok(()));
        assert!(outcome.body() == expected, "bytes differ");
    }
}

#[tokio::test]
async fn a_provider_that_is_not_read_is_not_read_ahead() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| {
        let head = Script::new().head(200, &[("content-type", "text/plain")]);
        let part = Bytes::from(vec![b'x'; 100_000]);
        (0..2_000).fold(head, |script, _| script.bytes(part.clone()))
    });
    let adapter = adapter(&provider);
    // No fence here: the signal alone must reach a call that waits for room.
    let mut items = Items::with_room(3);
    let filling = items.clone();
    let (canceller, mut cancelled) = cancellation();
    let relay = adapter.tunnel().unwrap();
    let request = tunnel_request(CHAT, &[]);
    let call = relay.tunnel(request, full("{}"), &mut items, &mut cancelled);
    let stopping = async {
        let sent = || provider.log().exchanges.first().map_or(0, |exchange| exchange.sent);
        // Full: there is no room, and the provider's writes make no progress any more.
        let mut before = u64::MAX;
        while filling.len() < 3 || sent() != before {
            before = sent();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        canceller.cancel();
        before
    };
    let (result, sent) = tokio::time::timeout(PATIENCE, async { tokio::join!(call, stopping) })
        .await
        .expect("the call returns once it is cancelled");
    assert_eq!(result, Err(CallError::Cancelled));
    assert_eq!(items.len(), 3);
    // The kernel's buffers of both ends hold a few MiB at most.
    assert!(sent < 32 << 20, "{sent} bytes were taken from the provider although nobody reads");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn bytes_are_identical_whatever_the_segmentation(
        body in proptest::collection::vec(
            prop_oneof![
                Just(b"data: {\"choices\":[{\"delta\":{\"content\":\"\xec\x95\x88\"}}]}\n\n".to_vec()),
                Just(b": ping\r\n\r\n".to_vec()),
                Just(b"data: x\r\rdata:y\n\n".to_vec()),
                proptest::collection::vec(any::<u8>(), 0..80),
            ],
            0..12,
        ).prop_map(|parts| parts.concat()),
        sizes in proptest::collection::vec(1_usize..60, 1..5),
        is_chunked in any::<bool>(),
        is_stream in any::<bool>(),
    ) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let provider = ScriptedProvider::start().await;
            let sent = body.clone();
            provider.on(CHAT, move |_| {
                let content_type = if is_stream { "text/event-stream" } else { "audio/mpeg" };
                let length = sent.len().to_string();
                let script = Script::new().cut(Cut::Sizes(sizes.clone()));
                if is_chunked {
                    let head =
                        [("content-type", content_type), ("transfer-encoding", "chunked")];
                    let script = script.head(200, &head);
                    sent.chunks(37).fold(script, Script::chunk).last_chunk()
                } else {
                    let head = [("content-type", content_type), ("content-length", &length)];
                    script.head(200, &head).bytes(sent.clone())
                }
            });
            let outcome = tunnel(&*adapter(&provider), tunnel_request(CHAT, &[]), full("{}")).await;
            prop_assert_eq!(&outcome.result, &Ok(()));
            prop_assert_eq!(outcome.body(), body);
            Ok(())
        })?;
    }
}
