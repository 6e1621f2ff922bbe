//! Commands under way on one link: how many, and until when each is waited for.
//!
//! A command is a stream of its own, so that its answers can be taken for no other's. It takes no
//! place among `max_streams`: what asks how a busy Node is must not wait for it.

use std::collections::BTreeMap;
use std::time::Instant;

use iop_types::{CommandId, CommandKind, Patience};

use crate::stream::{OpenError, StreamKey};

/// Commands under way at once on one link: a handful of people and scripts.
pub const MAX_COMMANDS: usize = 16;

/// Why a command was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    /// The link takes nothing.
    #[error(transparent)]
    Link(#[from] OpenError),
    /// The Node's version does not know this command.
    #[error("the node's version answers no {kind} commands: upgrade it")]
    UnknownKind {
        /// The kind.
        kind: CommandKind,
    },
    /// A command with this id is under way.
    #[error("command {id} is already under way")]
    Duplicate {
        /// Its id.
        id: CommandId,
    },
    /// As many commands are under way as may be.
    #[error("{limit} commands are under way to this node: let one end, or cancel it")]
    TooMany {
        /// The limit.
        limit: usize,
    },
}

/// The Edge's commands by stream.
#[derive(Debug, Default)]
pub(crate) struct Commands(BTreeMap<StreamKey, Timer>);

#[derive(Debug)]
struct Timer {
    patience: Patience,
    /// `None` once it has passed: only the terminal is still to come.
    due: Option<Instant>,
}

impl Commands {
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= MAX_COMMANDS
    }

    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = StreamKey> {
        self.0.keys().copied()
    }

    pub(crate) fn begin(&mut self, now: Instant, key: StreamKey, patience: Patience) {
        self.0.insert(key, Timer { patience, due: Some(now + patience.time()) });
    }

    /// Something arrived, or what arrived still waits for its reader.
    pub(crate) fn heard(&mut self, now: Instant, key: StreamKey) {
        if let Some(Timer { patience: Patience::Idle(time), due: Some(due) }) = self.0.get_mut(&key)
        {
            *due = now + *time;
        }
    }

    pub(crate) fn end(&mut self, key: StreamKey) {
        self.0.remove(&key);
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.0.values().filter_map(|timer| timer.due).min()
    }

    /// Yields one whose time has passed, once.
    pub(crate) fn poll_overdue(&mut self, now: Instant) -> Option<(StreamKey, Patience)> {
        let overdue = |timer: &Timer| timer.due.is_some_and(|due| due <= now);
        let (key, timer) = self.0.iter_mut().find(|(_, timer)| overdue(timer))?;
        timer.due = None;
        Some((*key, timer.patience))
    }

    /// Waits on for one that was yielded.
    pub(crate) fn wait_on(&mut self, now: Instant, key: StreamKey) {
        if let Some(timer) = self.0.get_mut(&key) {
            timer.due = Some(now + timer.patience.time());
        }
    }
}
