//! One direction of one connection.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::frames::Frames;
use super::toxic::Shape;
use super::{Fate, Shared, Towards};

/// How a connection is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Break {
    /// Both ends are reset.
    Both,
    /// Both ends are closed.
    Gently,
    /// The Node's side ends and the Edge's is told nothing.
    Node,
}

/// What is on its way.
enum Parcel {
    Bytes(Bytes),
    End,
    Break(Break),
}

/// Carries one direction until its sender ends (`Ok`) or the connection is to be broken. An end is not
/// passed on while the connection is `muted`.
pub(super) async fn carry(
    link: usize,
    towards: Towards,
    from: &TcpStream,
    to: &TcpStream,
    muted: &AtomicBool,
    shared: &Shared,
) -> Result<(), Break> {
    // Latency is a queue between reading and writing: what waits in it costs no bandwidth.
    let (queue, parcels) = mpsc::unbounded_channel();
    let reading = read(link, towards, from, shared, queue);
    let mut writing = std::pin::pin!(write(towards, to, muted, shared, parcels));
    tokio::select! {
        biased;
        written = &mut writing => return written,
        () = reading => {}
    }
    writing.await
}

async fn read(
    link: usize,
    towards: Towards,
    from: &TcpStream,
    shared: &Shared,
    queue: mpsc::UnboundedSender<(Instant, Parcel)>,
) {
    let mut frames = Frames::new(link, towards);
    let mut released = shared.released.subscribe();
    let put = |parcel| {
        let latency = shared.toxics.borrow().towards(towards).latency;
        let _ = queue.send((Instant::now() + latency, parcel));
    };
    loop {
        let read = fill(from, &mut frames).await;
        while let Some((seen, bytes)) = frames.next() {
            let fate = (*shared.rule())(&seen);
            shared.frames.send_modify(|frames| frames.push(seen));
            match fate {
                Fate::Pass => put(Parcel::Bytes(bytes)),
                Fate::Cut => {
                    put(Parcel::Bytes(bytes));
                    return put(Parcel::Break(Break::Both));
                }
                Fate::CutWithin(kept) => {
                    put(Parcel::Bytes(bytes.slice(..kept.min(bytes.len()))));
                    return put(Parcel::Break(Break::Both));
                }
                Fate::Swallow => {}
                Fate::Twice => {
                    put(Parcel::Bytes(bytes.clone()));
                    put(Parcel::Bytes(bytes));
                }
                Fate::Hold => {
                    released.mark_unchanged();
                    let _ = released.changed().await;
                    put(Parcel::Bytes(bytes));
                }
            }
        }
        if !matches!(read, Ok(1..)) {
            // What is no whole frame is passed on all the same.
            put(Parcel::Bytes(frames.buffer().split().freeze()));
            return put(match read {
                Ok(_) => Parcel::End,
                Err(_) => Parcel::Break(Break::Both),
            });
        }
    }
}

async fn fill(from: &TcpStream, frames: &mut Frames) -> io::Result<usize> {
    loop {
        from.readable().await?;
        match from.try_read_buf(frames.buffer()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

async fn write(
    towards: Towards,
    to: &TcpStream,
    muted: &AtomicBool,
    shared: &Shared,
    mut parcels: mpsc::UnboundedReceiver<(Instant, Parcel)>,
) -> Result<(), Break> {
    let mut passed: usize = 0;
    while let Some((due, parcel)) = parcels.recv().await {
        tokio::time::sleep_until(due).await;
        let shape = shared.toxics.borrow().towards(towards);
        match parcel {
            Parcel::Break(how) => return Err(how),
            Parcel::End => {
                tokio::time::sleep(shape.slow_close).await;
                if !muted.load(Ordering::Relaxed) {
                    let _ = SockRef::from(to).shutdown(std::net::Shutdown::Write);
                }
                return Ok(());
            }
            Parcel::Bytes(bytes) => {
                if let Some(after) = shape.reset_after {
                    tokio::time::sleep(after).await;
                    return Err(Break::Both);
                }
                if let Some(after) = shape.timeout {
                    tokio::time::sleep(after).await;
                    return Err(Break::Gently);
                }
                let kept = shape.limit.map_or(bytes.len(), |limit| {
                    bytes.len().min(usize::saturating_sub(limit, passed))
                });
                // What passed before there was a limit is not what it is about.
                passed = shape.limit.map_or(0, |_| passed + kept);
                shaped(to, &bytes[..kept], shape).await.map_err(|_| Break::Both)?;
                if kept < bytes.len() {
                    return Err(Break::Gently);
                }
            }
        }
    }
    Ok(())
}

/// Writes in the pieces and at the pace of this direction.
async fn shaped(to: &TcpStream, bytes: &[u8], shape: Shape) -> io::Result<()> {
    // A slow line hands out small pieces rather than large ones late.
    const SLOW_PIECE: usize = 2048;
    let (size, pause) = match (shape.slicer, shape.bandwidth) {
        (Some((size, pause)), _) => (size, pause),
        (None, Some(_)) => (SLOW_PIECE, Duration::ZERO),
        (None, None) => (usize::MAX, Duration::ZERO),
    };
    for piece in bytes.chunks(size) {
        if let Some(rate) = shape.bandwidth {
            let length = u32::try_from(piece.len()).unwrap_or(u32::MAX);
            tokio::time::sleep(Duration::from_secs(1) * length / rate.max(1)).await;
        }
        write_all(to, piece).await?;
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
    Ok(())
}

async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
