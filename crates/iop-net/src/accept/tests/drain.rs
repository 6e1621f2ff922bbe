use hyper_util::rt::{TokioExecutor, TokioIo};

use super::*;

type Feeder = mpsc::UnboundedSender<Result<Bytes, &'static str>>;

/// Serves bodies that the test feeds.
async fn feeding_server(drain: Duration) -> (Server, mpsc::UnboundedReceiver<Feeder>, Living) {
    let living = Living::default();
    let lives = living.clone();
    let (feeders, feeding) = mpsc::unbounded_channel();
    let server = Server::start(Limits::default(), drain, move |_, _| {
        let (feeder, parts) = mpsc::unbounded_channel();
        feeder.send(Ok("first".into())).unwrap();
        feeders.send(feeder).unwrap();
        let body = Fed { parts, _life: lives.one() };
        async { Response::new(body.boxed_unsync()) }
    })
    .await;
    (server, feeding, living)
}

#[tokio::test]
async fn fifty_responses_in_flight_all_finish_after_shutdown() {
    let (server, mut feeding, living) = feeding_server(DRAIN).await;
    let mut clients = Vec::new();
    let mut feeders = Vec::new();
    for _ in 0..50 {
        let mut stream = server.connect().await;
        stream.write_all(GET).await.unwrap();
        read_until(&mut stream, "5\r\nfirst\r\n").await;
        clients.push(stream);
        feeders.push(soon(feeding.recv()).await.unwrap());
    }
    let mut waiting = server.connect().await;
    server.shutdown.cancel();
    // Who asked for nothing is let go, who comes late is not let in.
    assert_eq!(read_to_end(&mut waiting).await, "");
    soon(async {
        while TcpStream::connect(server.address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(!server.serving.is_finished());
    for feeder in feeders {
        feeder.send(Ok("last".into())).unwrap();
    }
    for mut client in clients {
        assert_eq!(read_to_end(&mut client).await, "4\r\nlast\r\n0\r\n\r\n");
    }
    soon(server.serving).await.unwrap();
    assert_eq!(living.count(), 0);
}

#[tokio::test]
async fn what_is_left_after_the_drain_is_cut_and_does_not_look_complete() {
    let (server, mut feeding, living) = feeding_server(Duration::from_millis(50)).await;
    let mut stream = server.connect().await;
    stream.write_all(GET).await.unwrap();
    let feeder = soon(feeding.recv()).await.unwrap();
    read_until(&mut stream, "5\r\nfirst\r\n").await;
    server.shutdown.cancel();
    assert_eq!(read_to_end(&mut stream).await, "");
    soon(server.serving).await.unwrap();
    assert_eq!(living.count(), 0);
    assert!(feeder.is_closed());
}

#[tokio::test]
async fn over_http2_too_what_is_left_after_the_drain_is_cut() {
    let living = Living::default();
    let lives = living.clone();
    let server = Server::start(Limits::default(), Duration::from_millis(50), move |_, _| {
        let life = lives.one();
        async move {
            let _life = life;
            std::future::pending().await
        }
    })
    .await;
    let io = TokioIo::new(server.connect().await);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::get("http://h/x").body(full("")).unwrap();
    let asking = tokio::spawn(async move { sender.send_request(request).await.map(drop) });
    living.becomes(1).await;
    server.stop().await;
    assert_eq!(living.count(), 0);
    assert!(soon(asking).await.unwrap().is_err());
    connection.abort();
}

#[tokio::test]
async fn an_idle_server_stops_at_once() {
    let (server, ..) = feeding_server(DRAIN).await;
    server.stop().await;
}

#[tokio::test]
async fn beyond_the_limit_connections_wait_until_one_ends() {
    let limits = Limits { max_connections: 2, ..Limits::default() };
    let server = Server::start(limits, DRAIN, echo).await;
    let mut served = Vec::new();
    for _ in 0..2 {
        let mut stream = server.connect().await;
        stream.write_all(GET).await.unwrap();
        read_until(&mut stream, "\r\n\r\n").await;
        served.push(stream);
    }
    let mut third = server.connect().await;
    third.write_all(GET).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(50), third.readable()).await;
    assert!(early.is_err(), "a third connection is served");
    // Those that are served stay so.
    served[0].write_all(GET).await.unwrap();
    read_until(&mut served[0], "\r\n\r\n").await;
    served.pop();
    read_until(&mut third, "\r\n\r\n").await;
    drop((served, third));
    server.stop().await;
}

/// A listener that is out of descriptors for a while.
#[derive(Debug)]
struct Short {
    failures: u32,
    listener: Box<dyn Listener>,
}

impl Listener for Short {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Socket, SocketAddr)>> {
        const EMFILE: i32 = 24;
        if self.failures == 0 {
            return self.listener.poll_accept(cx);
        }
        self.failures -= 1;
        Poll::Ready(Err(if self.failures.is_multiple_of(2) {
            io::Error::from_raw_os_error(EMFILE)
        } else {
            io::ErrorKind::ConnectionAborted.into()
        }))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

#[tokio::test]
async fn failures_to_accept_are_outlived() {
    let listener = TokioNet.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let listener = Box::new(Short { failures: 6, listener });
    let serving =
        tokio::spawn(serve(listener, None, Limits::default(), echo, shutdown.clone(), DRAIN));
    let server = Server { address, shutdown, serving };
    assert!(server.exchange(GET_LAST).await.starts_with("HTTP/1.1 200"));
    server.stop().await;
}
