//! `/v1/chat/completions` as `/api/chat`.

use bytes::Bytes;

use super::error::RequestError;
use super::forced::Forced;
use super::messages::messages;
use super::object::{Members, Writing, items, text};
use super::options::options;
use super::thinking::think;
use super::tools::tools;
use crate::splice::{Member, read_body};

/// What is written here and must not be overwritten by another spelling: Go's reader does not regard
/// case.
const WRITTEN: [Member; 8] = [
    Member::top("model"),
    Member::top("messages"),
    Member::top("tools"),
    Member::top("stream"),
    Member::top("format"),
    Member::top("options"),
    Member::top("keep_alive"),
    Member::top("think"),
];

/// Makes the body of a streamed `/api/chat` of an OpenAI chat request.
///
/// # Errors
/// Names the member that is malformed or that Ollama's API cannot carry.
pub fn chat_body(input: &[u8], target: &str, forced: &Forced) -> Result<Bytes, RequestError> {
    let mut members = read(input, WRITTEN)?;
    only_one(&mut members, "n", "answers")?;
    no_bias(&mut members)?;
    no_other_modality(&mut members)?;
    let raw = members.take("messages");
    let raw = raw.ok_or_else(|| RequestError::at("messages", "is missing: send an array"))?;

    let mut body = Writing::object();
    body.put_text("model", target);
    body.put("messages", &messages(raw)?);
    if let Some(tools) = tools(&mut members)? {
        body.put("tools", tools);
    }
    finish(members, body, forced)
}

/// Reads a body whose written members cannot be mistaken.
pub(super) fn read<const N: usize>(
    input: &[u8],
    written: [Member; N],
) -> Result<Members<'_>, RequestError> {
    read_body(input, written)?;
    let text = std::str::from_utf8(input).unwrap_or_default();
    Members::read("", text.trim_ascii())
}

/// Writes what bodies of generated text have in common, and then what nobody took.
pub(super) fn finish(
    mut members: Members<'_>,
    mut body: Writing,
    forced: &Forced,
) -> Result<Bytes, RequestError> {
    for ours in ["model", "stream", "stream_options"] {
        members.take(ours);
    }
    body.put("stream", "true");
    if let Some(format) = format(&mut members)? {
        body.put("format", &format);
    }
    if let Some(think) = think(&mut members)? {
        body.put("think", &think);
    }
    common(members, body, forced)
}

/// Writes what all bodies have in common, and then what nobody took.
pub(super) fn common(
    mut members: Members<'_>,
    mut body: Writing,
    forced: &Forced,
) -> Result<Bytes, RequestError> {
    if let Some(options) = options(&mut members, forced)? {
        body.put("options", &options);
    }
    let own = members.take("keep_alive");
    if let Some(keep_alive) = forced.keep_alive.as_deref().or(own) {
        body.put("keep_alive", keep_alive);
    }
    for (key, raw) in members.rest() {
        body.put(&key, raw);
    }
    Ok(body.finish().into())
}

/// Reads the format of the answer: the schema itself, or `"json"`.
fn format(members: &mut Members<'_>) -> Result<Option<String>, RequestError> {
    let own = members.take("format").map(str::to_owned);
    let Some(raw) = members.take("response_format") else { return Ok(own) };
    if own.is_some() {
        return Err(RequestError::at("response_format", "and `format` differ: send one of them"));
    }
    let mut format = Members::read("response_format", raw)?;
    match format.take_text("type")?.as_deref() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some("\"json\"".to_owned())),
        Some("json_schema") => {
            let path = format.path("json_schema");
            let missing = || RequestError::at(&path, "has no `schema`: send the schema");
            let named = format.take("json_schema").ok_or_else(missing)?;
            let mut named = Members::read(&path, named)?;
            let schema = named.take("schema").ok_or_else(missing)?;
            Members::read(named.path("schema"), schema)?;
            Ok(Some(schema.to_owned()))
        }
        Some(_) | None => {
            let problem = "is unknown: send \"text\", \"json_object\" or \"json_schema\"";
            Err(RequestError::at(format.path("type"), problem))
        }
    }
}

/// Ollama gives one answer to one request.
pub(super) fn only_one(
    members: &mut Members<'_>,
    key: &str,
    what: &str,
) -> Result<(), RequestError> {
    match members.take(key) {
        None | Some("1") => Ok(()),
        Some(other) => Err(RequestError::at(
            key,
            format!("asks for {other} {what}, and Ollama gives one: leave it out"),
        )),
    }
}

/// An empty bias biases nothing.
pub(super) fn no_bias(members: &mut Members<'_>) -> Result<(), RequestError> {
    let Some(raw) = members.take("logit_bias") else { return Ok(()) };
    if raw.starts_with('{') && raw[1..].trim_ascii() == "}" {
        return Ok(());
    }
    Err(RequestError::at("logit_bias", "cannot be carried to Ollama: leave it out"))
}

fn no_other_modality(members: &mut Members<'_>) -> Result<(), RequestError> {
    if members.take("audio").is_some() {
        return Err(RequestError::at("audio", "cannot be answered by Ollama: leave it out"));
    }
    let Some(raw) = members.take("modalities") else { return Ok(()) };
    for (index, item) in items("modalities", raw)?.iter().enumerate() {
        let at = format!("modalities[{index}]");
        if text(at.clone(), item.get())? != "text" {
            return Err(RequestError::at(at, "cannot be answered by Ollama: send [\"text\"]"));
        }
    }
    Ok(())
}
