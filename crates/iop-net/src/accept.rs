//! Serving HTTP/1.1 and HTTP/2 to clients: the accept loop and the life of each connection.
//!
//! Decides how long a connection may live and how it ends; what a request means is the service's
//! affair. A connection's states:
//!
//! ```text
//!            head complete                response body ended
//! waiting ───────────────▶ in flight ─────────────────────────▶ waiting …
//!    │ nothing for `idle`       │
//!    ├──────────────────────────┼── the client ended its sending side ──▶ dropped at once
//!    ├── shutdown ──▶ closed    └── shutdown ──▶ finishes, at most `drain`, then dropped
//! ```
//!
//! * **Client gone.** A client that closes or resets, or only ends its sending side, is gone: whatever
//!   is unread, pipelined or waiting for `100 Continue`, the connection is dropped, and with it every
//!   handler future and response body. A handler that has more to do than drop races
//!   [`Peer::closed`], which completes first, or leaves the rest to a task of its own.
//! * **Silent client.** `idle` bounds the time without a complete request head: before the first
//!   byte, in the middle of a head (however many bytes trickle in), and between requests.
//! * **Failing body.** HTTP/1.1 ends without the last chunk and HTTP/2 resets the stream. HTTP/1.0
//!   has no framing that would show it, so its connection is reset. A body that fails in the same
//!   poll as it yielded data loses that data: yield `Pending` once in between.
//! * **TLS.** A handshake has 10 s and counts as a connection. Behind it nothing is different: a client
//!   is gone with its close_notify or its FIN, whichever comes first.
//! * **Too many connections.** The loop stops accepting; newcomers wait in the kernel's backlog and
//!   those that are served stay so.

mod activity;
mod connection;
mod exhausted;
mod limits;
mod peer;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ::http::{Request, Response};
use bytes::Bytes;
use http_body::Body;
use hyper::body::Incoming;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

pub use self::limits::Limits;
pub use self::peer::Peer;
use crate::net::Listener;
use crate::socket::Socket;
use crate::tls::WebTls;

/// The error of a response body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Serves `listener` until `shutdown` is cancelled, then lets requests in flight finish for at most
/// `drain`. Returns when every connection has ended.
///
/// With `tls`, nothing else is spoken. `service` answers one request; it is cloned for each connection.
/// It cannot fail: an error is a response, or a response body that fails.
pub async fn serve<S, F, B>(
    mut listener: Box<dyn Listener>,
    tls: Option<Arc<WebTls>>,
    limits: Limits,
    service: S,
    shutdown: CancellationToken,
    drain: Duration,
) where
    S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let slots = Arc::new(Semaphore::new(limits.max_connections));
    let connections = TaskTracker::new();
    let cut = CancellationToken::new();
    let mut backoff = Backoff::default();

    let accepting = async {
        loop {
            let slot = Arc::clone(&slots).acquire_owned().await.expect("slots are never closed");
            let (socket, address) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    backoff.wait(&error).await;
                    continue;
                }
            };
            backoff = Backoff::default();
            let ends = connection::Ends {
                shutdown: shutdown.clone(),
                cut: cut.clone(),
                streams: connections.clone(),
            };
            let (tls, service) = (tls.clone(), service.clone());
            connections.spawn(async move {
                if let Some(socket) = secured(socket, tls, address, &ends.shutdown).await {
                    connection::serve(socket, Peer::new(address), limits, service, ends).await;
                }
                drop(slot);
            });
        }
    };
    shutdown.run_until_cancelled(accepting).await;

    drop(listener);
    connections.close();
    if tokio::time::timeout(drain, connections.wait()).await.is_err() {
        warn!(connections = connections.len(), "drain time is over, cutting what is left");
        cut.cancel();
        connections.wait().await;
    }
}

/// Performs the handshake, if there is one to perform. Who is cut off has not asked for anything.
async fn secured(
    socket: Socket,
    tls: Option<Arc<WebTls>>,
    address: SocketAddr,
    shutdown: &CancellationToken,
) -> Option<Socket> {
    let Some(tls) = tls else { return Some(socket) };
    match shutdown.run_until_cancelled(tls.accept(socket)).await? {
        Ok(socket) => Some(socket),
        Err(error) => {
            debug!(peer = %address, code = error.as_str(), %error, "a client did not get through TLS");
            None
        }
    }
}

/// Waits after a failed accept, longer each time: out of descriptors, the next one fails too.
#[derive(Default)]
struct Backoff(u32);

impl Backoff {
    async fn wait(&mut self, error: &io::Error) {
        // These concern one client that left while it waited to be accepted.
        let is_one_client = matches!(
            error.kind(),
            io::ErrorKind::ConnectionAborted
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionRefused
                | io::ErrorKind::Interrupted
        );
        if is_one_client {
            return;
        }
        if self.0 == 0 {
            let remedy = exhausted::remedy(error).unwrap_or_default();
            warn!(%error, remedy, "cannot accept connections, trying again");
        }
        // 5 ms … 640 ms: descriptors come back when connections end, usually within milliseconds.
        tokio::time::sleep(Duration::from_millis(5 << self.0.min(7))).await;
        self.0 += 1;
    }
}

#[cfg(test)]
mod tests;
