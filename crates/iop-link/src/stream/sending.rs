//! The half of a stream that this side sends.

use std::collections::VecDeque;

use iop_wire::MAX_PAYLOAD;

use crate::credit::MAX_CREDIT;
use crate::message::{MIN_CHARGE, Piece};

#[derive(Debug)]
pub(crate) struct Sending<P> {
    queue: VecDeque<P>,
    /// Charge of what waits.
    queued: u64,
    credit: u64,
    seq: u64,
    state: State,
    /// What is left of this round's quantum; below zero what was overdrawn.
    pub(crate) deficit: i64,
    pub(crate) scheduled: bool,
    /// Whether somebody waits for room.
    pub(crate) waiting: bool,
    /// Charge of everything sent so far.
    pub(crate) sent: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// More may be queued.
    Open,
    /// The last message is queued.
    Ending,
    /// The last message was sent, or nothing may be sent any more.
    Ended,
}

impl<P: Piece> Sending<P> {
    pub(crate) const fn new(credit: u32) -> Self {
        Self {
            queue: VecDeque::new(),
            queued: 0,
            credit: credit as u64,
            seq: 0,
            state: State::Open,
            deficit: 0,
            scheduled: false,
            waiting: false,
            sent: 0,
        }
    }

    /// Queues a message; nothing follows a last one.
    pub(crate) fn push(&mut self, piece: P) {
        if self.state != State::Open {
            return;
        }
        if piece.is_last() {
            self.state = State::Ending;
        }
        self.queued += piece.charge();
        self.queue.push_back(piece);
    }

    /// Returns the length of the frame that could be sent now.
    pub(crate) fn next_len(&self) -> Option<usize> {
        let piece = self.queue.front()?;
        let payload = piece.payload().len().min(MAX_PAYLOAD);
        if piece.is_free() {
            return Some(payload);
        }
        if self.credit < MIN_CHARGE {
            return None;
        }
        Some(usize::try_from(self.credit).map_or(payload, |credit| payload.min(credit)))
    }

    /// Takes the next frame's message, cut to what a frame and the credit allow.
    pub(crate) fn pop(&mut self) -> Option<P> {
        let len = self.next_len()?;
        let front = self.queue.front_mut()?;
        let before = front.charge();
        let (piece, rest) = if len < front.payload().len() {
            let piece = front.split_front(len);
            (piece, front.charge())
        } else {
            (self.queue.pop_front()?, 0)
        };
        let charge = piece.charge();
        self.queued -= before - rest;
        self.credit = self.credit.saturating_sub(charge);
        self.sent += charge;
        if piece.is_last() {
            self.state = State::Ended;
        }
        Some(piece)
    }

    /// Drops what waits; a queued last message stays.
    pub(crate) fn purge(&mut self) {
        let last = match self.state {
            State::Ending => self.queue.pop_back(),
            State::Open | State::Ended => None,
        };
        self.queue.clear();
        self.queued = 0;
        // A last message with a payload would wait for credit behind which nothing waits any more.
        match last {
            Some(last) if last.is_free() => self.queue.push_back(last),
            Some(_) => self.state = State::Open,
            None => {}
        }
    }

    /// Ends the half without another message.
    pub(crate) fn end(&mut self) {
        self.queue.clear();
        self.queued = 0;
        self.state = State::Ended;
    }

    /// Adds credit; says whether it overflows.
    pub(crate) const fn add_credit(&mut self, bytes: u32) -> bool {
        self.credit += bytes as u64;
        self.credit > MAX_CREDIT
    }

    /// Numbers the next frame of this direction.
    pub(crate) const fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    pub(crate) const fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    pub(crate) const fn is_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    pub(crate) const fn queued(&self) -> u64 {
        self.queued
    }

    pub(crate) const fn credit(&self) -> u64 {
        self.credit
    }
}
