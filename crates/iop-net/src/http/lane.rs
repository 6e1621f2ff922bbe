//! One provider connection with hyper on it, driven by whoever owns the call.
//!
//! Hyper expects a task that drives the connection and another that waits for the response; here one
//! poll does both. Hyper's internal signals between the two are therefore never worth waking a task
//! for: they only set a flag, and [`Lane::drive`] looks at it. The socket and the request body wake
//! the real task (see [`super::wire`]).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use ::http::Response;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use super::body::Outgoing;
use super::pool::Connection;
use super::wire::{Line, Wire};

/// The response of a request that was given to a lane.
pub(super) type Responding =
    Pin<Box<dyn Future<Output = hyper::Result<Response<Incoming>>> + Send>>;

/// A connection that carries one call at a time.
pub(super) struct Lane {
    sender: http1::SendRequest<Outgoing>,
    hyper: Box<http1::Connection<TokioIo<Wire>, Outgoing>>,
    line: Line,
    signals: Arc<Signals>,
    quiet: Waker,
    has_ended: bool,
    pub(super) idle_since: Instant,
}

impl Lane {
    /// Puts hyper on a fresh connection.
    pub(super) async fn new(connection: Connection) -> hyper::Result<Self> {
        // Bounds the head of a response, what one read takes at once and what one write gathers: a
        // prompt of 64 KiB leaves with its head in one.
        const BUFFER: usize = 128 * 1024;
        let line = Line::new(connection);
        let (sender, hyper) =
            http1::Builder::new().max_buf_size(BUFFER).handshake(TokioIo::new(line.wire())).await?;
        let hyper = Box::new(hyper);
        let signals = Arc::new(Signals(AtomicBool::new(false)));
        let quiet = Waker::from(Arc::clone(&signals));
        let idle_since = Instant::now();
        Ok(Self { sender, hyper, line, signals, quiet, has_ended: false, idle_since })
    }

    pub(super) fn line(&self) -> &Line {
        &self.line
    }

    /// Gives the next request to hyper; nothing is written before the lane is driven.
    pub(super) fn send(&mut self, request: ::http::Request<Outgoing>) -> Responding {
        Box::pin(self.sender.send_request(request))
    }

    /// Moves bytes in both directions as far as they go. Says whether doing so again would move more
    /// without any news from outside.
    pub(super) fn drive(&mut self, cx: &Context<'_>) -> bool {
        if self.has_ended {
            return false;
        }
        self.line.polled_by(cx.waker());
        self.signals.0.store(false, Ordering::Relaxed);
        let quiet = &mut Context::from_waker(&self.quiet);
        // How it ended is told by the response and its body.
        self.has_ended = self.hyper.poll_without_shutdown(quiet).is_ready();
        !self.has_ended && self.signals.0.load(Ordering::Relaxed)
    }

    /// Says whether hyper gave the connection up.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Says whether request and response are both complete and the connection may carry another.
    pub(super) fn is_reusable(&self) -> bool {
        !self.has_ended && self.sender.is_ready() && !self.line.is_fenced()
    }
}

/// Polls something that only [`Lane::drive`] can make ready.
pub(super) fn peek<T>(poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    poll(&mut Context::from_waker(Waker::noop()))
}

/// Set when hyper wakes itself.
struct Signals(AtomicBool);

impl Wake for Signals {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}
