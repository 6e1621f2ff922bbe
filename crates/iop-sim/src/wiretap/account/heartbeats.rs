//! The heartbeats that one end of a link sends, by the clock.
//!
//! Where a network fails they are late with everything else; so time is kept only where none does.

use std::collections::VecDeque;
use std::time::Duration;

use crate::ledger::now;

/// How often an end asks, as the protocol has it.
const INTERVAL: Duration = Duration::from_secs(30);
/// How long it may take until a heartbeat that is due is written, and until its answer is there: bulk is
/// never more than a few windows ahead of it, each a way of at most 40 ms. The protocol's own bound is
/// 5 s on a line of 1 Mbit/s, and no line here is slow.
const SOON: Duration = Duration::from_secs(1);

pub(super) struct Heartbeats {
    is_kept: bool,
    /// When the last one was written, or the link was registered.
    last: Option<Duration>,
    unanswered: VecDeque<(u64, Duration)>,
}

impl Heartbeats {
    pub(super) const fn new(is_kept: bool) -> Self {
        Self { is_kept, last: None, unanswered: VecDeque::new() }
    }

    /// The link is registered.
    pub(super) fn begin(&mut self) {
        self.last = Some(now());
    }

    pub(super) fn asked(&mut self, id: u64) -> Result<(), String> {
        self.look()?;
        self.last = Some(now());
        self.unanswered.push_back((id, now()));
        Ok(())
    }

    pub(super) fn answered(&mut self, id: u64) -> Result<(), String> {
        let late = self.look();
        self.unanswered.retain(|(asked, _)| *asked > id);
        late
    }

    /// Looks whether one is late; tells it once.
    pub(super) fn look(&mut self) -> Result<(), String> {
        let now = now();
        if !self.is_kept {
            return Ok(());
        }
        if let Some(last) = self.last.filter(|last| now > *last + INTERVAL + SOON) {
            self.last = Some(now);
            return Err(format!("sent no heartbeat from {last:?} to {now:?}"));
        }
        match self.unanswered.front().copied() {
            Some((id, asked)) if now > asked + SOON => {
                self.unanswered.pop_front();
                Err(format!("heartbeat {id} of {asked:?} has no answer at {now:?}"))
            }
            Some(_) | None => Ok(()),
        }
    }
}
