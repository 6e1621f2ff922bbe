//! What the Edge counts, for `/metrics`.
//!
//! Counters are atomics that the path of a request touches a handful of times. Everything that can be
//! read off the state of the Edge (queues, providers, links) is read when somebody looks, so that no
//! gauge can drift from what it describes. Labels are names that an operator chose or closed lists,
//! never ids.

use std::fmt;
use std::time::Duration;

use iop_types::{Usage, UsageSource};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

/// The counters of one Edge.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Outcome, Counter>,
    attempts: Family<AttemptOutcome, Counter>,
    requeues: Family<Reason, Counter>,
    retries: Family<Reason, Counter>,
    links_closed: Family<Reason, Counter>,
    observations: Family<Health, Counter>,
    observations_refused: Family<Reason, Counter>,
    refused: Family<Reason, Counter>,
    tokens: Family<Tokens, Counter>,
    duration: Histogram,
    first_token: Histogram,
    queue_wait: Histogram,
}

/// How a request ended: `ok` or a code of the table of errors.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    surface: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AttemptOutcome {
    form: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Health {
    health: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Tokens {
    direction: &'static str,
    source: &'static str,
}

/// One family of gauges or of counters that somebody else keeps.
#[derive(Debug)]
pub(crate) struct Gauge {
    /// Name without the prefix `iop_`.
    pub(crate) name: &'static str,
    /// One line for people.
    pub(crate) help: &'static str,
    /// Whether it only grows.
    pub(crate) counts: bool,
    /// Labels and value of each member.
    pub(crate) values: Vec<(Vec<(&'static str, String)>, f64)>,
}

impl Metrics {
    /// Makes the counters of an Edge of this version.
    pub(crate) fn new(version: &str) -> Self {
        // A request lasts from a millisecond (mock) to many minutes.
        let seconds = || {
            Histogram::new([
                0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
                300.0, 900.0,
            ])
        };
        let mut metrics = Self {
            registry: Registry::with_prefix("iop"),
            requests: Family::default(),
            attempts: Family::default(),
            requeues: Family::default(),
            retries: Family::default(),
            links_closed: Family::default(),
            observations: Family::default(),
            observations_refused: Family::default(),
            refused: Family::default(),
            tokens: Family::default(),
            duration: seconds(),
            first_token: seconds(),
            queue_wait: seconds(),
        };
        metrics.register(version);
        metrics
    }

    fn register(&mut self, version: &str) {
        let registry = &mut self.registry;
        registry.register(
            "build",
            "Version of the running edge",
            Info::new([("version", version.to_owned())]),
        );
        registry.register(
            "requests",
            "Requests that ended, by surface and outcome",
            self.requests.clone(),
        );
        registry.register(
            "attempts",
            "Dispatches that ended, by form and outcome",
            self.attempts.clone(),
        );
        registry.register(
            "requeues",
            "Requests put back to their old place, by reason",
            self.requeues.clone(),
        );
        registry.register(
            "retries",
            "Failures after which another attempt was decided on, by reason",
            self.retries.clone(),
        );
        registry.register("links_closed", "Links that ended, by reason", self.links_closed.clone());
        registry.register(
            "health_observations",
            "Health observations of nodes that were taken, by evidence",
            self.observations.clone(),
        );
        registry.register(
            "health_observations_refused",
            "Health observations of nodes that were stale, by reason",
            self.observations_refused.clone(),
        );
        registry.register(
            "requests_refused",
            "Requests refused before admission, by code",
            self.refused.clone(),
        );
        registry.register("tokens", "Tokens relayed, by direction and source", self.tokens.clone());
        registry.register_with_unit(
            "request_duration",
            "From receipt to the end of the response",
            Unit::Seconds,
            self.duration.clone(),
        );
        registry.register_with_unit(
            "first_token",
            "From receipt to the first piece of the result",
            Unit::Seconds,
            self.first_token.clone(),
        );
        registry.register_with_unit(
            "queue_wait",
            "From receipt to the first dispatch",
            Unit::Seconds,
            self.queue_wait.clone(),
        );
    }

    /// Renders counters, and what was read just now, in the OpenMetrics text format.
    pub(crate) fn render(&self, gauges: Vec<Gauge>) -> String {
        let mut read = Registry::default();
        read.register_collector(Box::new(Reading(gauges)));
        let mut text = String::new();
        encode_registry(&mut text, &self.registry)
            .and_then(|()| encode_registry(&mut text, &read))
            .and_then(|()| encode_eof(&mut text))
            .expect("writing to a string does not fail");
        text
    }

    /// A request ended.
    pub(crate) fn count_request(
        &self,
        surface: &'static str,
        outcome: &'static str,
        lasted: Duration,
    ) {
        self.requests.get_or_create(&Outcome { surface, outcome }).inc();
        self.duration.observe(lasted.as_secs_f64());
    }

    /// A request was refused before it had a place in a queue.
    pub(crate) fn count_refused(&self, reason: &'static str) {
        self.refused.get_or_create(&Reason { reason }).inc();
    }

    /// A dispatch ended.
    pub(crate) fn count_attempt(&self, form: &'static str, outcome: &'static str) {
        self.attempts.get_or_create(&AttemptOutcome { form, outcome }).inc();
    }

    /// A request went back to its old place.
    pub(crate) fn count_requeue(&self, reason: &'static str) {
        self.requeues.get_or_create(&Reason { reason }).inc();
    }

    /// A failed attempt is to be followed by another.
    pub(crate) fn count_retry(&self, reason: &'static str) {
        self.retries.get_or_create(&Reason { reason }).inc();
    }

    /// A link ended.
    pub(crate) fn count_link_closed(&self, reason: &'static str) {
        self.links_closed.get_or_create(&Reason { reason }).inc();
    }

    /// A health observation was taken.
    pub(crate) fn count_observation(&self, health: &'static str) {
        self.observations.get_or_create(&Health { health }).inc();
    }

    /// A health observation was stale.
    pub(crate) fn count_observation_refused(&self, reason: &'static str) {
        self.observations_refused.get_or_create(&Reason { reason }).inc();
    }

    /// Tokens went by.
    pub(crate) fn count_tokens(&self, source: UsageSource, usage: Usage) {
        let source = match source {
            UsageSource::Provider => "provider",
            UsageSource::Estimated => "estimated",
        };
        for (direction, tokens) in [("input", usage.input_tokens), ("output", usage.output_tokens)]
        {
            if tokens > 0 {
                self.tokens.get_or_create(&Tokens { direction, source }).inc_by(tokens);
            }
        }
    }

    /// The first piece of a result came.
    pub(crate) fn observe_first_token(&self, after: Duration) {
        self.first_token.observe(after.as_secs_f64());
    }

    /// A request was sent for the first time.
    pub(crate) fn observe_queue_wait(&self, waited: Duration) {
        self.queue_wait.observe(waited.as_secs_f64());
    }
}

#[derive(Debug)]
struct Reading(Vec<Gauge>);

impl Collector for Reading {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for gauge in self.0.iter().filter(|gauge| !gauge.values.is_empty()) {
            let members = Members { counts: gauge.counts, values: &gauge.values };
            let name = format!("iop_{}", gauge.name);
            let metric =
                encoder.encode_descriptor(&name, gauge.help, None, members.metric_type())?;
            members.encode(metric)?;
        }
        Ok(())
    }
}

struct Members<'a> {
    counts: bool,
    values: &'a [(Vec<(&'static str, String)>, f64)],
}

impl EncodeMetric for Members<'_> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (labels, value) in self.values {
            let labels: Vec<_> =
                labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let labels = labels.as_slice();
            let member = encoder.encode_family(&labels)?;
            if self.counts {
                ConstCounter::new(*value).encode(member)?;
            } else {
                ConstGauge::new(*value).encode(member)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> prometheus_client::metrics::MetricType {
        if self.counts {
            prometheus_client::metrics::MetricType::Counter
        } else {
            prometheus_client::metrics::MetricType::Gauge
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_queues() -> Vec<Gauge> {
        vec![
            Gauge {
                name: "queue_depth",
                help: "Requests that wait",
                counts: false,
                values: vec![
                    (vec![("route", "a\"b".to_owned())], 2.0),
                    (vec![("route", "c".to_owned())], 0.0),
                ],
            },
            Gauge {
                name: "late_frames",
                help: "Frames dropped",
                counts: true,
                values: vec![(vec![], 3.0)],
            },
        ]
    }

    #[test]
    fn counters_and_gauges_are_rendered_with_prefix_and_labels() {
        let metrics = Metrics::new("1.2.3");
        metrics.count_request("openai", "ok", Duration::from_millis(30));
        metrics.count_request("openai", "ok", Duration::from_millis(30));
        metrics.count_tokens(UsageSource::Provider, Usage { input_tokens: 5, output_tokens: 0 });
        let text = metrics.render(two_queues());
        for line in [
            "iop_build_info{version=\"1.2.3\"} 1",
            "iop_requests_total{surface=\"openai\",outcome=\"ok\"} 2",
            "iop_tokens_total{direction=\"input\",source=\"provider\"} 5",
            "iop_request_duration_seconds_bucket{le=\"0.05\"} 2",
            "iop_queue_depth{route=\"a\\\"b\"} 2.0",
            "iop_queue_depth{route=\"c\"} 0.0",
            "iop_late_frames_total 3.0",
        ] {
            assert!(text.contains(line), "{line} is missing in:\n{text}");
        }
        assert!(!text.contains("direction=\"output\""), "no tokens, no counter");
    }
}
