//! Connections against raw sockets that play the client.

mod drain;
mod gone;
mod requests;
mod secure;
mod silent;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;
use crate::net::{Net, TokioNet};

type AnyBody = UnsyncBoxBody<Bytes, BoxError>;

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), future).await.expect("nothing happened")
}

/// Counts what lives, and waits for it to end.
#[derive(Clone, Default)]
struct Living(Arc<(AtomicUsize, tokio::sync::Notify)>);

impl Living {
    fn one(&self) -> Life {
        self.0.0.fetch_add(1, Ordering::SeqCst);
        self.0.1.notify_waiters();
        Life(self.clone())
    }

    fn count(&self) -> usize {
        self.0.0.load(Ordering::SeqCst)
    }

    async fn becomes(&self, count: usize) {
        soon(async {
            loop {
                let changed = self.0.1.notified();
                if self.count() == count {
                    return;
                }
                changed.await;
            }
        })
        .await;
    }
}

struct Life(Living);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.0.0.fetch_sub(1, Ordering::SeqCst);
        self.0.0.1.notify_waiters();
    }
}

/// A response body that yields what the test sends, and holds a life.
struct Fed {
    parts: mpsc::UnboundedReceiver<Result<Bytes, &'static str>>,
    _life: Life,
}

impl Body for Fed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let part = ready!(self.parts.poll_recv(cx));
        Poll::Ready(part.map(|part| part.map(Frame::data).map_err(Into::into)))
    }
}

fn full(text: &'static str) -> AnyBody {
    Full::from(text).map_err(|never: Infallible| match never {}).boxed_unsync()
}

struct Server {
    address: SocketAddr,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
}

impl Server {
    async fn start<S, F>(limits: Limits, drain: Duration, service: S) -> Self
    where
        S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<AnyBody>> + Send + 'static,
    {
        let listener = TokioNet.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(serve(listener, None, limits, service, shutdown.clone(), drain));
        Self { address, shutdown, serving }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends bytes and returns everything until the end.
    async fn exchange(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        stream.write_all(bytes).await.unwrap();
        read_to_end(&mut stream).await
    }

    async fn stop(self) {
        self.shutdown.cancel();
        soon(self.serving).await.unwrap();
    }
}

const DRAIN: Duration = Duration::from_secs(30);

/// Answers with the method and what was sent.
async fn echo(request: Request<Incoming>, _: Peer) -> Response<AnyBody> {
    let body = request.into_body().collect().await.unwrap().to_bytes();
    Response::new(Full::from(body).map_err(|never: Infallible| match never {}).boxed_unsync())
}

async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    soon(stream.read_to_end(&mut read)).await.unwrap();
    String::from_utf8(read).unwrap()
}

async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut read = Vec::new();
    while !read.ends_with(end.as_bytes()) {
        let n = soon(stream.read_buf(&mut read)).await.unwrap();
        assert!(n > 0, "ended after {:?}", String::from_utf8_lossy(&read));
    }
    String::from_utf8(read).unwrap()
}

const GET: &[u8] = b"GET /health HTTP/1.1\r\nhost: h\r\n\r\n";
const GET_LAST: &[u8] = b"GET /health HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";
