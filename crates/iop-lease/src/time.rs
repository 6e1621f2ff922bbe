//! The Edge's time, by which grants and leases live at both ends.
//!
//! An Edge takes its wall clock once, when it starts, and counts on with its monotonic clock. A Node
//! hears that time with the registration and with heartbeats, and counts on with its own monotonic
//! clock. So no jump of a wall clock makes a lease live longer or die early.

use std::time::{Duration, Instant};

use iop_types::LeaseFault;

/// How long a grant may live: one stolen with its key is worth this much.
pub const GRANT_LIFE: Duration = Duration::from_secs(600);

/// How long a lease may live at most.
pub const LEASE_LIFE_MAX: Duration = Duration::from_secs(120);

/// How far before its making a grant or lease begins to be valid: the Node's idea of the time lags by
/// the shortest way over the link.
pub(crate) const BACKDATED_MS: i64 = 5_000;

/// How far before its beginning a grant or lease is accepted. At its end nothing is.
pub(crate) const SKEW_MS: i64 = 5_000;

/// How fast two monotonic clocks may part: 200 parts in a million, four times what crystals are sold
/// with.
const DRIFT_DIVISOR: u32 = 5_000;

/// The Edge's time at an instant.
#[derive(Debug, Clone, Copy)]
pub struct EdgeTime {
    edge_ms: i64,
    at: Instant,
}

impl EdgeTime {
    /// Starts with the Edge's time at `at`, in milliseconds since the Unix epoch.
    ///
    /// At the Edge that is the wall clock when the process starts; at a Node, the registration's
    /// `edge_time_ms` when it was read.
    pub const fn new(edge_ms: i64, at: Instant) -> Self {
        Self { edge_ms, at }
    }

    /// Takes in what a heartbeat of the Edge said, read at `at`.
    ///
    /// A message arrives late but never early, so the largest time wins. What was known before gives
    /// way only as fast as clocks may drift: a heartbeat that waited behind a slow link does not set
    /// the time back.
    pub fn observe(&mut self, edge_ms: i64, at: Instant) {
        let counted = at.saturating_duration_since(self.at);
        let expected = self.now_ms(at).saturating_sub(millis(counted / DRIFT_DIVISOR));
        *self = Self { edge_ms: expected.max(edge_ms), at: at.max(self.at) };
    }

    /// Returns the Edge's time at `now`, in milliseconds since the Unix epoch.
    pub fn now_ms(&self, now: Instant) -> i64 {
        self.edge_ms.saturating_add(millis(now.saturating_duration_since(self.at)))
    }
}

/// When something is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first moment, in milliseconds of the Edge's time.
    pub not_before_ms: i64,
    /// The first moment after it.
    pub expires_ms: i64,
}

impl Validity {
    /// Validity of what is made now and lives so long.
    pub(crate) fn from_now(now_ms: i64, life: Duration) -> Self {
        Self {
            not_before_ms: now_ms.saturating_sub(BACKDATED_MS),
            expires_ms: now_ms.saturating_add(millis(life)),
        }
    }

    /// When it was made.
    pub(crate) fn made_ms(self) -> i64 {
        self.not_before_ms.saturating_add(BACKDATED_MS)
    }

    /// Says whether it claims no more than this life.
    pub(crate) fn is_within(self, life: Duration) -> bool {
        let claimed = self.expires_ms.saturating_sub(self.made_ms());
        self.not_before_ms > 0 && claimed > 0 && claimed <= millis(life)
    }

    pub(crate) fn check(self, now_ms: i64) -> Result<(), LeaseFault> {
        if now_ms.saturating_add(SKEW_MS) < self.not_before_ms {
            Err(LeaseFault::NotYetValid)
        } else if now_ms >= self.expires_ms {
            Err(LeaseFault::Expired)
        } else {
            Ok(())
        }
    }
}

pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn time_goes_on_with_the_monotonic_clock() {
        let start = Instant::now();
        let time = EdgeTime::new(1_000_000, start);
        assert_eq!(time.now_ms(start + 7 * SECOND), 1_007_000);
    }

    #[test]
    fn a_heartbeat_that_waited_does_not_set_the_time_back() {
        let start = Instant::now();
        let mut time = EdgeTime::new(1_000_000, start);
        time.observe(1_010_000, start + 30 * SECOND); // 20 s on its way
        assert_eq!(time.now_ms(start + 30 * SECOND), 1_029_994);
    }

    #[test]
    fn a_heartbeat_that_came_faster_sets_the_time_right_at_once() {
        let start = Instant::now();
        let mut time = EdgeTime::new(1_000_000, start); // the registration took 3 s
        time.observe(1_033_000, start + 30 * SECOND);
        assert_eq!(time.now_ms(start + 31 * SECOND), 1_034_000);
    }

    #[test]
    fn a_clock_that_runs_fast_is_held_to_the_heartbeats() {
        let start = Instant::now();
        let mut time = EdgeTime::new(0, start);
        for beat in 1..=1_000_u32 {
            // 100 parts in a million slower than the clock that counts.
            time.observe(i64::from(beat) * 29_997, start + beat * 30 * SECOND);
        }
        let now = start + 1_000 * 30 * SECOND;
        assert!((time.now_ms(now) - 29_997_000).abs() < 10, "{}", time.now_ms(now));
    }

    #[test]
    fn an_instant_before_the_first_is_the_first() {
        let start = Instant::now() + 10 * SECOND;
        let mut time = EdgeTime::new(5, start);
        time.observe(4, start - SECOND);
        assert_eq!(time.now_ms(start - SECOND), 5);
    }

    #[test]
    fn what_is_valid_is_so_from_its_beginning_less_the_skew_until_before_its_end() {
        let validity = Validity { not_before_ms: 100_000, expires_ms: 200_000 };
        assert_eq!(validity.check(94_999), Err(LeaseFault::NotYetValid));
        assert_eq!(validity.check(95_000), Ok(()));
        assert_eq!(validity.check(199_999), Ok(()));
        assert_eq!(validity.check(200_000), Err(LeaseFault::Expired));
    }

    #[test]
    fn a_life_beyond_the_bound_or_none_at_all_is_noticed() {
        let made = Validity::from_now(1_000_000, LEASE_LIFE_MAX);
        assert!(made.is_within(LEASE_LIFE_MAX));
        for (not_before_ms, expires_ms) in [
            (made.not_before_ms, made.expires_ms + 1),
            (made.not_before_ms, made.made_ms()),
            (0, 1),
            (i64::MIN, i64::MAX),
            (i64::MAX, i64::MIN),
        ] {
            let validity = Validity { not_before_ms, expires_ms };
            assert!(!validity.is_within(LEASE_LIFE_MAX), "{validity:?}");
        }
    }
}
