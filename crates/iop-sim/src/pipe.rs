//! One simulated TCP connection, as an [`iop_net::socket::Transport`].
//!
//! Turmoil's stream delivers segments in order or not at all, but it counts credit in segments, loses
//! an end that comes while they are all in use, and resets only by accident. So what it carries here
//! are frames of ours, which say what a kernel would: bytes, the end of bytes, a reset, and how many
//! bytes were read at the other end.
//!
//! ```text
//! write ─► [data | fin | reset | read] ─ turmoil ─► inbox (what a kernel would hold) ─► read
//! ```
//!
//! Frames are taken in by whoever polls anything, so that the peer's end is known however much lies
//! unread before it, and everybody who waits is woken.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use bytes::{Buf, BytesMut};
use iop_net::net::BoxFuture;
use iop_net::socket::Transport;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use turmoil::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::wiretap::Wiretap;

/// What a connection holds for its reader: much less than a kernel, so that a slow reader is felt
/// after some pieces of text already.
const RECEIVE_BUFFER: usize = 16 * 1024;
/// What it holds of the writer's, unless the writer asks for less.
const SEND_BUFFER: usize = 128 * 1024;
/// Bytes before the payload of a frame: its kind and a length.
const PREFIX: usize = 5;
/// Longest payload of one frame.
const MAX_DATA: usize = 16 * 1024;

const DATA: u8 = b'd';
const FIN: u8 = b'f';
const RESET: u8 = b'r';
const READ: u8 = b'c';

/// One connection.
pub(crate) struct Pipe {
    peer: SocketAddr,
    state: Arc<Mutex<State>>,
    waiting: Arc<Waiting>,
    kernel: Kernel,
}

/// What a host knows of its connections, so that the end of a process closes them in the order in which
/// they were made: a runtime that is dropped drops its tasks in an order of its own.
#[derive(Clone, Default)]
pub(crate) struct Kernel(Arc<Mutex<Connections>>);

#[derive(Default)]
struct Connections {
    open: Vec<(Weak<Mutex<State>>, Weak<Waiting>)>,
    is_killed: bool,
}

struct State {
    peer: SocketAddr,
    /// `None` once it is closed.
    halves: Option<(OwnedReadHalf, OwnedWriteHalf)>,
    tap: Wiretap,
    raw: BytesMut,
    inbox: BytesMut,
    ended: Option<End>,
    /// Bytes written that the other end has not read.
    outstanding: usize,
    send_buffer: usize,
    /// Bytes read here that the other end does not know of.
    unreported: usize,
    is_shut: bool,
    resets: bool,
    hold: Hold,
}

/// Whether somebody on the way lets through what the other end says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// Everything.
    Nothing,
    /// Nothing: neither bytes nor an end.
    Everything,
    /// The bytes that were on their way. The end of it is never heard of.
    Ends,
}

/// How the other end ended its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Fin,
    Reset,
}

/// Everybody who waits for this connection; woken together.
#[derive(Default)]
struct Waiting {
    read: Mutex<Option<Waker>>,
    write: Mutex<Option<Waker>>,
    closed: Mutex<Vec<Waker>>,
}

impl Pipe {
    pub(crate) fn new(
        stream: turmoil::net::TcpStream,
        peer: SocketAddr,
        tap: Wiretap,
        kernel: &Kernel,
    ) -> Self {
        let state = State {
            peer,
            halves: Some(stream.into_split()),
            tap,
            raw: BytesMut::new(),
            inbox: BytesMut::new(),
            ended: None,
            outstanding: 0,
            send_buffer: SEND_BUFFER,
            unreported: 0,
            is_shut: false,
            resets: false,
            hold: Hold::Nothing,
        };
        let (state, waiting) = (Arc::new(Mutex::new(state)), Arc::default());
        kernel.enter(&state, &waiting);
        Self { peer, state, waiting, kernel: kernel.clone() }
    }

    /// Locks the connection, with everything taken in that has arrived.
    fn current(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        state.take_in(&self.waiting);
        state
    }
}

impl Transport for Pipe {
    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        park(&self.waiting.read, cx);
        let mut state = self.current();
        if state.ended == Some(End::Reset) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if state.inbox.is_empty() {
            return if state.ended.is_some() { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        let taken = state.inbox.len().min(buf.remaining());
        buf.put_slice(&state.inbox.split_to(taken));
        state.unreported += taken;
        // As a kernel does: not for every byte.
        if state.unreported >= RECEIVE_BUFFER / 4 {
            state.report_read();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        park(&self.waiting.write, cx);
        let mut state = self.current();
        if state.is_shut || state.ended == Some(End::Reset) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = (state.send_buffer + RECEIVE_BUFFER).saturating_sub(state.outstanding);
        if room == 0 {
            return Poll::Pending;
        }
        let mut data = Vec::new();
        for buf in bufs {
            let length = buf.len().min(room.min(MAX_DATA) - data.len());
            data.extend_from_slice(&buf[..length]);
        }
        if !data.is_empty() {
            state.outstanding += data.len();
            state.tap.sent(&data);
            state.send(DATA, &data);
        }
        Poll::Ready(Ok(data.len()))
    }

    fn is_readable(&self) -> bool {
        let state = self.current();
        !state.inbox.is_empty() || state.ended.is_some()
    }

    fn closed(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(std::future::poll_fn(move |cx| {
            let mut waiting = lock(&self.waiting.closed);
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            drop(waiting);
            if self.current().ended.is_some() { Poll::Ready(()) } else { Poll::Pending }
        }))
    }

    fn shutdown_write(&self) -> io::Result<()> {
        let mut state = self.current();
        if !state.is_shut {
            state.is_shut = true;
            state.send(FIN, &[]);
        }
        Ok(())
    }

    fn reset_on_close(&self) {
        self.current().resets = true;
    }

    fn set_notsent_lowat(&self, bytes: u32) -> io::Result<()> {
        self.current().send_buffer = bytes as usize;
        Ok(())
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer)
    }
}

impl State {
    /// Takes in whatever turmoil has delivered.
    fn take_in(&mut self, waiting: &Arc<Waiting>) {
        let waker = Waker::from(Arc::clone(waiting));
        let mut cx = Context::from_waker(&waker);
        let before = (self.inbox.len(), self.ended, self.outstanding);
        let mut space = [std::mem::MaybeUninit::uninit(); 4096];
        while self.ended != Some(End::Reset) {
            let mut buf = ReadBuf::uninit(&mut space);
            let Some((reader, _)) = &mut self.halves else { break };
            match Pin::new(reader).poll_read(&mut cx, &mut buf) {
                Poll::Pending => break,
                Poll::Ready(Ok(())) if buf.filled().is_empty() => {
                    self.lost(End::Fin);
                    break;
                }
                Poll::Ready(Ok(())) => {
                    self.raw.extend_from_slice(buf.filled());
                    self.take_frames();
                }
                Poll::Ready(Err(_)) => {
                    self.lost(End::Reset);
                    break;
                }
            }
        }
        if before != (self.inbox.len(), self.ended, self.outstanding) {
            waiting.wake_by_ref();
        }
    }

    fn take_frames(&mut self) {
        if self.hold == Hold::Everything {
            return;
        }
        while let Some((kind, length)) = self.raw.first_chunk::<PREFIX>().map(|prefix| {
            let [kind, length @ ..] = *prefix;
            (kind, u32::from_be_bytes(length) as usize)
        }) {
            let has_payload = kind == DATA;
            if has_payload && self.raw.len() < PREFIX + length {
                return;
            }
            self.raw.advance(PREFIX);
            match kind {
                DATA => {
                    let data = self.raw.split_to(length);
                    self.tap.received(&data);
                    self.inbox.extend_from_slice(&data);
                }
                FIN => self.end(End::Fin),
                RESET => self.end(End::Reset),
                READ => self.outstanding = self.outstanding.saturating_sub(length),
                other => unreachable!("nobody sends frames of kind {other}"),
            }
        }
    }

    fn end(&mut self, how: End) {
        if how == End::Reset {
            self.inbox.clear();
            self.ended = Some(how);
        }
        self.ended.get_or_insert(how);
    }

    /// The network says that the other end is gone.
    fn lost(&mut self, how: End) {
        if self.hold == Hold::Nothing {
            self.end(how);
        }
    }

    fn report_read(&mut self) {
        let read = std::mem::take(&mut self.unreported);
        self.frame(READ, read, &[]);
    }

    fn send(&mut self, kind: u8, data: &[u8]) {
        self.frame(kind, data.len(), data);
    }

    fn frame(&mut self, kind: u8, number: usize, data: &[u8]) {
        let number = u32::try_from(number).expect("a window is far below 4 GiB");
        let mut frame = Vec::with_capacity(PREFIX + data.len());
        frame.push(kind);
        frame.extend_from_slice(&number.to_be_bytes());
        frame.extend_from_slice(data);
        let mut cx = Context::from_waker(Waker::noop());
        let Some((_, writer)) = &mut self.halves else { return };
        match Pin::new(writer).poll_write(&mut cx, &frame) {
            Poll::Ready(Ok(written)) => debug_assert_eq!(written, frame.len()),
            // The other end is gone, and its host said so with a reset.
            Poll::Ready(Err(_)) => self.lost(End::Reset),
            Poll::Pending => unreachable!("turmoil is given room for every frame of a window"),
        }
    }
}

impl State {
    /// Closes as a kernel does: with a reset where one is asked for or bytes were not read.
    fn close(&mut self) {
        // Without time the simulation itself is over: nobody is left to tell.
        if turmoil::sim_elapsed().is_some() && self.ended != Some(End::Reset) {
            if self.resets || !self.inbox.is_empty() {
                self.send(RESET, &[]);
            } else if !self.is_shut {
                self.send(FIN, &[]);
            }
        }
        self.halves = None;
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        if !self.kernel.close_all_if_killed() {
            lock(&self.state).close();
        }
    }
}

impl Kernel {
    /// Says whether the process ends without a word, now: nothing that it does then counts.
    pub(crate) fn set_killed(&self, is_killed: bool) {
        lock(&self.0).is_killed = is_killed;
    }

    pub(crate) fn is_killed(&self) -> bool {
        lock(&self.0).is_killed
    }

    /// Counts the connections that are open.
    pub(crate) fn open_connections(&self) -> usize {
        lock(&self.0).open.iter().filter(|(connection, _)| connection.strong_count() > 0).count()
    }

    /// Ends every link for this host, as if it had been reset; the other end hears nothing of it.
    pub(crate) fn lose_links(&self) {
        self.each_link(|state| state.end(End::Reset));
    }

    /// From now on nothing comes on the links with this peer, nor does their end.
    pub(crate) fn sever_links(&self, peer: IpAddr) {
        self.each_link(|state| {
            if state.peer.ip() == peer {
                state.hold = Hold::Everything;
            }
        });
    }

    /// What was on its way on severed links comes.
    pub(crate) fn deliver(&self, peer: IpAddr) {
        self.each_link(|state| {
            if state.peer.ip() == peer && state.hold == Hold::Everything {
                state.hold = Hold::Ends;
                state.take_frames();
            }
        });
    }

    fn each_link(&self, mut change: impl FnMut(&mut State)) {
        // Whoever is woken may open another.
        let open = lock(&self.0).open.clone();
        for (state, waiting) in open {
            let Some(state) = state.upgrade() else { continue };
            let mut state = lock(&state);
            if !state.tap.is_link() {
                continue;
            }
            change(&mut state);
            drop(state);
            if let Some(waiting) = waiting.upgrade() {
                waiting.wake_by_ref();
            }
        }
    }

    fn enter(&self, state: &Arc<Mutex<State>>, waiting: &Arc<Waiting>) {
        let mut connections = lock(&self.0);
        connections.open.retain(|(connection, _)| connection.strong_count() > 0);
        connections.open.push((Arc::downgrade(state), Arc::downgrade(waiting)));
    }

    fn close_all_if_killed(&self) -> bool {
        let mut connections = lock(&self.0);
        if !connections.is_killed {
            return false;
        }
        let open = std::mem::take(&mut connections.open);
        drop(connections);
        for connection in open.iter().filter_map(|(connection, _)| connection.upgrade()) {
            lock(&connection).close();
        }
        true
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let take = |slot: &Mutex<Option<Waker>>| lock(slot).take();
        let closed = std::mem::take(&mut *lock(&self.closed));
        for waker in take(&self.read).into_iter().chain(take(&self.write)).chain(closed) {
            waker.wake();
        }
    }
}

fn park(slot: &Mutex<Option<Waker>>, cx: &Context<'_>) {
    *lock(slot) = Some(cx.waker().clone());
}

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipe").field("peer", &self.peer).finish_non_exhaustive()
    }
}
