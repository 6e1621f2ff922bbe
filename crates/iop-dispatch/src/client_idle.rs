//! When a client that does not read is given up.

use std::time::{Duration, Instant};

/// How little a client may accept while bytes wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleRule {
    /// The least number of bytes…
    pub bytes: u64,
    /// …within this time.
    pub within: Duration,
}

impl Default for IdleRule {
    fn default() -> Self {
        // 16 KiB in 120 s: slower than any person reads, so that only a client that stopped is met;
        // long enough for a phone between two cells.
        Self { bytes: 16 * 1024, within: Duration::from_secs(120) }
    }
}

/// Watches one client: stalled when it accepted less than the rule asks for while bytes waited
/// without a pause.
///
/// ```text
/// idle ── bytes wait ──► watched ── nothing waits ──► idle
///                        │     ▲
///                        └─────┘ enough accepted: a new span begins
/// ```
#[derive(Debug)]
pub struct ClientIdle {
    rule: IdleRule,
    span: Option<Span>,
}

/// A time in which bytes wait all along and the client has not accepted enough of them.
#[derive(Debug, Clone, Copy)]
struct Span {
    since: Instant,
    accepted: u64,
}

impl ClientIdle {
    /// Watches a client for which nothing waits yet.
    pub const fn new(rule: IdleRule) -> Self {
        Self { rule, span: None }
    }

    /// Bytes wait for the client.
    pub fn handle_waiting(&mut self, now: Instant) {
        self.span.get_or_insert(Span { since: now, accepted: 0 });
    }

    /// The client accepted `bytes`; `is_waiting` says whether more wait.
    pub fn handle_accepted(&mut self, now: Instant, bytes: u64, is_waiting: bool) {
        if !is_waiting {
            self.span = None;
            return;
        }
        let span = self.span.get_or_insert(Span { since: now, accepted: 0 });
        span.accepted = span.accepted.saturating_add(bytes);
        if span.accepted >= self.rule.bytes {
            *span = Span { since: now, accepted: 0 };
        }
    }

    /// Returns when the client will have stalled unless it accepts more.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.span.map(|span| span.since + self.rule.within)
    }

    /// Says whether the client has stalled.
    pub fn is_stalled(&self, now: Instant) -> bool {
        self.poll_timeout().is_some_and(|at| at <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_client_that_accepts_nothing_stalls_after_the_whole_time() {
        let start = Instant::now();
        let mut idle = ClientIdle::new(IdleRule::default());
        assert_eq!(idle.poll_timeout(), None);
        idle.handle_waiting(start);
        idle.handle_waiting(start + 100 * SECOND);
        assert!(!idle.is_stalled(start + Duration::from_millis(119_999)));
        assert!(idle.is_stalled(start + 120 * SECOND));
    }

    #[test]
    fn a_byte_a_second_is_no_reading() {
        let start = Instant::now();
        let mut idle = ClientIdle::new(IdleRule::default());
        idle.handle_waiting(start);
        for second in 1..120 {
            idle.handle_accepted(start + second * SECOND, 1, true);
            assert!(!idle.is_stalled(start + second * SECOND));
        }
        assert!(idle.is_stalled(start + 120 * SECOND));
    }

    #[test]
    fn sixteen_kibibytes_buy_another_two_minutes() {
        let start = Instant::now();
        let mut idle = ClientIdle::new(IdleRule::default());
        idle.handle_waiting(start);
        idle.handle_accepted(start + 60 * SECOND, 16 * 1024 - 1, true);
        assert_eq!(idle.poll_timeout(), Some(start + 120 * SECOND));
        idle.handle_accepted(start + 119 * SECOND, 1, true);
        assert_eq!(idle.poll_timeout(), Some(start + 239 * SECOND));
    }

    #[test]
    fn a_client_for_which_nothing_waits_may_be_silent_for_ever() {
        let start = Instant::now();
        let mut idle = ClientIdle::new(IdleRule::default());
        idle.handle_waiting(start);
        idle.handle_accepted(start + 100 * SECOND, 10, false);
        assert!(!idle.is_stalled(start + 86_400 * SECOND));
        idle.handle_waiting(start + 1_000 * SECOND);
        assert_eq!(idle.poll_timeout(), Some(start + 1_120 * SECOND));
    }
}
