//! The machine of one link: what both roles share.
//!
//! Call a `handle_*` method or one of the role's own ([`edge`], [`node`]), then drain
//! [`poll_signal`](Link::poll_signal) and [`poll_output`](Link::poll_output), write what
//! [`transmit`](Link::transmit) yields, and come back at [`poll_timeout`](Link::poll_timeout) at the
//! latest. `now` never goes backwards. Timers are judged only when asked to: read the socket first.
//!
//! A link ends once. Everything that it still has to say is then bounded by what was queued, and the
//! streams know the reason from that moment on.

mod behaviour;
pub mod edge;
pub mod node;
mod transmit;

use std::collections::VecDeque;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use iop_types::{CloseReason, Generation};
use iop_wire::v1::{self, CancelReason};
use iop_wire::{Message, frame, frame::Frame};

use crate::credit::{Budget, BudgetStats};
use crate::heartbeat::{Due, Heartbeat};
use crate::late::LateFrames;
use crate::message::StreamKind;
use crate::outbox::{Control, Outbox, Urgent};
use crate::stream::{Receiving, Sending, StreamKey, Streams};

/// One end of a link.
#[derive(Debug)]
pub struct Link<R: Role> {
    now: Instant,
    phase: Phase<R::Birth>,
    generation: Option<Generation>,
    limits: v1::Limits,
    heartbeat: Option<Heartbeat>,
    outbox: Outbox,
    streams: Streams<Stream<R>>,
    /// Streams whose answer has not ended.
    open: u32,
    budget: Budget,
    late: LateFrames,
    drain: Option<Drain>,
    farewell: Option<v1::Close>,
    signals: VecDeque<Signal>,
    outputs: VecDeque<R::Output>,
    received_bytes: u64,
    sent_bytes: u64,
    role: R,
}

/// What an Edge and a Node do differently. Implemented by [`edge::Edge`] and [`node::Node`].
pub trait Role: behaviour::Behaviour {
    /// What the host is told.
    type Output: Debug;
}

#[derive(Debug)]
enum Phase<B> {
    Birth(B),
    Up,
    Over(CloseReason),
}

/// One stream as both roles know it.
#[derive(Debug)]
pub struct Stream<R: Role> {
    kind: StreamKind,
    out: Sending<R::Sent>,
    inn: Receiving<R::Received>,
    /// Handles that still name this stream.
    handles: u8,
    extra: R::Extra,
}

/// An own wish to stop.
#[derive(Debug)]
pub struct Drain {
    deadline: Instant,
    /// The peer promised that no further head follows.
    acknowledged: bool,
}

/// How the last words of a link are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Farewell {
    /// What was accepted, then Close.
    AfterQueued,
    /// Close at once; nothing of this generation follows.
    Fence,
    /// Nobody listens.
    Silent,
}

/// Somebody who waited on a stream should look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// A message or the end arrived on the stream in this slot.
    Readable(usize),
    /// There is room for more.
    Writable(usize),
    /// The request was cancelled or its link ended.
    Cancelled(usize),
}

/// Counters of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Streams open, those of commands included.
    pub streams: u32,
    /// Commands under way.
    pub commands: u32,
    /// Payload bytes granted to the peer and not yet used.
    pub granted_bytes: u64,
    /// Payload bytes received and not yet taken by their streams.
    pub buffered_bytes: u64,
    /// What is reserved of the budget for what the peer may send.
    pub reserved_bytes: u64,
    /// The budget.
    pub credit_budget: u64,
    /// Payload bytes queued for sending.
    pub queued_bytes: u64,
    /// Frames dropped because their stream or generation had ended.
    pub late_frames: u64,
    /// Last measured heartbeat round trip.
    pub heartbeat_rtt: Option<Duration>,
    /// When the peer last answered an own heartbeat.
    pub heartbeat_answered: Option<Instant>,
    /// When the peer last sent a heartbeat of its own.
    pub heartbeat_asked: Option<Instant>,
    /// Bytes of frames received, framing included.
    pub received_bytes: u64,
    /// Bytes of frames written, framing included.
    pub sent_bytes: u64,
    /// What this end may have to hold: answers at an Edge, request bodies at a Node.
    pub receiving: BudgetStats,
    /// What an Edge has claimed at the Node for request bodies; nothing at a Node.
    pub claimed: Option<BudgetStats>,
}

impl<R: Role> Link<R> {
    fn with_birth(now: Instant, birth: R::Birth, limits: v1::Limits, role: R) -> Self {
        Self {
            now,
            phase: Phase::Birth(birth),
            generation: None,
            limits,
            heartbeat: None,
            outbox: Outbox::default(),
            streams: Streams::new(),
            open: 0,
            budget: Budget::new(limits.credit_budget),
            late: LateFrames::default(),
            drain: None,
            farewell: None,
            signals: VecDeque::new(),
            outputs: VecDeque::new(),
            received_bytes: 0,
            sent_bytes: 0,
            role,
        }
    }

    /// Takes what was read from the socket; leaves an incomplete frame in `buffer`.
    pub fn handle_read(&mut self, now: Instant, buffer: &mut BytesMut) {
        self.now = now;
        let waiting = buffer.len();
        while self.close_reason().is_none() {
            match frame::decode(buffer) {
                Ok(Some(frame)) => {
                    if let Err(reason) = self.handle_frame(frame) {
                        self.end(reason, Farewell::Fence);
                    }
                }
                Ok(None) => break,
                Err(error) => self.end(error.close_reason(), Farewell::Fence),
            }
        }
        self.received_bytes += (waiting - buffer.len()) as u64;
        if self.close_reason().is_some() {
            buffer.clear();
        }
        self.check_drained();
    }

    /// The peer ended its sending side.
    pub fn handle_eof(&mut self, now: Instant) {
        self.now = now;
        self.end(CloseReason::PeerClosed, Farewell::Silent);
    }

    /// The connection broke.
    pub fn handle_lost(&mut self, now: Instant) {
        self.now = now;
        self.end(CloseReason::ConnectionLost, Farewell::Silent);
    }

    /// Judges the timers. Call it when [`Self::poll_timeout`] has passed and everything that had
    /// arrived by then was handled.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        if let Phase::Birth(birth) = &self.phase
            && R::birth_deadline(birth).is_some_and(|deadline| deadline <= now)
        {
            self.end(CloseReason::RegisterTimeout, Farewell::Fence);
        }
        while let Some(due) = self.heartbeat.as_mut().and_then(|beat| beat.poll_due(now)) {
            match due {
                Due::Send(id) => self.outbox.push_urgent(Urgent::Heartbeat(id)),
                Due::ChallengeLost => R::handle_challenge(self, false),
                Due::Expired => self.end(CloseReason::HeartbeatTimeout, Farewell::Fence),
            }
        }
        R::handle_overdue(self);
        if self.drain.as_ref().is_some_and(|drain| drain.deadline <= now) {
            self.end(CloseReason::ShuttingDown, Farewell::AfterQueued);
        }
        self.check_drained();
    }

    /// Returns when [`Self::handle_timeout`] is due; `None` once the link has ended.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let birth = match &self.phase {
            Phase::Birth(birth) => R::birth_deadline(birth),
            Phase::Up => None,
            Phase::Over(_) => return None,
        };
        let heartbeat = self.heartbeat.as_ref().map(Heartbeat::deadline);
        let drain = self.drain.as_ref().map(|drain| drain.deadline);
        [birth, heartbeat, drain, R::next_due(self)].into_iter().flatten().min()
    }

    /// Yields who should look at its stream again.
    pub fn poll_signal(&mut self) -> Option<Signal> {
        self.signals.pop_front()
    }

    /// Yields what the host has to know or decide.
    pub fn poll_output(&mut self) -> Option<R::Output> {
        self.outputs.pop_front()
    }

    /// Finishes what is open, takes nothing new, and closes afterwards or after `within`. A link
    /// that is not up yet closes at once.
    pub fn drain(&mut self, now: Instant, within: Duration) {
        self.now = now;
        match self.phase {
            Phase::Birth(_) => self.end(CloseReason::ShuttingDown, Farewell::AfterQueued),
            Phase::Up if self.drain.is_none() => {
                self.drain = Some(Drain { deadline: now + within, acknowledged: false });
                let deadline_ms = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
                R::announce_drain(self, v1::Drain { deadline_ms });
                self.check_drained();
            }
            Phase::Up | Phase::Over(_) => {}
        }
    }

    /// Ends the link at once; nothing of this generation is sent any more but the reason.
    pub fn fence(&mut self, now: Instant, reason: CloseReason) {
        self.now = now;
        self.end(reason, Farewell::Fence);
    }

    /// Returns why the link ended, `None` while it lives.
    pub const fn close_reason(&self) -> Option<CloseReason> {
        match self.phase {
            Phase::Over(reason) => Some(reason),
            Phase::Birth(_) | Phase::Up => None,
        }
    }

    /// Returns the number of this link, once it is registered.
    pub const fn generation(&self) -> Option<Generation> {
        self.generation
    }

    /// Returns what both sides keep to.
    pub const fn limits(&self) -> &v1::Limits {
        &self.limits
    }

    /// Says whether [`Self::transmit`] has something to write.
    pub fn wants_write(&self) -> bool {
        !self.outbox.is_empty() || self.farewell.is_some()
    }

    /// Says whether the streams whose turn is next fill a batch by themselves: nothing is gained then
    /// by waiting for more to send.
    pub fn has_full_batch(&self) -> bool {
        const LOOK: usize = 4;
        let sendable = |key| {
            self.streams.get(key).map_or(0, |stream| stream.out.queued().min(stream.out.credit()))
        };
        self.outbox.next_streams(LOOK).map(sendable).sum::<u64>() >= crate::outbox::MAX_BATCH as u64
    }

    /// Says whether a signal waits.
    pub fn has_signal(&self) -> bool {
        !self.signals.is_empty()
    }

    /// Says whether an output waits.
    pub fn has_output(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Returns counters, taken from the streams themselves.
    pub fn stats(&self) -> LinkStats {
        let mut stats = LinkStats {
            streams: self.open,
            commands: R::commands(self),
            received_bytes: self.received_bytes,
            sent_bytes: self.sent_bytes,
            heartbeat_answered: self.heartbeat.as_ref().and_then(Heartbeat::answered),
            heartbeat_asked: self.heartbeat.as_ref().and_then(Heartbeat::asked),
            reserved_bytes: self.budget.stats().reserved,
            credit_budget: self.limits.credit_budget,
            late_frames: self.late.total(),
            heartbeat_rtt: self.heartbeat.as_ref().and_then(Heartbeat::rtt),
            receiving: self.budget.stats(),
            claimed: self.role.claimed(),
            ..LinkStats::default()
        };
        for stream in self.streams.iter() {
            stats.granted_bytes += stream.inn.window.outstanding();
            stats.buffered_bytes += stream.inn.window.buffered();
            stats.queued_bytes += stream.out.queued();
        }
        stats
    }

    /// Returns what is reserved of the budget for what the peer may send.
    pub const fn reserved_bytes(&self) -> u64 {
        self.budget.stats().reserved
    }

    // ---- frames

    fn handle_frame(&mut self, mut frame: Frame) -> Result<(), CloseReason> {
        let message = frame.message.take();
        if frame.stream_id == 0 {
            return match message {
                Some(message) => self.handle_link_message(frame, message),
                None => Ok(()),
            };
        }
        if !matches!(self.phase, Phase::Up) {
            return Err(CloseReason::ProtocolError);
        }
        match message {
            Some(Message::Credit(credit)) => self.handle_credit(&frame, credit.bytes),
            Some(message) => R::handle(self, frame, message),
            None => {
                if let Some(key) = self.streams.find(frame.stream_id) {
                    self.count_frame(key, frame.seq);
                }
                Ok(())
            }
        }
    }

    fn handle_link_message(&mut self, frame: Frame, message: Message) -> Result<(), CloseReason> {
        match message {
            Message::Close(close) => {
                self.end(close.reason().into(), Farewell::Silent);
                Ok(())
            }
            Message::HeartbeatRequest(request) if self.heartbeat.is_some() => {
                if let Some(heartbeat) = &mut self.heartbeat {
                    heartbeat.handle_request(self.now);
                }
                if self.outbox.push_reply(request.id) {
                    return Err(CloseReason::ControlOverflow);
                }
                Ok(())
            }
            Message::HeartbeatResponse(response) => {
                let heartbeat = self.heartbeat.as_mut().ok_or(CloseReason::ProtocolError)?;
                if heartbeat.handle_answer(self.now, response.id) {
                    R::handle_challenge(self, true);
                }
                Ok(())
            }
            Message::Drain(_) if matches!(self.phase, Phase::Up) => {
                R::handle_drain(self);
                Ok(())
            }
            message => R::handle(self, frame, message),
        }
    }

    fn handle_credit(&mut self, frame: &Frame, bytes: u32) -> Result<(), CloseReason> {
        let Some(key) = self.streams.find(frame.stream_id) else {
            return self.missed(frame.stream_id, Late::Expected);
        };
        if !self.count_frame(key, frame.seq) {
            return Ok(());
        }
        if self.streams[key].out.add_credit(bytes) {
            return Err(CloseReason::FlowControlViolation);
        }
        self.schedule(key);
        self.signal_writable(key);
        Ok(())
    }

    /// Counts a frame of a stream in its direction; breaks the stream off when the frame is out of
    /// place and says so.
    fn count_frame(&mut self, key: StreamKey, seq: u64) -> bool {
        let in_place = self.streams[key].inn.accept_seq(seq);
        if !in_place {
            R::break_off(self, key);
        }
        in_place
    }

    /// Drops a frame whose stream is not there.
    fn missed(&mut self, stream_id: u32, late: Late) -> Result<(), CloseReason> {
        match late {
            // Sent before the peer could know that the stream had ended.
            Late::Expected if stream_id <= self.streams.highest() => Ok(()),
            Late::Expected | Late::Counted if self.late.count(self.now) => {
                Err(CloseReason::ProtocolError)
            }
            Late::Expected | Late::Counted => Ok(()),
        }
    }

    // ---- streams

    /// Lets a stream take part in the rounds if it has something that may be sent.
    fn schedule(&mut self, key: StreamKey) {
        let stream = &mut self.streams[key];
        if !stream.out.scheduled && R::is_head_sent(stream) && stream.out.next_len().is_some() {
            stream.out.scheduled = true;
            stream.out.deficit = crate::outbox::QUANTUM;
            self.outbox.schedule(key);
        }
    }

    /// Hands the next message of a stream out and returns its credit.
    fn take(&mut self, key: StreamKey) -> Option<R::Received> {
        let piece = self.streams[key].inn.pop()?;
        self.grant(key);
        Some(piece)
    }

    fn grant(&mut self, key: StreamKey) {
        let rtt = self.heartbeat.as_ref().and_then(Heartbeat::rtt);
        let is_over = matches!(self.phase, Phase::Over(_));
        let inn = &mut self.streams[key].inn;
        if is_over || inn.is_ended() || inn.is_broken() {
            return;
        }
        if let Some(bytes) = inn.window.grant(self.now, rtt, &mut self.budget) {
            if inn.grant == 0 {
                self.outbox.push_urgent(Urgent::Credit(key));
            }
            inn.grant += bytes;
        }
    }

    /// Nothing more is received: what is not in use of the window returns to the budget.
    fn shut_window(&mut self, key: StreamKey) {
        let inn = &mut self.streams[key].inn;
        inn.window.shut(&mut self.budget);
        inn.grant = 0;
    }

    /// Forgets a stream when both halves have ended and no handle names it.
    fn retire(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if stream.handles == 0 && R::is_finished(stream) {
            stream.inn.window.close(&mut self.budget);
            self.streams.remove(key);
        }
    }

    fn signal_readable(&mut self, key: StreamKey) {
        if std::mem::take(&mut self.streams[key].inn.waiting) {
            self.signals.push_back(Signal::Readable(key.slot));
        }
    }

    fn signal_writable(&mut self, key: StreamKey) {
        if self.streams[key].out.waiting && R::has_room(&self.streams[key]) {
            self.streams[key].out.waiting = false;
            self.signals.push_back(Signal::Writable(key.slot));
        }
    }

    fn push_cancel(&mut self, key: StreamKey, reason: CancelReason) {
        self.outbox.push_control(Control::Cancel(key, reason));
    }

    // ---- the end

    fn check_drained(&mut self) {
        if let Phase::Up = self.phase
            && let Some(drain) = &self.drain
            && R::is_drained(self, drain)
        {
            self.end(CloseReason::ShuttingDown, Farewell::AfterQueued);
        }
    }

    fn end(&mut self, reason: CloseReason, farewell: Farewell) {
        if matches!(self.phase, Phase::Over(_)) {
            return;
        }
        self.phase = Phase::Over(reason);
        self.drain = None;
        self.heartbeat = None;
        for key in self.streams.keys() {
            if farewell != Farewell::AfterQueued {
                self.streams[key].out.end();
            }
            R::stream_ended(self, key);
            let stream = &mut self.streams[key];
            stream.inn.end();
            if std::mem::take(&mut stream.out.waiting) {
                self.signals.push_back(Signal::Writable(key.slot));
            }
            self.shut_window(key);
            self.signal_readable(key);
        }
        match farewell {
            Farewell::AfterQueued => {}
            Farewell::Fence | Farewell::Silent => self.outbox.clear(),
        }
        if farewell != Farewell::Silent {
            let reason = v1::CloseReason::from(reason).into();
            self.farewell = Some(v1::Close { reason, message: String::new() });
        }
        self.open = 0;
        self.outputs.push_back(R::closed(reason));
    }
}

/// Whether a frame without a stream is a sign of trouble.
#[derive(Debug, Clone, Copy)]
enum Late {
    /// Legal while the end of the stream travels.
    Expected,
    /// The peer knew.
    Counted,
}
