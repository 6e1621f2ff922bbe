use super::*;

async fn fails_after_head(bytes: &str, reset: bool) -> Cut {
    let provider = Provider::start().await;
    let (mut call, stream) = provider.answering(bytes).await;
    if reset {
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
    drop(stream);
    let error = collect(&mut call).await.unwrap_err();
    assert_eq!(call.phase(), Phase::Ended);
    soon(call.returned()).await;
    assert_eq!(provider.pool.stats(), PoolStats::default());
    match error {
        CallError::Truncated { cut, .. } => cut,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn each_way_of_being_cut_short_is_told_apart_from_a_clean_end() {
    let short = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello";
    assert_eq!(fails_after_head(short, false).await, Cut::Length);
    let chunks = format!("{CHUNKED}5\r\nhello\r\n");
    assert_eq!(fails_after_head(&chunks, false).await, Cut::LastChunk);
    assert_eq!(fails_after_head(&format!("{CHUNKED}5\r\nhel"), false).await, Cut::LastChunk);
    assert_eq!(fails_after_head(&chunks, true).await, Cut::Reset);
    assert_eq!(fails_after_head(&format!("{CHUNKED}xyz\r\n"), false).await, Cut::Framing);
}

#[tokio::test]
async fn a_body_that_lasts_until_the_connection_closes_ends_cleanly() {
    let provider = Provider::start().await;
    let (mut call, stream) = provider.answering("HTTP/1.1 200 OK\r\n\r\nhello").await;
    drop(stream);
    assert_eq!(collect(&mut call).await.unwrap(), b"hello");
    assert_eq!(provider.pool.stats(), PoolStats::default());
}

#[tokio::test]
async fn what_arrived_before_the_cut_is_yielded_first() {
    let provider = Provider::start().await;
    let (mut call, stream) = provider.answering(&format!("{CHUNKED}5\r\nhello\r\n")).await;
    drop(stream);
    assert_eq!(soon(call.frame()).await.unwrap(), Some(Frame::Data("hello".into())));
    assert!(soon(call.frame()).await.is_err());
    assert!(matches!(soon(call.frame()).await, Err(CallError::Ended { .. })));
}

#[tokio::test]
async fn chunks_arrive_one_by_one_and_trailers_after_them() {
    let provider = Provider::start().await;
    let (mut call, mut stream) = provider.answering(CHUNKED).await;
    for _ in 0..100 {
        stream.write_all(b"3\r\none\r\n").await.unwrap();
        assert_eq!(soon(call.frame()).await.unwrap(), Some(Frame::Data("one".into())));
    }
    stream.write_all(b"0\r\nx-sum: 42\r\n\r\n").await.unwrap();
    let Some(Frame::Trailers(trailers)) = soon(call.frame()).await.unwrap() else {
        panic!("no trailers")
    };
    assert_eq!(trailers["x-sum"], "42");
    assert_eq!(soon(call.frame()).await.unwrap(), None);
    assert_eq!(provider.pool.stats(), PoolStats { open: 1, idle: 1 });
}

#[tokio::test]
async fn a_chunk_wakes_its_reader_once() {
    let provider = Provider::start().await;
    let (mut call, mut stream) = provider.answering(CHUNKED).await;
    let (taken, mut taking) = tokio::sync::mpsc::unbounded_channel();
    let reader = tokio::spawn(async move {
        let mut polls = 0;
        loop {
            let reading = std::future::poll_fn(|cx| {
                polls += 1;
                call.poll_frame(cx)
            });
            match reading.await.unwrap() {
                Some(_) => taken.send(()).unwrap(),
                None => return polls,
            }
        }
    });
    let chunks = 100;
    for _ in 0..chunks {
        stream.write_all(b"3\r\none\r\n").await.unwrap();
        soon(taking.recv()).await.unwrap();
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    let polls = soon(reader).await.unwrap();
    // Asked once and woken once for each chunk and for the end.
    assert!(polls <= 2 * (chunks + 1), "{polls} polls for {chunks} chunks");
}

#[tokio::test]
async fn interim_answers_are_passed_over() {
    let provider = Provider::start().await;
    let interim =
        format!("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n{OK}");
    let (mut call, _stream) = provider.answering(&interim).await;
    assert_eq!(collect(&mut call).await.unwrap(), b"ok");
}

#[tokio::test]
async fn answers_without_a_body_end_with_their_head() {
    let provider = Provider::start().await;
    let (mut call, _stream) = provider.answering("HTTP/1.1 204 No Content\r\n\r\n").await;
    assert_eq!(soon(call.frame()).await.unwrap(), None);
    assert_eq!(provider.pool.stats(), PoolStats { open: 1, idle: 1 });
    assert_eq!(call.phase(), Phase::Ended);
}

#[tokio::test]
async fn what_is_not_http_is_told_apart_from_a_lost_connection() {
    let provider = Provider::start().await;
    let wide = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(256 * 1024));
    let switch = "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n";
    for answer in ["SSH-2.0-OpenSSH_9.6\r\n", "<html></html>\r\n\r\n", &wide, switch] {
        let (mut call, mut stream) = provider.asked().await;
        // The client may have left before everything was written.
        let _ = stream.write_all(answer.as_bytes()).await;
        let error = soon(call.head()).await.unwrap_err();
        assert!(matches!(error, CallError::Malformed { .. }), "{error:?}");
    }
    for part in ["", "HTTP/1.1 200 OK\r\nx-half"] {
        let (mut call, mut stream) = provider.asked().await;
        stream.write_all(part.as_bytes()).await.unwrap();
        drop(stream);
        let error = soon(call.head()).await.unwrap_err();
        assert!(
            matches!(error, CallError::Lost { phase: Phase::BeforeHead, .. }),
            "{part:?}: {error:?}"
        );
        assert!(!error.is_unsent());
    }
    assert_eq!(provider.pool.stats(), PoolStats::default());
}

#[tokio::test]
async fn a_body_larger_than_its_reader_allows_ends_our_side_and_is_reset_when_it_is_dropped() {
    let provider = Provider::start().await;
    let (mut call, mut stream) =
        provider.answering("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhello").await;
    let error = soon(call.body(4)).await.unwrap_err();
    assert!(matches!(error, CallError::TooLarge { limit: 4, .. }), "{error:?}");
    assert!(!call.has_returned(), "the provider has not ended");
    assert_eq!(soon(stream.read(&mut [0; 1])).await.unwrap(), 0, "it sees our end at once");
    drop(call);
    let writing = async { while stream.write_all(b"more").await.is_ok() {} };
    soon(writing).await;
}

#[tokio::test]
async fn a_large_response_arrives_whole_and_the_connection_is_kept() {
    let provider = Provider::start().await;
    let large = vec![b'x'; 8 << 20];
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", large.len());
    let (mut call, mut stream) = provider.answering(&head).await;
    let (body, ()) =
        tokio::join!(collect(&mut call), async { stream.write_all(&large).await.unwrap() });
    assert!(body.unwrap() == large);
    assert_eq!(provider.pool.stats(), PoolStats { open: 1, idle: 1 });
}

#[tokio::test]
async fn a_call_can_move_to_another_task_between_polls() {
    let provider = Provider::start().await;
    let (mut call, mut stream) = provider.answering(CHUNKED).await;
    assert!(futures_util::poll!(Box::pin(call.frame())).is_pending());
    let elsewhere = tokio::spawn(async move { call.frame().await.unwrap() });
    tokio::task::yield_now().await;
    stream.write_all(b"3\r\none\r\n").await.unwrap();
    assert_eq!(soon(elsewhere).await.unwrap(), Some(Frame::Data("one".into())));
}
