//! What a call sends, and whether it reached its provider as it was sent.
//!
//! Every request says its call's number, and is filled with letters that nobody could guess from their
//! neighbours: a part that is missing, doubled or out of place is another request.

use bytes::Bytes;
use fastrand::Rng;
use serde_json::{Value, json};

use crate::plan::{Call, Plan, Wish};

/// Precedes the number of the call in every prompt.
const MARK: &str = "call ";
/// Between the parts of a form.
const BOUNDARY: &str = "here-and-there";

/// Returns where a call is sent.
pub(crate) const fn path(wish: Wish) -> &'static str {
    match wish {
        Wish::Stream | Wish::Whole => "/v1/chat/completions",
        Wish::Vector => "/v1/embeddings",
        Wish::Transcript { .. } => "/v1/audio/transcriptions",
    }
}

/// Returns what a call's body is.
pub(crate) fn content_type(wish: Wish) -> String {
    match wish {
        Wish::Stream | Wish::Whole | Wish::Vector => "application/json".to_owned(),
        Wish::Transcript { .. } => format!("multipart/form-data; boundary={BOUNDARY}"),
    }
}

/// Writes a call's body.
pub(crate) fn body(canary: &str, call: &Call) -> Bytes {
    let prompt = prompt(canary, call);
    let body = match call.wish {
        Wish::Stream | Wish::Whole => json!({
            "model": call.model, "stream": call.wish == Wish::Stream,
            "messages": [{ "role": "user", "content": prompt }],
        }),
        Wish::Vector => json!({ "model": call.model, "input": prompt }),
        Wish::Transcript { .. } => return form(call.model, &prompt),
    };
    body.to_string().into()
}

/// Finds the number of the call in a body that a provider got; a probe has none.
pub(crate) fn call_number(body: &[u8]) -> Option<usize> {
    let text = String::from_utf8_lossy(body);
    let (_, after) = text.split_once(MARK)?;
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Says whether a provider got what the call of this number sent. The Edge may have added a member to
/// an object, and the names of models are the same everywhere here.
pub(crate) fn is_as_sent(plan: &Plan, number: usize, got: &[u8]) -> bool {
    // What comes after the plan is short, and a chat.
    let Some(call) = plan.calls.get(number) else { return true };
    let canary = plan.canary();
    let prompt = prompt(&canary, call);
    let read = || serde_json::from_slice::<Value>(got).unwrap_or_default();
    match call.wish {
        Wish::Stream | Wish::Whole => read()["messages"][0]["content"] == prompt,
        Wish::Vector => read()["input"] == prompt,
        Wish::Transcript { .. } => got == form(call.model, &prompt),
    }
}

fn prompt(canary: &str, call: &Call) -> String {
    let mut rng = Rng::with_seed(call.number as u64);
    let filling: String = std::iter::repeat_with(|| rng.lowercase()).take(call.bytes).collect();
    format!("{canary} {MARK}{} {filling}", call.number)
}

fn form(model: &str, recording: &str) -> Bytes {
    let part = |disposition: &str, value: &str| {
        format!("--{BOUNDARY}\r\ncontent-disposition: form-data; {disposition}\r\n\r\n{value}\r\n")
    };
    let file = part("name=\"file\"; filename=\"a.wav\"", recording);
    let form = part("name=\"model\"", model) + &file + &format!("--{BOUNDARY}--\r\n");
    form.into()
}
