//! What a Node keeps of its work: which call, when and how it ended. No message, no content.

use iop_types::{Attempt, ErrorCode, ProviderKey, RunId, Target, WorkKey};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::record::TerminalKind;
use crate::timestamp;

/// What is known of a dispatch when the Node takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkReceipt {
    /// The run and the dispatch of it.
    pub key: WorkKey,
    /// The provider.
    pub provider: ProviderKey,
    /// The target.
    pub target: Target,
    /// When it arrived, by the Node's wall clock.
    pub received_at: Timestamp,
}

/// What is known of a dispatch when it has ended. Times count from its receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkOutcome {
    /// When the provider's head arrived.
    pub head_ms: Option<u64>,
    /// When it ended.
    pub ended_ms: u64,
    /// Which of the three ends.
    pub kind: TerminalKind,
    /// The code; `None` when it completed.
    pub code: Option<ErrorCode>,
}

/// One dispatch as it is shown: what is unknown is absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// The run.
    pub run_id: RunId,
    /// The dispatch of it.
    pub attempt: Attempt,
    /// The provider.
    pub provider: ProviderKey,
    /// The target.
    pub target: Target,
    /// When it arrived.
    #[serde(with = "timestamp")]
    pub received_at: Timestamp,
    /// When the provider's head arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_ms: Option<u64>,
    /// When it ended; absent while it is at work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// Which of the three ends; absent while it is at work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<TerminalKind>,
    /// The code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ErrorCode>,
}
