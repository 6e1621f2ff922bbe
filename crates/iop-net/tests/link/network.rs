//! The real network, with every connection of its caller counted and kept for inspection.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use iop_net::net::{BoxFuture, Listener, Net};
use iop_net::socket::{Socket, Transport};
use tokio::io::ReadBuf;
use tokio::net::{TcpListener, TcpStream};

/// Counts dials and the connections they lead to as one, from the dial to the drop.
#[derive(Debug, Default)]
pub(crate) struct CountingNet {
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    now: AtomicUsize,
    most: AtomicUsize,
    dials: AtomicUsize,
    streams: Mutex<Vec<Arc<TcpStream>>>,
}

impl CountingNet {
    /// Returns the most dials and connections that there were at once.
    pub(crate) fn most(&self) -> usize {
        self.counts.most.load(Ordering::SeqCst)
    }

    pub(crate) fn now(&self) -> usize {
        self.counts.now.load(Ordering::SeqCst)
    }

    pub(crate) fn dials(&self) -> usize {
        self.counts.dials.load(Ordering::SeqCst)
    }

    /// Takes the streams that were connected or accepted.
    pub(crate) fn streams(&self) -> Vec<Arc<TcpStream>> {
        std::mem::take(&mut *self.counts.streams.lock().expect("no test panics here"))
    }

    /// Wraps a listener, whose connections are kept too.
    pub(crate) fn listener(&self, listener: TcpListener) -> CountingListener {
        CountingListener { listener, counts: Arc::clone(&self.counts) }
    }
}

impl Counts {
    fn keep(self: &Arc<Self>, stream: TcpStream, guard: Option<Guard>) -> Socket {
        let stream = Arc::new(stream);
        self.streams.lock().expect("no test panics here").push(Arc::clone(&stream));
        Socket::new(Counted { stream, _guard: guard })
    }
}

impl Net for CountingNet {
    fn resolve<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Socket>> {
        let guard = Guard::new(&self.counts);
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let counts = Arc::clone(&guard.0);
            Ok(counts.keep(stream, Some(guard)))
        })
    }

    fn listen(&self, _: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}

#[derive(Debug)]
struct Guard(Arc<Counts>);

impl Guard {
    fn new(counts: &Arc<Counts>) -> Self {
        counts.dials.fetch_add(1, Ordering::SeqCst);
        let now = counts.now.fetch_add(1, Ordering::SeqCst) + 1;
        counts.most.fetch_max(now, Ordering::SeqCst);
        Self(Arc::clone(counts))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Debug)]
pub(crate) struct CountingListener {
    listener: TcpListener,
    counts: Arc<Counts>,
}

impl Listener for CountingListener {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Socket, SocketAddr)>> {
        let (stream, peer) = ready!(self.listener.poll_accept(cx))?;
        stream.set_nodelay(true)?;
        Poll::Ready(Ok((self.counts.keep(stream, None), peer)))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

#[derive(Debug)]
struct Counted {
    stream: Arc<TcpStream>,
    _guard: Option<Guard>,
}

impl Transport for Counted {
    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Transport::poll_read(&*self.stream, cx, buf)
    }

    fn poll_write_vectored(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Transport::poll_write_vectored(&*self.stream, cx, bufs)
    }

    fn is_readable(&self) -> bool {
        Transport::is_readable(&*self.stream)
    }

    fn closed(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Arc::clone(&self.stream).closed()
    }

    fn shutdown_write(&self) -> io::Result<()> {
        Transport::shutdown_write(&*self.stream)
    }

    fn reset_on_close(&self) {
        Transport::reset_on_close(&*self.stream);
    }

    fn set_notsent_lowat(&self, bytes: u32) -> io::Result<()> {
        Transport::set_notsent_lowat(&*self.stream, bytes)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    fn as_tcp(&self) -> Option<&TcpStream> {
        Some(&self.stream)
    }
}
