use super::*;

/// Lets one call complete, so that its connection idles.
async fn serve_one(provider: &Provider) -> TcpStream {
    let (mut call, stream) = provider.answering(OK).await;
    assert_eq!(collect(&mut call).await.unwrap(), b"ok");
    assert_eq!(provider.pool.stats(), PoolStats { open: 1, idle: 1 });
    stream
}

/// Lets the reactor hear what the kernel knows.
async fn settle() {
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_next_call_uses_the_connection_of_the_last() {
    let provider = Provider::start().await;
    let mut stream = serve_one(&provider).await;
    for _ in 0..3 {
        let mut call = provider.pool.call(post("again"));
        let (head, ()) = tokio::join!(soon(call.head()), async {
            assert!(read_request(&mut stream).await.ends_with("again"));
            stream.write_all(OK.as_bytes()).await.unwrap();
        });
        assert_eq!(head.unwrap().status, 200);
        assert_eq!(provider.pool.stats(), PoolStats { open: 1, idle: 0 });
        assert_eq!(collect(&mut call).await.unwrap(), b"ok");
        assert_eq!(provider.pool.stats(), PoolStats { open: 1, idle: 1 });
    }
}

#[tokio::test]
async fn a_pooled_connection_that_the_provider_ended_is_replaced_unseen() {
    for goodbye in ["", "HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n\r\n"] {
        let provider = Provider::start().await;
        let mut first = serve_one(&provider).await;
        first.write_all(goodbye.as_bytes()).await.unwrap();
        drop(first);

        let mut call = provider.pool.call(post("second"));
        let (head, mut second) = tokio::join!(soon(call.head()), async {
            let mut stream = provider.accept().await;
            assert!(read_request(&mut stream).await.ends_with("second"));
            stream.write_all(OK.as_bytes()).await.unwrap();
            stream
        });
        assert_eq!(head.unwrap().status, 200);
        assert_eq!(collect(&mut call).await.unwrap(), b"ok");
        assert_eq!(provider.pool.stats(), PoolStats { open: 1, idle: 1 });

        // And the connection that took its place is as good as any.
        let mut call = provider.pool.call(post("third"));
        let (head, ()) = tokio::join!(soon(call.head()), async {
            assert!(read_request(&mut second).await.ends_with("third"));
            second.write_all(OK.as_bytes()).await.unwrap();
        });
        assert_eq!(head.unwrap().status, 200);
    }
}

#[tokio::test]
async fn a_pooled_connection_that_was_reset_is_replaced_with_a_streamed_body_intact() {
    struct Parts(Vec<&'static str>);
    impl BodySource for Parts {
        fn poll_part(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<Bytes, BodyLost>>> {
            let part = self.0.pop().map(|part| Ok(Bytes::from_static(part.as_bytes())));
            std::task::Poll::Ready(part)
        }
    }

    let provider = Provider::start().await;
    let first = serve_one(&provider).await;
    socket2::SockRef::from(&first).set_linger(Some(Duration::ZERO)).unwrap();
    drop(first);
    let body = Body::Stream { source: Box::new(Parts(vec!["c", "b", "a"])), length: Some(3) };
    let mut call = provider.pool.call(request(Method::POST, "/v1/x", body));
    let (head, ()) = tokio::join!(soon(call.head()), async {
        let mut stream = provider.accept().await;
        assert!(read_request(&mut stream).await.ends_with("\r\n\r\nabc"));
        stream.write_all(OK.as_bytes()).await.unwrap();
    });
    assert_eq!(head.unwrap().status, 200);
}

#[tokio::test]
async fn a_request_that_was_written_is_never_sent_again() {
    let provider = Provider::start().await;
    let mut stream = serve_one(&provider).await;
    let mut call = provider.pool.call(post("once"));
    let (head, ()) = tokio::join!(soon(call.head()), async {
        assert!(read_request(&mut stream).await.ends_with("once"));
        drop(stream);
    });
    assert!(matches!(head, Err(CallError::Lost { phase: Phase::BeforeHead, .. })), "{head:?}");
    let again = tokio::time::timeout(Duration::from_millis(50), provider.listener.accept()).await;
    assert!(again.is_err(), "a second connection was made");
    assert_eq!(provider.pool.stats(), PoolStats::default());
}

#[tokio::test]
async fn a_stale_connection_whose_provider_is_gone_fails_as_unsent() {
    let provider = Provider::start().await;
    let stream = serve_one(&provider).await;
    let Provider { listener, pool } = provider;
    drop((stream, listener));
    settle().await;
    let error = soon(pool.call(post("x")).head()).await.unwrap_err();
    assert!(matches!(error, CallError::Connect { .. }), "{error:?}");
    assert!(error.is_unsent());
    assert_eq!(pool.stats(), PoolStats::default());
}

#[tokio::test]
async fn an_unused_connection_is_closed_before_the_provider_does() {
    let provider = Provider::with(|options| options.idle = Duration::from_millis(40)).await;
    let mut stream = serve_one(&provider).await;
    assert_eq!(read_to_end(&mut stream).await, b"");
    assert_eq!(provider.pool.stats(), PoolStats::default());
}

#[tokio::test]
async fn an_unused_connection_that_the_provider_ends_is_closed_long_before_its_time() {
    let provider = Provider::with(|options| options.idle = Duration::from_millis(2000)).await;
    let stream = serve_one(&provider).await;
    let mut stream = stream;
    stream.shutdown().await.unwrap();
    let started = tokio::time::Instant::now();
    assert_eq!(read_to_end(&mut stream).await, b"");
    assert!(started.elapsed() < Duration::from_millis(1500));
    assert_eq!(provider.pool.stats(), PoolStats::default());
}

#[tokio::test]
async fn no_more_connections_are_kept_than_allowed() {
    let provider = Provider::with(|options| options.max_idle = 1).await;
    let (mut one, first) = provider.answering(OK).await;
    let (mut two, second) = provider.answering(OK).await;
    assert_eq!(provider.pool.stats(), PoolStats { open: 2, idle: 0 });
    collect(&mut one).await.unwrap();
    collect(&mut two).await.unwrap();
    assert_eq!(provider.pool.stats(), PoolStats { open: 1, idle: 1 });
    let mut second = second;
    assert_eq!(read_to_end(&mut second).await, b"");
    drop(first);
}

#[tokio::test]
async fn a_closed_pool_keeps_nothing() {
    let provider = Provider::start().await;
    let mut idle = serve_one(&provider).await;
    let mut call = provider.pool.call(get());
    provider.pool.close();
    assert_eq!(read_to_end(&mut idle).await, b"");
    let (head, mut used) = tokio::join!(soon(call.head()), async {
        let mut stream = provider.accept().await;
        read_request(&mut stream).await;
        stream.write_all(OK.as_bytes()).await.unwrap();
        stream
    });
    assert_eq!(head.unwrap().status, 200);
    collect(&mut call).await.unwrap();
    assert_eq!(read_to_end(&mut used).await, b"");
    assert_eq!(provider.pool.stats(), PoolStats::default());
}

#[tokio::test]
async fn a_response_that_closes_or_stays_unread_is_not_kept() {
    let provider = Provider::start().await;
    for last in [
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ] {
        let (mut call, _stream) = provider.answering(last).await;
        assert_eq!(collect(&mut call).await.unwrap(), b"ok");
        assert_eq!(provider.pool.stats(), PoolStats::default());
    }
}
