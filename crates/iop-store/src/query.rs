//! What can be asked of a history.

use iop_types::{ErrorCode, NodeId, RouteName};
use jiff::Timestamp;

/// Selects runs, newest first. Every filter that is given must match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// At most this many, and never more than [`Query::MAX_LIMIT`].
    pub limit: usize,
    /// Only runs of this route (the client's model name).
    pub route: Option<RouteName>,
    /// Only runs with an attempt on this Node.
    pub node: Option<NodeId>,
    /// Only runs that ended with this code.
    pub code: Option<ErrorCode>,
    /// Only runs received at or after this time. Ids are trusted to be minted at or after receipt, so
    /// that nothing older is looked at.
    pub since: Option<Timestamp>,
}

impl Query {
    /// The most that one answer holds: about a megabyte.
    pub const MAX_LIMIT: usize = 1000;
}

impl Default for Query {
    fn default() -> Self {
        Self { limit: 50, route: None, node: None, code: None, since: None }
    }
}

/// The history cannot be read at the moment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("history cannot be read: {reason}")]
pub struct ReadError {
    /// Why, for people.
    pub reason: String,
}

/// A run was not found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FindError {
    /// No run has such an id.
    #[error("no run `{id}` is known: send a run id, a beginning of one, or a whole request id")]
    Unknown {
        /// What was asked for.
        id: String,
    },
    /// Several runs have ids that begin like this, or this request id.
    #[error("`{id}` is the beginning, or the request id, of several runs: send a whole run id")]
    Ambiguous {
        /// What was asked for.
        id: String,
    },
    /// The history cannot be read at the moment.
    #[error(transparent)]
    Read(#[from] ReadError),
}
