//! From turns to tables: medians over repetitions of ratios within a repetition.

use super::child::Pinning;
use super::target::{DIRECT, TWO_HOPS, Target};
use crate::load::{Quantiles, Report};
use serde::Serialize;
use std::fmt::Write as _;

/// Everything that a run has measured.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    machine: String,
    placement: String,
    repetitions: usize,
    idle: Vec<Idle>,
    turns: Vec<Turn>,
}

/// One target in one cell in one repetition.
#[derive(Debug, Serialize)]
pub(super) struct Turn {
    pub(super) cell: String,
    pub(super) target: String,
    pub(super) repetition: usize,
    pub(super) report: Report,
}

/// What a target's processes hold before any load.
#[derive(Debug, Serialize)]
struct Idle {
    target: String,
    resident_bytes: u64,
}

impl Results {
    pub(super) fn new(repetitions: usize, targets: &[Target], pinning: Pinning) -> Self {
        let idle = targets.iter().map(|target| Idle {
            target: target.name.to_owned(),
            resident_bytes: target.resident_bytes(),
        });
        Self {
            machine: machine(),
            placement: pinning.describe(),
            repetitions,
            idle: idle.collect(),
            turns: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, turn: Turn) {
        self.turns.push(turn);
    }

    /// Answers of a target that were not as they should be.
    pub(super) fn faults_of(&self, target: &str) -> u64 {
        self.turns
            .iter()
            .filter(|turn| turn.target == target)
            .map(|turn| turn.report.faults())
            .sum()
    }

    /// The tables.
    pub(super) fn markdown(&self) -> String {
        let mut text = format!(
            "# IOP beside nginx and a direct connection\n\n\
             {}. {}. Medians of {} repetitions; ratios and differences are taken within a repetition.\n",
            self.machine, self.placement, self.repetitions
        );
        for cell in self.cells() {
            let _ = write!(text, "\n## {cell}\n\n{}", self.table(cell, Form::of(cell)));
            if Form::of(cell) == Form::Paced {
                let _ = write!(text, "\n### Memory, {cell}\n\n{}", self.memory(cell));
            }
        }
        text
    }

    fn table(&self, cell: &str, form: Form) -> String {
        let (unit, delay) = (form.unit(), form.delay());
        let mut text = format!(
            "| target | {unit}s/s | x direct | CPU us/{unit} | x {TWO_HOPS} | added {delay} p50 us \
             | added {delay} p99 us | path core | rig core | errors | short | disordered |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|\n"
        );
        let speed = |r: &Report| form.speed(r);
        let cpu = |r: &Report| form.cpu(r);
        let difference = |mine: f64, base: f64| mine - base;
        let ratio = |mine: f64, base: f64| mine / base;
        for target in self.targets() {
            let median = |figure: &dyn Fn(&Report) -> f64| self.median(cell, target, figure);
            let against =
                |base: &str, figure: &dyn Fn(&Report) -> f64, join: fn(f64, f64) -> f64| {
                    self.median_of_pairs(cell, target, base, figure, join)
                };
            let total = |count: fn(&Report) -> u64| -> u64 {
                self.of(cell, target).map(|turn| count(&turn.report)).sum()
            };
            // The direct connection has no path, so most columns mean nothing for it.
            let path =
                |value: f64, digits| shown(if target == DIRECT { f64::NAN } else { value }, digits);
            let row = [
                target.to_owned(),
                shown(median(&speed), 0),
                path(against(DIRECT, &speed, ratio), 2),
                path(median(&cpu), 1),
                path(against(TWO_HOPS, &cpu, ratio), 2),
                path(against(DIRECT, &|r| form.delay_of(r).p50_us, difference), 0),
                path(against(DIRECT, &|r| form.delay_of(r).p99_us, difference), 0),
                path(median(&|r| r.path_core), 2),
                shown(median(&|r| r.rig_core), 2),
                total(|report| report.errors).to_string(),
                total(|report| report.short).to_string(),
                total(|report| report.disordered).to_string(),
            ];
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
        text
    }

    fn memory(&self, cell: &str) -> String {
        let streams: f64 =
            cell.split(['-', 'x']).nth(1).and_then(|n| n.parse().ok()).unwrap_or(f64::NAN);
        let mut text =
            "| target | idle MB | with the streams MB | KB a stream |\n|---|---|---|---|\n"
                .to_owned();
        for idle in self.idle.iter().filter(|idle| idle.target != DIRECT) {
            let idle_bytes = bytes(idle.resident_bytes);
            let open = self.median(cell, &idle.target, &|report| bytes(report.rss_during));
            let _ = writeln!(
                text,
                "| {} | {:.1} | {:.1} | {:.1} |",
                idle.target,
                idle_bytes / 1e6,
                open / 1e6,
                (open - idle_bytes) / streams / 1e3
            );
        }
        text
    }

    fn cells(&self) -> Vec<&str> {
        unique(self.turns.iter().map(|turn| turn.cell.as_str()))
    }

    fn targets(&self) -> Vec<&str> {
        unique(self.idle.iter().map(|idle| idle.target.as_str()))
    }

    fn of<'a>(&'a self, cell: &'a str, target: &'a str) -> impl Iterator<Item = &'a Turn> {
        self.turns.iter().filter(move |turn| turn.cell == cell && turn.target == target)
    }

    fn median(&self, cell: &str, target: &str, figure: &dyn Fn(&Report) -> f64) -> f64 {
        median(self.of(cell, target).map(|turn| figure(&turn.report)).collect())
    }

    /// Joins each turn's figure with that of `base` in the same repetition.
    fn median_of_pairs(
        &self,
        cell: &str,
        target: &str,
        base: &str,
        figure: &dyn Fn(&Report) -> f64,
        join: fn(f64, f64) -> f64,
    ) -> f64 {
        let pairs = self.of(cell, target).filter_map(|turn| {
            let base = self.of(cell, base).find(|other| other.repetition == turn.repetition)?;
            Some(join(figure(&turn.report), figure(&base.report)))
        });
        median(pairs.collect())
    }
}

/// What a cell counts and which delay says most about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Unary,
    Stream,
    Paced,
}

impl Form {
    fn of(cell: &str) -> Self {
        match cell.split('-').next() {
            Some("paced") => Self::Paced,
            Some("stream") => Self::Stream,
            _ => Self::Unary,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Unary => "request",
            Self::Stream | Self::Paced => "chunk",
        }
    }

    fn delay(self) -> &'static str {
        match self {
            Self::Unary => "latency",
            // Under a flood the later chunks measure a queue, the first one the path.
            Self::Stream => "first chunk",
            Self::Paced => "transit",
        }
    }

    fn speed(self, report: &Report) -> f64 {
        match self {
            Self::Unary => report.requests_per_second,
            Self::Stream | Self::Paced => report.chunks_per_second,
        }
    }

    fn cpu(self, report: &Report) -> f64 {
        match self {
            Self::Unary => report.path_us_per_request,
            Self::Stream | Self::Paced => report.path_us_per_chunk,
        }
    }

    fn delay_of(self, report: &Report) -> Quantiles {
        match self {
            Self::Unary => report.latency,
            Self::Stream => report.first_chunk,
            Self::Paced => report.transit,
        }
    }
}

/// The middle value; not a number where there is none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match (values.len(), values.len() / 2) {
        (0, _) => f64::NAN,
        (length, middle) if length % 2 == 1 => values[middle],
        (_, middle) => f64::midpoint(values[middle - 1], values[middle]),
    }
}

fn shown(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { "-".to_owned() }
}

fn unique<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

#[expect(clippy::cast_precision_loss, reason = "memory of a few processes stays far below 2^52")]
fn bytes(count: u64) -> f64 {
    count as f64
}

/// Cores, processor and kernel, as far as the system tells.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("{cores} cores of {model}, Linux {}", read("/proc/sys/kernel/osrelease").trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(turns: &[(&str, usize, f64)]) -> Results {
        let turns = turns.iter().map(|&(target, repetition, requests_per_second)| Turn {
            cell: "unary-1".to_owned(),
            target: target.to_owned(),
            repetition,
            report: Report { requests_per_second, ..Report::default() },
        });
        Results {
            machine: String::new(),
            placement: String::new(),
            repetitions: 2,
            idle: Vec::new(),
            turns: turns.collect(),
        }
    }

    #[test]
    fn ratios_pair_turns_of_the_same_repetition() {
        let results =
            results(&[(DIRECT, 0, 100.0), (DIRECT, 1, 1000.0), ("a", 1, 500.0), ("a", 0, 50.0)]);
        let ratio =
            results
                .median_of_pairs("unary-1", "a", DIRECT, &|r| r.requests_per_second, |a, b| a / b);
        assert!((ratio - 0.5).abs() < 1e-9);
    }

    #[test]
    fn the_median_of_an_even_count_lies_between_the_middle_two() {
        assert!((median(vec![4.0, 1.0, 2.0, 8.0]) - 3.0).abs() < 1e-9);
        assert!(median(Vec::new()).is_nan());
    }
}
