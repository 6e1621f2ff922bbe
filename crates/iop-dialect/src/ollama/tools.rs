//! Tools that a model may call, and whether it must.

use super::error::RequestError;
use super::object::{Members, Writing, items, text};

/// Takes `tools` and `tool_choice`; returns the tools as JSON, `None` where there are none to offer.
///
/// Ollama's API has no choice: a model that has tools decides. So `auto` says nothing, `none` offers
/// no tools, and a call cannot be forced.
pub(super) fn tools<'b>(members: &mut Members<'b>) -> Result<Option<&'b str>, RequestError> {
    for (old, new) in [("functions", "tools"), ("function_call", "tool_choice")] {
        if members.take(old).is_some() {
            let problem = format!("is what `{new}` replaced: send `{new}`");
            return Err(RequestError::at(old, problem));
        }
    }
    let tools = members.take("tools").filter(|raw| !raw[1..].trim_ascii_start().starts_with(']'));
    if let Some(raw) = tools {
        for (index, tool) in items("tools", raw)?.iter().enumerate() {
            let mut tool = Members::read(format!("tools[{index}]"), tool.get())?;
            let kind = tool.take_text("type")?;
            if kind.as_deref().is_some_and(|kind| kind != "function") {
                let problem = "is no function, and Ollama calls no others";
                return Err(RequestError::at(tool.path("type"), problem));
            }
        }
    }
    match members.take("tool_choice") {
        None | Some("\"auto\"") => Ok(tools),
        Some("\"none\"") => Ok(None),
        Some(_) => Err(RequestError::at(
            "tool_choice",
            "asks for a call, which Ollama's API cannot force: send \"auto\" or \"none\"",
        )),
    }
}

/// Makes Ollama's tool calls of an assistant message: their arguments are an object, not its text.
pub(super) fn calls(at: &str, raw: &str) -> Result<String, RequestError> {
    let mut calls = Writing::array();
    for (index, call) in items(at, raw)?.iter().enumerate() {
        let mut members = Members::read(format!("{at}[{index}]"), call.get())?;
        let kind = members.take_text("type")?;
        if kind.as_deref().is_some_and(|kind| kind != "function") {
            let problem = "is no function, and Ollama calls no others";
            return Err(RequestError::at(members.path("type"), problem));
        }
        let path = members.path("function");
        let function = members.take("function").ok_or_else(|| {
            RequestError::at(&path, "is missing: send the call's name and arguments")
        })?;
        let mut function = Members::read(path, function)?;
        let mut written = Writing::object();
        let at = function.path("arguments");
        written.put("arguments", &arguments(at, function.take("arguments"))?);
        for (key, raw) in function.rest() {
            written.put(&key, raw);
        }
        let mut call = Writing::object();
        for (key, raw) in members.rest() {
            call.put(&key, raw);
        }
        call.put("function", &written.finish());
        calls.push(&call.finish());
    }
    Ok(calls.finish())
}

/// Reads the arguments of a call, which clients send as the text of an object.
fn arguments(at: String, raw: Option<&str>) -> Result<String, RequestError> {
    let Some(raw) = raw else { return Ok("{}".to_owned()) };
    if raw.starts_with('{') {
        return Ok(raw.to_owned());
    }
    let text = text(at.clone(), raw)?;
    let object = text.trim();
    // Models that call without arguments are quoted so.
    if object.is_empty() {
        return Ok("{}".to_owned());
    }
    match serde_json::from_str::<serde::de::IgnoredAny>(object) {
        Ok(_) if object.starts_with('{') => Ok(object.to_owned()),
        Ok(_) => Err(RequestError::at(at, "is JSON but no object: send the text of an object")),
        Err(error) => {
            Err(RequestError::at(at, format!("is not the text of a JSON object: {error}")))
        }
    }
}
