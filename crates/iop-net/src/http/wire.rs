//! The socket as hyper sees it, and as the call that owns it does.
//!
//! Hyper owns a [`Wire`] and knows nothing else; the call holds the same state as a [`Line`] and can
//! end the sending side, count bytes and change the socket beneath. Hyper's own failures are kept
//! simple that way:
//!
//! * A reused connection is *unproven* until the first byte of the new request is accepted. What
//!   happens on it before that (an end, a reset, a late `408`) only says that it is stale: hyper
//!   sees nothing, waits, and goes on with a fresh socket.
//! * Once *fenced* (cancelled, or a write failed) written bytes are swallowed and only the read side
//!   tells how the call ends. A provider that answers early and stops reading gets its answer
//!   through.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::pool::Connection;
use super::{BodyLost, Sending};

/// The call's hold of a connection.
#[derive(Clone)]
pub(super) struct Line(Arc<Mutex<State>>);

struct State {
    connection: Connection,
    /// The task that polls the call; hyper's own waker is not used for the socket.
    waker: Waker,
    trust: Trust,
    fenced: bool,
    /// Bytes of the current request that the kernel accepted.
    written: u64,
    body: Sent,
    lost: Option<BodyLost>,
    /// The peer's end of file or reset was read.
    peer_ended: bool,
}

/// What is known of the connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// It accepted a byte of this request, or is new.
    Proven,
    /// It served another request before and may be dead.
    Unproven,
    /// It is dead and nothing of this request was written.
    Stale,
}

/// How much of the request was handed on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    Partly,
    /// Hyper has all that its source had, and asked for more.
    AllSoFar,
    /// The kernel has all that the source had.
    Starved,
    /// Hyper has all of it.
    Ended,
    /// The kernel has all of it.
    HandedOver,
}

impl Line {
    pub(super) fn new(connection: Connection) -> Self {
        Self(Arc::new(Mutex::new(State {
            connection,
            waker: Waker::noop().clone(),
            trust: Trust::Proven,
            fenced: false,
            written: 0,
            body: Sent::Partly,
            lost: None,
            peer_ended: false,
        })))
    }

    /// Returns what hyper reads and writes.
    pub(super) fn wire(&self) -> Wire {
        Wire(self.clone())
    }

    /// Prepares for the next request on a connection that served one before.
    pub(super) fn reuse(&self) {
        let mut state = self.lock();
        state.trust = Trust::Unproven;
        state.written = 0;
        state.body = Sent::Partly;
    }

    /// Names the task to wake when the socket or the request body has news.
    pub(super) fn polled_by(&self, waker: &Waker) {
        let mut state = self.lock();
        if !state.waker.will_wake(waker) {
            state.waker.clone_from(waker);
        }
    }

    pub(super) fn is_stale(&self) -> bool {
        self.lock().trust == Trust::Stale
    }

    /// Continues on a fresh connection in place of a stale one.
    pub(super) fn replace(&self, connection: Connection) {
        let mut state = self.lock();
        debug_assert!(
            state.written == 0,
            "only a connection without a byte of the request is stale"
        );
        state.connection = connection;
        state.trust = Trust::Proven;
        state.peer_ended = false;
    }

    /// Ends our sending side: the peer sees FIN, whatever was still to be written is dropped.
    pub(super) fn fence(&self) {
        let mut state = self.lock();
        state.fenced = true;
        // Fails only when the connection has ended: the read side tells.
        let _ = state.connection.socket.shutdown_write();
    }

    /// Makes the coming close a reset.
    pub(super) fn reset_on_close(&self) {
        self.lock().connection.socket.reset_on_close();
    }

    pub(super) fn written(&self) -> u64 {
        self.lock().written
    }

    pub(super) fn is_handed_over(&self) -> bool {
        self.lock().body == Sent::HandedOver
    }

    pub(super) fn sending(&self) -> Sending {
        let state = self.lock();
        match (state.body, state.written) {
            (_, 0) => Sending::Nothing,
            (Sent::HandedOver, _) => Sending::HandedOver,
            // What a fence swallows is waited for by nobody.
            (Sent::Starved, bytes) if !state.fenced => Sending::Partly { bytes, is_starved: true },
            (Sent::Partly | Sent::AllSoFar | Sent::Starved | Sent::Ended, bytes) => {
                Sending::Partly { bytes, is_starved: false }
            }
        }
    }

    /// Says whether the peer's end of file or reset was read.
    pub(super) fn has_peer_ended(&self) -> bool {
        self.lock().peer_ended
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.lock().fenced
    }

    /// Asks the socket whether an idle connection has anything to read: then it is dead.
    pub(super) fn is_readable(&self) -> bool {
        self.lock().connection.socket.is_readable()
    }

    pub(super) fn body_failure(&self) -> Option<BodyLost> {
        self.lock().lost
    }

    /// The request body has nothing more for now, or has something again.
    pub(super) fn body_waits(&self, waits: bool) {
        let mut state = self.lock();
        match (waits, state.body) {
            (true, Sent::Partly) => state.body = Sent::AllSoFar,
            (false, Sent::AllSoFar | Sent::Starved) => state.body = Sent::Partly,
            (true | false, _) => {}
        }
    }

    /// The request body has been taken by hyper whole.
    pub(super) fn body_ended(&self) {
        self.lock().body = Sent::Ended;
    }

    pub(super) fn body_lost(&self, lost: BodyLost) {
        self.lock().lost = Some(lost);
    }

    /// Returns whom to wake for more of the request body, unless no more is wanted.
    pub(super) fn wants_body(&self) -> Option<Waker> {
        let state = self.lock();
        (!state.fenced).then(|| state.waker.clone())
    }

    /// Reads and discards, past hyper, until the peer's end.
    pub(super) fn poll_drain(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [0; 4096];
        let mut state = self.lock();
        while !state.peer_ended {
            let mut buf = ReadBuf::new(&mut scratch);
            let read = ready!(state.connection.socket.poll_read(cx, &mut buf));
            state.peer_ended = read.is_err() || buf.filled().is_empty();
        }
        Poll::Ready(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The socket as hyper sees it.
pub(super) struct Wire(Line);

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let state = &mut *self.0.lock();
        if state.trust == Trust::Stale {
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let cx = &mut Context::from_waker(&state.waker);
        let read = ready!(state.connection.socket.poll_read(cx, buf));
        if state.trust == Trust::Unproven {
            buf.set_filled(before);
            state.trust = Trust::Stale;
            return Poll::Pending;
        }
        state.peer_ended = read.is_err() || buf.filled().len() == before;
        Poll::Ready(read)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let state = &mut *self.0.lock();
        let swallowed = || Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()));
        if state.fenced {
            return swallowed();
        }
        if state.trust == Trust::Stale {
            return Poll::Pending;
        }
        let cx = &mut Context::from_waker(&state.waker);
        match ready!(state.connection.socket.poll_write_vectored(cx, bufs)) {
            Ok(written) => {
                state.trust = Trust::Proven;
                state.written += written as u64;
                Poll::Ready(Ok(written))
            }
            Err(_) if state.trust == Trust::Unproven => {
                state.trust = Trust::Stale;
                Poll::Pending
            }
            Err(_) => {
                state.fenced = true;
                swallowed()
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Hyper flushes once its own buffer is empty.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = &mut *self.0.lock();
        if state.fenced {
            return Poll::Ready(Ok(()));
        }
        let cx = &mut Context::from_waker(&state.waker);
        match state.connection.socket.poll_flush(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(())) => {}
            // The read side tells.
            Poll::Ready(Err(_)) => return Poll::Ready(Ok(())),
        }
        if state.written > 0 {
            state.body = match state.body {
                Sent::Ended => Sent::HandedOver,
                Sent::AllSoFar => Sent::Starved,
                Sent::Partly | Sent::Starved | Sent::HandedOver => state.body,
            };
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.lock().connection.socket.shutdown_write())
    }
}
