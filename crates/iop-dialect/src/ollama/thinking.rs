//! How much a model shall think: `think` here, `reasoning_effort` there.

use super::error::RequestError;
use super::object::{Members, quoted, text};

/// Takes what the client said of thinking and returns the value of `think` as JSON.
///
/// `think` keeps its JSON type. Of an effort only `none` has another word; the names of the levels
/// are the model's, and which it knows is for the server to say.
pub(super) fn think(members: &mut Members<'_>) -> Result<Option<String>, RequestError> {
    let mut said: Vec<(&str, String)> = Vec::new();
    if let Some(raw) = members.take("think") {
        said.push(("think", raw.to_owned()));
    }
    if let Some(effort) = members.take_text("reasoning_effort")? {
        said.push(("reasoning_effort", level(&effort)));
    }
    if let Some(raw) = members.take("reasoning") {
        let mut reasoning = Members::read("reasoning", raw)?;
        if let Some(raw) = reasoning.take("effort") {
            said.push(("reasoning.effort", level(&text(reasoning.path("effort"), raw)?)));
        }
    }
    let mut said = said.into_iter();
    let Some((first, value)) = said.next() else { return Ok(None) };
    match said.find(|(_, other)| *other != value) {
        Some((second, _)) => {
            Err(RequestError::at(first, format!("and `{second}` differ: send one of them")))
        }
        None => Ok(Some(value)),
    }
}

fn level(effort: &str) -> String {
    if effort == "none" { "false".to_owned() } else { quoted(effort) }
}
