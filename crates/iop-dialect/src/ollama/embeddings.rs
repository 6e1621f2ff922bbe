//! `/v1/embeddings` as `/api/embed`, and its answer.

use bytes::Bytes;
use iop_types::{ErrorCode, Event, Failure, Usage};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::chat::{common, read};
use super::error::RequestError;
use super::forced::Forced;
use super::object::{Members, Writing, items, text};
use super::reader::{Ended, Timings};
use crate::openai::{Answer, ProviderError, check_count, read_vector, vector_events};
use crate::splice::{Member, type_name};

const WRITTEN: [Member; 4] =
    [Member::top("model"), Member::top("input"), Member::top("options"), Member::top("keep_alive")];

/// The body of an `/api/embed`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbedBody {
    /// The JSON.
    pub json: Bytes,
    /// How many vectors the answer must have.
    pub inputs: usize,
}

/// Makes the body of an `/api/embed` of an OpenAI embeddings request. How the vectors are encoded is
/// for whoever writes the client's answer.
///
/// # Errors
/// Names the member that is malformed or that Ollama's API cannot carry.
pub fn embed_body(input: &[u8], target: &str, forced: &Forced) -> Result<EmbedBody, RequestError> {
    let mut members = read(input, WRITTEN)?;
    for ours in ["model", "encoding_format"] {
        members.take(ours);
    }
    let (raw, inputs) = inputs(&mut members)?;
    let mut body = Writing::object();
    body.put_text("model", target);
    body.put("input", raw);
    Ok(EmbedBody { json: common(members, body, forced)?, inputs })
}

/// Reads what is to be embedded: a text or an array of texts.
fn inputs<'b>(members: &mut Members<'b>) -> Result<(&'b str, usize), RequestError> {
    let refuse = |problem: String| Err(RequestError::at("input", problem));
    let Some(raw) = members.take("input") else {
        return refuse("is missing: send a text or an array of texts".to_owned());
    };
    if !raw.starts_with('[') {
        text("input".to_owned(), raw)?;
        return Ok((raw, 1));
    }
    let texts = items("input", raw)?;
    if texts.is_empty() {
        return refuse("is empty: send a text or an array of texts".to_owned());
    }
    for (index, item) in texts.iter().enumerate() {
        if !item.get().starts_with('"') {
            let found = type_name(item.get());
            return Err(RequestError::at(
                format!("input[{index}]"),
                format!("is {found}, and Ollama takes no tokens: send a text"),
            ));
        }
    }
    Ok((raw, texts.len()))
}

#[derive(Deserialize)]
struct Received<'a> {
    #[serde(borrow)]
    embeddings: Option<Vec<&'a RawValue>>,
    prompt_eval_count: Option<u64>,
    #[serde(flatten)]
    timings: Timings,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// Reads an `/api/embed` answer: one event per vector, in the order of the inputs.
///
/// # Errors
/// The body is not such an answer, holds an error, or has not exactly one vector for each of the
/// `inputs`.
pub fn read_embed(body: &[u8], inputs: usize, events: &mut Vec<Event>) -> Result<Ended, Failure> {
    let received: Received<'_> = serde_json::from_slice(body).map_err(|error| {
        let message = format!("provider's embeddings cannot be read: {error}");
        Failure::new(ErrorCode::ProviderError, message)
    })?;
    if let Some(error) = received.error {
        return Err(ProviderError::from_member(error.get()).into_failure(None));
    }
    let raw = received.embeddings.unwrap_or_default();
    check_count(raw.len(), inputs)?;
    let vectors = raw.iter().enumerate().map(|(index, raw)| read_vector(index, raw.get()));
    let vectors = vectors.collect::<Result<Vec<_>, _>>()?;
    events.extend(vector_events(vectors));
    let usage =
        received.prompt_eval_count.map(|input_tokens| Usage { input_tokens, output_tokens: 0 });
    Ok(Ended { answer: Answer { finish: Vec::new(), usage }, timings: received.timings })
}
