//! Chats, completions and vectors.

use std::time::Duration;

use serde_json::{Value, json};

use super::body::{Body, kind};
use super::models::{is_embedding, stream};
use super::{Refusal, State};
use crate::answer;
use crate::provider::Request;
use crate::script::Script;

/// What the last line says of the prompt.
const PROMPT_TOKENS: u64 = 11;
/// Numbers of a vector unless the request says how many.
const DIMENSIONS: usize = 8;

impl State {
    /// Answers `/api/chat` and `/api/generate`.
    pub(super) fn generate(&mut self, path: &str, body: &Body) -> Result<Script, Refusal> {
        let name = self.models.find(body)?;
        let is_chat = path == "/api/chat";
        if is_chat {
            check_messages(body.field("messages"))?;
        }
        check_think(body.field("think"))?;
        if is_embedding(&name) {
            return Err(Refusal(400, format!("\"{name}\" does not support {}", &path[5..])));
        }
        let keep = body.keep_alive()?;
        let waits = self.load(&name, body.num_ctx()?, keep);
        let asked = if is_chat { body.field("messages") } else { body.field("prompt") };
        let lines = match asked {
            // Nothing to say: the model is only loaded, or let go.
            Value::Null => vec![end(&name, is_chat, 0, loading(keep), waits)],
            Value::Array(messages) if messages.is_empty() => {
                vec![end(&name, is_chat, 0, loading(keep), waits)]
            }
            Value::String(prompt) if prompt.is_empty() => {
                vec![end(&name, is_chat, 0, loading(keep), waits)]
            }
            _ => self.lines(&name, is_chat, body.field("think") != &Value::Bool(false), waits),
        };
        let script = Script::new().wait(waits);
        if body.streams() {
            return Ok(script.chain(stream(&lines, self.reply.pace)));
        }
        Ok(script.chain(joined(&lines, is_chat)))
    }

    /// Answers `/api/embed` and the older `/api/embeddings`.
    pub(super) fn embed(&mut self, path: &str, body: &Body) -> Result<Script, Refusal> {
        let name = self.models.find(body)?;
        let waits = self.load(&name, body.num_ctx()?, body.keep_alive()?);
        let dimensions = body.field("dimensions").as_u64().and_then(|n| usize::try_from(n).ok());
        let dimensions = dimensions.filter(|n| *n > 0).unwrap_or(DIMENSIONS);
        if path == "/api/embeddings" {
            let vector = answer::embedding(0, dimensions);
            return Ok(Script::new()
                .wait(waits)
                .chain(answer::json(200, &json!({"embedding": vector}))));
        }
        let inputs = match body.field("input") {
            Value::String(_) => 1,
            Value::Array(texts) if texts.iter().all(Value::is_string) => texts.len(),
            _ => return Err(Refusal(400, "invalid input type".to_owned())),
        };
        let count = inputs.saturating_sub(self.reply.vectors_short);
        let vectors: Vec<_> =
            (0..count).map(|index| answer::embedding(index, dimensions)).collect();
        let body = json!({
            "model": name, "embeddings": vectors, "total_duration": nanoseconds(waits) + 14_143_917,
            "load_duration": nanoseconds(waits) + 1_019_500, "prompt_eval_count": PROMPT_TOKENS,
        });
        Ok(Script::new().wait(waits).chain(answer::json(200, &body)))
    }

    /// Answers OpenAI's paths, which can say nothing of a context length.
    pub(super) fn foreign(&mut self, request: &Request, body: &Body) -> Result<Script, Refusal> {
        let name = self.models.find(body)?;
        let waits = self.load(&name, None, body.keep_alive()?);
        Ok(Script::new().wait(waits).chain(answer::usual(request)))
    }

    fn load(&mut self, name: &str, num_ctx: Option<u64>, keep: Option<f64>) -> Duration {
        let is_new = self.models.load(name, num_ctx, keep);
        if is_new { self.load_delay } else { Duration::ZERO }
    }

    fn lines(&self, name: &str, is_chat: bool, thinks: bool, waits: Duration) -> Vec<Value> {
        let reply = &self.reply;
        let thinking = reply.thinking.iter().filter(|_| thinks);
        let mut lines: Vec<_> = thinking
            .map(|text| line(name, is_chat, "", json!({ "thinking": text })))
            .chain(reply.text.iter().map(|text| line(name, is_chat, text, json!({}))))
            .collect();
        if is_chat && !reply.calls.is_empty() {
            let call = |call: &super::Call| json!({"function": {"index": 0, "name": call.name, "arguments": call.arguments}});
            let calls: Vec<_> = reply.calls.iter().map(call).collect();
            lines.push(line(name, is_chat, "", json!({ "tool_calls": calls })));
        }
        match &reply.error {
            Some(error) => lines.push(json!({ "error": error })),
            None if reply.ends => {
                lines.push(end(name, is_chat, lines.len(), &reply.reason, waits));
            }
            None => {}
        }
        lines
    }
}

/// One line with a piece of text and what else the message has.
fn line(name: &str, is_chat: bool, text: &str, more: Value) -> Value {
    let mut piece = json!({ "role": "assistant", "content": text });
    if !is_chat {
        piece = json!({ "response": text });
    }
    if let (Some(piece), Value::Object(more)) = (piece.as_object_mut(), more) {
        piece.extend(more);
    }
    let mut line = json!({"model": name, "created_at": CREATED, "done": false});
    if is_chat {
        line["message"] = piece;
    } else if let (Some(line), Value::Object(piece)) = (line.as_object_mut(), piece) {
        line.extend(piece);
    }
    line
}

fn end(name: &str, is_chat: bool, tokens: usize, reason: &str, waits: Duration) -> Value {
    let mut end = line(name, is_chat, "", json!({}));
    end["done"] = json!(true);
    end["done_reason"] = json!(reason);
    if !matches!(reason, "load" | "unload") {
        end["total_duration"] = json!(nanoseconds(waits) + 174_560_334);
        end["load_duration"] = json!(nanoseconds(waits) + 101_397_084);
        end["prompt_eval_count"] = json!(PROMPT_TOKENS);
        end["prompt_eval_duration"] = json!(13_074_791);
        end["eval_count"] = json!(tokens);
        end["eval_duration"] = json!(52_479_709);
    }
    end
}

/// The lines of an answer in one object.
fn joined(lines: &[Value], is_chat: bool) -> Script {
    let at = |name: &str| if is_chat { format!("/message/{name}") } else { format!("/{name}") };
    let text = if is_chat { "content" } else { "response" };
    let mut whole = lines.last().cloned().unwrap_or_default();
    if whole["error"].is_string() {
        return answer::json(500, &whole);
    }
    for name in [text, "thinking"] {
        let pieces = lines.iter().filter_map(|line| line.pointer(&at(name))?.as_str());
        let joined: String = pieces.collect();
        let place = if is_chat { &mut whole["message"] } else { &mut whole };
        if name == text || !joined.is_empty() {
            place[name] = json!(joined);
        }
    }
    if let Some(calls) = lines.iter().find_map(|line| line.pointer("/message/tool_calls")) {
        whole["message"]["tool_calls"] = calls.clone();
    }
    answer::json(200, &whole)
}

/// What Go's types of a message do not take.
fn check_messages(messages: &Value) -> Result<(), Refusal> {
    let refuse = |value: &Value, field: &str| {
        let message =
            format!("json: cannot unmarshal {} into Go struct field {field}", kind(value));
        Err(Refusal(400, message))
    };
    for message in messages.as_array().into_iter().flatten() {
        let content = &message["content"];
        if !content.is_string() && !content.is_null() {
            return refuse(content, "Message.messages.content of type string");
        }
        for image in message["images"].as_array().into_iter().flatten() {
            let text = image.as_str().unwrap_or_default();
            let is_digit = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
            if let Some(at) = text.find(|c| !is_digit(c)) {
                return Err(Refusal(400, format!("illegal base64 data at input byte {at}")));
            }
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let arguments = &call["function"]["arguments"];
            if !arguments.is_object() {
                return refuse(
                    arguments,
                    "ToolCallFunction.messages.tool_calls.function.arguments",
                );
            }
        }
    }
    Ok(())
}

fn check_think(think: &Value) -> Result<(), Refusal> {
    match think {
        Value::Null | Value::Bool(_) => Ok(()),
        Value::String(level) if matches!(level.as_str(), "high" | "medium" | "low") => Ok(()),
        Value::String(level) => Err(Refusal(
            400,
            format!(
                "invalid think value: {level:?} (must be \"high\", \"medium\", \"low\", true, or false)"
            ),
        )),
        _ => Err(Refusal(400, "think must be a boolean or string".to_owned())),
    }
}

fn loading(keep: Option<f64>) -> &'static str {
    match keep {
        Some(0.0) => "unload",
        Some(_) | None => "load",
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

// Any fixed time: nobody interprets it.
const CREATED: &str = "2026-10-26T17:21:21.196249Z";
