//! A clock that only a test moves.
//!
//! The deciding crates take `now` as an argument, so this is all that a test of them needs: twenty-
//! four idle hours pass in a microsecond.

use std::time::{Duration, Instant};

/// A point in time that stands still until it is moved.
///
/// ```
/// use iop_testkit::ManualClock;
/// use std::time::Duration;
///
/// let mut clock = ManualClock::new();
/// let sent = clock.now();
/// clock.advance(Duration::from_secs(45));
/// assert_eq!(clock.now() - sent, Duration::from_secs(45));
/// assert_eq!(clock.elapsed(), Duration::from_secs(45));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ManualClock {
    start: Instant,
    now: Instant,
}

impl ManualClock {
    /// Makes a clock that starts at the present instant.
    #[expect(clippy::new_without_default, reason = "a clock is started, not a neutral value")]
    #[must_use]
    pub fn new() -> Self {
        let start = Instant::now();
        Self { start, now: start }
    }

    /// The current instant.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The instant `offset` after the clock's start, wherever the clock stands.
    #[must_use]
    pub fn at(&self, offset: Duration) -> Instant {
        self.start + offset
    }

    /// The time since the clock's start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    /// Moves the clock by `step` and returns the new instant.
    pub fn advance(&mut self, step: Duration) -> Instant {
        self.now += step;
        self.now
    }

    /// Moves the clock to `instant`.
    ///
    /// # Panics
    /// Panics when `instant` lies in the past: time never goes backwards.
    pub fn advance_to(&mut self, instant: Instant) -> Instant {
        assert!(instant >= self.now, "a manual clock cannot be moved back");
        self.now = instant;
        self.now
    }
}
