//! Embeddings: the client's request, the provider's answer, the client's answer.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use iop_types::{ErrorCode, Event, EventKind, Failure, Part, Usage};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::head::{UsageObject, to_json};
use super::{Answer, ProviderError};
use crate::splice::{BodyError, Member, read_body, type_name};
use crate::usage::read_figures;

/// How a client wants vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EncodingFormat {
    /// JSON numbers.
    #[default]
    Float,
    /// Base64 of little-endian f32, which the official clients ask for unless told otherwise.
    Base64,
}

/// What has to be known of an embeddings request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingsRequest {
    /// How the client wants the vectors.
    pub format: EncodingFormat,
    /// How many vectors it must get.
    pub inputs: usize,
}

impl EmbeddingsRequest {
    /// Reads a request body.
    ///
    /// # Errors
    /// Names the member and the remedy.
    pub fn read(body: &[u8]) -> Result<Self, BodyError> {
        let [input, format] =
            read_body(body, [Member::top("input"), Member::top("encoding_format")])?;
        let inputs = count_inputs(input)?;
        let format = match format {
            None | Some("null" | "\"float\"") => EncodingFormat::Float,
            Some("\"base64\"") => EncodingFormat::Base64,
            Some(other) => {
                let found = match type_name(other) {
                    "a string" => "something else",
                    other => other,
                };
                let (key, expected) = ("encoding_format", "\"float\" or \"base64\"");
                return Err(BodyError::WrongType { key, expected, found });
            }
        };
        Ok(Self { format, inputs })
    }
}

/// Counts the vectors that `input` asks for: a text or an array of token numbers is one.
fn count_inputs(input: Option<&str>) -> Result<usize, BodyError> {
    let (key, expected) = ("input", "a text, an array of texts or an array of tokens");
    let raw = input.ok_or(BodyError::Missing { key, expected })?;
    match type_name(raw) {
        "a string" => return Ok(1),
        "an array" => {}
        found => return Err(BodyError::WrongType { key, expected, found }),
    }
    let first = raw[1..].trim_ascii_start();
    match type_name(first) {
        _ if first.starts_with(']') => Err(BodyError::Empty { key, expected }),
        "a number" => Ok(1),
        "a string" | "an array" => {
            let items: Vec<IgnoredAny> = serde_json::from_str(raw).unwrap_or_default();
            Ok(items.len())
        }
        _ => Err(BodyError::WrongType { key, expected, found: "an array of something else" }),
    }
}

#[derive(Deserialize)]
struct Received<'a> {
    #[serde(borrow)]
    data: Option<Vec<ReceivedVector<'a>>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ReceivedVector<'a> {
    index: Option<usize>,
    #[serde(borrow)]
    embedding: &'a RawValue,
}

/// Reads a provider's embeddings answer: one event per vector, by ascending index.
///
/// # Errors
/// The body is not such an answer, holds an error object, or has not exactly one vector for each of
/// the `inputs`.
pub fn read_embeddings(
    body: &[u8],
    inputs: usize,
    events: &mut Vec<Event>,
) -> Result<Answer, Failure> {
    let received: Received<'_> = serde_json::from_slice(body)
        .map_err(|error| failure(format!("provider's embeddings cannot be read: {error}")))?;
    if let Some(error) = received.error {
        return Err(ProviderError::from_member(error.get()).into_failure(None));
    }
    let data = received.data.unwrap_or_default();
    check_count(data.len(), inputs)?;
    let mut vectors = vec![None; inputs];
    for (position, item) in data.into_iter().enumerate() {
        let index = item.index.unwrap_or(position);
        let place = vectors.get_mut(index).filter(|place| place.is_none()).ok_or_else(|| {
            failure(format!("provider returned vector {index} twice or beyond {inputs} inputs"))
        })?;
        *place = Some(read_vector(index, item.embedding.get())?);
    }
    events.extend(vector_events(vectors.into_iter().flatten()));
    let usage = received.usage.and_then(|usage| read_figures(usage.get().as_bytes()));
    Ok(Answer { finish: Vec::new(), usage })
}

/// Refuses an answer that has not exactly one vector for each input.
pub(crate) fn check_count(vectors: usize, inputs: usize) -> Result<(), Failure> {
    if vectors == inputs {
        return Ok(());
    }
    Err(failure(format!("provider returned {vectors} vectors for {inputs} inputs")))
}

/// Makes the events of vectors that are in the order of their inputs.
pub(crate) fn vector_events(
    vectors: impl IntoIterator<Item = Vec<f32>>,
) -> impl Iterator<Item = Event> {
    (0_u32..).zip(vectors).map(|(choice, vector)| {
        Event::new(EventKind::Delta { choice, part: Part::Embedding(vector) })
    })
}

/// Reads a vector of numbers, or of little-endian f32 in base64.
pub(crate) fn read_vector(index: usize, raw: &str) -> Result<Vec<f32>, Failure> {
    let vector: Vec<f32> = if raw.starts_with('"') {
        let text: String = serde_json::from_str(raw)
            .map_err(|error| failure(format!("provider's vector {index} is no text: {error}")))?;
        let bytes = STANDARD
            .decode(&text)
            .map_err(|error| failure(format!("provider's vector {index} is no base64: {error}")))?;
        let (numbers, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            let len = bytes.len();
            return Err(failure(format!("provider's vector {index} has {len} bytes, not 4 each")));
        }
        numbers.iter().map(|number| f32::from_le_bytes(*number)).collect()
    } else {
        serde_json::from_str(raw)
            .map_err(|error| failure(format!("provider's vector {index} is no vector: {error}")))?
    };
    if vector.is_empty() {
        return Err(failure(format!("provider returned an empty vector for input {index}")));
    }
    if !vector.iter().all(|number| number.is_finite()) {
        return Err(failure(format!(
            "provider's vector {index} holds a number that is not finite"
        )));
    }
    Ok(vector)
}

fn failure(message: String) -> Failure {
    Failure::new(ErrorCode::ProviderError, message)
}

/// Writes an embeddings answer from events.
#[derive(Debug)]
pub struct EmbeddingsWriter {
    model: String,
    format: EncodingFormat,
    vectors: Vec<WrittenVector>,
    usage: Option<Usage>,
}

#[derive(Debug, Serialize)]
struct Written<'a> {
    object: &'static str,
    data: &'a [WrittenVector],
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<WrittenUsage>,
}

#[derive(Debug, Serialize)]
struct WrittenVector {
    object: &'static str,
    index: u32,
    embedding: Encoded,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Encoded {
    Float(Vec<f32>),
    Base64(String),
}

/// Embeddings have no output tokens.
#[derive(Debug, Serialize)]
struct WrittenUsage {
    prompt_tokens: u64,
    total_tokens: u64,
}

impl EmbeddingsWriter {
    /// Makes a writer; `model` is the client's name for it.
    pub const fn new(model: String, format: EncodingFormat) -> Self {
        Self { model, format, vectors: Vec::new(), usage: None }
    }

    /// Takes the next event. Failures are the caller's.
    pub fn push(&mut self, event: &Event) {
        self.usage = event.usage.or(self.usage);
        if let EventKind::Delta { choice, part: Part::Embedding(vector) } = &event.kind {
            let embedding = match self.format {
                EncodingFormat::Float => Encoded::Float(vector.clone()),
                EncodingFormat::Base64 => {
                    let bytes: Vec<u8> = vector.iter().flat_map(|n| n.to_le_bytes()).collect();
                    Encoded::Base64(STANDARD.encode(bytes))
                }
            };
            self.vectors.push(WrittenVector { object: "embedding", index: *choice, embedding });
        }
    }

    /// Returns how many bytes are collected, for the caller's memory budget.
    pub fn collected(&self) -> usize {
        let size = |vector: &WrittenVector| match &vector.embedding {
            Encoded::Float(numbers) => size_of_val(numbers.as_slice()),
            Encoded::Base64(text) => text.len(),
        };
        self.vectors.iter().map(size).sum()
    }

    /// Writes the answer; usage is what the events carried last.
    pub fn into_json(mut self) -> Bytes {
        self.vectors.sort_by_key(|vector| vector.index);
        let usage = self.usage.map(UsageObject::from);
        let written = Written {
            object: "list",
            data: &self.vectors,
            model: &self.model,
            usage: usage.map(|usage| WrittenUsage {
                prompt_tokens: usage.prompt_tokens,
                total_tokens: usage.total_tokens,
            }),
        };
        to_json(&written).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(body: &str, inputs: usize, format: EncodingFormat) -> Result<String, String> {
        let mut events = Vec::new();
        let answer = read_embeddings(body.as_bytes(), inputs, &mut events);
        let answer = answer.map_err(|failure| failure.message)?;
        let mut writer = EmbeddingsWriter::new("e".into(), format);
        events.iter().for_each(|event| writer.push(event));
        let complete = EventKind::Complete { finish: answer.finish };
        writer.push(&Event { kind: complete, usage: answer.usage });
        Ok(String::from_utf8(writer.into_json().to_vec()).unwrap())
    }

    #[test]
    fn fc_066_vectors_come_in_the_encoding_that_the_client_asked_for() {
        let floats = r#"{"data":[{"index":0,"embedding":[1.0,-2.0]}],"usage":{"prompt_tokens":1,"total_tokens":1}}"#;
        let base64 = floats.replace("[1.0,-2.0]", "\"AACAPwAAAMA=\"");
        let written = |embedding: &str| {
            Ok(format!(
                r#"{{"object":"list","data":[{{"object":"embedding","index":0,"embedding":{embedding}}}],"model":"e","usage":{{"prompt_tokens":1,"total_tokens":1}}}}"#
            ))
        };
        for provider in [floats, &base64] {
            assert_eq!(answer(provider, 1, EncodingFormat::Base64), written("\"AACAPwAAAMA=\""));
            assert_eq!(answer(provider, 1, EncodingFormat::Float), written("[1.0,-2.0]"));
        }
    }

    #[test]
    fn fc_067_a_vector_is_missing_for_no_input() {
        for (data, message) in [
            (r#"[{"index":0,"embedding":[1]}]"#, "provider returned 1 vectors for 2 inputs"),
            ("[]", "provider returned 0 vectors for 2 inputs"),
            (
                r#"[{"embedding":[1]},{"embedding":[]}]"#,
                "provider returned an empty vector for input 1",
            ),
            (
                r#"[{"index":0,"embedding":[1]},{"index":0,"embedding":[1]}]"#,
                "provider returned vector 0 twice or beyond 2 inputs",
            ),
            (
                r#"[{"index":2,"embedding":[1]},{"index":0,"embedding":[1]}]"#,
                "provider returned vector 2 twice or beyond 2 inputs",
            ),
            (
                r#"[{"embedding":"AACAPw=="},{"embedding":"AACA"}]"#,
                "provider's vector 1 has 3 bytes, not 4 each",
            ),
            (
                r#"[{"embedding":"AACAPw=="},{"embedding":"AADAfw=="}]"#,
                "provider's vector 1 holds a number that is not finite",
            ),
        ] {
            let body = format!(r#"{{"data":{data}}}"#);
            assert_eq!(answer(&body, 2, EncodingFormat::Float), Err(message.to_owned()));
        }
        let error = answer(r#"{"error":"no"}"#, 2, EncodingFormat::Float).unwrap_err();
        assert_eq!(error, "provider answered with an error: no");
    }

    #[test]
    fn vectors_are_ordered_by_index() {
        let body = r#"{"data":[{"index":1,"embedding":[2]},{"index":0,"embedding":[1]}]}"#;
        let mut events = Vec::new();
        read_embeddings(body.as_bytes(), 2, &mut events).unwrap();
        let vector = |choice, number| {
            Event::new(EventKind::Delta { choice, part: Part::Embedding(vec![number]) })
        };
        assert_eq!(events, [vector(0, 1.0), vector(1, 2.0)]);
    }

    #[test]
    fn a_request_says_its_encoding_and_how_many_vectors_it_needs() {
        for (body, format, inputs) in [
            (r#"{"input":"hi"}"#, EncodingFormat::Float, 1),
            (r#"{"input":"","encoding_format":null}"#, EncodingFormat::Float, 1),
            (r#"{"input":["a","b"],"encoding_format":"base64"}"#, EncodingFormat::Base64, 2),
            (r#"{"input":[1,2,3],"encoding_format":"float"}"#, EncodingFormat::Float, 1),
            (r#"{"input":[ [1,2],[3],[]]}"#, EncodingFormat::Float, 3),
        ] {
            let request = EmbeddingsRequest::read(body.as_bytes());
            assert_eq!(request, Ok(EmbeddingsRequest { format, inputs }), "{body}");
        }
    }

    #[test]
    fn a_request_that_cannot_be_served_names_the_member() {
        let one_of = "a text, an array of texts or an array of tokens";
        for (body, message) in [
            ("{}", format!("`input` is missing: send {one_of}")),
            (r#"{"input":[]}"#, format!("`input` is empty: send {one_of}")),
            (r#"{"input":null}"#, format!("`input` is null: send {one_of}")),
            (
                r#"{"input":[null]}"#,
                format!("`input` is an array of something else: send {one_of}"),
            ),
            (
                r#"{"input":"a","encoding_format":"int8"}"#,
                "`encoding_format` is something else: send \"float\" or \"base64\"".to_owned(),
            ),
            (
                r#"{"input":"a","Input":"b"}"#,
                "`Input` could be taken for `input`: spell it `input` or leave it out".to_owned(),
            ),
        ] {
            assert_eq!(EmbeddingsRequest::read(body.as_bytes()).unwrap_err().to_string(), message);
        }
    }
}
