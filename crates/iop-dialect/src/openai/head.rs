//! What every answer has, whoever writes or reads it.

use iop_types::{Finish, RunId, Usage};
use serde::Serialize;

/// The two kinds of generated text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextKind {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
}

/// Identity of an answer that the Edge writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Which surface it is for.
    pub kind: TextKind,
    /// The run; the id of the answer is made from it.
    pub run_id: RunId,
    /// Time of creation in seconds since 1970.
    pub created: u64,
    /// The model as the client named it.
    pub model: String,
}

impl Head {
    /// Returns the answer's id: `chatcmpl-…` or `cmpl-…` and the run id.
    pub fn id(&self) -> String {
        match self.kind {
            TextKind::Chat => format!("chatcmpl-{}", self.run_id),
            TextKind::Completion => format!("cmpl-{}", self.run_id),
        }
    }

    /// Returns the id of a tool call that the provider left without one: clients answer by it.
    pub(super) fn tool_call_id(&self, choice: u32, index: u32) -> String {
        format!("call_{}_{choice}_{index}", self.run_id)
    }
}

/// How a provider's answer ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// Why each choice ended, by ascending index; empty for embeddings.
    pub finish: Vec<Finish>,
    /// The provider's last figures.
    pub usage: Option<Usage>,
}

/// The usage object that clients read.
#[derive(Debug, Serialize)]
pub(super) struct UsageObject {
    pub(super) prompt_tokens: u64,
    pub(super) completion_tokens: u64,
    pub(super) total_tokens: u64,
}

impl From<Usage> for UsageObject {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.input_tokens,
            completion_tokens: usage.output_tokens,
            total_tokens: usage.input_tokens.saturating_add(usage.output_tokens),
        }
    }
}

/// Serializes into memory.
pub(super) fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("text keys and memory cannot fail to serialize")
}
