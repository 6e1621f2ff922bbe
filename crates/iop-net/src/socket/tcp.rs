//! TCP as a transport: reads and writes through a shared reference.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{Interest, ReadBuf};
use tokio::net::TcpStream;

use super::Transport;
use crate::net::BoxFuture;

impl Transport for TcpStream {
    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            ready!(self.poll_read_ready(cx))?;
            let room = buf.remaining();
            match once(self, Interest::READABLE, room, || self.try_read_buf(buf)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(drop)),
            }
        }
    }

    fn poll_write_vectored(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let offered = bufs.iter().map(|buf| buf.len()).sum();
        loop {
            ready!(self.poll_write_ready(cx))?;
            let written = once(self, Interest::WRITABLE, offered, || match bufs {
                [single] => self.try_write(single),
                _ => self.try_write_vectored(bufs),
            });
            match written {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn is_readable(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        match SockRef::from(self).peek(&mut byte) {
            Ok(_) => true,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    fn closed(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { peer_ended(&self).await })
    }

    fn shutdown_write(&self) -> io::Result<()> {
        SockRef::from(self).shutdown(Shutdown::Write)
    }

    fn reset_on_close(&self) {
        // Fails only on a connection that is gone already: nothing is left to reset.
        let _ = SockRef::from(self).set_linger(Some(Duration::ZERO));
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn set_notsent_lowat(&self, bytes: u32) -> io::Result<()> {
        SockRef::from(self).set_tcp_notsent_lowat(bytes)
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn set_notsent_lowat(&self, _: u32) -> io::Result<()> {
        Ok(())
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Self::peer_addr(self)
    }

    fn as_tcp(&self) -> Option<&TcpStream> {
        Some(self)
    }
}

/// Performs one read or write and, when it moved less than `offered`, takes that as news that the
/// kernel's buffer is drained or full: readiness is cleared without another system call to hear
/// `WouldBlock`.
///
/// Readiness is judged as of before the operation, so an event that arrives meanwhile is not lost.
/// The peer's end is never cleared.
fn once(
    stream: &TcpStream,
    interest: Interest,
    offered: usize,
    operation: impl FnOnce() -> io::Result<usize>,
) -> io::Result<usize> {
    let mut moved = 0;
    let outcome = stream.try_io(interest, || {
        moved = operation()?;
        // Only edge-triggered selectors report the next arrival by themselves.
        let drained = cfg!(unix) && 0 < moved && moved < offered;
        if drained { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    match outcome {
        Err(_) if moved > 0 => Ok(moved),
        outcome => outcome.map(|()| moved),
    }
}

/// Waits for the peer's FIN or RST.
///
/// Priority readiness is the one kind that unread bytes do not satisfy and that still completes when
/// the peer ends.
#[cfg(any(target_os = "linux", target_os = "android"))]
async fn peer_ended(stream: &TcpStream) {
    loop {
        match stream.ready(Interest::PRIORITY).await {
            Ok(ready) if ready.is_read_closed() => return,
            // Urgent data, which nobody here speaks: forget it and wait on.
            Ok(_) => {
                let _ = stream
                    .try_io(Interest::PRIORITY, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
            }
            // The reactor is gone, and with it every connection.
            Err(_) => return,
        }
    }
}

/// Waits for the peer's end where there is no priority readiness: unread bytes hide the end from
/// waiting, so it is looked for from time to time while there are any.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
async fn peer_ended(stream: &TcpStream) {
    // 100 ms: a tenth of the second within which a provider must learn that its client left.
    const LOOK: Duration = Duration::from_millis(100);
    loop {
        match stream.ready(Interest::READABLE).await {
            Ok(ready) if ready.is_read_closed() => return,
            Ok(_) => tokio::time::sleep(LOOK).await,
            Err(_) => return,
        }
    }
}
