//! What a normalized run yields.

use crate::terminal::Failure;
use crate::usage::Usage;

/// One step of a normalized run; usage may ride on any of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// Totals so far, when the provider said them here.
    pub usage: Option<Usage>,
}

/// The closed set of events that leave a Node.
#[derive(Debug, Clone, PartialEq)]
pub enum EventKind {
    /// The provider's 2xx head arrived.
    Start,
    /// A piece of the result.
    Delta {
        /// Index of the choice, or of the input for embeddings and scores.
        choice: u32,
        /// What the piece is.
        part: Part,
    },
    /// A piece of reasoning text.
    ReasoningDelta {
        /// Index of the choice.
        choice: u32,
        /// The text, never empty.
        text: String,
    },
    /// The run finished; nothing follows.
    Complete {
        /// Why each choice ended, by ascending index; empty for embeddings and scores.
        finish: Vec<Finish>,
    },
    /// The run failed; nothing follows.
    Error(Failure),
    /// The run was cancelled; nothing follows.
    Cancelled,
}

impl Event {
    /// Makes an event that carries no usage.
    pub const fn new(kind: EventKind) -> Self {
        Self { kind, usage: None }
    }

    /// Says whether this event ends the run, whatever else it carries.
    pub const fn is_terminal(&self) -> bool {
        match self.kind {
            EventKind::Complete { .. } | EventKind::Error(_) | EventKind::Cancelled => true,
            EventKind::Start | EventKind::Delta { .. } | EventKind::ReasoningDelta { .. } => false,
        }
    }

    /// Says whether this event shows that the provider is getting on.
    ///
    /// Every event before the terminal is progress; a terminal is a terminal whatever it carries.
    pub const fn is_progress(&self) -> bool {
        !self.is_terminal()
    }
}

impl From<EventKind> for Event {
    fn from(kind: EventKind) -> Self {
        Self::new(kind)
    }
}

/// A piece of a result.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Generated text.
    Text(String),
    /// A piece of a tool call.
    ToolCall {
        /// Index of the call within the choice.
        index: u32,
        /// Id of the call, on its first piece.
        id: Option<String>,
        /// Name of the function, on its first piece.
        name: Option<String>,
        /// Next piece of the arguments, JSON text cut anywhere.
        arguments: String,
    },
    /// The `logprobs` object of a choice, as JSON text.
    Logprobs(String),
    /// One whole vector.
    Embedding(Vec<f32>),
    /// Relevance of one document.
    Score(f64),
}

/// Why one choice ended, in OpenAI's words (`stop`, `length`, `tool_calls`, …).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// Index of the choice.
    pub choice: u32,
    /// The provider's reason, passed on unchanged.
    pub reason: String,
}
