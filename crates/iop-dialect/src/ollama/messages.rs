//! Messages of a chat.

use std::collections::BTreeMap;

use super::error::RequestError;
use super::image::{base64_of, images};
use super::object::{Members, Writing, items, quoted, text};
use super::tools;

/// Makes Ollama's messages of OpenAI's.
pub(super) fn messages(raw: &str) -> Result<String, RequestError> {
    let mut written = Writing::array();
    let mut called = BTreeMap::new();
    for (index, message) in items("messages", raw)?.iter().enumerate() {
        let members = Members::read(format!("messages[{index}]"), message.get())?;
        written.push(&one(members, &mut called)?);
    }
    Ok(written.finish())
}

/// Makes one message. `called` knows the names of the functions that were called before it.
fn one(
    mut members: Members<'_>,
    called: &mut BTreeMap<String, String>,
) -> Result<String, RequestError> {
    let mut message = Writing::object();
    let role = role(&mut members)?;
    message.put_text("role", &role);

    let content = content(&mut members)?;
    message.put_text("content", &content.text);
    let at = members.path("images");
    if let Some(own) = members.take("images") {
        if !content.images.is_empty() {
            let problem = "stands beside images in `content`: send them in one place";
            return Err(RequestError::at(at, problem));
        }
        message.put("images", &images(&at, own)?);
    } else if !content.images.is_empty() {
        let mut list = Writing::array();
        content.images.iter().for_each(|image| list.push(&quoted(image)));
        message.put("images", &list.finish());
    }
    if let Some(thinking) = thinking(&mut members)? {
        message.put_text("thinking", &thinking);
    }
    let path = members.path("tool_calls");
    if let Some(raw) = members.take("tool_calls") {
        remember(&path, raw, called)?;
        message.put("tool_calls", &tools::calls(&path, raw)?);
    }
    if role == "tool" {
        put_tool_name(&mut members, called, &mut message)?;
    }
    for (key, raw) in members.rest() {
        message.put(&key, raw);
    }
    Ok(message.finish())
}

/// Templates know `system`; `developer` is OpenAI's later word for it.
fn role(members: &mut Members<'_>) -> Result<String, RequestError> {
    let path = members.path("role");
    for old in ["function_call", "audio"] {
        if members.take(old).is_some() {
            let problem = "cannot be carried to Ollama: send `tool_calls` or text instead";
            return Err(RequestError::at(members.path(old), problem));
        }
    }
    match members.take_text("role")?.as_deref() {
        None => Err(RequestError::at(path, "is missing: send system, user, assistant or tool")),
        Some("function") => Err(RequestError::at(path, "is what `tool` replaced: send `tool`")),
        Some("developer") => Ok("system".to_owned()),
        Some(role) => Ok(role.to_owned()),
    }
}

#[derive(Default)]
struct Content {
    text: String,
    images: Vec<String>,
}

/// Reads a content: a text, parts, or nothing where a message only calls or declines.
fn content(members: &mut Members<'_>) -> Result<Content, RequestError> {
    let at = members.path("content");
    let refusal = members.take_text("refusal")?;
    let Some(raw) = members.take("content") else {
        return Ok(Content { text: refusal.unwrap_or_default(), images: Vec::new() });
    };
    if !raw.starts_with('[') {
        return Ok(Content { text: text(at, raw)?, images: Vec::new() });
    }
    let mut texts = Vec::new();
    let mut images = Vec::new();
    for (index, part) in items(&at, raw)?.iter().enumerate() {
        let mut part = Members::read(format!("{at}[{index}]"), part.get())?;
        let missing = |part: &Members<'_>, key: &str| {
            RequestError::at(part.path(key), "is missing: send it, or leave the part out")
        };
        match part.take_text("type")?.as_deref() {
            Some(kind @ ("text" | "refusal")) => {
                let text = part.take_text(kind)?;
                texts.push(text.ok_or_else(|| missing(&part, kind))?);
            }
            Some("image_url") => {
                let raw = part.take("image_url").ok_or_else(|| missing(&part, "image_url"))?;
                images.push(image(&part.path("image_url"), raw)?);
            }
            kind => {
                let kind = kind.map_or("no kind".to_owned(), |kind| format!("`{kind}`"));
                let problem = format!("is {kind}, and Ollama takes texts and images only");
                return Err(RequestError::at(part.path("type"), problem));
            }
        }
    }
    // The parts are paragraphs of one message.
    Ok(Content { text: texts.join("\n"), images })
}

fn image(at: &str, raw: &str) -> Result<String, RequestError> {
    if raw.starts_with('"') {
        return base64_of(at, &text(at.to_owned(), raw)?).map(str::to_owned);
    }
    let mut members = Members::read(at, raw)?;
    let at = members.path("url");
    let url = members.take_text("url")?;
    let url =
        url.ok_or_else(|| RequestError::at(&at, "is missing: send a data URL with base64"))?;
    base64_of(&at, &url).map(str::to_owned)
}

/// What a model thought before, under each of the names that servers gave it.
fn thinking(members: &mut Members<'_>) -> Result<Option<String>, RequestError> {
    let mut found = None;
    for name in ["thinking", "reasoning", "reasoning_content"] {
        let text = members.take_text(name)?;
        found = found.or(text.filter(|text| !text.is_empty()));
    }
    Ok(found)
}

/// Remembers which function has which id; the last call of an id counts.
fn remember(
    at: &str,
    raw: &str,
    called: &mut BTreeMap<String, String>,
) -> Result<(), RequestError> {
    for (index, call) in items(at, raw)?.iter().enumerate() {
        let mut call = Members::read(format!("{at}[{index}]"), call.get())?;
        let id = call.take_text("id")?;
        let path = call.path("function");
        let Some(function) = call.take("function") else { continue };
        let name = Members::read(path, function)?.take_text("name")?;
        if let (Some(id), Some(name)) = (id, name) {
            called.insert(id, name);
        }
    }
    Ok(())
}

/// Ollama's templates name the function whose result a message is; OpenAI's objects name the call.
fn put_tool_name(
    members: &mut Members<'_>,
    called: &BTreeMap<String, String>,
    message: &mut Writing,
) -> Result<(), RequestError> {
    let own = members.take_text("tool_name")?;
    let name = members.take_text("name")?;
    let id = members.take_text("tool_call_id")?;
    let by_id = id.as_ref().and_then(|id| called.get(id)).cloned();
    if let Some(name) = own.or(name).or(by_id) {
        message.put_text("tool_name", &name);
    }
    if let Some(id) = id {
        message.put_text("tool_call_id", &id);
    }
    Ok(())
}
