//! What is kept of one request: who, where, when and how it ended. Never what was said.

use std::borrow::Cow;

use iop_types::{
    Attempt, ErrorCode, Failure, Form, Generation, NodeId, ProviderKey, RequestId, RouteName,
    RunId, SessionId, Target, Usage, UsageSource,
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
    /// Why this candidate, or why this attempt.
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

    /// Somebody who may do so cancelled it: the code says who, where it was not the operator.
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
            retryable: Some(failure.code.is_retryable()),
            stall: None,
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
    /// What the probe saw.
    #[serde(flatten)]
    pub evidence: HealthEvidence,
    /// Number of the observation on its link, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_observation_seq: Option<u64>,
}

/// Where in a call a provider fell silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StallPhase {
    /// While it took the request.
    Sending,
    /// Before its head.
    BeforeHead,
    /// Within its response.
    MidStream,
}

/// Whether the provider's side of a call was seen to return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ownership {
    /// It was.
    Confirmed,
    /// It was not.
    Unconfirmed,
}

/// The three pairs of evidence about a provider's health; other pairs do not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "EvidencePair", into = "EvidencePair")]
pub enum HealthEvidence {
    /// The provider is well: this request stalled.
    Available,
    /// The provider is not well.
    Unavailable,
    /// Nothing can be concluded.
    Unknown,
}

impl HealthEvidence {
    /// Returns the provider's health in one word.
    pub const fn provider_health(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Unavailable => "unavailable",
            Self::Unknown => "unknown",
        }
    }

    /// Reads [`provider_health`](Self::provider_health); a word that is not known concludes nothing.
    pub fn parse(provider_health: &str) -> Self {
        match provider_health {
            "available" => Self::Available,
            "unavailable" => Self::Unavailable,
            _ => Self::Unknown,
        }
    }

    /// Returns what follows for the request in one word.
    pub const fn liveness_classification(self) -> &'static str {
        match self {
            Self::Available => "request_stalled",
            Self::Unavailable => "provider_unhealthy",
            Self::Unknown => "health_unknown",
        }
    }
}

/// How evidence is shown.
#[derive(Serialize, Deserialize)]
struct EvidencePair {
    provider_health: Cow<'static, str>,
    liveness_classification: Cow<'static, str>,
}

impl From<HealthEvidence> for EvidencePair {
    fn from(evidence: HealthEvidence) -> Self {
        Self {
            provider_health: evidence.provider_health().into(),
            liveness_classification: evidence.liveness_classification().into(),
        }
    }
}

/// The classification follows from the health.
impl From<EvidencePair> for HealthEvidence {
    fn from(pair: EvidencePair) -> Self {
        Self::parse(&pair.provider_health)
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
