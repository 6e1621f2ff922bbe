//! The answers that most tests want from an OpenAI-compatible provider, as scripts.
//!
//! They follow what real servers send: a role chunk first, one piece of text in each event, a chunk
//! with the finish reason, a usage chunk when it was asked for, and `[DONE]`.

use crate::provider::Request;
use crate::script::Script;
use base64::Engine as _;
use serde_json::{Value, json};
use std::time::Duration;

/// The headers of a streamed answer.
pub const STREAM_HEADERS: &[(&str, &str)] = &[
    ("content-type", "text/event-stream"),
    ("cache-control", "no-store"),
    ("transfer-encoding", "chunked"),
];

/// A JSON answer with its `content-length`.
#[must_use]
pub fn json(status: u16, body: &Value) -> Script {
    sized(status, "application/json", body.to_string())
}

/// An answer of any type with its `content-length`.
#[must_use]
pub fn sized(status: u16, content_type: &str, body: impl AsRef<[u8]>) -> Script {
    let body = body.as_ref();
    let length = body.len().to_string();
    Script::new()
        .head(status, &[("content-type", content_type), ("content-length", &length)])
        .bytes(body.to_vec())
}

/// An answer whose `content-length` promises `missing` bytes more than follow, then a FIN.
#[must_use]
pub fn short(status: u16, content_type: &str, body: impl AsRef<[u8]>, missing: usize) -> Script {
    let body = body.as_ref();
    let length = (body.len() + missing).to_string();
    Script::new()
        .head(status, &[("content-type", content_type), ("content-length", &length)])
        .bytes(body.to_vec())
        .fin()
}

/// An OpenAI error object under any status.
#[must_use]
pub fn error(status: u16, kind: &str, code: &str, message: &str) -> Script {
    json(status, &json!({"error": {"message": message, "type": kind, "param": null, "code": code}}))
}

/// A whole chat stream of `events` pieces with `delay` between them: head, events, `[DONE]`, end.
#[must_use]
pub fn chat_stream(request: &Request, events: usize, delay: Duration) -> Script {
    let mut script = stream_start(request);
    for index in 0..events {
        script = script.wait(delay).event(content(request, &piece(index)));
    }
    stream_end(script, request, events)
}

/// The head of a chat stream and its role chunk, for scripts that go on by themselves.
#[must_use]
pub fn stream_start(request: &Request) -> Script {
    Script::new().head(200, STREAM_HEADERS).event(chunk(
        request,
        &json!({"role": "assistant", "content": ""}),
        Value::Null,
    ))
}

/// Adds the finish reason, the usage chunk if the request asked for it, `[DONE]` and the last chunk.
#[must_use]
pub fn stream_end(script: Script, request: &Request, tokens: usize) -> Script {
    let mut script = script.event(chunk(request, &json!({}), json!("stop")));
    if request.json().pointer("/stream_options/include_usage") == Some(&json!(true)) {
        let usage = json!({
            "id": "chatcmpl-script", "object": "chat.completion.chunk", "created": CREATED,
            "model": request.model(), "choices": [], "usage": usage(tokens),
        });
        script = script.event(usage.to_string());
    }
    script.event("[DONE]").last_chunk()
}

/// One content chunk of a chat stream, as the data of an event.
#[must_use]
pub fn content(request: &Request, text: &str) -> String {
    chunk(request, &json!({"content": text}), Value::Null)
}

/// The text of the piece with this index in [`chat_stream`].
#[must_use]
pub fn piece(index: usize) -> String {
    format!("piece-{index} ")
}

/// A whole chat answer in one JSON object.
#[must_use]
pub fn chat(request: &Request, text: &str) -> Script {
    let tokens = text.split_whitespace().count();
    json(
        200,
        &json!({
            "id": "chatcmpl-script", "object": "chat.completion", "created": CREATED,
            "model": request.model(),
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "logprobs": null,
                "finish_reason": "stop",
            }],
            "usage": usage(tokens),
        }),
    )
}

/// A whole completion answer in one JSON object.
#[must_use]
pub fn completion(request: &Request, text: &str) -> Script {
    let tokens = text.split_whitespace().count();
    json(
        200,
        &json!({
            "id": "cmpl-script", "object": "text_completion", "created": CREATED,
            "model": request.model(),
            "choices": [{"index": 0, "text": text, "logprobs": null, "finish_reason": "stop"}],
            "usage": usage(tokens),
        }),
    )
}

/// Embeddings with `dimensions` numbers for each input, as floats or as the base64 of little-endian
/// `f32` where the request says `encoding_format: base64`.
#[must_use]
pub fn embeddings(request: &Request, dimensions: usize) -> Script {
    let body = request.json();
    let inputs = body["input"].as_array().map_or(1, Vec::len);
    let base64 = body["encoding_format"] == "base64";
    let data: Vec<Value> = (0..inputs)
        .map(|index| {
            let numbers = embedding(index, dimensions);
            let value = if base64 {
                let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
                json!(base64::engine::general_purpose::STANDARD.encode(bytes))
            } else {
                json!(numbers)
            };
            json!({"object": "embedding", "index": index, "embedding": value})
        })
        .collect();
    json(
        200,
        &json!({
            "object": "list", "model": request.model(), "data": data,
            "usage": {"prompt_tokens": inputs, "total_tokens": inputs},
        }),
    )
}

/// The numbers that [`embeddings`] gives for the input with this index: exact in `f32` and JSON.
#[must_use]
pub fn embedding(index: usize, dimensions: usize) -> Vec<f32> {
    let first = u16::try_from(index % 64).map_or(0.0, f32::from);
    (0..dimensions).map(|at| first + u16::try_from(at % 64).map_or(0.0, f32::from) / 64.0).collect()
}

/// What the provider answers when a test has programmed nothing: chat, completions and embeddings.
pub(crate) fn usual(request: &Request) -> Script {
    match (request.method.as_str(), request.path()) {
        ("POST", "/v1/chat/completions") if request.json()["stream"] == true => {
            chat_stream(request, 5, Duration::ZERO)
        }
        ("POST", "/v1/chat/completions") => chat(request, "a scripted answer"),
        ("POST", "/v1/completions") => completion(request, "a scripted answer"),
        ("POST", "/v1/embeddings") => embeddings(request, 8),
        _ => error(404, "invalid_request_error", "not_found", "nothing is scripted for this path"),
    }
}

/// A model list with these ids.
pub(crate) fn models(ids: &[String]) -> Script {
    let data: Vec<Value> = ids
        .iter()
        .map(|id| json!({"id": id, "object": "model", "created": CREATED, "owned_by": "script"}))
        .collect();
    json(200, &json!({"object": "list", "data": data}))
}

// Any fixed time: tests compare it, nobody interprets it.
const CREATED: u64 = 1_733_000_000;

fn chunk(request: &Request, delta: &Value, finish: Value) -> String {
    json!({
        "id": "chatcmpl-script", "object": "chat.completion.chunk", "created": CREATED,
        "model": request.model(),
        "choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}],
    })
    .to_string()
}

fn usage(tokens: usize) -> Value {
    json!({"prompt_tokens": 16, "completion_tokens": tokens, "total_tokens": 16 + tokens})
}
