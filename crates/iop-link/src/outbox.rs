//! What waits to be sent, by class, and whose turn it is.
//!
//! Urgent frames go first, then control frames, then the streams in deficit round robin: a stream at
//! the front may send [`QUANTUM`] bytes, then it goes to the back. A frame may overdraw the quantum; the
//! stream pays in its next round. The outbox of streams holds keys only: their messages wait with them.
//!
//! Only messages that a peer can cause without a stream are limited here ([`MAX_REPLIES`]); heads,
//! cancels and credit are bounded by `max_streams`, statuses by the number of providers, observations by
//! that of their targets.

use std::collections::VecDeque;

use iop_wire::Message;
use iop_wire::v1::{self, CancelReason};

use crate::stream::StreamKey;

/// What one stream may send in a round.
pub const QUANTUM: i64 = 16 * 1024;

/// A batch is written at once, so nothing can overtake it: two full data frames with their prefixes.
pub const MAX_BATCH: usize = 2 * (iop_wire::MAX_PAYLOAD + FRAME_OVERHEAD);

/// Prefix and envelope around a payload, at most.
pub(crate) const FRAME_OVERHEAD: usize = 64;

/// Answers to heartbeats that may wait: a peer that asks and does not read has lost its mind.
pub const MAX_REPLIES: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    urgent: VecDeque<Urgent>,
    control: VecDeque<Control>,
    ready: VecDeque<StreamKey>,
    replies: usize,
}

#[derive(Debug)]
pub(crate) enum Urgent {
    Heartbeat(u64),
    HeartbeatReply(u64),
    /// Of a stream, which knows how much.
    Credit(StreamKey),
    Drain(v1::Drain),
}

#[derive(Debug)]
pub(crate) enum Control {
    Link(Box<Message>),
    /// Of a stream, which holds it; gone when it was cancelled in time.
    Head(StreamKey),
    Cancel(StreamKey, CancelReason),
}

impl Outbox {
    pub(crate) fn push_urgent(&mut self, frame: Urgent) {
        self.urgent.push_back(frame);
    }

    /// Queues the answer to a heartbeat; says whether there are too many.
    pub(crate) fn push_reply(&mut self, id: u64) -> bool {
        self.replies += 1;
        self.urgent.push_back(Urgent::HeartbeatReply(id));
        self.replies > MAX_REPLIES
    }

    pub(crate) fn push_control(&mut self, frame: Control) {
        self.control.push_back(frame);
    }

    /// Queues a status in the place of an older one of the same provider that still waits.
    pub(crate) fn push_status(&mut self, status: v1::ProviderStatus) {
        for waiting in &mut self.control {
            if let Control::Link(message) = waiting
                && let Message::ProviderStatus(older) = &mut **message
                && older.key == status.key
            {
                *older = status;
                return;
            }
        }
        self.push_control(Control::Link(Box::new(Message::ProviderStatus(status))));
    }

    /// Queues an observation; an older one of the same target that still waits is dropped for it.
    pub(crate) fn push_observation(&mut self, observation: v1::HealthObservation) {
        self.control.retain(|waiting| {
            let Control::Link(message) = waiting else { return true };
            let Message::HealthObservation(older) = &**message else { return true };
            (&older.adapter, &older.target) != (&observation.adapter, &observation.target)
        });
        self.push_control(Control::Link(Box::new(Message::HealthObservation(observation))));
    }

    pub(crate) fn pop_urgent(&mut self) -> Option<Urgent> {
        let frame = self.urgent.pop_front()?;
        if matches!(frame, Urgent::HeartbeatReply(_)) {
            self.replies -= 1;
        }
        Some(frame)
    }

    pub(crate) fn pop_control(&mut self) -> Option<Control> {
        self.control.pop_front()
    }

    /// Puts a stream at the back of the round.
    pub(crate) fn schedule(&mut self, key: StreamKey) {
        self.ready.push_back(key);
    }

    /// Returns the stream whose turn it is.
    pub(crate) fn turn(&self) -> Option<StreamKey> {
        self.ready.front().copied()
    }

    /// Ends the turn of the stream at the front, which has more to send.
    pub(crate) fn next_turn(&mut self) {
        self.ready.rotate_left(1);
    }

    /// Takes the stream at the front out of the round.
    pub(crate) fn leave(&mut self) {
        self.ready.pop_front();
    }

    /// Yields up to `count` streams that have a head to send, then as many that have data.
    pub(crate) fn next_streams(&self, count: usize) -> impl Iterator<Item = StreamKey> {
        let heads = self.control.iter().filter_map(|frame| match frame {
            Control::Head(key) => Some(*key),
            Control::Link(_) | Control::Cancel(..) => None,
        });
        heads.take(count).chain(self.ready.iter().copied().take(count))
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.control.is_empty() && self.ready.is_empty()
    }
}
