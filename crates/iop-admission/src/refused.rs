//! Why a request was not admitted, in words for the client.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use iop_types::{ErrorCode, Failure, RouteName};

use crate::route::Route;

/// A request that admission turned away.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No route and no known target has this name.
    #[error("model `{model}` is not known here; GET /v1/models lists what is")]
    ModelNotFound {
        /// The name that was asked for.
        model: RouteName,
    },
    /// No Node has ever become ready, so that nobody can say which names exist.
    #[error("no node has joined yet, so model `{model}` cannot be looked up")]
    NoNodeYet {
        /// The name that was asked for.
        model: RouteName,
    },
    /// Candidates exist and none of them can do what was asked for.
    #[error("no provider of `{route}` offers {method} {path}")]
    Unsupported {
        /// The route.
        route: RouteName,
        /// Method of the operation.
        method: &'static str,
        /// Path of the operation.
        path: &'static str,
    },
    /// As many requests wait as may.
    #[error("queue of `{route}` is full at {limit} waiting requests")]
    QueueFull {
        /// The route.
        route: RouteName,
        /// How many may wait.
        limit: usize,
        /// When to try again.
        retry_after: Duration,
    },
    /// No candidate can take requests now or in a moment.
    #[error("no provider is ready for `{route}`: {shortage}{}", told(why.as_ref()))]
    NoReadyProvider {
        /// The route.
        route: RouteName,
        /// What is the matter with each candidate.
        shortage: Shortage,
        /// Which is not ready and why, as its Node says, of the first of which that is known.
        why: Option<String>,
    },
    /// No capacity became free in time.
    #[error(
        "no capacity for `{route}` became free within {} s{}",
        waited.as_secs(),
        told(held.as_ref()),
    )]
    QueueTimeout {
        /// The route.
        route: RouteName,
        /// How long the request waited.
        waited: Duration,
        /// What of its capacity nobody uses, as far as one knows.
        held: Option<Held>,
    },
    /// The Edge stops and takes nothing new.
    #[error("the edge is shutting down")]
    ShuttingDown,
}

/// A Node that lost its link dials again within 30 s at the latest; half of that on average.
const NODE_RETRY_AFTER: Duration = Duration::from_secs(15);
/// A stopping Edge is usually one that restarts.
const SHUTDOWN_RETRY_AFTER: Duration = Duration::from_secs(5);

impl Refused {
    /// Returns the code that the client sees.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::ModelNotFound { .. } => ErrorCode::ModelNotFound,
            Self::NoNodeYet { .. } | Self::NoReadyProvider { .. } => ErrorCode::NoReadyProvider,
            Self::Unsupported { .. } => ErrorCode::InvalidRequest,
            Self::QueueFull { .. } => ErrorCode::QueueFull,
            Self::QueueTimeout { .. } => ErrorCode::QueueTimeout,
            Self::ShuttingDown => ErrorCode::ShuttingDown,
        }
    }

    /// Returns when the same request is worth another try, for `Retry-After`.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::ModelNotFound { .. } | Self::Unsupported { .. } => None,
            Self::NoNodeYet { .. } | Self::NoReadyProvider { .. } => Some(NODE_RETRY_AFTER),
            Self::QueueFull { retry_after, .. } => Some(*retry_after),
            Self::QueueTimeout { waited, .. } => Some(queue_retry_after(*waited)),
            Self::ShuttingDown => Some(SHUTDOWN_RETRY_AFTER),
        }
    }

    /// Returns the failure that ends the run.
    pub fn failure(&self) -> Failure {
        Failure {
            retry_after_s: self
                .retry_after()
                .map(|after| u32::try_from(after.as_secs()).unwrap_or(u32::MAX)),
            ..Failure::new(self.code(), self.to_string())
        }
    }
}

/// The age of the oldest waiting request says how long the queue takes at present; clients are asked
/// to wait that long, between 1 s and 30 s, in whole seconds.
pub(crate) fn queue_retry_after(oldest: Duration) -> Duration {
    Duration::from_secs(oldest.as_secs().clamp(1, 30))
}

/// Permits that are held by calls which were cancelled and have not been seen to return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// How many.
    pub permits: u32,
    /// When the last of them is free at the latest.
    pub free_within: Duration,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.permits {
            1 => f.write_str("1 permit is held by a call that was")?,
            count => write!(f, "{count} permits are held by calls that were")?,
        }
        // Rounded up: at most is a promise.
        let seconds = self.free_within.as_millis().div_ceil(1_000);
        write!(f, " not seen to return, free in at most {seconds} s")
    }
}

/// Appends what is known beside.
fn told(more: Option<&impl fmt::Display>) -> String {
    more.map_or_else(String::new, |more| format!("; {more}"))
}

/// Why none of a route's candidates could take a request: how many fell out at which check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shortage {
    /// Their Node has no link.
    pub away: u32,
    /// Their Node is here and does not serve them.
    pub unlisted: u32,
    /// Not reachable yet.
    pub starting: u32,
    /// Reachable before, not now.
    pub absent: u32,
    /// Cannot work as configured.
    pub failed: u32,
    /// They or their Node finish what they have.
    pub draining: u32,
    /// Ready, without the target.
    pub without_target: u32,
    /// Cannot do what was asked for.
    pub unsuited: u32,
    /// Ready, with all capacity in use.
    pub full: u32,
    /// Left out as unavailable, or because they asked to be left alone.
    pub left_out: u32,
    /// Until when a candidate that is only away for a moment is waited for.
    pub(crate) returns_by: Option<Instant>,
}

impl Shortage {
    /// Returns how many candidates were looked at.
    pub const fn candidates(&self) -> u32 {
        self.away
            + self.unlisted
            + self.starting
            + self.absent
            + self.failed
            + self.draining
            + self.without_target
            + self.unsuited
            + self.full
            + self.left_out
    }

    /// Counts the candidates of both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            away: self.away + other.away,
            unlisted: self.unlisted + other.unlisted,
            starting: self.starting + other.starting,
            absent: self.absent + other.absent,
            failed: self.failed + other.failed,
            draining: self.draining + other.draining,
            without_target: self.without_target + other.without_target,
            unsuited: self.unsuited + other.unsuited,
            full: self.full + other.full,
            left_out: self.left_out + other.left_out,
            returns_by: self.returns_by.max(other.returns_by),
        }
    }

    /// Says whether no candidate could ever do what was asked for.
    pub(crate) const fn is_unsupported(&self) -> bool {
        self.unsuited > 0 && self.unsuited == self.candidates()
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = self.candidates();
        let parts = [
            (self.full, "at capacity"),
            (self.away, "on a node that is away"),
            (self.unlisted, "not served by its node"),
            (self.starting, "starting"),
            (self.absent, "not reachable"),
            (self.failed, "failed"),
            (self.draining, "draining"),
            (self.without_target, "without the target"),
            (self.left_out, "left out as unhealthy"),
            (self.unsuited, "unable to do this operation"),
        ];
        if of == 0 {
            return f.write_str("it has no candidate");
        }
        let mut separator = "";
        for (count, what) in parts.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, "{separator}{count} of {of} {what}")?;
            separator = ", ";
        }
        Ok(())
    }
}

impl Refused {
    pub(crate) fn no_ready(route: &Arc<Route>, shortage: Shortage, why: Option<String>) -> Self {
        Self::NoReadyProvider { route: route.name.clone(), shortage, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_tells_what_is_the_matter_with_each_candidate() {
        let shortage = Shortage { away: 2, starting: 1, ..Shortage::default() };
        let refused = Refused::NoReadyProvider { route: "chat".into(), shortage, why: None };
        assert_eq!(
            refused.to_string(),
            "no provider is ready for `chat`: 2 of 3 on a node that is away, 1 of 3 starting"
        );
        assert_eq!(refused.code(), ErrorCode::NoReadyProvider);
    }

    #[test]
    fn every_refusal_that_can_be_retried_says_when() {
        let refusals = [
            Refused::ModelNotFound { model: "m".into() },
            Refused::NoNodeYet { model: "m".into() },
            Refused::Unsupported { route: "m".into(), method: "POST", path: "/v1/embeddings" },
            Refused::QueueFull { route: "m".into(), limit: 1, retry_after: Duration::from_secs(1) },
            Refused::no_ready_for_test(),
            Refused::QueueTimeout {
                route: "m".into(),
                waited: Duration::from_millis(10),
                held: None,
            },
            Refused::ShuttingDown,
        ];
        for refused in refusals {
            let failure = refused.failure();
            assert_eq!(failure.code.is_retryable(), failure.retry_after_s.is_some(), "{refused}");
            assert_ne!(failure.retry_after_s, Some(0), "{refused}");
        }
    }

    impl Refused {
        fn no_ready_for_test() -> Self {
            Self::NoReadyProvider { route: "m".into(), shortage: Shortage::default(), why: None }
        }
    }
}
