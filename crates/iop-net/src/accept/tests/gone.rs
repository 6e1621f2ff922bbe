use hyper_util::rt::{TokioExecutor, TokioIo};

use super::*;

/// How a client leaves.
#[derive(Debug, Clone, Copy)]
enum Leave {
    Close,
    HalfClose,
    Reset,
}

/// Requests in every state that a client can leave them in.
const REQUESTS: [(&str, &[u8]); 6] = [
    ("read whole", GET),
    ("body partly unread", b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 100\r\n\r\nhalf"),
    (
        "waiting for 100 Continue",
        b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n",
    ),
    ("a stray line end", b"GET / HTTP/1.1\r\nhost: h\r\n\r\n\r\n"),
    ("a pipelined request", b"GET / HTTP/1.1\r\nhost: h\r\n\r\nGET /2 HTTP/1.1\r\nhost: h\r\n\r\n"),
    ("HTTP/1.0", b"GET / HTTP/1.0\r\n\r\n"),
];

/// Sends a request, waits until it is served, leaves; returns what must stay open meanwhile.
async fn send_and_leave(
    server: &Server,
    request: &[u8],
    living: &Living,
    leave: Leave,
) -> Option<TcpStream> {
    let mut stream = server.connect().await;
    stream.write_all(request).await.unwrap();
    living.becomes(1).await;
    match leave {
        Leave::Close => drop(stream),
        Leave::HalfClose => {
            stream.shutdown().await.unwrap();
            return Some(stream);
        }
        Leave::Reset => {
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            drop(stream);
        }
    }
    None
}

#[tokio::test]
async fn a_handler_is_dropped_when_its_client_leaves_before_the_head_whatever_is_unread() {
    let living = Living::default();
    let lives = living.clone();
    let server = Server::start(Limits::default(), DRAIN, move |request, _| {
        let life = lives.one();
        async move {
            // Not even looked at.
            let _unread = request;
            let _life = life;
            std::future::pending().await
        }
    })
    .await;
    for leave in [Leave::Close, Leave::HalfClose, Leave::Reset] {
        for (what, request) in REQUESTS {
            let started = std::time::Instant::now();
            let open = send_and_leave(&server, request, &living, leave).await;
            living.becomes(0).await;
            assert!(started.elapsed() < Duration::from_secs(1), "{what}, {leave:?}");
            drop(open);
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_response_body_is_dropped_when_its_client_leaves_though_it_has_nothing_to_say() {
    let living = Living::default();
    let lives = living.clone();
    let (feeders, mut feeding) = mpsc::unbounded_channel();
    let server = Server::start(Limits::default(), DRAIN, move |request, _| {
        let (feeder, parts) = mpsc::unbounded_channel();
        feeder.send(Ok("first".into())).unwrap();
        feeders.send(feeder).unwrap();
        let body = Fed { parts, _life: lives.one() };
        async move {
            let _unread = request;
            Response::new(body.boxed_unsync())
        }
    })
    .await;
    for leave in [Leave::Close, Leave::HalfClose, Leave::Reset] {
        for (what, request) in REQUESTS {
            let open = send_and_leave(&server, request, &living, leave).await;
            let feeder = feeding.recv().await.unwrap();
            living.becomes(0).await;
            assert!(feeder.is_closed(), "{what}, {leave:?}");
            drop(open);
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_a_full_connection_holds_up_is_dropped_when_its_client_leaves() {
    let living = Living::default();
    let lives = living.clone();
    let server = Server::start(Limits::default(), DRAIN, move |_, _| {
        let (feeder, parts) = mpsc::unbounded_channel();
        for _ in 0..1000 {
            feeder.send(Ok(Bytes::from(vec![b'x'; 64 * 1024]))).unwrap();
        }
        let body = Fed { parts, _life: lives.one() };
        async { Response::new(body.boxed_unsync()) }
    })
    .await;
    let mut stream = server.connect().await;
    stream.write_all(GET).await.unwrap();
    let mut some = [0; 1024];
    soon(stream.read_exact(&mut some)).await.unwrap();
    stream.shutdown().await.unwrap();
    living.becomes(0).await;
    server.stop().await;
}

#[tokio::test]
async fn a_handler_learns_that_its_client_left_before_it_is_dropped() {
    let (said, mut says) = mpsc::unbounded_channel();
    let living = Living::default();
    let lives = living.clone();
    let server = Server::start(Limits::default(), DRAIN, move |_, peer| {
        let (said, life) = (said.clone(), lives.one());
        async move {
            let _life = life;
            peer.closed().await;
            assert!(peer.is_closed());
            said.send(peer.address()).unwrap();
            std::future::pending().await
        }
    })
    .await;
    let stream = server.connect().await;
    let address = stream.local_addr().unwrap();
    let mut stream = stream;
    stream.write_all(GET).await.unwrap();
    living.becomes(1).await;
    drop(stream);
    assert_eq!(soon(says.recv()).await, Some(address));
    living.becomes(0).await;
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_can_be_reset() {
    let living = Living::default();
    let lives = living.clone();
    let (give, mut given) = mpsc::unbounded_channel();
    let server = Server::start(Limits::default(), DRAIN, move |_, peer: Peer| {
        let (feeder, parts) = mpsc::unbounded_channel();
        for _ in 0..1000 {
            feeder.send(Ok(Bytes::from(vec![b'x'; 64 * 1024]))).unwrap();
        }
        give.send(peer).unwrap();
        let body = Fed { parts, _life: lives.one() };
        async { Response::new(body.boxed_unsync()) }
    })
    .await;
    let mut stream = server.connect().await;
    stream.write_all(GET).await.unwrap();
    let peer = soon(given.recv()).await.unwrap();
    stream.readable().await.unwrap();
    peer.abort();
    living.becomes(0).await;
    let error = soon(stream.read_to_end(&mut Vec::new())).await.expect_err("a clean end");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    server.stop().await;
}

#[tokio::test]
async fn a_peer_that_is_kept_does_not_keep_the_connection_open() {
    let (give, mut given) = mpsc::unbounded_channel();
    let server = Server::start(Limits::default(), DRAIN, move |_, peer: Peer| {
        give.send(peer).unwrap();
        async { Response::new(full("ok")) }
    })
    .await;
    let text = server.exchange(GET_LAST).await;
    assert!(text.ends_with("\r\n\r\nok"));
    let peer = given.recv().await.unwrap();
    soon(peer.closed()).await;
    assert_eq!(peer.sent_bytes(), text.len() as u64);
    server.stop().await;
}

#[tokio::test]
async fn over_http2_a_reset_stream_ends_alone_and_a_closed_connection_ends_all() {
    let living = Living::default();
    let lives = living.clone();
    let server = Server::start(Limits::default(), DRAIN, move |_, _| {
        let life = lives.one();
        async move {
            let _life = life;
            std::future::pending().await
        }
    })
    .await;
    let stream = server.connect().await.into_std().unwrap();
    let wire = stream.try_clone().unwrap();
    let io = TokioIo::new(TcpStream::from_std(stream).unwrap());
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let ask = |mut sender: hyper::client::conn::http2::SendRequest<AnyBody>| {
        let request = Request::post("http://h/x").body(full("body")).unwrap();
        tokio::spawn(async move { sender.send_request(request).await.map(drop) })
    };
    let asking = [ask(sender.clone()), ask(sender.clone()), ask(sender)];
    living.becomes(3).await;
    asking[0].abort();
    living.becomes(2).await;
    wire.shutdown(std::net::Shutdown::Both).unwrap();
    living.becomes(0).await;
    server.stop().await;
}
