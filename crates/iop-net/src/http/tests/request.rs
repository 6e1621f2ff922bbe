use std::collections::VecDeque;
use std::task::{Context, Poll};

use super::*;

/// A body that yields what the test sends it.
struct Parts(tokio::sync::mpsc::UnboundedReceiver<Result<Bytes, BodyLost>>);

impl BodySource for Parts {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyLost>>> {
        self.0.poll_recv(cx)
    }
}

type Feeder = tokio::sync::mpsc::UnboundedSender<Result<Bytes, BodyLost>>;

fn stream(length: Option<u64>) -> (Feeder, Request) {
    let (feeder, parts) = tokio::sync::mpsc::unbounded_channel();
    let body = Body::Stream { source: Box::new(Parts(parts)), length };
    (feeder, request(Method::POST, "/v1/audio", body))
}

/// Accepts, answers once `end` was received, and returns what was.
async fn receive_until(provider: &Provider, end: &str) -> String {
    let mut stream = provider.accept().await;
    let mut read = Vec::new();
    while !read.ends_with(end.as_bytes()) {
        assert!(soon(stream.read_buf(&mut read)).await.unwrap() > 0);
    }
    stream.write_all(OK.as_bytes()).await.unwrap();
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn the_pool_writes_address_and_framing_and_the_caller_the_rest() {
    let provider = Provider::start().await;
    let mut request = post("hello");
    request.path = "/v1/chat/completions?a=1&a=2&b=%20".to_owned();
    for (name, value) in [
        ("host", "elsewhere"),
        ("connection", "close"),
        ("keep-alive", "timeout=5"),
        ("transfer-encoding", "chunked"),
        ("content-length", "99"),
        ("expect", "100-continue"),
        ("upgrade", "h2c"),
        ("te", "trailers"),
        ("x-title", "home"),
    ] {
        request.headers.append(name, value.parse().unwrap());
    }
    let mut call = provider.pool.call(request);
    let (head, text) = tokio::join!(soon(call.head()), receive_until(&provider, "hello"));
    assert_eq!(head.unwrap().status, 200);
    let mut lines: Vec<_> = text.split("\r\n").collect();
    assert_eq!(lines.remove(0), "POST /v1/chat/completions?a=1&a=2&b=%20 HTTP/1.1");
    lines.sort_unstable();
    let host = format!("host: {}", provider.listener.local_addr().unwrap());
    assert_eq!(lines, ["", "content-length: 5", "hello", &host, "te: trailers", "x-title: home"]);
}

#[tokio::test]
async fn a_post_without_a_body_says_so() {
    let provider = Provider::start().await;
    for (method, says) in [(Method::POST, true), (Method::GET, false), (Method::DELETE, false)] {
        let mut call = provider.pool.call(request(method.clone(), "/v1/x", Body::empty()));
        let (head, text) = tokio::join!(soon(call.head()), receive_until(&provider, "\r\n\r\n"));
        assert_eq!(head.unwrap().status, 200);
        assert_eq!(text.contains("content-length: 0"), says, "{method}");
    }
}

#[tokio::test]
async fn a_body_of_known_length_is_sent_with_it_and_handed_over_with_its_last_byte() {
    let provider = Provider::start().await;
    let (feeder, request) = stream(Some(6));
    let mut call = provider.pool.call(request);
    let feeding = async {
        let mut parts = VecDeque::from(["on", "", "e", "two"]);
        while let Some(part) = parts.pop_front() {
            feeder.send(Ok(Bytes::from_static(part.as_bytes()))).unwrap();
            tokio::task::yield_now().await;
        }
        // The source stays open: the length says that nothing follows.
    };
    let (text, head, ()) =
        tokio::join!(receive_until(&provider, "onetwo"), soon(call.head()), feeding);
    assert_eq!(head.unwrap().status, 200);
    assert!(text.contains("content-length: 6\r\n") && !text.contains("chunked"), "{text}");
    assert!(call.is_handed_over());
    assert_eq!(call.sent_bytes(), text.len() as u64);
}

#[tokio::test]
async fn a_body_of_unknown_length_is_chunked_and_handed_over_with_the_last_chunk() {
    let provider = Provider::start().await;
    let (feeder, request) = stream(None);
    let mut call = provider.pool.call(request);
    let mut accepted = {
        let mut accepted = None;
        feeder.send(Ok("one".into())).unwrap();
        soon(async {
            tokio::select! {
                _ = call.head() => panic!("nobody answered"),
                stream = async {
                    let mut stream = provider.accept().await;
                    let mut read = Vec::new();
                    while !read.ends_with(b"3\r\none\r\n") {
                        stream.read_buf(&mut read).await.unwrap();
                    }
                    stream
                } => accepted = Some(stream),
            }
        })
        .await;
        accepted.unwrap()
    };
    assert_eq!((call.phase(), call.is_handed_over()), (Phase::Sending, false));
    feeder.send(Ok("two".into())).unwrap();
    drop(feeder);
    assert!(head_until_handed_over(&mut call).await.is_none());
    assert_eq!(call.phase(), Phase::BeforeHead);
    let mut rest = Vec::new();
    while !rest.ends_with(b"3\r\ntwo\r\n0\r\n\r\n") {
        assert!(soon(accepted.read_buf(&mut rest)).await.unwrap() > 0);
    }
    accepted.write_all(OK.as_bytes()).await.unwrap();
    assert_eq!(soon(call.head()).await.unwrap().status, 200);
    assert_eq!(collect(&mut call).await.unwrap(), b"ok");
    assert_eq!(provider.pool.stats().idle, 1);
}

#[tokio::test]
async fn a_body_whose_source_fails_fails_the_call_and_never_looks_complete() {
    for (length, parts, lost) in [
        (None, vec![Ok(Bytes::from_static(b"one")), Err(BodyLost::CutOff)], BodyLost::CutOff),
        (Some(9), vec![Ok(Bytes::from_static(b"one"))], BodyLost::WrongLength),
        (Some(2), vec![Ok(Bytes::from_static(b"one"))], BodyLost::WrongLength),
    ] {
        let provider = Provider::start().await;
        let (feeder, request) = stream(length);
        for part in parts {
            feeder.send(part).unwrap();
        }
        drop(feeder);
        let mut call = provider.pool.call(request);
        let (head, received) = tokio::join!(soon(call.head()), async {
            let mut stream = provider.accept().await;
            let mut received = Vec::new();
            // Ended or reset, as the kernel likes.
            let _ = soon(stream.read_to_end(&mut received)).await;
            String::from_utf8(received).unwrap()
        });
        assert!(
            matches!(head, Err(CallError::RequestBody { source, .. }) if source == lost),
            "{head:?}"
        );
        assert!(!received.ends_with("0\r\n\r\n"), "{received}");
        assert_eq!(provider.pool.stats(), PoolStats::default());
    }
}

#[tokio::test]
async fn an_early_answer_gets_through_although_the_provider_stopped_reading() {
    let provider = Provider::start().await;
    // Fits the receive window, so that it has arrived when the provider resets; takes several reads.
    let why = "y".repeat(40_000);
    for leaves in [false, true] {
        let huge = Bytes::from(vec![b'x'; 64 << 20]);
        let mut call = provider.pool.call(request(Method::POST, "/v1/x", Body::Full(huge)));
        let (head, stream) = tokio::join!(soon(call.head()), async {
            let mut stream = provider.accept().await;
            let mut start = [0; 1024];
            soon(stream.read_exact(&mut start)).await.unwrap();
            let head = format!("HTTP/1.1 413 Too Large\r\ncontent-length: {}\r\n\r\n", why.len());
            stream.write_all((head + &why).as_bytes()).await.unwrap();
            // To close with the rest unread is a reset.
            (!leaves).then_some(stream)
        });
        assert_eq!(head.unwrap().status, 413);
        assert!(!call.is_handed_over());
        assert_eq!(collect(&mut call).await.unwrap(), why.as_bytes());
        // Half a request is still owed: the connection is of no further use.
        assert_eq!(provider.pool.stats(), PoolStats::default());
        drop(stream);
    }
}

#[tokio::test]
async fn a_request_that_cannot_be_written_opens_no_connection() {
    let provider = Provider::start().await;
    for path in ["", "v1/models", "/v1/mod els", "/v1/\u{7f}", "http://elsewhere/v1"] {
        let error =
            soon(provider.pool.call(request(Method::GET, path, Body::empty())).head()).await;
        assert!(matches!(error, Err(CallError::Request { .. })), "{path:?}: {error:?}");
    }
    assert_eq!(provider.pool.stats(), PoolStats::default());
}
