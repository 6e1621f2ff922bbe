//! What became of one simulation.

use std::time::Duration;

/// What became of one simulation.
#[derive(Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The same for every run of a seed.
    pub digest: u64,
    /// Rules that were broken, one line each.
    pub violations: Vec<String>,
    /// What happened, one line each.
    pub trace: String,
    /// What the software logged.
    pub log: String,
    /// Simulated time.
    pub simulated: Duration,
}

impl Report {
    /// Says which rules were broken, and how to see it again.
    pub fn verdict(&self) -> String {
        let Self { seed, violations, .. } = self;
        let violations = violations.join("\n  ");
        format!(
            "seed {seed} breaks rules:\n  {violations}\n  again: scripts/simulate --seed {seed}"
        )
    }
}
