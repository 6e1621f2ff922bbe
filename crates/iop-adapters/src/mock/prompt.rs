//! What a mock provider reads of a request: enough to echo, to count and to stop.

use iop_types::{ErrorCode, Failure, RunKind};
use serde::Deserialize;
use serde_json::Value;

/// The readable part of a run's input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Prompt {
    /// Last words of the user, or the inputs of an embedding.
    pub(super) texts: Vec<String>,
    /// Words in the whole input.
    pub(super) words: u64,
    /// Chunks after which the answer is cut.
    pub(super) max_chunks: Option<usize>,
}

#[derive(Deserialize)]
struct Input {
    #[serde(default)]
    messages: Vec<Message>,
    #[serde(default)]
    prompt: Value,
    #[serde(default)]
    input: Value,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    role: String,
    #[serde(default)]
    content: Value,
}

impl Prompt {
    pub(super) fn read(kind: RunKind, body: &[u8]) -> Result<Self, Failure> {
        let input: Input = serde_json::from_slice(body).map_err(|error| Failure {
            provider_status: Some(400),
            ..Failure::new(ErrorCode::ProviderError, format!("cannot read the request: {error}"))
        })?;
        let all: Vec<String> = match kind {
            RunKind::Chat => input.messages.iter().map(|message| text(&message.content)).collect(),
            RunKind::Completion => texts(&input.prompt),
            RunKind::Embedding | RunKind::Rerank => texts(&input.input),
        };
        let words = all.iter().map(|text| text.split_whitespace().count() as u64).sum();
        let texts = match kind {
            RunKind::Chat => {
                let spoken = input.messages.iter().rposition(|message| message.role == "user");
                spoken.map(|at| all[at].clone()).into_iter().collect()
            }
            RunKind::Completion | RunKind::Embedding | RunKind::Rerank => all,
        };
        let max_chunks = input.max_completion_tokens.or(input.max_tokens);
        Ok(Self { texts, words, max_chunks })
    }
}

/// Reads text content: a string, or the text parts of a list.
fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts: Vec<_> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            texts.join(" ")
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => String::new(),
    }
}

/// Reads one input or several; a list of token numbers is one input.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Null => Vec::new(),
        Value::Array(items) if items.iter().all(Value::is_number) => vec![value.to_string()],
        Value::Array(items) => items
            .iter()
            .map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned))
            .collect(),
        Value::String(text) => vec![text.clone()],
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => vec![value.to_string()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_of_the_user_are_echoed_and_all_words_are_counted() {
        let body = br#"{"messages":[
            {"role":"system","content":"be short"},
            {"role":"user","content":[{"type":"text","text":"hello there"},{"type":"image_url"}]},
            {"role":"assistant","content":null}],"max_tokens":5,"x":1}"#;
        let prompt = Prompt::read(RunKind::Chat, body).unwrap();
        let expected = Prompt { texts: vec!["hello there".into()], words: 4, max_chunks: Some(5) };
        assert_eq!(prompt, expected);
    }

    #[test]
    fn an_embedding_has_one_text_for_each_input() {
        let read = |body: &str| Prompt::read(RunKind::Embedding, body.as_bytes()).unwrap().texts;
        assert_eq!(read(r#"{"input":"a"}"#), ["a"]);
        assert_eq!(read(r#"{"input":["a","b"]}"#), ["a", "b"]);
        assert_eq!(read(r#"{"input":[1,2]}"#), ["[1,2]"]);
        assert_eq!(read(r#"{"input":[[1,2],[3]]}"#), ["[1,2]", "[3]"]);
    }

    #[test]
    fn what_cannot_be_read_is_the_failure_of_a_provider_that_answers_400() {
        let failure = Prompt::read(RunKind::Chat, b"{\"messages\":1}").unwrap_err();
        assert_eq!(failure.provider_status, Some(400));
    }
}
