//! TLS as a transport: whatever runs over a [`Socket`] runs over this.
//!
//! A half-close is a close_notify and a FIN; the peer's end is its close_notify, or its FIN, whichever
//! is seen first. At most [`HELD`] bytes that a write took are held here, so that TLS adds no queue
//! behind which a heartbeat could wait.

use std::fmt;
use std::io::{self, IoSlice, Read};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use rustls::{ConnectionCommon, SideData};
use socket2::SockRef;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::net::BoxFuture;
use crate::socket::{Socket, Transport};

/// One write batch of a link.
const HELD: usize = 32 * 1024;

/// A connection behind its handshake.
pub(super) struct Secure {
    below: Socket,
    inner: Mutex<Inner>,
    /// The peer has said that nothing comes any more.
    ended: CancellationToken,
}

struct Inner {
    stream: TlsStream<Socket>,
    /// Who waits to read: looking at what has arrived may take it from the socket.
    reader: Option<Waker>,
}

impl Secure {
    pub(super) fn new(stream: impl Into<TlsStream<Socket>>) -> Self {
        let mut stream = stream.into();
        match &mut stream {
            TlsStream::Client(stream) => stream.get_mut().1.set_buffer_limit(Some(HELD)),
            TlsStream::Server(stream) => stream.get_mut().1.set_buffer_limit(Some(HELD)),
        }
        let below = stream.get_ref().0.clone();
        let inner = Mutex::new(Inner { stream, reader: None });
        Self { below, inner, ended: CancellationToken::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Transport for Secure {
    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.lock();
        let before = buf.filled().len();
        let read = Pin::new(&mut inner.stream).poll_read(cx, buf);
        match &read {
            Poll::Pending => match &mut inner.reader {
                Some(reader) if reader.will_wake(cx.waker()) => {}
                reader => *reader = Some(cx.waker().clone()),
            },
            Poll::Ready(Ok(())) if buf.filled().len() > before || buf.remaining() == 0 => {}
            Poll::Ready(Ok(()) | Err(_)) => self.ended.cancel(),
        }
        read
    }

    fn poll_write_vectored(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.lock().stream).poll_write_vectored(cx, bufs)
    }

    /// Records that carry nothing (a session ticket, half a record) do not count.
    fn is_readable(&self) -> bool {
        let mut inner = self.lock();
        let Some(tcp) = self.below.as_tcp() else { return self.below.is_readable() };
        let is_readable = match &mut inner.stream {
            TlsStream::Client(stream) => look(stream.get_mut().1, tcp),
            TlsStream::Server(stream) => look(stream.get_mut().1, tcp),
        };
        // The reactor may have nothing more to say to whoever waits.
        if is_readable && let Some(reader) = inner.reader.take() {
            reader.wake();
        }
        is_readable
    }

    fn closed(self: Arc<Self>) -> BoxFuture<'static, ()> {
        let below = self.below.closed();
        Box::pin(async move {
            tokio::select! {
                () = below => {}
                () = self.ended.cancelled() => {}
            }
        })
    }

    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.lock().stream).poll_flush(cx)
    }

    /// What does not fit into the socket at once, the close_notify included, is given up for the FIN.
    fn shutdown_write(&self) -> io::Result<()> {
        let cx = &mut Context::from_waker(Waker::noop());
        match Pin::new(&mut self.lock().stream).poll_shutdown(cx) {
            Poll::Ready(done) => done,
            Poll::Pending => self.below.shutdown_write(),
        }
    }

    fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.lock().stream).poll_shutdown(cx)
    }

    fn reset_on_close(&self) {
        self.below.reset_on_close();
    }

    fn set_notsent_lowat(&self, bytes: u32) -> io::Result<()> {
        self.below.set_notsent_lowat(bytes)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.below.peer_addr()
    }

    fn as_tcp(&self) -> Option<&TcpStream> {
        self.below.as_tcp()
    }
}

impl fmt::Debug for Secure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Secure").field(&self.below).finish()
    }
}

/// Takes in what has arrived, without waiting, until it says something to the reader.
fn look<D: SideData>(session: &mut ConnectionCommon<D>, tcp: &TcpStream) -> bool {
    loop {
        match session.process_new_packets() {
            Ok(state) if state.plaintext_bytes_to_read() == 0 && !state.peer_has_closed() => {}
            // Reading tells what is the matter.
            Ok(_) | Err(_) => return true,
        }
        match session.read_tls(&mut Arrived(tcp)) {
            Ok(1..) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Ok(0) | Err(_) => return true,
        }
    }
}

/// Reads without becoming the one whom the reactor wakes.
struct Arrived<'a>(&'a TcpStream);

impl Read for Arrived<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // Not `try_read`: the reactor may not have noticed yet what has arrived.
        (&*SockRef::from(self.0)).read(buf)
    }
}
