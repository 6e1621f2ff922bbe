//! Calls against raw sockets that play the provider.

mod cancel;
mod connect;
mod request;
mod response;
mod reuse;
mod secure;

use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderMap, Method};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::egress::Egress;
use crate::net::TokioNet;

/// What a provider must notice within; also the patience of every wait here.
const SOON: Duration = Duration::from_secs(1);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    // Ten times what is promised before a test hangs: the machine may be busy.
    tokio::time::timeout(SOON * 10, future).await.expect("nothing happened")
}

struct Provider {
    listener: TcpListener,
    pool: Pool,
}

impl Provider {
    async fn start() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut Options)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint::parse(&format!("http://{}", listener.local_addr().unwrap()));
        let mut options = Options::new(Egress::loopback());
        change(&mut options);
        Self { listener, pool: Pool::new(Arc::new(TokioNet), endpoint.unwrap(), options) }
    }

    async fn accept(&self) -> TcpStream {
        soon(self.listener.accept()).await.unwrap().0
    }

    /// Begins a call whose request the provider has read.
    async fn asked(&self) -> (Call, TcpStream) {
        let mut call = self.pool.call(post("hello"));
        let (stream, early) = tokio::join!(
            async {
                let mut stream = self.accept().await;
                assert!(read_request(&mut stream).await.ends_with("hello"));
                stream
            },
            head_until_handed_over(&mut call),
        );
        assert!(early.is_none());
        (call, stream)
    }

    /// Begins a call whose response has begun with these bytes.
    async fn answering(&self, bytes: &str) -> (Call, TcpStream) {
        let (mut call, mut stream) = self.asked().await;
        stream.write_all(bytes.as_bytes()).await.unwrap();
        soon(call.head()).await.unwrap();
        (call, stream)
    }
}

/// Polls for the head until it comes or the request is handed over.
async fn head_until_handed_over(call: &mut Call) -> Option<Result<Head, CallError>> {
    soon(std::future::poll_fn(|cx| match call.poll_head(cx) {
        std::task::Poll::Ready(head) => std::task::Poll::Ready(Some(head)),
        std::task::Poll::Pending if call.is_handed_over() => std::task::Poll::Ready(None),
        std::task::Poll::Pending => std::task::Poll::Pending,
    }))
    .await
}

fn request(method: Method, path: &str, body: Body) -> Request {
    Request { method, path: path.to_owned(), headers: HeaderMap::new(), body }
}

fn post(body: &'static str) -> Request {
    request(Method::POST, "/v1/chat/completions", Body::Full(Bytes::from_static(body.as_bytes())))
}

fn get() -> Request {
    request(Method::GET, "/v1/models", Body::empty())
}

/// Reads a head and as much body as its `content-length` says.
async fn read_request(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    loop {
        let n = soon(stream.read_buf(&mut read)).await.unwrap();
        let text = String::from_utf8_lossy(&read);
        assert!(n > 0, "the connection ended in the middle of a request: {text:?}");
        let Some(end) = text.find("\r\n\r\n") else { continue };
        let length: usize = text[..end]
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .map_or(0, |length| length.parse().unwrap());
        if text.len() >= end + 4 + length {
            return text.into_owned();
        }
    }
}

/// Reads until the end of file; panics on a reset.
async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut read = Vec::new();
    soon(stream.read_to_end(&mut read)).await.unwrap();
    read
}

async fn expect_reset(stream: &mut TcpStream) {
    let mut read = Vec::new();
    let error = soon(stream.read_to_end(&mut read)).await.expect_err("a clean end");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

async fn collect(call: &mut Call) -> Result<Vec<u8>, CallError> {
    soon(call.body(usize::MAX)).await.map(|bytes| bytes.to_vec())
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
