//! Sampling parameters: flat in OpenAI's objects, under `options` in Ollama's.

use super::error::RequestError;
use super::forced::{Forced, NUM_CTX};
use super::object::{Members, Writing, text};
use crate::splice::read_object;

/// Parameters that clients send flat, and what Ollama calls them under `options`. Where Ollama would
/// not see them they would have no effect.
const FLAT: &[(&str, &str)] = &[
    ("max_completion_tokens", "num_predict"),
    ("max_tokens", "num_predict"),
    ("num_predict", "num_predict"),
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("typical_p", "typical_p"),
    ("seed", "seed"),
    ("stop", "stop"),
    ("frequency_penalty", "frequency_penalty"),
    ("presence_penalty", "presence_penalty"),
    ("repeat_penalty", "repeat_penalty"),
    ("repeat_last_n", "repeat_last_n"),
    ("num_keep", "num_keep"),
    ("num_ctx", "num_ctx"),
];

/// Makes the `options` of the body, `None` where there is nothing to say: what is absent is the
/// model's own default. The client's own `options` object stays as it came.
pub(super) fn options(
    members: &mut Members<'_>,
    forced: &Forced,
) -> Result<Option<String>, RequestError> {
    let own = members.take("options").unwrap_or("{}");
    let mut own_members = Members::read("options", own)?;
    // Also where nothing is forced: a look-alike must not mean different things to two readers.
    read_object(own, [NUM_CTX])?;
    let mut given: Vec<Given> = Vec::new();
    for (flat, option) in FLAT {
        let Some(raw) = members.take(flat) else { continue };
        let value = if *option == "stop" { stop(raw)? } else { raw.to_owned() };
        add(&mut given, Given { from: (*flat).to_owned(), option, value })?;
    }
    for (_, option) in FLAT {
        let Some(raw) = own_members.take(option) else { continue };
        let value = if *option == "stop" { stop(raw)? } else { raw.to_owned() };
        add(&mut given, Given { from: own_members.path(option), option, value })?;
    }
    let mut writing = Writing::object();
    if let Some(num_ctx) = forced.num_ctx {
        given.retain(|given| given.option != NUM_CTX.key);
        writing.put(NUM_CTX.key, &num_ctx.to_string());
    }
    for given in given {
        writing.put(given.option, &given.value);
    }
    for (key, raw) in own_members.rest() {
        writing.put(&key, raw);
    }
    Ok((!writing.is_empty()).then(|| writing.finish()))
}

/// A parameter and the member that it came in.
struct Given {
    from: String,
    option: &'static str,
    value: String,
}

/// Adds a parameter; sent twice under two names it must have one value.
fn add(given: &mut Vec<Given>, new: Given) -> Result<(), RequestError> {
    match given.iter().find(|old| old.option == new.option) {
        None => given.push(new),
        Some(old) if old.value == new.value => {}
        Some(old) => {
            let problem = format!("and `{}` differ: send one of them", new.from);
            return Err(RequestError::at(old.from.clone(), problem));
        }
    }
    Ok(())
}

/// Ollama takes a list only.
fn stop(raw: &str) -> Result<String, RequestError> {
    if raw.starts_with('[') {
        return Ok(raw.to_owned());
    }
    text("stop".to_owned(), raw)?;
    Ok(format!("[{raw}]"))
}
