//! One client connection from its first byte to its end.

use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::http::{Request, Response};
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::activity::{Answer, InFlight};
use super::{BoxError, Limits, Peer};
use crate::socket::Socket;

/// How many bytes the kernel keeps for a client beyond what it can send. A client that does not read
/// costs this much, and without it what the kernel's own tuning allows: 3.7 MiB were measured. What a
/// client reads as fast as it can does not get slower.
const NOTSENT_LOWAT: u32 = 64 * 1024;

/// What ends a connection from outside, and who waits for its tasks.
#[derive(Clone)]
pub(super) struct Ends {
    /// No further requests.
    pub(super) shutdown: CancellationToken,
    /// The drain is over.
    pub(super) cut: CancellationToken,
    /// Owns the tasks of HTTP/2 requests.
    pub(super) streams: TaskTracker,
}

/// Serves one connection until either side ends it.
pub(super) async fn serve<S, F, B>(
    socket: Socket,
    peer: Peer,
    limits: Limits,
    service: S,
    ends: Ends,
) where
    S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let _gone_at_the_end = peer.gone().clone().drop_guard();
    // Fails only on a connection that is gone already, which its first read tells.
    let _ = socket.set_notsent_lowat(NOTSENT_LOWAT);
    let builder = builder(Streams(ends.streams.clone()), limits);
    let handle = |request: Request<Incoming>| {
        let in_flight = InFlight::begin(peer.clone(), request.version());
        let answer = service(request, peer.clone());
        async move { Ok::<_, Infallible>(answer.await.map(|body| Answer { body, in_flight })) }
    };
    let io = TokioIo::new(Counted { socket: socket.clone(), peer: peer.clone() });
    let mut connection = pin!(builder.serve_connection(io, service_fn(handle)));

    // In a set of its own, so that what seldom happens is polled only when it did, not with every
    // chunk that the connection moves.
    let mut signals = FuturesUnordered::new();
    let mut phase = Phase::Serving;
    let is_clean = loop {
        if signals.is_empty() {
            signals.push(signal(phase, &socket, &peer, limits.idle, &ends));
        }
        tokio::select! {
            biased;
            outcome = connection.as_mut() => {
                if let Err(error) = &outcome {
                    debug!(%error, "client connection failed");
                }
                break outcome.is_ok();
            }
            Some(signal) = signals.next() => match signal {
                Signal::Finish => {
                    connection.as_mut().graceful_shutdown();
                    phase = Phase::Finishing;
                }
                Signal::End => {
                    peer.gone().cancel();
                    // The last look that handlers get.
                    let _ = futures_util::poll!(connection.as_mut());
                    break false;
                }
            },
        }
    };
    if peer.is_aborted() || (!is_clean && peer.activity().is_http_10()) {
        socket.reset_on_close();
    }
}

/// How far a connection has got towards its end.
#[derive(Clone, Copy)]
enum Phase {
    Serving,
    /// Takes no further request.
    Finishing,
}

/// What a connection must do now.
enum Signal {
    Finish,
    End,
}

/// Waits for the next thing that ends a connection.
async fn signal(phase: Phase, socket: &Socket, peer: &Peer, idle: Duration, ends: &Ends) -> Signal {
    // Long enough for an HTTP/2 client to read the GOAWAY and for its last request to be noticed.
    const FAREWELL: Duration = Duration::from_secs(1);
    match phase {
        Phase::Serving => tokio::select! {
            biased;
            () = socket.closed() => Signal::End,
            () = peer.closed() => Signal::End,
            () = ends.cut.cancelled() => Signal::End,
            () = ends.shutdown.cancelled() => Signal::Finish,
            () = peer.activity().idle_for(idle) => Signal::Finish,
        },
        Phase::Finishing => tokio::select! {
            biased;
            () = socket.closed() => Signal::End,
            () = peer.closed() => Signal::End,
            () = ends.cut.cancelled() => Signal::End,
            () = peer.activity().idle_for(FAREWELL) => Signal::End,
        },
    }
}

fn builder(executor: Streams, limits: Limits) -> auto::Builder<Streams> {
    // What a stream of the link holds as well.
    const SEND_BUFFER: usize = 64 * 1024;
    let mut builder = auto::Builder::new(executor);
    builder.http1().max_buf_size(limits.max_head_bytes.max(8192));
    // Hyper's own 100 costs nothing; any other number is an allocation per request.
    if limits.max_headers != 100 {
        builder.http1().max_headers(limits.max_headers);
    }
    builder
        .http2()
        .max_header_list_size(u32::try_from(limits.max_head_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(limits.max_streams)
        .max_send_buf_size(SEND_BUFFER);
    builder
}

/// Runs the requests of HTTP/2 connections. Each ends with its connection: hyper tells it.
#[derive(Clone)]
struct Streams(TaskTracker);

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.0.spawn(stream);
    }
}

/// The client's socket as hyper sees it: counts what the kernel accepts, and keeps the client's end
/// to itself while a request is in flight. Hyper would drop the handler on the spot; [`signal`]
/// notices the same end and lets the handler look once more.
struct Counted {
    socket: Socket,
    peer: Peer,
}

impl AsyncRead for Counted {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(self.socket.poll_read(cx, buf));
        let has_ended = read.is_err() || buf.filled().len() == before;
        if has_ended && buf.remaining() > 0 && self.peer.activity().is_busy() {
            return Poll::Pending;
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.socket.poll_write_vectored(cx, bufs))?;
        self.peer.count_sent(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_shutdown(cx)
    }
}
