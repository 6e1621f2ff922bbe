//! One connection, shared between the code that moves bytes and the code that must end it.
//!
//! A [`Socket`] is a cheap handle: clones share the connection, which closes when the last clone is
//! dropped. One task reads and one task writes at a time (the last to wait is the one woken); any
//! clone may ask to be told of the peer's end, shut down the sending side, or arm a reset.
//!
//! How a connection ends:
//!
//! ```text
//! open ── shutdown_write ──▶ half closed ── last clone dropped ──▶ closed (FIN already sent)
//!   │                             │
//!   ├── last clone dropped ───────┼──────────────────────────────▶ closed (FIN)
//!   └── reset_on_close, dropped ──┴──────────────────────────────▶ reset (RST, unsent bytes lost)
//! ```

mod tcp;

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::net::BoxFuture;

/// One connection.
#[derive(Clone, Debug)]
pub struct Socket(Arc<dyn Transport>);

/// What carries the bytes of a [`Socket`]: TCP, a simulation of it, or TLS over either.
pub trait Transport: fmt::Debug + Send + Sync + 'static {
    /// Reads what is there.
    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>>;

    /// Writes as much as fits.
    fn poll_write_vectored(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>>;

    /// Says whether a read would return at once: bytes, the peer's end, or an error.
    fn is_readable(&self) -> bool;

    /// Completes when the peer ended its sending side or reset, whatever is still unread.
    fn closed(self: Arc<Self>) -> BoxFuture<'static, ()>;

    /// Hands on what was taken and is still held here. TCP holds nothing.
    fn poll_flush(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Ends our sending side; the peer sees the end of our bytes. What is still held here may be lost.
    fn shutdown_write(&self) -> io::Result<()>;

    /// As [`Self::shutdown_write`], behind all that is held here.
    fn poll_shutdown(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shutdown_write())
    }

    /// Makes the coming close a reset.
    fn reset_on_close(&self);

    /// Limits how many unsent bytes the kernel accepts, where it can.
    fn set_notsent_lowat(&self, bytes: u32) -> io::Result<()>;

    /// Returns the address of the other end.
    fn peer_addr(&self) -> io::Result<SocketAddr>;

    /// Returns the TCP stream beneath, if there is one.
    fn as_tcp(&self) -> Option<&tokio::net::TcpStream> {
        None
    }
}

impl Socket {
    /// Makes a socket of any transport.
    pub fn new(transport: impl Transport) -> Self {
        Self(Arc::new(transport))
    }

    /// Takes over a TCP stream and sets `TCP_NODELAY`.
    ///
    /// # Errors
    /// The connection is broken already.
    pub fn from_tcp(stream: tokio::net::TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::new(stream))
    }

    /// Reads what is there.
    pub fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.poll_read(cx, buf)
    }

    /// Writes as much as fits.
    pub fn poll_write_vectored(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write_vectored(cx, bufs)
    }

    /// Hands on what was taken by a write and is still held by the transport (TLS).
    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_flush(cx)
    }

    /// As [`Self::shutdown_write`], once the transport holds nothing any more.
    pub fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_shutdown(cx)
    }

    /// Asks the transport itself, not what the reactor has seen so far, whether a read would return
    /// at once: bytes, the peer's end, or an error.
    pub fn is_readable(&self) -> bool {
        self.0.is_readable()
    }

    /// Completes when the peer ended its sending side or reset, although bytes may be unread.
    ///
    /// Independent of reads: it keeps no clone from reading, and needs nobody to read.
    pub fn closed(&self) -> BoxFuture<'static, ()> {
        Arc::clone(&self.0).closed()
    }

    /// Ends our sending side: the peer sees the end of our bytes, we can still read.
    ///
    /// # Errors
    /// The connection has ended already.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.0.shutdown_write()
    }

    /// Makes the coming close a reset: when the last clone is dropped the peer gets an RST, and bytes
    /// that were not sent yet are lost.
    pub fn reset_on_close(&self) {
        self.0.reset_on_close();
    }

    /// Limits how many bytes wait unsent in the kernel, so that urgent frames are not stuck behind
    /// bulk data. Does nothing where the operating system has no such limit.
    ///
    /// # Errors
    /// The connection has ended already.
    pub fn set_notsent_lowat(&self, bytes: u32) -> io::Result<()> {
        self.0.set_notsent_lowat(bytes)
    }

    /// Returns the address of the other end.
    ///
    /// # Errors
    /// The connection has ended already.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    /// Returns the TCP stream beneath; `None` in a simulation.
    pub fn as_tcp(&self) -> Option<&tokio::net::TcpStream> {
        self.0.as_tcp()
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
