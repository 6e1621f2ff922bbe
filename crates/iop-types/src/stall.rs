//! What a Node knows of a provider that fell silent, in numbers and closed words.
//!
//! Everything here is the Node's own: no text, address or header of a provider can be put in.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::{ProviderKey, Target};

/// How long an unconfirmed call is held against its provider. Servers that notice a lost peer only
/// when they write do so well within a minute.
pub const ZOMBIE_CEILING: Duration = Duration::from_secs(60);

/// One stall: a provider was silent for longer than it may be, and the Node ended the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// The silence that was allowed.
    pub timeout: Duration,
    /// How long the provider had been silent when the stall was claimed.
    pub silent: Duration,
    /// How far the call had got.
    pub phase: StallPhase,
    /// Whether the provider's call was seen to return within the close grace.
    pub ownership: Ownership,
    /// What a look at the provider showed.
    pub health: HealthEvidence,
    /// Number of the observation on its link; absent where the Node had no link.
    pub observation_seq: Option<u64>,
}

impl Stall {
    /// Says whether another attempt cannot meet this one at the provider: the capability hint that
    /// the Node gives. Whether there is another attempt is the Edge's decision.
    pub const fn is_retryable(&self) -> bool {
        matches!(self.ownership, Ownership::Confirmed)
    }
}

/// How far a call had got when its provider fell silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StallPhase {
    /// The provider stopped taking the request.
    Sending,
    /// It has the request and has not answered.
    BeforeHead,
    /// It stopped in its answer.
    MidStream,
}

impl StallPhase {
    /// Every phase.
    pub const ALL: &[Self] = &[Self::Sending, Self::BeforeHead, Self::MidStream];

    /// Returns the stable text for history and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sending => "sending",
            Self::BeforeHead => "before_head",
            Self::MidStream => "mid_stream",
        }
    }
}

impl fmt::Display for StallPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether the provider's side of a cancelled call is known to be over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ownership {
    /// Its end was seen within the close grace.
    Confirmed,
    /// It was not: the provider may still be at work.
    Unconfirmed,
}

impl Ownership {
    /// Returns the stable text for history and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Unconfirmed => "unconfirmed",
        }
    }
}

impl fmt::Display for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What is known of a provider's health. Two words describe it outside; these are the only pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthEvidence {
    /// `available`, `request_stalled`: it serves, this request did not get on.
    Available,
    /// `unavailable`, `provider_unhealthy`: it does not serve.
    Unavailable,
    /// `unknown`, `health_unknown`: nothing can be concluded.
    #[default]
    Unknown,
}

impl HealthEvidence {
    /// Every value.
    pub const ALL: &[Self] = &[Self::Available, Self::Unavailable, Self::Unknown];

    /// Returns the word for the provider.
    pub const fn provider_health(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Unavailable => "unavailable",
            Self::Unknown => "unknown",
        }
    }

    /// Returns the word for what that means for the request.
    pub const fn liveness_classification(self) -> &'static str {
        match self {
            Self::Available => "request_stalled",
            Self::Unavailable => "provider_unhealthy",
            Self::Unknown => "health_unknown",
        }
    }
}

impl fmt::Display for HealthEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.provider_health())
    }
}

/// One finding about the health of a target, numbered by the link that carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthObservation {
    /// The provider that was looked at.
    pub provider: ProviderKey,
    /// The exact target.
    pub target: Target,
    /// What was seen.
    pub health: HealthEvidence,
    /// Its number on this link; the first is 1.
    pub seq: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_words_of_health_form_exactly_three_pairs() {
        let pairs: Vec<_> = HealthEvidence::ALL
            .iter()
            .map(|health| (health.provider_health(), health.liveness_classification()))
            .collect();
        let legal = [
            ("available", "request_stalled"),
            ("unavailable", "provider_unhealthy"),
            ("unknown", "health_unknown"),
        ];
        assert_eq!(pairs, legal);
    }

    #[test]
    fn only_a_return_that_was_seen_makes_a_stall_retryable() {
        let seen = |ownership| Stall {
            timeout: Duration::from_secs(3),
            silent: Duration::from_secs(3),
            phase: StallPhase::MidStream,
            ownership,
            health: HealthEvidence::Available,
            observation_seq: Some(1),
        };
        assert!(seen(Ownership::Confirmed).is_retryable());
        assert!(!seen(Ownership::Unconfirmed).is_retryable());
    }
}
