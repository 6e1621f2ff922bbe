//! What an operator decides about a route.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How one of several candidates is picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// The candidate that holds the target in memory, then the one with the smallest share of its
    /// capacity in use.
    #[default]
    LeastLoaded,
    /// The first in the order of the file that has capacity.
    Ordered,
    /// Turns in proportion to the weights.
    Weighted,
    /// The same key goes to the same candidate while that one has capacity.
    Affinity,
}

impl Policy {
    /// Every policy.
    pub const ALL: &[Self] = &[Self::LeastLoaded, Self::Ordered, Self::Weighted, Self::Affinity];

    /// Returns the name used in configuration files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LeastLoaded => "least_loaded",
            Self::Ordered => "ordered",
            Self::Weighted => "weighted",
            Self::Affinity => "affinity",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How far a route lets the Edge try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recovery {
    /// Never.
    Off,
    /// Only where no provider can have seen the request.
    ConnectOnly,
    /// Also where a provider may have executed it.
    #[default]
    Full,
}
