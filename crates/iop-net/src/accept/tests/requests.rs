use std::io::ErrorKind;

use hyper_util::rt::{TokioExecutor, TokioIo};

use super::*;

#[tokio::test]
async fn a_client_that_waits_for_100_continue_gets_it_and_one_that_does_not_is_served_too() {
    let server = Server::start(Limits::default(), DRAIN, echo).await;
    let body = "x".repeat(2 << 20);
    let head = format!(
        "POST / HTTP/1.1\r\nhost: h\r\ncontent-length: {}\r\nexpect: 100-continue\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    for waits in [true, false] {
        let mut stream = server.connect().await;
        stream.write_all(head.as_bytes()).await.unwrap();
        if waits {
            let interim = read_until(&mut stream, "\r\n\r\n").await;
            assert_eq!(interim, "HTTP/1.1 100 Continue\r\n\r\n");
        }
        let (mut reader, mut writer) = stream.split();
        let mut answer = Vec::new();
        let (sent, read) = soon(async {
            tokio::join!(writer.write_all(body.as_bytes()), reader.read_to_end(&mut answer))
        })
        .await;
        sent.unwrap();
        read.unwrap();
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.contains("HTTP/1.1 200 OK\r\n"));
        assert!(answer.ends_with(&body), "the body came back changed");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_chunked_request_body_arrives_whole() {
    let server = Server::start(Limits::default(), DRAIN, echo).await;
    let mut stream = server.connect().await;
    let head =
        b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    stream.write_all(head).await.unwrap();
    for chunk in ["3\r\none\r\n", "3\r\ntwo\r\n", "0\r\n\r\n"] {
        stream.write_all(chunk.as_bytes()).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert!(read_to_end(&mut stream).await.ends_with("\r\n\r\nonetwo"));
    server.stop().await;
}

#[tokio::test]
async fn http2_is_served_on_the_same_port() {
    let server = Server::start(Limits::default(), DRAIN, echo).await;
    let io = TokioIo::new(server.connect().await);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::post("http://h/x").body(full("over http2")).unwrap();
    let response = soon(sender.send_request(request)).await.unwrap();
    let body = soon(response.into_body().collect()).await.unwrap().to_bytes();
    assert_eq!(body, "over http2");
    drop(sender);
    soon(connection).await.unwrap().unwrap();
    server.stop().await;
}

#[tokio::test]
async fn bytes_that_are_not_http_end_their_connection_and_nothing_else() {
    let server = Server::start(Limits::default(), DRAIN, echo).await;
    let mut random = fastrand::Rng::with_seed(7);
    let mut noise = vec![0; 4096];
    noise.fill_with(|| random.u8(..));
    let broken_http2 = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &noise].concat();
    for garbage in
        [&noise[..], &broken_http2, b"\x16\x03\x01\x02\x00\x01\x00", b"\0", b"GET\r\n\r\n"]
    {
        let mut stream = server.connect().await;
        // The server may have hung up before everything was written.
        let _ = stream.write_all(garbage).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        match soon(stream.read_to_end(&mut answer)).await {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
        assert!(!answer.windows(4).any(|window| window == b" 200"));
    }
    assert!(server.exchange(GET_LAST).await.starts_with("HTTP/1.1 200"));
    server.stop().await;
}

#[tokio::test]
async fn heads_beyond_the_limits_are_refused() {
    let server = Server::start(Limits::default(), DRAIN, echo).await;
    let many: String = (0..101).map(|n| format!("x-{n}: y\r\n")).collect();
    let wide = format!("x: {}\r\n", "y".repeat(70 * 1024));
    for headers in [many, wide] {
        let mut stream = server.connect().await;
        let head = format!("GET / HTTP/1.1\r\nhost: h\r\n{headers}\r\n");
        let _ = stream.write_all(head.as_bytes()).await;
        let head = read_until(&mut stream, "\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 431 "), "{head}");
    }
    let just_fits: String = (0..98).map(|n| format!("x-{n}: y\r\n")).collect();
    let head = format!("GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n{just_fits}\r\n");
    assert!(server.exchange(head.as_bytes()).await.starts_with("HTTP/1.1 200"));
    server.stop().await;
}

#[tokio::test]
async fn a_failing_body_never_looks_complete_in_any_version() {
    let (feeders, mut feeding) = mpsc::unbounded_channel();
    let living = Living::default();
    let server = Server::start(Limits::default(), DRAIN, move |_, _| {
        let (feeder, parts) = mpsc::unbounded_channel();
        feeder.send(Ok("first".into())).unwrap();
        feeders.send(feeder).unwrap();
        let body = Fed { parts, _life: living.one() };
        async { Response::new(body.boxed_unsync()) }
    })
    .await;

    let mut stream = server.connect().await;
    stream.write_all(GET).await.unwrap();
    let feeder = soon(feeding.recv()).await.unwrap();
    read_until(&mut stream, "5\r\nfirst\r\n").await;
    feeder.send(Err("broken")).unwrap();
    assert_eq!(read_to_end(&mut stream).await, "", "the last chunk must be missing");

    let mut stream = server.connect().await;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    let feeder = soon(feeding.recv()).await.unwrap();
    read_until(&mut stream, "\r\n\r\nfirst").await;
    feeder.send(Err("broken")).unwrap();
    let error = soon(stream.read_to_end(&mut Vec::new())).await.expect_err("a clean end");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);

    // What is complete is not reset.
    let mut stream = server.connect().await;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    drop(soon(feeding.recv()).await.unwrap());
    assert!(read_to_end(&mut stream).await.ends_with("\r\n\r\nfirst"));
    server.stop().await;
}
