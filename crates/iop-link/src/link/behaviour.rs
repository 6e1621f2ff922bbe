//! The seam between what both roles share and what each does on its own.

use std::fmt::Debug;
use std::time::Instant;

use iop_types::CloseReason;
use iop_wire::frame::Frame;
use iop_wire::{Message, v1};

use super::{Drain, Link, Role, Stream};
use crate::credit::BudgetStats;
use crate::message::Piece;
use crate::stream::StreamKey;

/// What [`Link`] asks of its role.
pub trait Behaviour: Debug + Sized {
    /// What is sent on a stream behind its head.
    type Sent: Piece + Debug;
    /// What is received.
    type Received: Piece + Debug;
    /// Where a link stands before it is up.
    type Birth: Debug;
    /// What only this role knows of a stream.
    type Extra: Debug;

    /// Returns when a birth that goes no further is given up.
    fn birth_deadline(birth: &Self::Birth) -> Option<Instant>;

    /// Handles a message that not both roles understand in the same way.
    fn handle(link: &mut Link<Self>, frame: Frame, message: Message) -> Result<(), CloseReason>
    where
        Self: Role;

    /// The peer answered a challenge, or did not in time.
    fn handle_challenge(link: &mut Link<Self>, answered: bool)
    where
        Self: Role;

    /// The peer drains, or acknowledges that we do.
    fn handle_drain(link: &mut Link<Self>)
    where
        Self: Role;

    /// Queues the own Drain in its place.
    fn announce_drain(link: &mut Link<Self>, drain: v1::Drain)
    where
        Self: Role;

    /// Says whether nothing keeps a draining link from closing.
    fn is_drained(link: &Link<Self>, drain: &Drain) -> bool
    where
        Self: Role;

    /// A frame of the stream was out of place: breaks it off and tells the peer.
    fn break_off(link: &mut Link<Self>, key: StreamKey)
    where
        Self: Role;

    /// Takes the head of a stream for sending; `None` when it was cancelled in time.
    fn take_head(stream: &mut Stream<Self>) -> Option<Head>
    where
        Self: Role;

    /// Says whether messages may follow the head.
    fn is_head_sent(stream: &Stream<Self>) -> bool
    where
        Self: Role;

    /// Says whether the sender should queue more.
    fn has_room(stream: &Stream<Self>) -> bool
    where
        Self: Role;

    /// A Cancel of this stream was written.
    fn sent_cancel(stream: &mut Stream<Self>)
    where
        Self: Role;

    /// The last message of this side was written.
    fn sent_last(link: &mut Link<Self>, key: StreamKey)
    where
        Self: Role;

    /// Says whether no frame of the stream can come or go any more.
    fn is_finished(stream: &Stream<Self>) -> bool
    where
        Self: Role;

    /// The link ended with this stream in it.
    fn stream_ended(link: &mut Link<Self>, key: StreamKey)
    where
        Self: Role;

    /// Returns how many commands are under way.
    fn commands(link: &Link<Self>) -> u32
    where
        Self: Role;

    /// Returns when [`Self::handle_overdue`] has something to do.
    fn next_due(link: &Link<Self>) -> Option<Instant>
    where
        Self: Role;

    /// Gives up what was waited for long enough.
    fn handle_overdue(link: &mut Link<Self>)
    where
        Self: Role;

    /// Returns what this role has claimed at its peer for what it sends, where it keeps the books.
    fn claimed(&self) -> Option<BudgetStats>;

    /// Makes the output that reports the end.
    fn closed(reason: CloseReason) -> Self::Output
    where
        Self: Role;
}

/// A head on its way out.
#[derive(Debug)]
pub struct Head {
    pub(super) message: Message,
    pub(super) body_credit: u32,
    pub(super) answer_credit: u32,
}
