//! The task of one link: moves bytes between the machine and the socket.
//!
//! Each turn reads once, writes all that is queued in batches, and looks at the clock. What was queued
//! while the driver slept is not written at once: the driver first gives way to every task that is
//! ready, so that their frames leave in the same write. A write costs a system call and a wake-up of
//! the peer; under many short requests nearly every frame would pay for its own. Bulk data, which fills
//! a batch by itself, goes at once, while it is in the cache.
//!
//! A timer that has run out is judged only when nothing that had arrived is unread: an answer that lies in the socket
//! while the process was not running must count.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use iop_link::Role;
use iop_link::outbox::MAX_BATCH;
use tokio::io::{AsyncReadExt as _, AsyncWrite as _, AsyncWriteExt as _};
use tokio::time::Sleep;

use super::shared::{Shared, now, wake};
use crate::socket::Socket;

/// Room that is made for a read. It doubles while reads fill it, because bulk data costs a system call
/// each time (a body of 64 KiB over both ends: 33 us fixed, 28 us growing), and falls back with the
/// traffic, because a small frame that waits pins it.
const READ_ROOM: usize = 32 * 1024;
const MOST_READ_ROOM: usize = 128 * 1024;

/// How far a batch grows beyond [`MAX_BATCH`] while the socket takes every one whole. Nothing can
/// overtake a batch, so a line that is slower than what is sent gets small ones; one that keeps up is
/// paid for by the system call (64 KiB of prompt over both ends: 95 us in two, 86 in one).
const MOST_WRITE_ROOM: usize = 4 * MAX_BATCH;

/// More than a socket holds: whoever has read this much since a timer ran out has read all that had
/// arrived by then, even from a peer that never pauses.
const READ_BEFORE_JUDGING: usize = 16 * 1024 * 1024;

/// How long the last words of a link may take.
const FAREWELL: Duration = Duration::from_secs(1);

pub(super) struct Driver<R: Role> {
    shared: Arc<Shared<R>>,
    socket: Socket,
    read: BytesMut,
    room: usize,
    batch: Vec<u8>,
    written: usize,
    /// How long the next batch may be.
    write_room: usize,
    /// Whether everybody that was ready has had its turn since something was queued.
    gathered: bool,
    timer: Pin<Box<Sleep>>,
    armed: Option<Instant>,
    /// Bytes read since the timer ran out.
    overdue: Option<usize>,
    /// Whether the socket may hold something that it took (TLS).
    unflushed: bool,
    /// Whether nothing can come any more.
    peer_ended: bool,
    /// What the socket said when it failed.
    failure: Option<io::Error>,
}

impl<R: Role> Driver<R> {
    pub(super) fn new(shared: Arc<Shared<R>>, socket: Socket) -> Self {
        Self {
            shared,
            socket,
            read: BytesMut::new(),
            room: READ_ROOM,
            batch: Vec::new(),
            written: 0,
            write_room: MAX_BATCH,
            gathered: false,
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            armed: None,
            overdue: None,
            unflushed: false,
            peer_ended: false,
            failure: None,
        }
    }

    /// Takes what the socket said when it failed, if it did.
    pub(super) fn failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }

    /// Drives the link until the machine has something to tell. Cancel safe. After the output that
    /// reports the end there is nothing more: call [`Self::finish`].
    pub(super) async fn next(&mut self) -> R::Output {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Writes the last words and closes in a way that lets the peer read them.
    pub(super) async fn finish(mut self) {
        if !self.peer_ended {
            let _ = tokio::time::timeout(FAREWELL, self.farewell()).await;
        }
    }

    async fn farewell(&mut self) {
        std::future::poll_fn(|cx| self.poll_flush(cx)).await;
        if self.socket.shutdown().await.is_err() {
            return;
        }
        // Bytes that lie unread would make the close a reset, which can overtake our reason.
        loop {
            self.read.clear();
            match self.socket.read_buf(&mut self.read).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<R::Output> {
        loop {
            let (deadline, is_full) = {
                let mut inner = self.shared.lock();
                inner.driver_runs(cx);
                if let Some(output) = inner.link.poll_output() {
                    return Poll::Ready(output);
                }
                (inner.link.poll_timeout(), inner.link.has_full_batch())
            };
            let read = self.poll_read(cx).is_ready();
            let may_write =
                self.gathered || is_full || self.unflushed || self.written < self.batch.len();
            let wrote = may_write && self.poll_write(cx).is_ready();
            let judged = self.poll_timer(cx, deadline, read);
            if !(read || wrote || judged || self.shared.lock().link.has_output()) {
                self.gather(cx);
                return Poll::Pending;
            }
        }
    }

    /// Gives way once, if there is something to write, to every task that is ready.
    fn gather(&mut self, cx: &mut Context<'_>) {
        self.gathered = self.shared.lock().driver_gathers();
        if self.gathered {
            // Wakes this task after the others, whether or not it is polled again.
            let _ = std::pin::pin!(tokio::task::yield_now()).poll(cx);
        }
    }

    /// Reads once. Ready when something arrived.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.read.capacity() - self.read.len() < self.room / 4 {
            self.read.reserve(self.room);
        }
        let spare = self.read.capacity() - self.read.len();
        let read = {
            let read = std::pin::pin!(self.socket.read_buf(&mut self.read));
            ready!(read.poll(cx))
        };
        let mut inner = self.shared.lock();
        match read {
            Ok(0) => {
                self.peer_ended = true;
                inner.link.handle_eof(now());
            }
            Ok(bytes) => {
                self.overdue = self.overdue.map(|read| read + bytes);
                if bytes == spare {
                    self.room = (self.room * 2).min(MOST_READ_ROOM);
                } else if bytes < READ_ROOM / 2 {
                    self.room = READ_ROOM;
                }
                inner.link.handle_read(now(), &mut self.read);
            }
            Err(error) => {
                self.peer_ended = true;
                self.failure = Some(error);
                inner.link.handle_lost(now());
            }
        }
        let woken = inner.take_signalled();
        drop(inner);
        wake(woken);
        Poll::Ready(())
    }

    /// Writes until nothing is queued or the socket is full. Ready when something was written.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut progress = Poll::Pending;
        loop {
            if self.written == self.batch.len() && !self.fill() {
                self.gathered = false;
                return if self.flush(cx) { progress } else { Poll::Ready(()) };
            }
            let rest = &self.batch[self.written..];
            match Pin::new(&mut self.socket).poll_write(cx, rest) {
                Poll::Ready(Ok(bytes @ 1..)) => {
                    self.written += bytes;
                    self.unflushed = true;
                    self.write_room = if bytes < rest.len() {
                        MAX_BATCH
                    } else if bytes > self.write_room / 2 {
                        (2 * self.write_room).min(MOST_WRITE_ROOM)
                    } else {
                        self.write_room
                    };
                    progress = Poll::Ready(());
                }
                Poll::Ready(Ok(0) | Err(_)) => {
                    self.lost();
                    return Poll::Ready(());
                }
                Poll::Pending => {
                    self.write_room = MAX_BATCH;
                    self.shared.lock().write_blocked = true;
                    return progress;
                }
            }
        }
    }

    /// Lets the socket hand on what it took; says whether it lives.
    fn flush(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.unflushed {
            return true;
        }
        match self.socket.poll_flush(cx) {
            Poll::Ready(Ok(())) => self.unflushed = false,
            Poll::Ready(Err(_)) => {
                self.lost();
                return false;
            }
            Poll::Pending => self.shared.lock().write_blocked = true,
        }
        true
    }

    /// Takes the next batch; says whether there is one.
    fn fill(&mut self) -> bool {
        self.batch.clear();
        self.written = 0;
        let mut inner = self.shared.lock();
        inner.write_blocked = false;
        inner.link.transmit_within(self.write_room, &mut self.batch);
        let woken = inner.take_signalled();
        drop(inner);
        wake(woken);
        !self.batch.is_empty()
    }

    fn lost(&mut self) {
        self.peer_ended = true;
        self.unflushed = false;
        self.batch.clear();
        self.written = 0;
        let mut inner = self.shared.lock();
        inner.link.handle_lost(now());
        let woken = inner.take_signalled();
        drop(inner);
        wake(woken);
    }

    /// Judges the timers when they are due and nothing is unread; says whether it did.
    fn poll_timer(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>, read: bool) -> bool {
        if self.armed != deadline {
            self.armed = deadline;
            self.overdue = None;
            if let Some(deadline) = deadline {
                self.timer.as_mut().reset(deadline.into());
            }
        }
        if self.armed.is_none() {
            return false;
        }
        if self.overdue.is_none() {
            if self.timer.as_mut().poll(cx).is_pending() {
                return false;
            }
            self.overdue = Some(0);
        }
        let all_read = !read && !self.socket.is_readable();
        if !all_read && self.overdue.is_some_and(|read| read < READ_BEFORE_JUDGING) {
            return false;
        }
        self.overdue = None;
        self.armed = None;
        let mut inner = self.shared.lock();
        inner.link.handle_timeout(now());
        let woken = inner.take_signalled();
        drop(inner);
        wake(woken);
        true
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.written < self.batch.len() || self.fill() {
            let rest = &self.batch[self.written..];
            match ready!(Pin::new(&mut self.socket).poll_write(cx, rest)) {
                Ok(bytes @ 1..) => self.written += bytes,
                Ok(0) | Err(_) => return Poll::Ready(()),
            }
        }
        // A failure shows with what comes next.
        self.socket.poll_flush(cx).map(drop)
    }
}

#[cfg(test)]
mod tests;
