//! Frames for streams that have ended or never existed.

use std::time::{Duration, Instant};

/// More in a minute and the peer does not speak this protocol.
const PER_MINUTE: u32 = 1000;

/// Counts late frames.
#[derive(Debug, Default)]
pub(crate) struct LateFrames {
    total: u64,
    minute: Option<(Instant, u32)>,
}

impl LateFrames {
    /// Counts one; says whether there are too many of them.
    pub(crate) fn count(&mut self, now: Instant) -> bool {
        self.total += 1;
        let (since, in_minute) = self.minute.get_or_insert((now, 0));
        if now.saturating_duration_since(*since) >= Duration::from_secs(60) {
            (*since, *in_minute) = (now, 0);
        }
        *in_minute += 1;
        *in_minute > PER_MINUTE
    }

    /// Counts one that the peer could not know to be late.
    pub(crate) const fn note(&mut self) {
        self.total += 1;
    }

    pub(crate) const fn total(&self) -> u64 {
        self.total
    }
}
