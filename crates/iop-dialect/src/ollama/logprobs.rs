//! Log probabilities: one list of tokens there, OpenAI's two shapes here.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// A token of Ollama's list.
#[derive(Deserialize)]
struct Token {
    token: String,
    logprob: f64,
    #[serde(default)]
    top_logprobs: Vec<Alternative>,
}

#[derive(Deserialize)]
struct Alternative {
    token: String,
    logprob: f64,
}

/// Makes a chat's object: its tokens are of the same shape.
pub(super) fn for_chat(list: &RawValue) -> String {
    format!("{{\"content\":{}}}", list.get())
}

/// Makes a completion's object. `offset` counts the characters of the text before this piece.
pub(super) fn for_completion(
    list: &RawValue,
    offset: &mut usize,
) -> Result<String, serde_json::Error> {
    let tokens: Vec<Token> = serde_json::from_str(list.get())?;
    let offsets: Vec<usize> = tokens
        .iter()
        .map(|token| {
            let at = *offset;
            *offset += token.token.chars().count();
            at
        })
        .collect();
    let top = |token: &Token| -> Map<String, Value> {
        let pairs = token.top_logprobs.iter();
        pairs.map(|other| (other.token.clone(), json!(other.logprob))).collect()
    };
    let object = json!({
        "tokens": tokens.iter().map(|token| token.token.as_str()).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| token.logprob).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    });
    Ok(object.to_string())
}
