use futures_util::StreamExt;
use tokio::time::Instant;

use super::*;

/// Short, and long enough for a request on a busy machine.
const IDLE: Duration = Duration::from_millis(200);

fn impatient() -> Limits {
    Limits { idle: IDLE, ..Limits::default() }
}

#[tokio::test]
async fn a_client_that_sends_nothing_is_closed() {
    let server = Server::start(impatient(), DRAIN, echo).await;
    let mut stream = server.connect().await;
    let started = Instant::now();
    assert_eq!(read_to_end(&mut stream).await, "");
    assert!(started.elapsed() >= IDLE);
    server.stop().await;
}

#[tokio::test]
async fn a_head_that_trickles_in_does_not_keep_a_connection_open() {
    let server = Server::start(impatient(), DRAIN, echo).await;
    let started = Instant::now();
    let mut stream = server.connect().await;
    stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    soon(async {
        // A byte every few milliseconds until the server has had enough.
        while stream.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(started.elapsed() >= IDLE);
    server.stop().await;
}

#[tokio::test]
async fn an_http2_preface_alone_does_not_keep_a_connection_open() {
    let server = Server::start(impatient(), DRAIN, echo).await;
    let mut stream = server.connect().await;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut read = Vec::new();
    soon(stream.read_to_end(&mut read)).await.unwrap();
    // Settings came, and a farewell.
    const GOAWAY: u8 = 7;
    assert!(read.windows(4).any(|frame| frame == [0, 0, 8, GOAWAY]), "{read:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_connection_is_closed_that_long_after_its_last_request() {
    let server = Server::start(impatient(), DRAIN, echo).await;
    let mut stream = server.connect().await;
    for _ in 0..4 {
        // Longer altogether than a connection may be silent.
        tokio::time::sleep(IDLE / 3).await;
        stream.write_all(GET).await.unwrap();
        read_until(&mut stream, "\r\n\r\n").await;
    }
    let silent = Instant::now();
    assert_eq!(read_to_end(&mut stream).await, "");
    assert!(silent.elapsed() >= IDLE / 2);
    server.stop().await;
}

#[tokio::test]
async fn a_request_in_flight_may_take_longer_than_a_silence() {
    let (feeders, mut feeding) = mpsc::unbounded_channel();
    let living = Living::default();
    let server = Server::start(impatient(), DRAIN, move |_, _| {
        let (feeder, parts) = mpsc::unbounded_channel();
        feeders.send(feeder).unwrap();
        let body = Fed { parts, _life: living.one() };
        async {
            tokio::time::sleep(IDLE * 3 / 2).await;
            Response::new(body.boxed_unsync())
        }
    })
    .await;
    let mut stream = server.connect().await;
    stream.write_all(GET_LAST).await.unwrap();
    let feeder = soon(feeding.recv()).await.unwrap();
    read_until(&mut stream, "\r\n\r\n").await;
    tokio::time::sleep(IDLE * 3 / 2).await;
    feeder.send(Ok("late".into())).unwrap();
    drop(feeder);
    assert_eq!(read_to_end(&mut stream).await, "4\r\nlate\r\n0\r\n\r\n");
    server.stop().await;
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[tokio::test]
async fn a_client_that_does_not_read_fills_no_megabytes_of_the_kernels_memory() {
    const PART: usize = 16 * 1024;
    const PARTS: usize = 256;
    let yielded = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&yielded);
    let server = Server::start(Limits::default(), Duration::ZERO, move |request, _| {
        let counted = Arc::clone(&counted);
        let parts = if request.uri() == "/large" { PARTS } else { 1 };
        async move {
            let parts = futures_util::stream::iter(0..parts).map(move |_| {
                counted.fetch_add(1, Ordering::SeqCst);
                Ok::<_, BoxError>(Frame::data(Bytes::from(vec![b'x'; PART])))
            });
            Response::new(http_body_util::StreamBody::new(parts).boxed_unsync())
        }
    })
    .await;
    let mut deaf = server.connect().await;
    deaf.write_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    // Others are served meanwhile, which is time enough to hand over what the kernel takes.
    for _ in 0..20 {
        let mut other = server.connect().await;
        other.write_all(GET_LAST).await.unwrap();
        read_to_end(&mut other).await;
    }
    let handed = (yielded.load(Ordering::SeqCst) - 20) * PART;
    assert!(
        (PART..1024 * 1024).contains(&handed),
        "{handed} bytes wait for a client that does not read"
    );
    drop(deaf);
    server.stop().await;
}
