//! One provider's entry.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use iop_types::{AdapterType, Slot, StallTimeout, Target, UsageMode};
use schemars::JsonSchema;
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use crate::endpoint::Endpoint;
use crate::schema;

/// One served endpoint on a Node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Provider {
    /// Dialect of the server. `ollama` is for Ollama, `vllm` for vLLM and SGLang; `openai_compat` for
    /// any other server with an OpenAI-compatible API.
    #[schemars(schema_with = "schema::adapter")]
    pub adapter: AdapterType,
    /// Base URL of the server, as the Node reaches it. Required for all adapters but `mock`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub endpoint: Option<Endpoint>,
    /// What may be executed: `["*"]` for all that the server lists, or a list of names.
    #[serde(default = "all_targets")]
    #[schemars(with = "Vec<String>")]
    pub targets: Vec<Target>,
    /// Calls at once. Absent means the adapter's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrency: Option<NonZeroU32>,
    /// Context length in tokens that is forced on every request; wins over the request. Only for
    /// `ollama`; 0 or absent leaves the request's.
    #[serde(default)]
    pub context_size: u32,
    /// How long the server keeps a model loaded, in its own words: a duration like `5m`, or a number
    /// of seconds, of which a negative one means for ever. Wins over the request. Only for `ollama`;
    /// absent leaves the request's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<KeepAlive>,
    /// How long the provider may be silent before a request ends with `response_stalled`: 1ms … 24h.
    /// Waiting for a slow client, or for the rest of an upload, is no silence. An answer that is not
    /// streamed sends no byte before it is whole: the time must be longer than the longest of them.
    #[serde(default, with = "stall_timeout")]
    #[schemars(schema_with = "schema::duration")]
    pub response_stall_timeout: StallTimeout,
    /// How long the provider may take to its response head once it has the whole request; then the
    /// request ends with `response_stalled`: at most 24h. Absent means no bound of its own.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "first_response")]
    #[schemars(schema_with = "schema::duration")]
    pub first_response_timeout: Option<Duration>,
    /// Key that the server asks for, named and never written here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<ApiKey>,
    /// Name of a slot at the Edge that holds the key (`iop credentials set`). The Node sees it only
    /// for the request that needs it. Only in managed mode, and not together with `api_key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub credential: Option<Slot>,
    /// How the slot's key is written into a request. Only together with `credential`; absent sends
    /// `authorization: Bearer KEY`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// Further headers for the server. Values that are secrets are refused.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Whether somebody else runs the server and counts every request. Absent: true exactly where
    /// the endpoint is not on a loopback or private address. Such a server is asked for no token when
    /// its health is looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosted: Option<bool>,
    /// How token counts of streams are obtained.
    #[serde(default)]
    #[schemars(schema_with = "schema::usage")]
    pub usage: UsageMode,
    /// Whether commands (`iop ollama`) may pull, copy and delete models. The Node's own file has to
    /// allow it too. Only for `ollama`.
    #[serde(default)]
    pub manage_models: bool,
    /// What the `mock` adapter answers. Only for `mock`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<serde_json::Value>,
}

impl Provider {
    /// Makes an entry that leaves everything at its default.
    pub fn new(adapter: AdapterType, endpoint: Option<Endpoint>) -> Self {
        Self {
            adapter,
            endpoint,
            targets: all_targets(),
            max_concurrency: None,
            context_size: 0,
            keep_alive: None,
            response_stall_timeout: StallTimeout::DEFAULT,
            first_response_timeout: None,
            api_key: None,
            credential: None,
            profile: None,
            headers: BTreeMap::new(),
            hosted: None,
            usage: UsageMode::Exact,
            manage_models: false,
            script: None,
        }
    }

    /// Returns how many calls the provider takes at once.
    pub fn capacity(&self) -> NonZeroU32 {
        let adapter = self.adapter.default_max_concurrency();
        self.max_concurrency.or(NonZeroU32::new(adapter)).unwrap_or(NonZeroU32::MIN)
    }

    /// Says whether somebody else runs the server.
    pub fn is_hosted(&self) -> bool {
        let is_public = self.endpoint.as_ref().is_some_and(|endpoint| !endpoint.is_private());
        self.hosted.unwrap_or(is_public)
    }

    /// Says whether everything that the server lists is served.
    pub fn serves_all(&self) -> bool {
        self.targets.iter().any(|target| target.as_str() == ALL)
    }
}

/// Stands for everything that a server lists.
pub const ALL: &str = "*";

/// How a credential is written into a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Header that carries the key.
    #[serde(default = "authorization")]
    pub header: String,
    /// Word before the key; absent where the header holds the key alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
}

impl Default for Profile {
    fn default() -> Self {
        Self { header: authorization(), scheme: Some("Bearer".to_owned()) }
    }
}

fn authorization() -> String {
    "authorization".to_owned()
}

/// A key that is named, not written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKey {
    /// Name of a secret in the Node's own file. The secret never crosses the link; where the Node
    /// has none of that name the provider is `failed`, and never called without.
    pub node_secret: String,
}

/// A value of Ollama's `keep_alive`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum KeepAlive {
    /// Seconds; a negative number keeps the model for ever, 0 unloads it at once.
    Seconds(i64),
    /// A duration in Ollama's notation.
    Text(String),
}

impl KeepAlive {
    /// Says whether Ollama can read it: Go's durations are numbers with a unit each, or 0.
    pub fn is_readable(&self) -> bool {
        let Self::Text(text) = self else { return true };
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        let mut rest = unsigned;
        while !rest.is_empty() {
            let number = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let fraction = rest[number..].strip_prefix('.').map_or(0, |tail| {
                1 + tail.len() - tail.trim_start_matches(|c: char| c.is_ascii_digit()).len()
            });
            let (count, tail) = rest.split_at(number + fraction);
            let unit = GO_UNITS.into_iter().find_map(|unit| tail.strip_prefix(unit));
            match unit {
                Some(tail) if count.bytes().any(|byte| byte.is_ascii_digit()) => rest = tail,
                Some(_) | None => return unsigned == "0",
            }
        }
        !unsigned.is_empty()
    }

    /// Returns the value as JSON text.
    pub fn to_json(&self) -> String {
        match self {
            Self::Seconds(seconds) => seconds.to_string(),
            Self::Text(text) => serde_json::Value::from(text.as_str()).to_string(),
        }
    }
}

/// Units of Go's durations; what begins with another comes before it.
const GO_UNITS: [&str; 8] = ["ns", "us", "µs", "μs", "ms", "s", "m", "h"];

impl<'de> Deserialize<'de> for KeepAlive {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(KeepAliveVisitor)
    }
}

struct KeepAliveVisitor;

impl Visitor<'_> for KeepAliveVisitor {
    type Value = KeepAlive;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of seconds or a duration like 5m")
    }

    fn visit_i64<E>(self, seconds: i64) -> Result<KeepAlive, E> {
        Ok(KeepAlive::Seconds(seconds))
    }

    fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<KeepAlive, E> {
        i64::try_from(seconds)
            .map(KeepAlive::Seconds)
            .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(seconds), &self))
    }

    fn visit_str<E>(self, text: &str) -> Result<KeepAlive, E> {
        Ok(KeepAlive::Text(text.to_owned()))
    }
}

fn all_targets() -> Vec<Target> {
    vec![Target::from(ALL)]
}

/// Serde form of a stall timeout.
mod first_response {
    use std::time::Duration;

    use serde::de::Deserializer;

    use crate::{defaults, duration};

    pub(super) use duration::optional::serialize;

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        duration::at_most(from, defaults::MAX_FIRST_RESPONSE_TIMEOUT).map(Some)
    }
}

mod stall_timeout {
    use iop_types::StallTimeout;
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    use crate::duration;

    pub(super) fn serialize<S: Serializer>(value: &StallTimeout, to: S) -> Result<S::Ok, S::Error> {
        duration::text::serialize(&value.duration(), to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<StallTimeout, D::Error> {
        let text = String::deserialize(from)?;
        let written = duration::parse(&text).map_err(D::Error::custom)?;
        StallTimeout::from_config(written)
            .map_err(|_| D::Error::custom(format_args!("`{text}` is outside 1 ms … 24 h")))
    }
}
