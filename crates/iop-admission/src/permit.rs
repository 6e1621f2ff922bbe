//! Granted capacity and places in the queue.

use std::fmt;
use std::sync::Arc;

use iop_types::{
    AdapterType, Capabilities, Form, Generation, NodeId, ProviderKey, ProviderRevision,
    StallTimeout, Target, UsageMode,
};

use crate::provider::{SlotId, Trial};
use crate::request::{AffinityKey, Ask};
use crate::route::Route;
use std::time::Instant;

/// A request's place in the queue. It keeps its number for as long as the request lives, also over
/// grants that were given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub(crate) u64);

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One unit of one provider's capacity, from the grant until the attempt has returned.
///
/// Give it back with [`Admission::release`](crate::Admission::release) or
/// [`Admission::requeue`](crate::Admission::requeue); a permit that is dropped is never given back.
#[derive(Debug)]
#[must_use = "a permit that is dropped keeps its capacity for ever"]
pub struct Permit {
    pub(crate) place: Place,
    pub(crate) slot: SlotId,
    pub(crate) candidate: Candidate,
    /// Set while this request tries a target that was left out.
    pub(crate) trial: Option<Trial>,
    /// Whether it was served to its end.
    pub(crate) served: bool,
}

impl Permit {
    /// Returns the winner, as it was when the permit was granted.
    pub const fn candidate(&self) -> &Candidate {
        &self.candidate
    }

    /// Returns the route that the request asked for.
    pub const fn route(&self) -> &Arc<Route> {
        &self.place.route
    }

    /// The provider served the request to its end; when the permit comes back, that clears its target.
    pub const fn note_served(&mut self) {
        self.served = true;
    }

    /// Says whether this request tries a target that was left out, and has not told how that went.
    pub const fn is_trial(&self) -> bool {
        self.trial.is_some()
    }

    /// Returns the request's place in the queue.
    pub const fn ticket(&self) -> Ticket {
        self.place.ticket
    }
}

/// Everything that a request needs to go back to where it was.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) ticket: Ticket,
    pub(crate) route: Arc<Route>,
    pub(crate) ask: Ask,
    pub(crate) affinity: Option<AffinityKey>,
    /// When admission first saw the request.
    pub(crate) since: Instant,
    /// When it will have waited too long.
    pub(crate) deadline: Instant,
}

/// Who executes a request, resolved at the moment of the grant.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The provider under the generation that the grant is good for.
    pub instance: Arc<Instance>,
    /// The target to ask it for, as it lists it.
    pub target: Target,
    /// How the request travels.
    pub form: Form,
    /// Whether the Edge may add `include_usage`: the stricter of the route's and the provider's,
    /// and `observed` where this target is known to refuse the option.
    pub usage: UsageMode,
    /// Why this one.
    pub why: Why,
    /// Whether another candidate that has not failed this request was ready, with or without room.
    pub has_others: bool,
}

/// A provider as one generation of its Node reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// The Node.
    pub node: NodeId,
    /// The provider on it.
    pub provider: ProviderKey,
    /// The link that reported it: a send on any other must not happen.
    pub generation: Generation,
    /// Revision of its entry that the Node acknowledged.
    pub revision: ProviderRevision,
    /// Dialect of the server.
    pub adapter: AdapterType,
    /// How long it may stay silent.
    pub stall_timeout: StallTimeout,
    /// What it can do.
    pub capabilities: Capabilities,
}

/// Why a candidate won; kept in history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Why {
    /// The route has no other.
    OnlyCandidate,
    /// The route has others, and none of them qualified: not ready, full, left out or cooling down, or
    /// the request failed there.
    OnlyOneFit,
    /// Others qualified, this one holds the target in memory.
    Loaded,
    /// The smallest share of its capacity was in use.
    LeastLoaded,
    /// The first in the file's order that qualified.
    Ordered,
    /// It was its turn by weight.
    Weighted,
    /// Home of the request's affinity key.
    Affinity,
    /// The home of the key was full or away; this one is next.
    AffinitySpilled,
    /// It was left out as unavailable, and this request tries it.
    HalfOpen,
    /// It is left out, and nobody else is ready.
    LastResort,
}

impl Why {
    /// Returns the stable text of history.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OnlyCandidate => "only_candidate",
            Self::OnlyOneFit => "only_one_fit",
            Self::Loaded => "loaded",
            Self::LeastLoaded => "least_loaded",
            Self::Ordered => "ordered",
            Self::Weighted => "weighted",
            Self::Affinity => "affinity",
            Self::AffinitySpilled => "affinity_spilled",
            Self::HalfOpen => "half_open",
            Self::LastResort => "last_resort",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
