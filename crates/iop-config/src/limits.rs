//! What an Edge bounds.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{defaults, duration, schema, size};

/// Bounds of the whole Edge. Each has a default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Largest JSON body of a request; a larger one is 413 `body_too_large`.
    #[serde(with = "size::text")]
    #[schemars(schema_with = "schema::size")]
    pub json_body: u64,
    /// Largest body of another content type; a larger one is 413 `body_too_large`.
    #[serde(with = "size::text")]
    #[schemars(schema_with = "schema::size")]
    pub other_body: u64,
    /// All buffered bodies of the process together; beyond it requests get 503 `over_memory_budget`.
    #[serde(with = "size::text")]
    #[schemars(schema_with = "schema::size")]
    pub buffered_bodies: u64,
    /// Longest event of a run; a longer one ends the run with `provider_error`.
    #[serde(with = "size::text")]
    #[schemars(schema_with = "schema::size")]
    pub run_event: u64,
    /// A client that accepts less than this within `client_stall_timeout`, while bytes wait for it,
    /// is ended as `client_stalled`.
    #[serde(with = "size::text")]
    #[schemars(schema_with = "schema::size")]
    pub client_stall_bytes: u64,
    /// See `client_stall_bytes`.
    #[serde(with = "duration::text")]
    #[schemars(schema_with = "schema::duration")]
    pub client_stall_timeout: Duration,
    /// From receipt to the first progress of a request, waiting included; then 504
    /// `deadline_exceeded`.
    #[serde(with = "duration::text")]
    #[schemars(schema_with = "schema::duration")]
    pub first_progress: Duration,
    /// How long running requests may go on after the order to stop.
    #[serde(with = "duration::text")]
    #[schemars(schema_with = "schema::duration")]
    pub drain: Duration,
    /// How long finished runs are kept in history.
    #[serde(with = "duration::text")]
    #[schemars(schema_with = "schema::duration")]
    pub history: Duration,
    /// Requests at work at once on the link of one Node; beyond it nothing more is dispatched to it.
    #[schemars(range(min = 1))]
    pub max_streams: u32,
    /// Bytes that the link of one Node may have buffered for all its requests.
    #[serde(with = "size::text")]
    #[schemars(schema_with = "schema::size")]
    pub link_memory: u64,
    /// Client connections open at once; further ones wait to be accepted.
    #[schemars(range(min = 1))]
    pub client_connections: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            json_body: defaults::JSON_BODY,
            other_body: defaults::OTHER_BODY,
            buffered_bodies: defaults::BUFFERED_BODIES,
            run_event: defaults::RUN_EVENT,
            client_stall_bytes: defaults::CLIENT_STALL_BYTES,
            client_stall_timeout: defaults::CLIENT_STALL_TIMEOUT,
            first_progress: defaults::FIRST_PROGRESS,
            drain: defaults::DRAIN,
            history: defaults::EDGE_HISTORY,
            max_streams: defaults::MAX_STREAMS,
            link_memory: defaults::LINK_MEMORY,
            client_connections: defaults::CLIENT_CONNECTIONS,
        }
    }
}
