//! `/v1/completions` as `/api/generate`, as Ollama itself serves it: the prompt goes through the
//! model's template unless the client says `raw`.

use bytes::Bytes;

use super::chat::{finish, no_bias, only_one, read};
use super::error::RequestError;
use super::forced::Forced;
use super::image::images;
use super::object::{Members, Writing, items, quoted, text};
use crate::splice::{Member, type_name};

const WRITTEN: [Member; 8] = [
    Member::top("model"),
    Member::top("prompt"),
    Member::top("stream"),
    Member::top("format"),
    Member::top("options"),
    Member::top("keep_alive"),
    Member::top("think"),
    Member::top("logprobs"),
];

/// Makes the body of a streamed `/api/generate` of an OpenAI text completion.
///
/// # Errors
/// Names the member that is malformed or that Ollama's API cannot carry.
pub fn completion_body(input: &[u8], target: &str, forced: &Forced) -> Result<Bytes, RequestError> {
    let mut members = read(input, WRITTEN)?;
    only_one(&mut members, "n", "answers")?;
    only_one(&mut members, "best_of", "answers to choose from")?;
    no_bias(&mut members)?;
    match members.take("echo") {
        None | Some("false") => {}
        Some(_) => {
            return Err(RequestError::at("echo", "cannot be done by Ollama: leave it out"));
        }
    }
    let mut body = Writing::object();
    body.put_text("model", target);
    body.put("prompt", &prompt(&mut members)?);
    if let Some(own) = members.take("images") {
        body.put("images", &images("images", own)?);
    }
    logprobs(&mut members, &mut body)?;
    finish(members, body, forced)
}

/// Reads the one prompt. Several would be several answers, and Ollama takes no tokens.
fn prompt(members: &mut Members<'_>) -> Result<String, RequestError> {
    let refuse = |problem: String| Err(RequestError::at("prompt", problem));
    let Some(raw) = members.take("prompt") else {
        return refuse("is missing: send a text".to_owned());
    };
    if !raw.starts_with('[') {
        return text("prompt".to_owned(), raw).map(|prompt| quoted(&prompt));
    }
    let prompts = items("prompt", raw)?;
    match prompts.as_slice() {
        [only] if only.get().starts_with('"') => {
            text("prompt[0]".to_owned(), only.get()).map(|prompt| quoted(&prompt))
        }
        [] => refuse("is empty: send a text".to_owned()),
        [first, ..] if first.get().starts_with('"') => {
            let count = prompts.len();
            refuse(format!("holds {count} prompts, and Ollama answers one: send them one by one"))
        }
        [first, ..] => {
            let found = type_name(first.get());
            refuse(format!("begins with {found}, and Ollama takes no tokens: send a text"))
        }
    }
}

/// A count here, a switch and a count there.
fn logprobs(members: &mut Members<'_>, body: &mut Writing) -> Result<(), RequestError> {
    match members.take("logprobs") {
        None => Ok(()),
        // Ollama's own way to ask.
        Some(switch @ ("true" | "false")) => {
            body.put("logprobs", switch);
            Ok(())
        }
        Some(count) => {
            let count: u32 = count
                .parse()
                .map_err(|_| RequestError::at("logprobs", "is no count: send 0 to 20"))?;
            if members.take("top_logprobs").is_some() {
                let problem = "stands beside a count in `logprobs`: send one of them";
                return Err(RequestError::at("top_logprobs", problem));
            }
            body.put("logprobs", "true");
            body.put("top_logprobs", &count.to_string());
            Ok(())
        }
    }
}
