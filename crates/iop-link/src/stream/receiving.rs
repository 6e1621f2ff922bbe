//! The half of a stream that this side receives.

use std::collections::VecDeque;

use crate::credit::{Exceeded, Window};
use crate::message::{Piece, unpin};

#[derive(Debug)]
pub(crate) struct Receiving<P> {
    queue: VecDeque<P>,
    pub(crate) window: Window,
    seq: u64,
    /// Messages that cost no credit, of which a stream has few.
    free: u8,
    state: State,
    /// Credit that is queued for the peer.
    pub(crate) grant: u32,
    /// Whether somebody waits for a message.
    pub(crate) waiting: bool,
    /// Whether nobody will ever ask for a message.
    pub(crate) abandoned: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// Messages are dropped until the last one.
    Broken,
    /// The last message arrived; `whole` unless some before it were dropped.
    Ended {
        whole: bool,
    },
}

/// Head, trailers, start, terminal, and room for what is to come.
const MAX_FREE: u8 = 8;

impl<P: Piece> Receiving<P> {
    pub(crate) const fn new(window: Window) -> Self {
        Self {
            queue: VecDeque::new(),
            window,
            seq: 0,
            free: 0,
            state: State::Open,
            grant: 0,
            waiting: false,
            abandoned: false,
        }
    }

    /// Checks a frame's place; says whether it is the expected one. Broken and ended halves do not
    /// count any more.
    pub(crate) const fn accept_seq(&mut self, seq: u64) -> bool {
        if matches!(self.state, State::Broken) {
            return true;
        }
        self.seq += 1;
        self.seq == seq
    }

    /// Takes a message in. Yields whether it was kept.
    ///
    /// # Errors
    /// The peer exceeded its credit.
    pub(crate) fn push(&mut self, mut piece: P) -> Result<bool, Exceeded> {
        let charge = piece.charge();
        self.window.receive(charge)?;
        if piece.is_free() {
            self.free = self.free.saturating_add(1);
            if self.free > MAX_FREE {
                self.break_off();
            }
        }
        let last = piece.is_last();
        let kept = self.state == State::Open && !self.abandoned;
        if last {
            self.state = State::Ended { whole: self.state == State::Open };
        }
        if kept {
            if !self.waiting || !self.queue.is_empty() {
                unpin(&mut piece);
            }
            self.queue.push_back(piece);
        } else {
            self.window.take(charge);
        }
        Ok(kept)
    }

    pub(crate) fn pop(&mut self) -> Option<P> {
        let piece = self.queue.pop_front()?;
        self.window.take(piece.charge());
        if self.queue.is_empty() && self.queue.capacity() > KEEP_CAPACITY {
            self.queue = VecDeque::new();
        }
        Some(piece)
    }

    /// Stops keeping messages; what arrived in order stays readable.
    pub(crate) fn break_off(&mut self) {
        if self.state == State::Open {
            self.state = State::Broken;
        }
    }

    /// Ends the half without its last message.
    pub(crate) fn end(&mut self) {
        if !self.is_ended() {
            self.state = State::Ended { whole: false };
        }
    }

    /// Drops what waits.
    pub(crate) fn purge(&mut self) {
        while self.pop().is_some() {}
    }

    pub(crate) const fn is_broken(&self) -> bool {
        matches!(self.state, State::Broken)
    }

    pub(crate) const fn is_ended(&self) -> bool {
        matches!(self.state, State::Ended { .. })
    }

    /// Says whether every message up to the last one was kept.
    pub(crate) const fn is_whole(&self) -> bool {
        matches!(self.state, State::Ended { whole: true })
    }
}

/// A queue that grew beyond this gives its memory back when it is empty.
const KEEP_CAPACITY: usize = 64;
