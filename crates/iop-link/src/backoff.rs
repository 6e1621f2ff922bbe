//! How long a Node waits before it dials again.

use std::time::Duration;

use iop_types::CloseReason;

/// Ceiling of the first wait.
pub const FIRST: Duration = Duration::from_millis(500);
/// Ceiling of every wait.
pub const MAX: Duration = Duration::from_secs(30);
/// Wait of a newcomer whose Node id is held by another live instance.
pub const DUPLICATE: Duration = Duration::from_secs(30);
/// Wait when the Edge does not speak our version: it has to be upgraded first.
pub const UNSUPPORTED: Duration = Duration::from_secs(5 * 60);
/// A link that was up for this long makes the next wait a first one.
pub const STABLE: Duration = Duration::from_secs(30);

/// Full jitter: each wait is drawn evenly below a ceiling that doubles with every failure. The
/// delay is bounded, the attempts are not.
#[derive(Debug)]
pub struct Backoff {
    random: fastrand::Rng,
    failures: u32,
}

impl Backoff {
    /// Makes a backoff whose waits follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { random: fastrand::Rng::with_seed(seed), failures: 0 }
    }

    /// Yields the wait after a dial or link ended. `up_for` is how long the link was up, `asked`
    /// what the Edge asked for.
    pub fn wait(
        &mut self,
        reason: CloseReason,
        up_for: Option<Duration>,
        asked: Option<Duration>,
    ) -> Duration {
        if up_for.is_some_and(|up| up >= STABLE) {
            self.failures = 0;
        }
        let jittered = self.jittered();
        match reason {
            CloseReason::DuplicateNode => asked.unwrap_or(DUPLICATE),
            CloseReason::VersionUnsupported => asked.unwrap_or(UNSUPPORTED),
            CloseReason::PeerClosed
            | CloseReason::ConnectionLost
            | CloseReason::HeartbeatTimeout
            | CloseReason::Superseded
            | CloseReason::ShuttingDown
            | CloseReason::ProtocolError
            | CloseReason::FrameTooLarge
            | CloseReason::MalformedFrame
            | CloseReason::UnsupportedMessage
            | CloseReason::FlowControlViolation
            | CloseReason::ControlOverflow
            | CloseReason::RegisterTimeout
            | CloseReason::RegistrationRefused
            | CloseReason::IdentityRevoked => asked.unwrap_or(jittered),
        }
    }

    fn jittered(&mut self) -> Duration {
        let ceiling = FIRST.saturating_mul(1 << self.failures.min(6)).min(MAX);
        self.failures = self.failures.saturating_add(1);
        ceiling.mul_f64(self.random.f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_stay_below_a_ceiling_that_doubles_up_to_30_s() {
        for seed in 0..100 {
            let mut backoff = Backoff::new(seed);
            for failure in 0..20_u32 {
                let wait = backoff.wait(CloseReason::ConnectionLost, None, None);
                let ceiling = Duration::from_millis(500 << failure.min(6)).min(MAX);
                assert!(wait <= ceiling, "seed {seed}: wait {failure} is {wait:?}");
            }
        }
    }

    #[test]
    fn waits_are_spread_over_the_whole_range() {
        let mut early = 0;
        for seed in 0..1000 {
            let wait = Backoff::new(seed).wait(CloseReason::PeerClosed, None, None);
            early += u32::from(wait < FIRST / 2);
        }
        assert!((400..600).contains(&early), "{early} of 1000 in the first half");
    }

    #[test]
    fn a_link_that_held_makes_the_next_wait_a_first_one() {
        let mut backoff = Backoff::new(7);
        for _ in 0..20 {
            backoff.wait(CloseReason::ConnectionLost, Some(STABLE / 2), None);
        }
        assert!(backoff.wait(CloseReason::HeartbeatTimeout, Some(STABLE), None) <= FIRST);
    }

    #[test]
    fn a_duplicate_waits_30_s_and_an_unsupported_version_5_min() {
        let mut backoff = Backoff::new(7);
        assert_eq!(backoff.wait(CloseReason::DuplicateNode, None, None), DUPLICATE);
        assert_eq!(backoff.wait(CloseReason::VersionUnsupported, None, None), UNSUPPORTED);
        let asked = Duration::from_secs(3);
        assert_eq!(backoff.wait(CloseReason::RegistrationRefused, None, Some(asked)), asked);
    }

    /// An Edge that is away for 5 s while a hundred Nodes dial.
    #[test]
    fn a_hundred_nodes_come_back_within_a_minute_and_never_in_one_wave() {
        let (away, wave) = (Duration::from_secs(5), Duration::from_millis(100));
        let mut dials = Vec::new();
        for seed in 0..100 {
            let mut backoff = Backoff::new(seed);
            let mut now = Duration::ZERO;
            while now < away {
                now += backoff.wait(CloseReason::PeerClosed, None, None);
                dials.push(now);
            }
            assert!(now < Duration::from_secs(60), "seed {seed} is back only after {now:?}");
        }
        // Once the first round is over, in which all of them know of the end.
        let waves = (5..50).map(|at| wave * at);
        let per_wave: Vec<_> = waves
            .map(|from| dials.iter().filter(|dial| (from..from + wave).contains(*dial)).count())
            .collect();
        let mean = per_wave.iter().sum::<usize>() as f64 / per_wave.len() as f64;
        let peak = per_wave.iter().max().copied().unwrap_or_default() as f64;
        assert!(peak < 3.0 * mean, "{per_wave:?}");
    }
}
