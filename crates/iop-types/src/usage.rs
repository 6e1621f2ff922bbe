//! What a run consumed.

use serde::{Deserialize, Serialize};

/// Token counts as last reported: running totals replace each other, they are never summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
}

/// Where usage figures come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageSource {
    /// The provider's own figures.
    Provider,
    /// Counted from what was relayed, because the provider reported nothing.
    Estimated,
}

impl UsageSource {
    /// Returns the word used in history.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Provider => "provider",
            Self::Estimated => "estimated",
        }
    }
}

/// How far the Edge goes to learn what a stream consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageMode {
    /// Adds `include_usage` to streams and removes the one chunk that the client did not ask for.
    #[default]
    Exact,
    /// Touches nothing and takes what passes by.
    Observed,
}
