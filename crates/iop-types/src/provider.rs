//! What an Edge knows of a provider.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{ProviderKey, ProviderRevision, Target};
use crate::request::RunKind;

/// Which dialect of a server an adapter speaks; the type name of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdapterType {
    /// Scripted answers, for demonstration and tests.
    Mock,
    /// Any OpenAI-compatible HTTP API.
    OpenaiCompat,
    /// Ollama's own API.
    Ollama,
    /// vLLM and SGLang.
    Vllm,
}

impl AdapterType {
    /// Every type.
    pub const ALL: &[Self] = &[Self::Mock, Self::OpenaiCompat, Self::Ollama, Self::Vllm];

    /// Returns the name used in configuration files and on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mock => "mock",
            Self::OpenaiCompat => "openai_compat",
            Self::Ollama => "ollama",
            Self::Vllm => "vllm",
        }
    }

    /// Finds a type by its name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|adapter| adapter.as_str() == text)
    }

    /// Returns how many calls such a server takes at once unless configured.
    pub const fn default_max_concurrency(self) -> u32 {
        match self {
            Self::Ollama => 4,
            Self::OpenaiCompat => 8,
            Self::Mock => 64,
            Self::Vllm => 256,
        }
    }
}

impl fmt::Display for AdapterType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a provider stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderState {
    /// Not reachable yet; the Node keeps looking.
    Starting,
    /// Takes requests.
    Ready,
    /// Was reachable and is not now; the Node keeps looking.
    Absent,
    /// Cannot work as configured; the reason says why.
    Failed,
    /// Finishes what it has and takes nothing new.
    Draining,
}

impl ProviderState {
    /// Returns the stable text of the state.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Absent => "absent",
            Self::Failed => "failed",
            Self::Draining => "draining",
        }
    }
}

impl fmt::Display for ProviderState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One HTTP operation of a tunnel's allow-list.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Operation {
    /// Method in capitals.
    pub method: String,
    /// Exact path without query, beginning with a slash.
    pub path: String,
}

/// What a provider can do, declared by its adapter; hosts branch on this and never on the type.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Capabilities {
    /// Operations that a tunnel may call; empty when the adapter has no tunnel.
    pub tunnel: Vec<Operation>,
    /// Kinds that the adapter executes as normalized runs.
    pub runs: Vec<RunKind>,
    /// Whether a name without a tag also means `:latest`.
    pub implicit_latest: bool,
}

impl Capabilities {
    /// Says whether a tunnel may call this operation.
    pub fn allows(&self, method: &str, path: &str) -> bool {
        self.tunnel.iter().any(|operation| operation.method == method && operation.path == path)
    }
}

/// A provider as its Node last reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderStatus {
    /// Which provider.
    pub provider: ProviderKey,
    /// Dialect of the server.
    pub adapter: AdapterType,
    /// Where it stands.
    pub state: ProviderState,
    /// Why it is not ready, for people; empty when it is.
    pub reason: String,
    /// Targets that it serves, in the provider's order.
    pub targets: Vec<Target>,
    /// Targets that it holds in memory, where the server tells.
    pub loaded: Vec<Target>,
    /// Calls it takes at once.
    pub capacity: u32,
    /// Calls it has, zombies included.
    pub in_use: u32,
    /// Calls that were cancelled and have not been seen to return.
    pub zombies: u32,
    /// Requests that wait inside the provider, where the server tells.
    pub queued: Option<u32>,
    /// Configuration counter at which the entry last changed.
    pub revision: ProviderRevision,
    /// What it can do.
    pub capabilities: Capabilities,
}
