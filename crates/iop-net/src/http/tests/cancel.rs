use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use super::*;
use crate::net::{BoxFuture, Listener, Net};
use crate::socket::Socket;

/// A network whose connections never come about.
#[derive(Debug)]
struct Nowhere(Arc<()>);

impl Net for Nowhere {
    fn resolve<'a>(&'a self, _: &'a str, _: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        Box::pin(std::future::pending())
    }

    fn connect(&self, _: SocketAddr) -> BoxFuture<'_, io::Result<Socket>> {
        let held = Arc::clone(&self.0);
        Box::pin(async move {
            let _held = held;
            std::future::pending().await
        })
    }

    fn listen(&self, _: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(std::future::pending())
    }
}

/// A request body that goes on for ever without yielding.
struct Silent;

impl BodySource for Silent {
    fn poll_part(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyLost>>> {
        Poll::Pending
    }
}

#[tokio::test]
async fn cancelled_before_anything_was_sent_the_call_has_returned() {
    let provider = Provider::start().await;
    let mut call = provider.pool.call(get());
    call.cancel();
    soon(call.returned()).await;
    assert!(matches!(soon(call.head()).await, Err(CallError::Ended { .. })));
    assert_eq!(provider.pool.stats(), PoolStats::default());
}

#[tokio::test]
async fn cancelled_while_connecting_the_attempt_is_given_up() {
    let attempts = Arc::new(());
    let net = Arc::new(Nowhere(Arc::clone(&attempts)));
    let endpoint = Endpoint::parse("http://127.0.0.1:9").unwrap();
    let pool = Pool::new(net, endpoint, Options::new(Egress::Any));
    let mut call = pool.call(get());
    assert!(futures_util::poll!(Box::pin(call.head())).is_pending());
    assert_eq!((call.phase(), Arc::strong_count(&attempts)), (Phase::Connecting, 3));
    call.cancel();
    soon(call.returned()).await;
    assert_eq!(Arc::strong_count(&attempts), 2);
}

#[tokio::test]
async fn cancelled_while_sending_the_provider_sees_the_end_and_its_end_returns_the_call() {
    let provider = Provider::start().await;
    let huge = Bytes::from(vec![b'x'; 64 << 20]);
    let mut call = provider.pool.call(request(Method::POST, "/v1/x", Body::Full(huge)));
    let mut stream = soon(async {
        tokio::select! {
            _ = call.head() => panic!("nobody answered"),
            stream = provider.accept() => stream,
        }
    })
    .await;
    // The kernel's buffers take a part of the body and no more.
    soon(std::future::poll_fn(|cx| {
        let head = call.poll_head(cx);
        assert!(head.is_pending());
        if call.sent_bytes() > 0 { Poll::Ready(()) } else { Poll::Pending }
    }))
    .await;
    assert_eq!((call.phase(), call.is_handed_over()), (Phase::Sending, false));
    call.cancel();
    let received = read_to_end(&mut stream).await.len();
    assert!(received < 64 << 20, "the whole body was sent after the cancel");
    assert!(futures_util::poll!(Box::pin(call.returned())).is_pending());
    drop(stream);
    soon(call.returned()).await;
    assert_eq!(call.phase(), Phase::Ended);
    assert_eq!(provider.pool.stats(), PoolStats::default());
}

#[tokio::test]
async fn cancelled_while_the_request_body_is_awaited_the_provider_sees_the_end() {
    let provider = Provider::start().await;
    let body = Body::Stream { source: Box::new(Silent), length: None };
    let mut call = provider.pool.call(request(Method::POST, "/v1/x", body));
    let mut stream = soon(async {
        tokio::select! {
            _ = call.head() => panic!("nobody answered"),
            stream = async {
                let mut stream = provider.accept().await;
                read_request(&mut stream).await;
                stream
            } => stream,
        }
    })
    .await;
    assert_eq!(call.phase(), Phase::Sending);
    call.cancel();
    assert_eq!(read_to_end(&mut stream).await, b"");
    drop(stream);
    soon(call.returned()).await;
}

#[tokio::test]
async fn cancelled_before_the_head_the_provider_sees_the_end_at_once() {
    let provider = Provider::start().await;
    let (mut call, mut stream) = provider.asked().await;
    assert_eq!(call.phase(), Phase::BeforeHead);
    let started = tokio::time::Instant::now();
    call.cancel();
    assert_eq!(read_to_end(&mut stream).await, b"");
    assert!(started.elapsed() < SOON);
    assert!(futures_util::poll!(Box::pin(call.returned())).is_pending());
    drop(stream);
    soon(call.returned()).await;
}

#[tokio::test]
async fn cancelled_in_the_middle_of_the_response_what_still_comes_is_discarded() {
    let provider = Provider::start().await;
    let (mut call, mut stream) = provider.answering(CHUNKED).await;
    stream.write_all(b"3\r\none\r\n").await.unwrap();
    assert_eq!(soon(call.frame()).await.unwrap(), Some(Frame::Data("one".into())));
    call.cancel();
    assert_eq!(read_to_end(&mut stream).await, b"");
    for _ in 0..100 {
        stream.write_all(b"4\r\nmore\r\n").await.unwrap();
    }
    assert!(futures_util::poll!(Box::pin(call.returned())).is_pending());
    drop(stream);
    soon(call.returned()).await;
    assert_eq!(provider.pool.stats(), PoolStats::default());
}

#[tokio::test]
async fn the_clean_end_of_the_response_returns_the_call_though_the_connection_stays_open() {
    let provider = Provider::start().await;
    let (mut call, mut stream) = provider.asked().await;
    call.cancel();
    stream.write_all(OK.as_bytes()).await.unwrap();
    soon(call.returned()).await;
    // A connection that we half closed is never used again.
    assert_eq!(provider.pool.stats(), PoolStats::default());
    assert_eq!(read_to_end(&mut stream).await, b"");
}

#[tokio::test]
async fn bytes_that_are_not_http_return_nothing_before_the_providers_end() {
    let provider = Provider::start().await;
    for garbage in
        ["not http at all\r\n\r\n", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"]
    {
        let (mut call, mut stream) = provider.asked().await;
        call.cancel();
        stream.write_all(garbage.as_bytes()).await.unwrap();
        let returned = tokio::time::timeout(Duration::from_millis(50), call.returned()).await;
        assert!(returned.is_err(), "the provider is still there");
        drop(stream);
        soon(call.returned()).await;
    }
}

#[tokio::test]
async fn a_reset_returns_the_call() {
    let provider = Provider::start().await;
    let (mut call, stream) = provider.answering(CHUNKED).await;
    call.cancel();
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    soon(call.returned()).await;
}

#[tokio::test]
async fn a_provider_that_ignores_the_end_is_reset_when_the_call_is_dropped() {
    let provider = Provider::start().await;
    let (mut call, mut stream) = provider.answering(CHUNKED).await;
    call.cancel();
    assert_eq!(read_to_end(&mut stream).await, b"");
    drop(call);
    soon(async {
        // The write after the reset fails.
        while stream.write_all(b"4\r\nmore\r\n").await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(provider.pool.stats(), PoolStats::default());
}

#[tokio::test]
async fn a_call_that_is_dropped_in_any_phase_resets_the_provider() {
    let provider = Provider::start().await;
    let (call, mut stream) = provider.asked().await;
    drop(call);
    expect_reset(&mut stream).await;
    let (call, mut stream) = provider.answering(CHUNKED).await;
    drop(call);
    expect_reset(&mut stream).await;
    assert_eq!(provider.pool.stats(), PoolStats::default());
}
