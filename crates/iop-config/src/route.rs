//! Routes: model names and where they lead.

use std::time::Duration;

use iop_types::{NodeId, Policy, ProviderKey, Recovery, Target, UsageMode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{defaults, duration, schema};

/// One model name and how its requests are served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Where requests may go; at least one.
    pub candidates: Vec<Candidate>,
    /// How a candidate is chosen among those of the smallest `priority` that can take the request.
    #[serde(default)]
    #[schemars(schema_with = "schema::policy")]
    pub policy: Policy,
    /// Bound on a whole request, from receipt to the last byte. Absent means none.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "duration::optional")]
    #[schemars(schema_with = "schema::duration")]
    pub timeout: Option<Duration>,
    /// How requests wait for capacity.
    #[serde(default)]
    pub queue: Queue,
    /// How token counts of streams are obtained; `observed` at the provider wins over `exact` here.
    #[serde(default)]
    #[schemars(schema_with = "schema::usage")]
    pub usage: UsageMode,
    /// How long the head of a stream is held back until its first progress, so that an early
    /// failure can still be tried again elsewhere: at most 5m, 0 means not at all. Only where `recovery` is
    /// `full`: [recovery](recovery.md).
    #[serde(default = "default_hold_head", with = "hold_head")]
    #[schemars(schema_with = "schema::duration")]
    pub hold_head: Duration,
    /// Which failures may be tried again, while no byte of the response has reached the client. A
    /// request that may have reached a provider can then be executed twice:
    /// [recovery](recovery.md).
    #[serde(default)]
    #[schemars(schema_with = "schema::recovery")]
    pub recovery: Recovery,
}

impl Route {
    /// Makes a route that leaves everything else at its default.
    pub fn new(candidates: Vec<Candidate>) -> Self {
        Self {
            candidates,
            policy: Policy::default(),
            timeout: None,
            queue: Queue::default(),
            usage: UsageMode::default(),
            hold_head: defaults::HOLD_HEAD,
            recovery: Recovery::default(),
        }
    }
}

/// One place where a route's requests may go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// Node, by its name under `nodes`.
    #[schemars(with = "String")]
    pub node: NodeId,
    /// Provider, by its key; the adapter's name will do where only one provider of the Node has it.
    #[schemars(with = "String")]
    pub provider: ProviderKey,
    /// What the provider is asked to execute. On a route whose name ends in `*`, a `*` at the end
    /// stands for what the name's `*` matched.
    #[schemars(with = "String")]
    pub target: Target,
    /// Candidates with a smaller number are preferred.
    #[serde(default)]
    pub priority: u32,
    /// Share among candidates of equal priority under policy `weighted`; at least 1.
    #[serde(default = "default_weight")]
    #[schemars(range(min = 1))]
    pub weight: u32,
}

/// How requests of a route wait for capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Queue {
    /// Requests that may wait; one more is 429 `queue_full`. 0 means that none waits.
    pub max_waiting: usize,
    /// How long a request waits; then 503 `queue_timeout`.
    #[serde(with = "duration::text")]
    #[schemars(schema_with = "schema::duration")]
    pub timeout: Duration,
    /// How long a request waits for a Node that is away for a moment; then 503 `no_ready_provider`.
    #[serde(with = "duration::text")]
    #[schemars(schema_with = "schema::duration")]
    pub wait_for_node: Duration,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            max_waiting: defaults::QUEUE_MAX_WAITING,
            timeout: defaults::QUEUE_TIMEOUT,
            wait_for_node: defaults::WAIT_FOR_NODE,
        }
    }
}

mod hold_head {
    use std::time::Duration;

    use serde::de::Deserializer;

    use crate::{defaults, duration};

    pub(super) use duration::text::serialize;

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        duration::at_most(from, defaults::MAX_HOLD_HEAD)
    }
}

const fn default_hold_head() -> Duration {
    defaults::HOLD_HEAD
}

const fn default_weight() -> u32 {
    1
}
