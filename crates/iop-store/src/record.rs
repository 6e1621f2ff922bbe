//! What is kept of one request: who, where, when and how it ended. Never what was said.

use std::borrow::Cow;

use iop_types::{
    Attempt, ErrorCode, Failure, Form, Generation, HealthEvidence, NodeId, Ownership, ProviderKey,
    RequestId, RouteName, RunId, SessionId, StallPhase, Target, Usage, UsageSource,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::timestamp;

/// What is known of a request when it is accepted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    /// The run. The id is a UUID v7, minted at or after `received_at`: history is kept in the order of
    /// ids, and looks for runs of a time from the first id of that time on.
    pub run_id: RunId,
    /// What the client's answer carries as `x-request-id`.
    pub request_id: RequestId,
    /// The client's correlation value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Client surface and operation, like `openai.chat`.
    pub surface: Cow<'static, str>,
    /// Who asked, where keys are used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// The model name that was asked for, where it could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<RouteName>,
    /// The form, where it is already decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Form>,
    /// When the request arrived, by the Edge's wall clock.
    #[serde(with = "timestamp")]
    pub received_at: Timestamp,
}

/// What is known of a request when it has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The form, where an attempt was made.
    pub form: Option<Form>,
    /// How long the request waited for capacity, in all.
    pub queued_ms: Option<u64>,
    /// Every attempt by ascending number.
    pub attempts: Vec<AttemptRecord>,
    /// How it ended.
    pub terminal: TerminalRecord,
    /// What it consumed, where that is known.
    pub usage: Option<UsageRecord>,
}

/// One request as it is shown: what is unknown is absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// What was known at receipt; the form as it was at the end.
    #[serde(flatten)]
    pub receipt: Receipt,
    /// How long the request waited for capacity, in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_ms: Option<u64>,
    /// Every attempt by ascending number; empty while the request is at work.
    pub attempts: Vec<AttemptRecord>,
    /// How it ended; absent while it is at work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalRecord>,
    /// What it consumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageRecord>,
}

/// One dispatch of a request to one candidate. Times count from the request's receipt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// Its number.
    pub attempt: Attempt,
    /// The Node.
    pub node: NodeId,
    /// The provider.
    pub provider: ProviderKey,
    /// The target.
    pub target: Target,
    /// The link that carried it.
    pub generation: Generation,
    /// Why this candidate; of an attempt after a failure, which failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Cow<'static, str>>,
    /// When it was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_ms: Option<u64>,
    /// When the provider's head arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_ms: Option<u64>,
    /// When the first progress after the head arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_ms: Option<u64>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalRecord>,
    /// Whether another attempt was allowed after it: the Edge's verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery_eligible: Option<bool>,
}

/// How a run or attempt ended, with what is known of why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TerminalRecord {
    /// Which of the three ends.
    pub kind: TerminalKind,
    /// The code; absent when it completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ErrorCode>,
    /// One line for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether the same request may succeed later; absent when it completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
    /// What is known of a stall.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<Stall>,
}

impl TerminalRecord {
    /// The longest message that is kept, in bytes.
    pub const MAX_MESSAGE: usize = 1024;

    /// The response reached its end.
    pub const fn completed() -> Self {
        Self {
            kind: TerminalKind::Completed,
            code: None,
            message: None,
            retryable: None,
            stall: None,
        }
    }

    /// Somebody who may do so cancelled it: the code says who, `cancelled` being an operator.
    pub fn cancelled(code: Option<ErrorCode>) -> Self {
        Self { kind: TerminalKind::Cancelled, code, ..Self::completed() }
    }

    /// It ended otherwise.
    pub fn failed(failure: &Failure) -> Self {
        let mut message = failure.message.clone();
        message.truncate(message.floor_char_boundary(Self::MAX_MESSAGE));
        Self {
            kind: TerminalKind::Failed,
            code: Some(failure.code),
            message: Some(message),
            retryable: Some(failure.is_retryable()),
            stall: failure.stall.map(Stall::from),
        }
    }
}

/// The three ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TerminalKind {
    /// The response reached its end.
    Completed,
    /// Somebody who may do so cancelled it.
    Cancelled,
    /// It ended otherwise.
    Failed,
}

impl TerminalKind {
    /// Returns the word used in history.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}

/// What a Node reported of a stall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// The silence that was allowed.
    pub stall_timeout_ms: u64,
    /// The silence that was measured.
    pub silent_ms: u64,
    /// Where in the call it happened.
    pub phase: StallPhase,
    /// Whether the provider's side of the call was seen to return.
    pub ownership: Ownership,
    /// What the probe saw, as two words.
    #[serde(flatten, with = "evidence")]
    pub evidence: HealthEvidence,
    /// Number of the observation on its link, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_observation_seq: Option<u64>,
}

impl From<iop_types::Stall> for Stall {
    fn from(stall: iop_types::Stall) -> Self {
        let millis =
            |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            stall_timeout_ms: millis(stall.timeout),
            silent_ms: millis(stall.silent),
            phase: stall.phase,
            ownership: stall.ownership,
            evidence: stall.health,
            health_observation_seq: stall.observation_seq,
        }
    }
}

/// Evidence is shown as its two words, and read by the first: the second follows from it.
mod evidence {
    use std::borrow::Cow;

    use iop_types::HealthEvidence;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Pair {
        provider_health: Cow<'static, str>,
        liveness_classification: Cow<'static, str>,
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(
        evidence: &HealthEvidence,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let pair = Pair {
            provider_health: evidence.provider_health().into(),
            liveness_classification: evidence.liveness_classification().into(),
        };
        pair.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<HealthEvidence, D::Error> {
        let word = Pair::deserialize(from)?.provider_health;
        let known = HealthEvidence::ALL.iter().find(|known| known.provider_health() == word);
        // A word that is not known concludes nothing.
        Ok(known.copied().unwrap_or_default())
    }
}

/// Token counts and where they come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRecord {
    /// The counts.
    #[serde(flatten)]
    pub tokens: Usage,
    /// Where they come from.
    pub source: UsageSource,
}
