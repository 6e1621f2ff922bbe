//! What continuous integration runs: some seeds, and that a seed means the same every time.

use std::sync::atomic::{AtomicU64, Ordering};

use iop_sim::Report;
use tracing::Level;

/// Seeds in one run of the tests; `scripts/simulate COUNT` runs as many as wanted.
const SEEDS: u64 = 200;

#[test]
fn no_seed_breaks_a_rule() {
    let next = AtomicU64::new(0);
    let broken = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(|| broken_seeds(&next))).collect();
        let of = |worker: std::thread::ScopedJoinHandle<'_, Vec<Report>>| {
            worker.join().expect("a simulation notes panics and has none of its own")
        };
        workers.into_iter().flat_map(of).collect::<Vec<_>>()
    });
    // One story is enough to read.
    if let Some(first) = broken.iter().min_by_key(|report| report.seed) {
        panic!("{}{}\n{} of {SEEDS} seeds broke", first.trace, first.verdict(), broken.len());
    }
}

#[test]
fn a_seed_tells_the_same_story_every_time() {
    // Each mood of a plan a few times.
    for seed in 1000..1012 {
        let [once, again] = [(); 2].map(|()| iop_sim::run(seed, Level::INFO));
        let mut lines = once.trace.lines().zip(again.trace.lines());
        if let Some((one, other)) = lines.find(|(one, other)| one != other) {
            panic!("seed {seed}: first `{one}`, then `{other}`");
        }
        assert_eq!(once.digest, again.digest, "seed {seed}: what passed on the wires differs");
    }
    let [one, other] = [1, 2].map(|seed| iop_sim::run(seed, Level::INFO).digest);
    assert_ne!(one, other, "the digest does not tell seeds apart");
}

fn broken_seeds(next: &AtomicU64) -> Vec<Report> {
    std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < SEEDS))
        .map(|seed| iop_sim::run(seed, Level::INFO))
        .filter(|report| !report.violations.is_empty())
        .collect()
}
