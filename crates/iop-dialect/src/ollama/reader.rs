//! Reads the lines of a chat or a completion into events.

use std::time::Duration;

use iop_types::{ErrorCode, Event, EventKind, Failure, Finish, Part, Usage};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::logprobs;
use crate::ndjson::{LineTooLarge, Splitter};
use crate::openai::{Answer, ProviderError, TextKind};

/// More parallel calls than any model makes: as in OpenAI's answers.
const MAX_CALLS: u32 = 1_024;

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ended {
    /// What clients are told.
    pub answer: Answer,
    /// What the server says of its own time.
    pub timings: Timings,
}

/// What a server says of its own time, each absent where it says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct Timings {
    /// From receipt to end, in nanoseconds as the server counts.
    total_duration: Option<i64>,
    load_duration: Option<i64>,
    prompt_eval_duration: Option<i64>,
    eval_duration: Option<i64>,
}

impl Timings {
    /// Returns the time from the server's receipt of the request to its end.
    pub fn total(&self) -> Option<Duration> {
        duration(self.total_duration)
    }

    /// Returns the time that loading the model took; nearly nothing where it was loaded.
    pub fn load(&self) -> Option<Duration> {
        duration(self.load_duration)
    }

    /// Returns the time that reading the prompt took.
    pub fn prompt(&self) -> Option<Duration> {
        duration(self.prompt_eval_duration)
    }

    /// Returns the time that generating took.
    pub fn generation(&self) -> Option<Duration> {
        duration(self.eval_duration)
    }
}

fn duration(nanoseconds: Option<i64>) -> Option<Duration> {
    nanoseconds.and_then(|count| u64::try_from(count).ok()).map(Duration::from_nanos)
}

/// One line, of either kind.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    message: Option<Message<'a>>,
    response: Option<String>,
    thinking: Option<String>,
    #[serde(borrow)]
    logprobs: Option<&'a RawValue>,
    done: Option<bool>,
    done_reason: Option<String>,
    prompt_eval_count: Option<u64>,
    eval_count: Option<u64>,
    total_duration: Option<i64>,
    load_duration: Option<i64>,
    prompt_eval_duration: Option<i64>,
    eval_duration: Option<i64>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Message<'a> {
    content: Option<String>,
    thinking: Option<String>,
    #[serde(borrow)]
    tool_calls: Option<Vec<Call<'a>>>,
    images: Option<Vec<serde::de::IgnoredAny>>,
}

#[derive(Deserialize)]
struct Call<'a> {
    id: Option<String>,
    #[serde(borrow)]
    function: Function<'a>,
}

/// The function's own `index` is not read: it is 0 for every one of several calls.
#[derive(Deserialize)]
struct Function<'a> {
    name: String,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

/// Reads one stream. Yields deltas only: `Start` is the adapter's, the terminal is what
/// [`finish`](Self::finish) returns.
#[derive(Debug)]
pub struct StreamReader {
    splitter: Splitter,
    state: State,
}

#[derive(Debug)]
struct State {
    kind: TextKind,
    calls: u32,
    /// Characters of the text so far, for a completion's `text_offset`.
    offset: usize,
    ended: Option<Ended>,
}

impl StreamReader {
    /// Makes a reader for the beginning of a stream.
    pub fn new(kind: TextKind) -> Self {
        let state = State { kind, calls: 0, offset: 0, ended: None };
        Self { splitter: Splitter::default(), state }
    }

    /// Takes the next segment and appends the events that it completes.
    ///
    /// # Errors
    /// The stream cannot be read on: it holds an error line, a line above the cap, or something else
    /// than such lines. Events that were appended before stay valid.
    pub fn push(&mut self, segment: &[u8], events: &mut Vec<Event>) -> Result<(), Failure> {
        let mut result = Ok(());
        self.splitter.push(segment, |line| {
            if result.is_ok() {
                result = self.state.read(line, events).map_err(Failure::from);
            }
        });
        result
    }

    /// Says whether a line has said `done`. What comes after it belongs to nobody.
    pub const fn has_ended(&self) -> bool {
        self.state.ended.is_some()
    }

    /// Ends the stream at the provider's end of file.
    ///
    /// # Errors
    /// The stream ended without a line that says `done`, or inside a line.
    pub fn finish(mut self, events: &mut Vec<Event>) -> Result<Ended, Failure> {
        let mut result = Ok(());
        self.splitter.finish(|line| {
            result = self.state.read(line, events).map_err(|error| match error {
                ReadError::Malformed(_) => truncated("inside a line"),
                error @ (ReadError::NotUtf8 | ReadError::Failed(_)) => error.into(),
            });
        });
        result?;
        self.state.ended.ok_or_else(|| truncated("before it said `done`"))
    }
}

enum ReadError {
    Malformed(serde_json::Error),
    NotUtf8,
    Failed(Failure),
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Failed(failure) => failure,
            ReadError::Malformed(error) => {
                provider_error(format!("provider sent a line that cannot be read: {error}"))
            }
            ReadError::NotUtf8 => provider_error("provider sent text that is not UTF-8"),
        }
    }
}

impl From<Failure> for ReadError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl State {
    fn read(
        &mut self,
        line: Result<&[u8], LineTooLarge>,
        events: &mut Vec<Event>,
    ) -> Result<(), ReadError> {
        // What comes after the end belongs to nobody.
        if self.ended.is_some() {
            return Ok(());
        }
        let line = line.map_err(|error| {
            provider_error(format!("provider's stream cannot be read: {error}"))
        })?;
        // Checked here, because serde_json does not look into what it skips.
        let text = simdutf8::basic::from_utf8(line).map_err(|_| ReadError::NotUtf8)?;
        let line: Line<'_> = serde_json::from_str(text).map_err(ReadError::Malformed)?;
        if let Some(error) = line.error {
            return Err(ProviderError::from_member(error.get()).into_failure(None).into());
        }
        self.read_logprobs(line.logprobs, events)?;
        let (reasoning, content, calls) = match line.message {
            Some(message) => {
                if message.images.is_some_and(|images| !images.is_empty()) {
                    let text = "provider sent an image, which a chat answer cannot carry";
                    return Err(provider_error(text).into());
                }
                (message.thinking, message.content, message.tool_calls.unwrap_or_default())
            }
            None => (line.thinking, line.response, Vec::new()),
        };
        if let Some(text) = reasoning.filter(|text| !text.is_empty()) {
            events.push(EventKind::ReasoningDelta { choice: 0, text }.into());
        }
        if let Some(text) = content.filter(|text| !text.is_empty()) {
            events.push(delta(Part::Text(text)));
        }
        for call in calls {
            events.push(delta(self.call(call)?));
        }
        if line.done == Some(true) {
            let usage = usage(line.prompt_eval_count, line.eval_count);
            let finish = vec![Finish { choice: 0, reason: self.reason(line.done_reason) }];
            let answer = Answer { finish, usage };
            let timings = Timings {
                total_duration: line.total_duration,
                load_duration: line.load_duration,
                prompt_eval_duration: line.prompt_eval_duration,
                eval_duration: line.eval_duration,
            };
            self.ended = Some(Ended { answer, timings });
        }
        Ok(())
    }

    /// Before the text that they belong to, so that a writer can put both into one chunk.
    fn read_logprobs(
        &mut self,
        list: Option<&RawValue>,
        events: &mut Vec<Event>,
    ) -> Result<(), ReadError> {
        let Some(list) = list.filter(|list| !matches!(list.get(), "null" | "[]")) else {
            return Ok(());
        };
        let object = match self.kind {
            TextKind::Chat => logprobs::for_chat(list),
            TextKind::Completion => {
                logprobs::for_completion(list, &mut self.offset).map_err(|error| {
                    provider_error(format!("provider's logprobs are none: {error}"))
                })?
            }
        };
        events.push(delta(Part::Logprobs(object)));
        Ok(())
    }

    /// A call comes whole; its place is its number in the answer.
    fn call(&mut self, call: Call<'_>) -> Result<Part, Failure> {
        let index = self.calls;
        if index >= MAX_CALLS {
            return Err(provider_error(format!("provider sent more than {MAX_CALLS} tool calls")));
        }
        self.calls += 1;
        Ok(Part::ToolCall {
            index,
            id: call.id.filter(|id| !id.is_empty()),
            name: Some(call.function.name),
            arguments: arguments(call.function.arguments)?,
        })
    }

    /// Ollama says `stop` also where the answer is calls, which clients then leave alone.
    fn reason(&self, said: Option<String>) -> String {
        match said {
            _ if self.calls > 0 => "tool_calls".to_owned(),
            Some(reason) if !reason.is_empty() => reason,
            // Older versions say no reason.
            Some(_) | None => "stop".to_owned(),
        }
    }
}

/// Makes the text that clients expect of a call's arguments. Ollama sends the object; a server that
/// only speaks like it may send its text, which quoted once more would be no object for anybody.
fn arguments(raw: Option<&RawValue>) -> Result<String, Failure> {
    let text = match raw.map(RawValue::get) {
        None | Some("null") => String::new(),
        Some(quoted) if quoted.starts_with('"') => {
            serde_json::from_str(quoted).map_err(|error| {
                provider_error(format!("provider sent arguments that cannot be read: {error}"))
            })?
        }
        Some(object) => object.to_owned(),
    };
    Ok(if text.is_empty() { "{}".to_owned() } else { text })
}

/// Servers leave out a count that is 0, as that of a prompt that was wholly cached.
fn usage(input: Option<u64>, output: Option<u64>) -> Option<Usage> {
    (input.is_some() || output.is_some()).then(|| Usage {
        input_tokens: input.unwrap_or_default(),
        output_tokens: output.unwrap_or_default(),
    })
}

fn delta(part: Part) -> Event {
    EventKind::Delta { choice: 0, part }.into()
}

fn provider_error(message: impl Into<String>) -> Failure {
    Failure::new(ErrorCode::ProviderError, message)
}

fn truncated(how: &str) -> Failure {
    Failure::new(ErrorCode::Truncated, format!("provider's stream ended {how}"))
}
