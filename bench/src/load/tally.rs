//! What one turn of load has counted, and its report.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How a whole answer turned out.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    /// As it should be.
    Good,
    /// Chunks or the end are missing.
    Short,
    /// Chunks came in another order than they were made, or twice.
    Disordered,
}

/// Counters and histograms. Speeds count only inside the window; faults always.
#[derive(Debug)]
pub(super) struct Tally {
    counting: bool,
    requests: u64,
    chunks: u64,
    faults: Faults,
    latency: Histogram<u64>,
    first_chunk: Histogram<u64>,
    transit: Histogram<u64>,
}

#[derive(Debug, Default)]
struct Faults {
    errors: u64,
    short: u64,
    disordered: u64,
    first: Option<String>,
}

impl Default for Tally {
    fn default() -> Self {
        // Nanoseconds up to a minute; longer values saturate at the top.
        let histogram =
            || Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are valid");
        Self {
            counting: false,
            requests: 0,
            chunks: 0,
            faults: Faults::default(),
            latency: histogram(),
            first_chunk: histogram(),
            transit: histogram(),
        }
    }
}

impl Tally {
    pub(super) fn start(&mut self) {
        self.counting = true;
    }

    pub(super) fn stop(&mut self) {
        self.counting = false;
    }

    pub(super) fn finished(&mut self, outcome: Outcome, latency: Duration) {
        match outcome {
            Outcome::Good => {}
            Outcome::Short => self.faults.short += 1,
            Outcome::Disordered => self.faults.disordered += 1,
        }
        if self.counting {
            self.requests += 1;
            self.latency.saturating_record(nanos(latency));
        }
    }

    pub(super) fn failed(&mut self, why: String) {
        self.faults.errors += 1;
        self.faults.first.get_or_insert(why);
    }

    pub(super) fn first_chunk(&mut self, after: Duration) {
        if self.counting {
            self.first_chunk.saturating_record(nanos(after));
        }
    }

    pub(super) fn chunk(&mut self, transit_ns: u64) {
        if self.counting {
            self.chunks += 1;
            self.transit.saturating_record(transit_ns);
        }
    }

    pub(super) fn report(&self, elapsed: Duration) -> Report {
        let rate =
            |count| if elapsed.is_zero() { 0.0 } else { float(count) / elapsed.as_secs_f64() };
        Report {
            requests: self.requests,
            requests_per_second: rate(self.requests),
            chunks: self.chunks,
            chunks_per_second: rate(self.chunks),
            errors: self.faults.errors,
            short: self.faults.short,
            disordered: self.faults.disordered,
            first_error: self.faults.first.clone(),
            latency: Quantiles::of(&self.latency),
            first_chunk: Quantiles::of(&self.first_chunk),
            transit: Quantiles::of(&self.transit),
            ..Report::default()
        }
    }
}

/// One turn as JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) requests: u64,
    pub(crate) requests_per_second: f64,
    pub(crate) chunks: u64,
    pub(crate) chunks_per_second: f64,
    /// Requests without a whole 200 answer.
    pub(crate) errors: u64,
    /// Streams without all their chunks and `[DONE]`.
    pub(crate) short: u64,
    /// Streams whose chunks were out of order or doubled.
    pub(crate) disordered: u64,
    pub(crate) first_error: Option<String>,
    /// From the send to the end of the answer.
    pub(crate) latency: Quantiles,
    /// From the send to the first content chunk.
    pub(crate) first_chunk: Quantiles,
    /// From the making of a chunk to its receipt.
    pub(crate) transit: Quantiles,
    /// CPU of the path under test in the window, per request and per chunk.
    pub(crate) path_us_per_request: f64,
    pub(crate) path_us_per_chunk: f64,
    /// Shares of one core. Near 1 the path, or the rig, was the limit.
    pub(crate) path_core: f64,
    pub(crate) rig_core: f64,
    /// Resident bytes of the path before and in the middle of the turn.
    pub(crate) rss_before: u64,
    pub(crate) rss_during: u64,
}

impl Report {
    /// Whether every answer was whole, right and in order, and there was one.
    pub(crate) fn is_clean(&self) -> bool {
        self.faults() == 0 && self.requests + self.chunks > 0
    }

    /// Answers that were not as they should be.
    pub(crate) fn faults(&self) -> u64 {
        self.errors + self.short + self.disordered
    }

    pub(super) fn set_cpu(&mut self, path_ns: u64, rig_ns: u64, elapsed: Duration) {
        let per = |count: u64| if count == 0 { 0.0 } else { float(path_ns) / 1e3 / float(count) };
        self.path_us_per_request = per(self.requests);
        self.path_us_per_chunk = per(self.chunks);
        self.path_core = float(path_ns) / 1e9 / elapsed.as_secs_f64();
        self.rig_core = float(rig_ns) / 1e9 / elapsed.as_secs_f64();
    }
}

/// Points of a distribution, in microseconds; zero where nothing was recorded.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Quantiles {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
}

impl Quantiles {
    fn of(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let at = |quantile| float(histogram.value_at_quantile(quantile)) / 1e3;
        Self { p50_us: at(0.5), p99_us: at(0.99), max_us: float(histogram.max()) / 1e3 }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark stay far below 2^52")]
fn float(count: u64) -> f64 {
    count as f64
}
