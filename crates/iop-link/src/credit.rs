//! How much a peer may send on a stream, and how much over all of them.
//!
//! Credit is counted in payload bytes; a message with fewer than [`MIN_CHARGE`] counts as that many,
//! heads and terminals cost nothing. There is no window for the link as a whole, because streams
//! nobody reads would use it up and block the others; instead a [`Budget`] lowers what is newly granted,
//! never below [`FLOOR`]: with the standard limits 4096 streams at the floor are exactly 64 MiB.
//!
//! [`MIN_CHARGE`]: crate::message::MIN_CHARGE

use std::time::{Duration, Instant};

/// Window of a request body.
pub const REQUEST_WINDOW: u32 = 256 * 1024;
/// First window of an answer: three seconds of a fast model at the round trip of a bad link.
pub const ANSWER_WINDOW: u32 = 64 * 1024;
/// Largest window of an answer that is drained fast.
pub const ANSWER_WINDOW_MAX: u32 = 1024 * 1024;
/// The smallest window, whatever the budget says: one full frame.
pub const FLOOR: u32 = 16 * 1024;
/// More outstanding credit than this on one stream is an overflow.
pub(crate) const MAX_CREDIT: u64 = i32::MAX as u64;

/// Round trip that is assumed until one was measured.
const UNMEASURED_RTT: Duration = Duration::from_millis(50);

/// Payload bytes that may be granted over all streams.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    reserved: u64,
    peak: u64,
}

/// A budget as it stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BudgetStats {
    /// Bytes that may be reserved before new grants shrink to the floor.
    pub limit: u64,
    /// Bytes that are reserved: granted and unused, or received and not yet taken.
    pub reserved: u64,
    /// Most that was ever reserved on this link; floors may have lifted it above the limit.
    pub peak: u64,
}

impl Budget {
    /// Makes a budget of `limit` bytes.
    pub const fn new(limit: u64) -> Self {
        Self { limit, reserved: 0, peak: 0 }
    }

    /// Reserves `wanted`, or what is left, or `floor` even when nothing is left.
    pub fn reserve(&mut self, wanted: u32, floor: u32) -> u32 {
        let left = u32::try_from(self.limit.saturating_sub(self.reserved)).unwrap_or(u32::MAX);
        let granted = wanted.min(left).max(floor.min(wanted));
        self.reserved += u64::from(granted);
        self.peak = self.peak.max(self.reserved);
        granted
    }

    /// Gives back what was reserved.
    pub const fn release(&mut self, bytes: u32) {
        self.reserved = self.reserved.saturating_sub(bytes as u64);
    }

    /// Says whether floors have taken more than there is.
    pub const fn is_exceeded(&self) -> bool {
        self.reserved > self.limit
    }

    /// Returns what is reserved, of how much.
    pub const fn stats(&self) -> BudgetStats {
        BudgetStats { limit: self.limit, reserved: self.reserved, peak: self.peak }
    }
}

/// The receiving side's window of one stream.
///
/// `outstanding + buffered` never exceeds the largest size that the window has had, and credit is
/// returned once half of the window can be granted anew.
#[derive(Debug)]
pub struct Window {
    size: u32,
    nominal: u32,
    max: u32,
    /// Granted and not yet received.
    outstanding: u64,
    /// Received and not yet taken.
    buffered: u64,
    last_grant: Instant,
}

/// The peer sent more than it was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer sent more than its credit")]
pub struct Exceeded;

impl Window {
    /// Opens a window with `granted` bytes, which are reserved already.
    pub const fn new(granted: u32, nominal: u32, max: u32, now: Instant) -> Self {
        Self {
            size: granted,
            nominal,
            max,
            outstanding: granted as u64,
            buffered: 0,
            last_grant: now,
        }
    }

    /// Takes a message in.
    ///
    /// # Errors
    /// The peer exceeded its credit.
    pub const fn receive(&mut self, charge: u64) -> Result<(), Exceeded> {
        if charge > self.outstanding {
            return Err(Exceeded);
        }
        self.outstanding -= charge;
        self.buffered += charge;
        Ok(())
    }

    /// Hands a message out.
    pub const fn take(&mut self, charge: u64) {
        self.buffered = self.buffered.saturating_sub(charge);
    }

    /// Yields the credit to grant now, if it is worth a message.
    ///
    /// A stream that used up half of its window within two round trips was held back by it: the window
    /// doubles. When the budget is exceeded it halves instead.
    pub fn grant(
        &mut self,
        now: Instant,
        rtt: Option<Duration>,
        budget: &mut Budget,
    ) -> Option<u32> {
        if self.size == 0 || self.room() * 2 < u64::from(self.size) {
            return None;
        }
        self.resize(now, rtt.unwrap_or(UNMEASURED_RTT), budget);
        let grant = u32::try_from(self.room()).unwrap_or(u32::MAX);
        if grant == 0 {
            return None;
        }
        self.outstanding += u64::from(grant);
        self.last_grant = now;
        Some(grant)
    }

    /// Nothing more is received: gives back what no waiting message takes.
    pub fn shut(&mut self, budget: &mut Budget) {
        let kept = u32::try_from(self.buffered).unwrap_or(u32::MAX).min(self.size);
        budget.release(self.size - kept);
        self.size = kept;
        self.outstanding = 0;
    }

    /// Gives the window back to the budget.
    pub const fn close(&mut self, budget: &mut Budget) {
        budget.release(self.size);
        self.size = 0;
        self.outstanding = 0;
    }

    /// Returns what the peer may still send.
    pub const fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Returns what waits here.
    pub const fn buffered(&self) -> u64 {
        self.buffered
    }

    fn room(&self) -> u64 {
        u64::from(self.size).saturating_sub(self.outstanding + self.buffered)
    }

    fn resize(&mut self, now: Instant, rtt: Duration, budget: &mut Budget) {
        if budget.is_exceeded() {
            let smaller = (self.size / 2).max(FLOOR.min(self.size));
            budget.release(self.size - smaller);
            self.size = smaller;
            return;
        }
        let drains_fast = now.saturating_duration_since(self.last_grant) < rtt * 2;
        let wanted = if self.size < self.nominal {
            self.nominal
        } else if drains_fast {
            self.size.saturating_mul(2).min(self.max)
        } else {
            self.size
        };
        self.size += budget.reserve(wanted.saturating_sub(self.size), 0);
    }
}
