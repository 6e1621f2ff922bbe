//! What an Edge asks of a Node.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::{Attempt, ProviderKey, ProviderRevision, RunId, SessionId, Target, TunnelId};
use crate::lease::SealedLease;
use crate::stall_timeout::StallTimeout;
use crate::tunnel::Header;

/// What a run produces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunKind {
    /// Chat completion.
    Chat,
    /// Text completion.
    Completion,
    /// Embedding vectors.
    Embedding,
    /// Relevance scores.
    Rerank,
}

/// How a request travels to its provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Normalized: translated at both ends.
    Run,
    /// Raw HTTP relay.
    Tunnel,
}

impl Form {
    /// Returns the name used in history.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Tunnel => "tunnel",
        }
    }
}

/// Identifies one dispatch; the Node keys its work by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkKey {
    /// The run.
    pub run_id: RunId,
    /// The dispatch.
    pub attempt: Attempt,
}

/// What runs and tunnels have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHead {
    /// The run and the dispatch of it.
    pub work: WorkKey,
    /// The client's correlation value.
    pub session_id: Option<SessionId>,
    /// Provider that won.
    pub provider: ProviderKey,
    /// Target that the provider is asked for.
    pub target: Target,
    /// Revision of the provider's entry that the Edge decided on.
    pub revision: ProviderRevision,
    /// The winner's stall timeout.
    pub stall_timeout: StallTimeout,
    /// Time left until the first progress must have come; `None` when unbounded.
    pub first_progress_within: Option<Duration>,
    /// Time left for the whole request; `None` when unbounded.
    pub ends_within: Option<Duration>,
    /// The provider's credential, where the Edge holds it.
    pub lease: Option<Box<SealedLease>>,
}

/// A normalized run. Its input, the OpenAI object of the kind with unknown members kept, follows as
/// the request body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRequest {
    /// Identity, candidate and times.
    pub head: RequestHead,
    /// What to produce.
    pub kind: RunKind,
}

/// A raw HTTP request to the provider; its body follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelRequest {
    /// Identity, candidate and times.
    pub head: RequestHead,
    /// This attempt on this link.
    pub tunnel_id: TunnelId,
    /// Method in capitals.
    pub method: String,
    /// Path and query as the client sent them.
    pub path_and_query: String,
    /// Headers for the provider: no hop-by-hop ones, no credentials of the client.
    pub headers: Vec<Header>,
    /// Length of the body where it is known; `None` sends it chunked.
    pub content_length: Option<u64>,
}
