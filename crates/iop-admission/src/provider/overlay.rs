//! What is known of a provider's health, target by target, and who is left out of choices for it.
//!
//! ```text
//!            unavailable                     time is up             granted
//! fit ─────────────────────► left out ─────────────────► on offer ────────────► on trial
//!  ▲                          ▲  ▲ │                       │  ▲ given back with   │ │
//!  │                          │  │ └─ unavailable: stays   │  └──no outcome───────┘ │
//!  │                          │  └───────unavailable───────┘                        │
//!  │                          └──────failed, or unavailable: twice as long──────────┘
//!  └── from everywhere: a later observation `available`, or any request of it that was served
//! ```
//!
//! `unknown` and the stall of one request change nothing. Beside this a provider may ask to be left
//! alone (`Retry-After`); that is a time and no state. Whether being left out means anything is the
//! choice's: the last candidate of a route is taken all the same.
//!
//! Observations are those of one generation and go with it. A provider's wish to be left alone does
//! not depend on a link and stays.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use iop_types::{HealthEvidence, Target};

use crate::view::TargetHealth;

/// How long a target is left out before one request may try it. A server that its supervisor
/// restarts is back by then, and Node looks at it meanwhile; the usual figure of proxies that eject.
const FIRST_EXPIRY: Duration = Duration::from_secs(30);

/// The longest it is left out after trials that failed, each of which doubles the time: somebody who
/// repaired a server sees traffic within a coffee's time, whatever the Node's looks say.
const LONGEST_EXPIRY: Duration = Duration::from_secs(5 * 60);

/// The longest that a provider's own `Retry-After` is heeded. Quotas that reset in hours are not
/// waited for blindly.
const LONGEST_COOLING: Duration = Duration::from_secs(5 * 60);

/// The health of one provider's targets.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    seen: BTreeMap<Target, Seen>,
    /// The largest number of those that were forgotten.
    forgotten: u64,
    marks: BTreeMap<Target, Mark>,
    cooling: BTreeMap<Target, Instant>,
}

/// The last observation that was taken.
#[derive(Debug, Clone, Copy)]
struct Seen {
    seq: u64,
    health: HealthEvidence,
    at: Instant,
}

/// A target that was seen to be unavailable.
#[derive(Debug, Clone, Copy)]
struct Mark {
    since: Instant,
    until: Instant,
    /// Trials that failed in a row.
    failures: u32,
    /// The one that is out.
    trial: Option<Trial>,
}

/// The one request that tries a target that was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trial(pub(crate) u64);

/// How a choice regards a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fitness {
    /// Nothing speaks against it.
    Fit,
    /// One request may try it.
    OnOffer,
    /// Only where nobody else is left.
    LeftOut,
}

impl Overlay {
    /// Says whether there is nothing to regard.
    pub(crate) fn is_clear(&self) -> bool {
        self.marks.is_empty() && self.cooling.is_empty()
    }

    /// Says whether a target was seen to be unavailable and has not been served since, on offer or not.
    pub(crate) fn is_left_out(&self, target: &Target) -> bool {
        self.marks.contains_key(target)
    }

    pub(crate) fn fitness(&self, now: Instant, target: &Target) -> Fitness {
        if self.cooling.get(target).is_some_and(|until| now < *until) {
            return Fitness::LeftOut;
        }
        match self.marks.get(target) {
            None => Fitness::Fit,
            Some(mark) if now < mark.until || mark.trial.is_some() => Fitness::LeftOut,
            Some(_) => Fitness::OnOffer,
        }
    }

    /// Takes an observation in.
    ///
    /// # Errors
    /// Returns the number of the last that was taken, when this one is not newer.
    pub(crate) fn observe(
        &mut self,
        now: Instant,
        target: &Target,
        health: HealthEvidence,
        seq: u64,
    ) -> Result<(), u64> {
        let last = self.seen.get(target).map_or(self.forgotten, |seen| seen.seq);
        if seq <= last {
            return Err(last);
        }
        self.seen.insert(target.clone(), Seen { seq, health, at: now });
        match health {
            HealthEvidence::Available => self.clear(target),
            HealthEvidence::Unavailable => self.mark(now, target),
            HealthEvidence::Unknown => {}
        }
        Ok(())
    }

    fn mark(&mut self, now: Instant, target: &Target) {
        match self.marks.get_mut(target) {
            None => {
                let mark = Mark { since: now, until: now + FIRST_EXPIRY, failures: 0, trial: None };
                self.marks.insert(target.clone(), mark);
            }
            Some(mark) if mark.trial.is_some() => mark.fail(now),
            // Seen anew after its time, without a trial: left out again, no longer than before.
            Some(mark) if mark.until <= now => mark.until = now + expiry(mark.failures),
            Some(_) => {}
        }
    }

    /// A request of the target was served, or the target was seen to be available.
    pub(crate) fn clear(&mut self, target: &Target) {
        self.marks.remove(target);
    }

    /// A request is sent to the target; returns it as a trial where it is one.
    pub(crate) fn begin(&mut self, now: Instant, target: &Target, number: u64) -> Option<Trial> {
        if self.fitness(now, target) != Fitness::OnOffer {
            return None;
        }
        let mark = self.marks.get_mut(target)?;
        mark.trial = Some(Trial(number));
        mark.trial
    }

    /// A trial failed. One that is not the current trial any more has no say.
    pub(crate) fn fail(&mut self, now: Instant, target: &Target, trial: Trial) {
        if let Some(mark) = self.marks.get_mut(target).filter(|mark| mark.trial == Some(trial)) {
            mark.fail(now);
        }
    }

    /// A trial ended without an outcome: the next request may try.
    pub(crate) fn give_back(&mut self, target: &Target, trial: Trial) {
        if let Some(mark) = self.marks.get_mut(target).filter(|mark| mark.trial == Some(trial)) {
            mark.trial = None;
        }
    }

    /// The provider asked to be left alone.
    pub(crate) fn cool(&mut self, now: Instant, target: &Target, time: Duration) {
        let until = now + time.min(LONGEST_COOLING);
        let cooling = self.cooling.entry(target.clone()).or_insert(until);
        *cooling = until.max(*cooling);
    }

    /// The generation ended, and what was observed under it.
    pub(crate) fn handle_away(&mut self) {
        self.seen.clear();
        self.forgotten = 0;
        self.marks.clear();
    }

    /// Forgets targets that are not served any more.
    pub(crate) fn retain(&mut self, is_served: impl Fn(&Target) -> bool) {
        let gone = self.seen.extract_if(.., |target, _| !is_served(target));
        self.forgotten = gone.map(|(_, seen)| seen.seq).fold(self.forgotten, u64::max);
        self.marks.retain(|target, _| is_served(target));
        self.cooling.retain(|target, _| is_served(target));
    }

    /// Forgets what has passed; returns when the next target becomes fit or is on offer.
    pub(crate) fn next_turn(&mut self, now: Instant) -> Option<Instant> {
        self.cooling.retain(|_, until| now < *until);
        let offers = self.marks.values().map(|mark| mark.until).filter(|until| now < *until);
        self.cooling.values().copied().chain(offers).min()
    }

    /// Describes every target of which something is known.
    pub(crate) fn view(&self, now: Instant) -> Vec<TargetHealth> {
        let mut targets: Vec<_> = self.seen.keys().chain(self.cooling.keys()).collect();
        targets.sort_unstable();
        targets.dedup();
        let views = targets.into_iter().map(|target| {
            let seen = self.seen.get(target);
            let mark = self.marks.get(target);
            TargetHealth {
                target: target.clone(),
                health: seen.map(|seen| seen.health),
                seq: seen.map(|seen| seen.seq),
                seen_ago: seen.map(|seen| now.saturating_duration_since(seen.at)),
                left_out_for: mark.map(|mark| now.saturating_duration_since(mark.since)),
                trial_in: mark.map(|mark| mark.until.saturating_duration_since(now)),
                on_trial: mark.is_some_and(|mark| mark.trial.is_some()),
                failed_trials: mark.map_or(0, |mark| mark.failures),
                cooling_for: self.cooling.get(target).and_then(|until| {
                    let left = until.saturating_duration_since(now);
                    (!left.is_zero()).then_some(left)
                }),
            }
        });
        views.collect()
    }
}

impl Mark {
    fn fail(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.until = now + expiry(self.failures);
        self.trial = None;
    }
}

fn expiry(failures: u32) -> Duration {
    let factor = 2u32.checked_pow(failures).unwrap_or(u32::MAX);
    FIRST_EXPIRY.saturating_mul(factor).min(LONGEST_EXPIRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn target() -> Target {
        "m".into()
    }

    fn down(now: Instant) -> Overlay {
        let mut overlay = Overlay::default();
        overlay.observe(now, &target(), HealthEvidence::Unavailable, 1).unwrap();
        overlay
    }

    #[test]
    fn only_unavailable_leaves_out_and_only_that_target() {
        let now = Instant::now();
        for health in [HealthEvidence::Available, HealthEvidence::Unknown] {
            let mut overlay = Overlay::default();
            overlay.observe(now, &target(), health, 1).unwrap();
            assert!(overlay.is_clear());
        }
        let overlay = down(now);
        assert_eq!(overlay.fitness(now, &target()), Fitness::LeftOut);
        assert_eq!(overlay.fitness(now, &"n".into()), Fitness::Fit);
    }

    #[test]
    fn unknown_changes_nothing_and_available_clears() {
        let now = Instant::now();
        let mut overlay = down(now);
        overlay.observe(now, &target(), HealthEvidence::Unknown, 2).unwrap();
        assert_eq!(overlay.fitness(now, &target()), Fitness::LeftOut);
        overlay.observe(now, &target(), HealthEvidence::Available, 3).unwrap();
        assert_eq!(overlay.fitness(now, &target()), Fitness::Fit);
    }

    #[test]
    fn an_observation_that_is_not_newer_is_refused_with_the_last_number() {
        let now = Instant::now();
        let mut overlay = Overlay::default();
        let available = HealthEvidence::Available;
        assert_eq!(overlay.observe(now, &target(), available, 0), Err(0));
        overlay.observe(now, &target(), available, 7).unwrap();
        for seq in [0, 6, 7] {
            let stale = overlay.observe(now, &target(), HealthEvidence::Unavailable, seq);
            assert_eq!(stale, Err(7));
        }
        assert_eq!(overlay.fitness(now, &target()), Fitness::Fit);
        // Numbers are of the link, so that each target has its own last.
        overlay.observe(now, &"n".into(), available, 3).unwrap();
    }

    #[test]
    fn one_trial_is_out_at_a_time_and_its_failure_doubles_the_time() {
        let began = Instant::now();
        let mut overlay = down(began);
        let mut now = began;
        for (number, seconds) in [30, 60, 120, 240, 300, 300].into_iter().enumerate() {
            let number = number as u64;
            assert_eq!(overlay.begin(now, &target(), number), None, "it is left out");
            now += SECOND * seconds;
            assert_eq!(overlay.fitness(now, &target()), Fitness::OnOffer);
            let trial = overlay.begin(now, &target(), number).unwrap();
            assert_eq!(overlay.begin(now, &target(), 99), None, "one is out");
            assert_eq!(overlay.fitness(now, &target()), Fitness::LeftOut);
            overlay.fail(now, &target(), Trial(77));
            assert!(overlay.view(now)[0].on_trial, "another trial has no say");
            overlay.fail(now, &target(), trial);
        }
        overlay.clear(&target());
        assert_eq!(overlay.fitness(now, &target()), Fitness::Fit);
    }

    #[test]
    fn a_trial_without_an_outcome_leaves_the_offer_open() {
        let began = Instant::now();
        let mut overlay = down(began);
        let now = began + FIRST_EXPIRY;
        let trial = overlay.begin(now, &target(), 1).unwrap();
        overlay.give_back(&target(), trial);
        assert_eq!(overlay.fitness(now, &target()), Fitness::OnOffer);
    }

    #[test]
    fn looks_that_go_on_to_fail_neither_shorten_nor_lengthen_the_time() {
        let began = Instant::now();
        let mut overlay = down(began);
        for seq in 2..10 {
            let now = began + SECOND * 2;
            overlay.observe(now, &target(), HealthEvidence::Unavailable, seq).unwrap();
        }
        let now = began + FIRST_EXPIRY;
        assert_eq!(overlay.fitness(now, &target()), Fitness::OnOffer);
        overlay.observe(now, &target(), HealthEvidence::Unavailable, 10).unwrap();
        assert_eq!(overlay.fitness(now, &target()), Fitness::LeftOut);
        assert_eq!(overlay.fitness(now + FIRST_EXPIRY, &target()), Fitness::OnOffer);
    }

    #[test]
    fn a_trial_whose_own_stall_says_unavailable_has_failed_once() {
        let began = Instant::now();
        let mut overlay = down(began);
        let now = began + FIRST_EXPIRY;
        let trial = overlay.begin(now, &target(), 1).unwrap();
        overlay.observe(now, &target(), HealthEvidence::Unavailable, 2).unwrap();
        overlay.fail(now, &target(), trial);
        assert_eq!(overlay.view(now)[0].failed_trials, 1);
    }

    #[test]
    fn a_provider_is_left_alone_for_as_long_as_it_asks_within_reason() {
        let now = Instant::now();
        let mut overlay = Overlay::default();
        overlay.cool(now, &target(), SECOND * 20);
        overlay.cool(now, &target(), SECOND);
        assert_eq!(overlay.next_turn(now), Some(now + SECOND * 20));
        assert_eq!(overlay.fitness(now + SECOND * 19, &target()), Fitness::LeftOut);
        assert_eq!(overlay.fitness(now + SECOND * 20, &target()), Fitness::Fit);
        overlay.cool(now, &target(), SECOND * 86_400);
        assert_eq!(overlay.fitness(now + LONGEST_COOLING, &target()), Fitness::Fit);
        overlay.handle_away();
        assert_eq!(overlay.fitness(now, &target()), Fitness::LeftOut, "no link's business");
    }

    #[test]
    fn a_link_takes_what_was_observed_under_it_along() {
        let now = Instant::now();
        let mut overlay = down(now);
        overlay.handle_away();
        assert_eq!(overlay.fitness(now, &target()), Fitness::Fit);
        overlay.observe(now, &target(), HealthEvidence::Unavailable, 1).unwrap();
    }
}
