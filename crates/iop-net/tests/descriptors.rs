//! Every descriptor comes back: in a process of its own, so that nothing else opens any.

#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use iop_net::egress::Egress;
use iop_net::http::{Body, Endpoint, Options, Pool, PoolStats, Request};
use iop_net::net::TokioNet;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("linux has /proc").count()
}

/// Answers in one of many ways, good and bad.
async fn misbehave(mut stream: TcpStream, mut random: fastrand::Rng) -> std::io::Result<()> {
    loop {
        let mut read = Vec::new();
        while !read.ends_with(b"\r\n\r\nhello") {
            if stream.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
        }
        let answer: &[u8] = match random.u8(0..8) {
            0 | 1 => b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
            2 => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            3 => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n",
            4 => b"HTTP/1.1 500 Oops\r\ncontent-length: 99\r\n\r\nshort",
            5 => b"garbage\r\n\r\n",
            6 => b"",
            _ => {
                // Reads on until the caller gives up.
                while stream.read_buf(&mut read).await? > 0 {}
                return Ok(());
            }
        };
        stream.write_all(answer).await?;
        match random.u8(0..4) {
            0 => return Ok(()),
            1 => return stream.set_zero_linger(),
            _ => {}
        }
    }
}

/// Makes one call and leaves it in one of many ways.
async fn call(pool: Pool, mut random: fastrand::Rng) {
    let body = Body::Full(Bytes::from_static(b"hello"));
    let path = "/v1/chat/completions".to_owned();
    let mut call =
        pool.call(Request { method: Method::POST, path, headers: HeaderMap::new(), body });
    let patience = Duration::from_micros(random.u64(0..5000));
    let whole = async {
        if call.head().await.is_ok() {
            while let Ok(Some(_)) = call.frame().await {}
        }
    };
    let _ = tokio::time::timeout(patience, whole).await;
    if random.bool() {
        call.cancel();
        let _ = tokio::time::timeout(patience, call.returned()).await;
    }
}

#[tokio::test]
async fn two_thousand_mixed_calls_leave_no_descriptor_behind() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let mut serving = random.fork();
    let server = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    connections.spawn(misbehave(accepted.unwrap().0, serving.fork()));
                }
                Some(_) = connections.join_next() => {}
            }
        }
    });
    let before = descriptors();
    let pool = Pool::new(Arc::new(TokioNet), endpoint, Options::new(Egress::loopback()));
    for _ in 0..100 {
        let calls: Vec<_> =
            (0..20).map(|_| tokio::spawn(call(pool.clone(), random.fork()))).collect();
        for call in calls {
            call.await.unwrap();
        }
    }
    let stats = pool.stats();
    assert_eq!(stats.open, stats.idle, "no call is under way");
    pool.close();
    assert_eq!(pool.stats(), PoolStats::default());
    // The server's ends follow: each notices its client's end by itself.
    let ended = tokio::time::timeout(Duration::from_secs(10), async {
        while descriptors() > before {
            tokio::task::yield_now().await;
        }
    });
    ended.await.expect("descriptors are left behind");
    server.abort();
}
