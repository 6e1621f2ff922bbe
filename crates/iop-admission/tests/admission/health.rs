//! Who is left out of choices for its health, and how it comes back.

use std::collections::BTreeSet;
use std::time::Duration;

use iop_admission::{Entry, Permit, StaleObservation};
use iop_types::{ErrorCode, Generation, HealthEvidence, HealthObservation};
use proptest::prelude::*;

use crate::edge::{CHAT, Edge, SECOND, candidate, config, provider, route, winner};

use HealthEvidence::{Available, Unavailable, Unknown};

/// As `docs/health.md` has it.
const FIRST_EXPIRY: Duration = Duration::from_secs(30);

impl Edge {
    fn observe(
        &mut self,
        generation: u64,
        provider: &str,
        health: HealthEvidence,
        seq: u64,
    ) -> Result<(), StaleObservation> {
        let observation =
            HealthObservation { provider: provider.into(), target: "m".into(), health, seq };
        let generation = Generation(generation);
        let taken =
            self.admission.handle_observation(self.now, &"n".into(), generation, &observation);
        self.drain();
        taken
    }

    fn served(&mut self, permit: &mut Permit) {
        self.admission.handle_served(self.now, permit);
        self.drain();
    }

    fn failed(&mut self, permit: &mut Permit) {
        self.admission.handle_failed(self.now, permit);
        self.drain();
    }

    /// Who gets the next request.
    fn next(&mut self) -> &'static str {
        let permit = self.permit("m");
        let name = if winner(&permit).0 == "a" { "a" } else { "b" };
        self.release(permit);
        name
    }
}

/// `a` and `b` serve `m`; without regard to health they take turns.
fn two(capacity: u32) -> Edge {
    Edge::with(&[provider("a", capacity, &["m"]), provider("b", capacity, &["m"])])
}

#[test]
fn an_unavailable_candidate_is_left_out_until_a_later_observation_clears_it() {
    let mut edge = two(4);
    edge.observe(1, "a", Unavailable, 1).unwrap();
    assert!((0..4).all(|_| edge.next() == "b"));
    edge.observe(1, "a", Unknown, 2).unwrap();
    assert!((0..4).all(|_| edge.next() == "b"));
    edge.observe(1, "a", Available, 3).unwrap();
    let takers: BTreeSet<_> = (0..4).map(|_| edge.next()).collect();
    assert_eq!(takers, ["a", "b"].into());
}

#[test]
fn a_stalled_request_and_an_unknown_health_leave_nobody_out() {
    let mut edge = two(4);
    edge.observe(1, "a", Available, 1).unwrap();
    edge.observe(1, "b", Unknown, 2).unwrap();
    let takers: BTreeSet<_> = (0..4).map(|_| edge.next()).collect();
    assert_eq!(takers, ["a", "b"].into());
}

#[test]
fn stale_and_old_generation_observations_are_refused_and_change_nothing() {
    let mut edge = two(4);
    edge.ready("n", 2, &[provider("a", 4, &["m"]), provider("b", 4, &["m"])]);
    edge.observe(2, "a", Available, 5).unwrap();
    let old = StaleObservation::Generation { generation: Generation(1) };
    assert_eq!(edge.observe(1, "a", Unavailable, 9), Err(old));
    for seq in [0, 4, 5] {
        let stale = StaleObservation::Number { seq, last: 5 };
        assert_eq!(edge.observe(2, "a", Unavailable, seq), Err(stale));
    }
    assert_eq!(edge.observe(2, "nobody", Unavailable, 9), Err(StaleObservation::Target));
    let takers: BTreeSet<_> = (0..4).map(|_| edge.next()).collect();
    assert_eq!(takers, ["a", "b"].into());
    edge.away("n", 2);
    let gone = StaleObservation::Generation { generation: Generation(2) };
    assert_eq!(edge.observe(2, "a", Unavailable, 10), Err(gone));
}

#[test]
fn a_new_link_begins_with_a_clean_slate_and_with_1() {
    let mut edge = two(4);
    edge.observe(1, "a", Unavailable, 40).unwrap();
    edge.ready("n", 2, &[provider("a", 4, &["m"]), provider("b", 4, &["m"])]);
    let takers: BTreeSet<_> = (0..4).map(|_| edge.next()).collect();
    assert_eq!(takers, ["a", "b"].into());
    edge.observe(2, "a", Unavailable, 1).unwrap();
    assert!((0..4).all(|_| edge.next() == "b"));
}

#[test]
fn the_last_candidate_of_a_route_is_taken_though_it_is_unavailable() {
    let mut edge = two(4);
    edge.observe(1, "a", Unavailable, 1).unwrap();
    edge.observe(1, "b", Unavailable, 2).unwrap();
    let permit = edge.permit("m");
    assert_eq!(permit.candidate().why.as_str(), "last_resort");
    edge.release(permit);

    let mut alone = Edge::with(&[provider("a", 1, &["m"])]);
    alone.observe(1, "a", Unavailable, 1).unwrap();
    assert_eq!(alone.next(), "a");
}

#[test]
fn a_request_waits_for_a_healthy_candidate_that_is_busy() {
    let mut edge = two(1);
    edge.observe(1, "a", Unavailable, 1).unwrap();
    let permit = edge.permit("m");
    let ticket = edge.ticket("m");
    edge.release(permit);
    assert_eq!(winner(&edge.take(ticket)).0, "b");
}

#[test]
fn who_waits_is_served_at_once_when_health_lets_it() {
    // The one that it waits for turns out to be unavailable, too.
    let mut edge = two(1);
    edge.observe(1, "a", Unavailable, 1).unwrap();
    let _busy = edge.permit("m");
    let ticket = edge.ticket("m");
    edge.observe(1, "b", Unavailable, 2).unwrap();
    assert_eq!(winner(&edge.take(ticket)).0, "a");

    // The one that was left out is available again.
    let mut edge = two(1);
    edge.observe(1, "a", Unavailable, 1).unwrap();
    let _busy = edge.permit("m");
    let ticket = edge.ticket("m");
    edge.observe(1, "a", Available, 2).unwrap();
    assert_eq!(winner(&edge.take(ticket)).0, "a");
}

#[test]
fn after_its_time_one_request_at_a_time_tries_it_and_success_clears_it() {
    let mut edge = two(4);
    edge.observe(1, "a", Unavailable, 1).unwrap();
    edge.advance(FIRST_EXPIRY);
    let mut held: Vec<_> = (0..4).map(|_| edge.permit("m")).collect();
    let (mut trials, others): (Vec<_>, Vec<_>) =
        held.drain(..).partition(|permit| winner(permit).0 == "a");
    let trial = trials.first_mut().unwrap();
    assert_eq!(trial.candidate().why.as_str(), "half_open");
    assert!(trial.is_trial());
    edge.served(trial);
    assert!(!trial.is_trial());
    assert_eq!(trials.len(), 1);
    for permit in trials.into_iter().chain(others) {
        edge.release(permit);
    }
    let takers: BTreeSet<_> = (0..4).map(|_| edge.next()).collect();
    assert_eq!(takers, ["a", "b"].into());
}

/// The request that tries `a`, which is on offer.
fn trial(edge: &mut Edge) -> Permit {
    for _ in 0..2 {
        let permit = edge.permit("m");
        if permit.is_trial() {
            return permit;
        }
        edge.release(permit);
    }
    panic!("nobody tries it");
}

#[test]
fn a_trial_that_fails_leaves_out_for_twice_as_long_and_at_most_five_minutes() {
    let mut edge = two(4);
    edge.observe(1, "a", Unavailable, 1).unwrap();
    for seconds in [30, 60, 120, 240, 300, 300] {
        edge.advance(SECOND * (seconds - 1));
        assert!((0..4).all(|_| edge.next() == "b"), "not before {seconds} s");
        edge.advance(SECOND);
        let mut permit = trial(&mut edge);
        edge.failed(&mut permit);
        edge.release(permit);
        assert!((0..4).all(|_| edge.next() == "b"));
    }
}

#[test]
fn a_trial_that_ends_without_an_outcome_leaves_it_to_the_next() {
    let mut edge = two(4);
    edge.observe(1, "a", Unavailable, 1).unwrap();
    edge.advance(FIRST_EXPIRY);
    let permit = trial(&mut edge);
    edge.release(permit);
    let permit = trial(&mut edge);
    edge.release(permit);
}

#[test]
fn any_request_that_was_served_clears_whoever_served_it() {
    let mut edge = two(4);
    let mut held: Vec<_> = (0..2).map(|_| edge.permit("m")).collect();
    edge.observe(1, "a", Unavailable, 1).unwrap();
    held.iter_mut().for_each(Permit::note_served);
    held.into_iter().for_each(|permit| edge.release(permit));
    assert!(edge.view("n", "a").health[0].left_out_for.is_none());
}

#[test]
fn what_was_served_under_an_old_link_clears_nothing() {
    let mut edge = two(4);
    let mut held: Vec<_> = (0..2).map(|_| edge.permit("m")).collect();
    edge.ready("n", 2, &[provider("a", 4, &["m"]), provider("b", 4, &["m"])]);
    edge.observe(2, "a", Unavailable, 1).unwrap();
    held.iter_mut().for_each(|permit| edge.served(permit));
    assert!((0..4).all(|_| edge.next() == "b"));
    held.into_iter().for_each(|permit| edge.release(permit));
}

#[test]
fn whoever_waits_for_the_time_of_a_trial_gets_it() {
    let mut edge = two(1);
    edge.observe(1, "a", Unavailable, 1).unwrap();
    edge.advance(SECOND * 20);
    let _busy = edge.permit("m");
    let ticket = edge.ticket("m");
    edge.advance(SECOND * 10);
    assert!(edge.take(ticket).is_trial());
}

#[test]
fn fc_031_a_provider_that_asked_to_be_left_alone_is_for_that_long() {
    let mut edge = two(4);
    let permit = edge.permit("m");
    let (cooled, other) = if winner(&permit).0 == "a" { ("a", "b") } else { ("b", "a") };
    edge.admission.cool(edge.now, &permit, SECOND * 7);
    edge.release(permit);
    edge.advance(SECOND * 6);
    assert!((0..4).all(|_| edge.next() == other));
    assert_eq!(edge.view("n", cooled).health[0].cooling_for, Some(SECOND));
    edge.advance(SECOND);
    let takers: BTreeSet<_> = (0..4).map(|_| edge.next()).collect();
    assert_eq!(takers, ["a", "b"].into());
    assert!(edge.view("n", cooled).health.is_empty());
}

#[test]
fn a_request_that_must_go_elsewhere_is_told_that_the_others_are_left_out() {
    let mut edge = two(4);
    edge.observe(1, "a", Unavailable, 1).unwrap();
    let permit = edge.permit("m");
    let refused = edge.retry(permit, true).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::NoReadyProvider);
    assert!(refused.to_string().contains("left out as unhealthy"), "{refused}");
}

#[test]
fn health_is_told_target_by_target() {
    let mut edge = two(4);
    edge.observe(1, "a", Unavailable, 3).unwrap();
    edge.advance(SECOND * 4);
    let view = edge.view("n", "a");
    let [health] = &*view.health else { panic!("{view:?}") };
    assert_eq!(
        (health.target.as_str(), health.health, health.seq),
        ("m", Some(Unavailable), Some(3))
    );
    assert_eq!(health.left_out_for, Some(SECOND * 4));
    assert_eq!((health.trial_in, health.on_trial), (Some(SECOND * 26), false));
    assert!(edge.view("n", "b").health.is_empty());
}

/// What can happen to the health of three providers.
#[derive(Debug, Clone)]
enum Step {
    Observe { provider: usize, health: HealthEvidence, skip: u64 },
    Ask,
    End { index: usize, how: usize },
    Cool { index: usize, seconds: u64 },
    Busy { provider: usize, capacity: u32 },
    Relink,
    Advance { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let health = prop::sample::select(HealthEvidence::ALL.to_vec());
    prop_oneof![
        4 => (0..3usize, health, 0..3u64)
            .prop_map(|(provider, health, skip)| Step::Observe { provider, health, skip }),
        6 => Just(Step::Ask),
        4 => (any::<usize>(), 0..4usize).prop_map(|(index, how)| Step::End { index, how }),
        1 => (any::<usize>(), 0..400u64).prop_map(|(index, seconds)| Step::Cool { index, seconds }),
        1 => (0..3usize, 0..3u32)
            .prop_map(|(provider, capacity)| Step::Busy { provider, capacity }),
        1 => Just(Step::Relink),
        2 => (1..200u64).prop_map(|seconds| Step::Advance { seconds }),
    ]
}

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Three providers of one route, and what is known of each on paper.
struct Paper {
    edge: Edge,
    generation: u64,
    seq: u64,
    capacities: [u32; 3],
    held: Vec<Permit>,
}

impl Paper {
    fn new() -> Self {
        let candidates = NAMES.map(|name| candidate(name, "m"));
        let mut paper = Self {
            edge: Edge::new(config(&[route("m", &candidates)])),
            generation: 0,
            seq: 0,
            capacities: [2; 3],
            held: Vec::new(),
        };
        paper.relink();
        paper
    }

    fn relink(&mut self) {
        self.generation += 1;
        self.seq = 0;
        let mut providers = Vec::new();
        for (name, capacity) in NAMES.iter().zip(self.capacities) {
            providers.push(provider(name, capacity, &["m"]));
        }
        self.edge.ready("n", self.generation, &providers);
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Observe { provider, health, skip } => {
                self.seq += 1 + skip;
                let taken = self.edge.observe(self.generation, NAMES[provider], health, self.seq);
                assert_eq!(taken, Ok(()));
            }
            Step::Ask => match (self.tried(), self.edge.ask("m", CHAT)) {
                (tried, Ok(Entry::Granted(permit))) => {
                    let takes = winner(&permit).0;
                    assert!(!permit.is_trial() || !tried.contains(takes), "two trials are out");
                    self.held.push(permit);
                }
                (_, Ok(Entry::Waiting(_))) => {
                    assert!(!self.has_free_healthy(), "it waits beside a free healthy provider");
                }
                // Everybody has asked for nothing, or has no room at all.
                (_, Err(refused)) => {
                    assert_ne!(refused.code(), ErrorCode::NoReadyProvider, "{refused}");
                }
            },
            Step::End { index, how } if !self.held.is_empty() => {
                let mut permit = self.held.swap_remove(index % self.held.len());
                match how {
                    0 => self.edge.served(&mut permit),
                    1 => self.edge.failed(&mut permit),
                    2 => permit.note_served(),
                    _ => {}
                }
                self.edge.release(permit);
            }
            Step::Cool { index, seconds } if !self.held.is_empty() => {
                let permit = &self.held[index % self.held.len()];
                self.edge.admission.cool(self.edge.now, permit, Duration::from_secs(seconds));
                self.edge.drain();
            }
            Step::End { .. } | Step::Cool { .. } => {}
            Step::Busy { provider: index, capacity } => {
                self.capacities[index] = capacity;
                let status = provider(NAMES[index], capacity, &["m"]);
                self.edge.status("n", self.generation, status);
            }
            Step::Relink => self.relink(),
            Step::Advance { seconds } => self.edge.advance(Duration::from_secs(seconds)),
        }
        let granted = std::mem::take(&mut self.edge.granted);
        self.held.extend(granted.into_values());
        self.check();
    }

    fn check(&self) {
        for refused in self.edge.refused.values() {
            assert_ne!(refused.code(), ErrorCode::NoReadyProvider, "the last was ejected");
        }
        if self.edge.waiting() > 0 {
            assert!(!self.has_free_healthy(), "somebody waits beside a free healthy provider");
        }
    }

    /// Who is being tried.
    fn tried(&self) -> BTreeSet<&'static str> {
        let on_trial = |name: &&str| self.edge.view("n", name).health.iter().any(|h| h.on_trial);
        NAMES.into_iter().filter(on_trial).collect()
    }

    fn has_free_healthy(&self) -> bool {
        NAMES.iter().any(|name| {
            let view = self.edge.view("n", name);
            let is_left_out = view
                .health
                .iter()
                .any(|health| health.left_out_for.is_some() || health.cooling_for.is_some());
            view.in_use < view.capacity && !is_left_out
        })
    }
}

proptest! {
    #[test]
    fn health_never_ejects_the_last_candidate_nor_lets_two_trials_out(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut paper = Paper::new();
        for step in steps {
            paper.take(step);
        }
        for permit in std::mem::take(&mut paper.held) {
            paper.edge.release(permit);
        }
        let late = std::mem::take(&mut paper.edge.granted);
        for permit in late.into_values() {
            paper.edge.release(permit);
        }
    }
}
