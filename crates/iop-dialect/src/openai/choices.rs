//! The choices of an answer: the one shape of stream chunks and unary answers.

use std::collections::BTreeMap;

use iop_types::{ErrorCode, Event, EventKind, Failure, Finish, Part, Usage};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::tool_calls::{Piece, ToolCalls};
use super::{Answer, ProviderError, TextKind};
use crate::usage::read_figures;

/// OpenAI allows 128 choices: a bound on what a stream can make us keep.
const MAX_CHOICES: usize = 1_024;

/// A stream chunk or a unary answer.
#[derive(Debug, Deserialize)]
struct Object<'a> {
    object: Option<String>,
    #[serde(borrow)]
    choices: Option<Vec<Choice<'a>>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct Choice<'a> {
    index: Option<u32>,
    #[serde(borrow)]
    delta: Option<Message<'a>>,
    #[serde(borrow)]
    message: Option<Message<'a>>,
    text: Option<String>,
    finish_reason: Option<String>,
    #[serde(borrow)]
    logprobs: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct Message<'a> {
    content: Option<String>,
    /// A model that declines says so in place of content.
    refusal: Option<String>,
    reasoning: Option<String>,
    reasoning_content: Option<String>,
    #[serde(borrow)]
    tool_calls: Option<Vec<Piece<'a>>>,
    #[serde(borrow)]
    function_call: Option<&'a RawValue>,
}

/// Whether an object holds the next pieces of an answer or the whole of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    Pieces,
    Whole,
}

/// Why an object could not be read.
#[derive(Debug)]
pub(super) enum ReadError {
    /// It is not JSON, or JSON of another shape.
    Malformed(serde_json::Error),
    /// It is not UTF-8.
    NotUtf8,
    /// It can be read and means failure.
    Failed(Failure),
}

impl From<Failure> for ReadError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        let message = match error {
            ReadError::Failed(failure) => return failure,
            ReadError::Malformed(error) => {
                format!("provider sent an object that cannot be read: {error}")
            }
            ReadError::NotUtf8 => "provider sent text that is not UTF-8".to_owned(),
        };
        Self::new(ErrorCode::ProviderError, message)
    }
}

/// What is known of an answer so far.
#[derive(Debug)]
pub(super) struct Choices {
    kind: TextKind,
    calls: BTreeMap<u32, ToolCalls>,
    finish: BTreeMap<u32, String>,
    usage: Option<Usage>,
}

impl Choices {
    pub(super) const fn new(kind: TextKind) -> Self {
        Self { kind, calls: BTreeMap::new(), finish: BTreeMap::new(), usage: None }
    }

    /// Says whether any choice has a finish reason.
    pub(super) fn has_finished(&self) -> bool {
        !self.finish.is_empty()
    }

    pub(super) fn into_answer(self) -> Answer {
        let finish = self.finish.into_iter();
        Answer {
            finish: finish.map(|(choice, reason)| Finish { choice, reason }).collect(),
            usage: self.usage,
        }
    }

    /// Reads one object and appends its events. Usage rides on the last of them; without any it is
    /// only kept.
    pub(super) fn read(
        &mut self,
        json: &[u8],
        extent: Extent,
        events: &mut Vec<Event>,
    ) -> Result<(), ReadError> {
        // Checked here, because serde_json does not look into what it skips.
        let text = simdutf8::basic::from_utf8(json).map_err(|_| ReadError::NotUtf8)?;
        let object: Object<'_> = serde_json::from_str(text).map_err(ReadError::Malformed)?;
        if let Some(error) = object.error {
            return Err(ProviderError::from_member(error.get()).into_failure(None).into());
        }
        if object.object.as_deref() == Some("error") {
            return Err(ProviderError::from_event(json).into_failure(None).into());
        }
        let known = events.len();
        for (position, choice) in object.choices.unwrap_or_default().into_iter().enumerate() {
            self.read_choice(position, choice, extent, events)?;
        }
        let usage = object.usage.and_then(|usage| read_figures(usage.get().as_bytes()));
        self.usage = usage.or(self.usage);
        if let Some(last) = events[known..].last_mut() {
            last.usage = usage;
        }
        Ok(())
    }

    fn read_choice(
        &mut self,
        position: usize,
        choice: Choice<'_>,
        extent: Extent,
        events: &mut Vec<Event>,
    ) -> Result<(), Failure> {
        let index =
            choice.index.map_or(position, |index| usize::try_from(index).unwrap_or(usize::MAX));
        let index = match u32::try_from(index) {
            Ok(small) if index < MAX_CHOICES => small,
            Ok(_) | Err(_) => {
                let message = format!("provider sent a choice above index {}", MAX_CHOICES - 1);
                return Err(Failure::new(ErrorCode::ProviderError, message));
            }
        };
        let mut delta = |part| events.push(EventKind::Delta { choice: index, part }.into());
        // Before the text that they belong to, so that a writer can put both into one chunk.
        if let Some(logprobs) = choice.logprobs {
            delta(Part::Logprobs(logprobs.get().to_owned()));
        }
        if let Some(text) = choice.text.filter(|text| !text.is_empty()) {
            delta(Part::Text(text));
        }
        if let (TextKind::Chat, Some(message)) = (self.kind, choice.delta.or(choice.message)) {
            self.read_message(index, message, extent, events)?;
        }
        if let Some(reason) = choice.finish_reason.filter(|reason| !reason.is_empty()) {
            self.finish.insert(index, reason);
        }
        Ok(())
    }

    fn read_message(
        &mut self,
        choice: u32,
        message: Message<'_>,
        extent: Extent,
        events: &mut Vec<Event>,
    ) -> Result<(), Failure> {
        if message.function_call.is_some() {
            let text = "provider sent a `function_call`, which tools replaced: send `tools`";
            return Err(Failure::new(ErrorCode::ProviderError, text));
        }
        // Servers that renamed the field send the text under both names for a while.
        let renamed = message.reasoning_content;
        let renamed = renamed.filter(|text| Some(text) != message.reasoning.as_ref());
        for text in [message.reasoning, renamed].into_iter().flatten() {
            if !text.is_empty() {
                events.push(EventKind::ReasoningDelta { choice, text }.into());
            }
        }
        for text in [message.content, message.refusal].into_iter().flatten() {
            if !text.is_empty() {
                events.push(EventKind::Delta { choice, part: Part::Text(text) }.into());
            }
        }
        for piece in message.tool_calls.unwrap_or_default() {
            let calls = self.calls.entry(choice).or_default();
            let part = match extent {
                Extent::Pieces => calls.read(piece)?,
                Extent::Whole => calls.read_whole(piece)?,
            };
            if let Some(part) = part {
                events.push(EventKind::Delta { choice, part }.into());
            }
        }
        Ok(())
    }
}
