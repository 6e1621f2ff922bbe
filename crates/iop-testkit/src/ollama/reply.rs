//! What the scripted Ollama answers.

use std::time::Duration;

use serde_json::Value;

/// The pieces of an answer, one line each, in the order of the fields.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Pieces of thinking; sent only to requests that do not switch it off.
    pub thinking: Vec<String>,
    /// Pieces of text.
    pub text: Vec<String>,
    /// Tool calls, all in one line, each with index 0.
    pub calls: Vec<Call>,
    /// Time before each line.
    pub pace: Duration,
    /// Why it ended.
    pub reason: String,
    /// An error line in place of the end.
    pub error: Option<String>,
    /// Whether the end is said at all.
    pub ends: bool,
    /// How many vectors are left out of an embeddings answer.
    pub vectors_short: usize,
}

/// One tool call.
#[derive(Clone, Debug)]
pub struct Call {
    /// Name of the function.
    pub name: String,
    /// Its arguments, an object.
    pub arguments: Value,
}

impl Default for Reply {
    fn default() -> Self {
        Self {
            thinking: Vec::new(),
            text: ["a ", "scripted ", "answer"].map(str::to_owned).into(),
            calls: Vec::new(),
            pace: Duration::ZERO,
            reason: "stop".to_owned(),
            error: None,
            ends: true,
            vectors_short: 0,
        }
    }
}
