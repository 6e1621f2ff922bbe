//! Reads a provider's chat or completion stream into events.

use iop_types::{ErrorCode, Event, Failure};

use super::choices::{Choices, Extent, ReadError};
use super::{Answer, ProviderError, TextKind};
use crate::sse::{self, EventTooLarge, Splitter};

const DONE: &[u8] = b"[DONE]";

/// Reads one stream. Yields deltas only: `Start` is the adapter's, the terminal is what
/// [`finish`](Self::finish) returns.
#[derive(Debug)]
pub struct StreamReader {
    splitter: Splitter,
    choices: Choices,
    is_done: bool,
}

impl StreamReader {
    /// Makes a reader for the beginning of a stream.
    pub fn new(kind: TextKind) -> Self {
        Self { splitter: Splitter::default(), choices: Choices::new(kind), is_done: false }
    }

    /// Takes the next segment and appends the events that it completes.
    ///
    /// # Errors
    /// The stream cannot be read on: it holds an error, an event above the cap, or something else
    /// than chunks. Events that were appended before stay valid.
    pub fn push(&mut self, segment: &[u8], events: &mut Vec<Event>) -> Result<(), Failure> {
        let mut result = Ok(());
        self.splitter.push(segment, |event| {
            self.is_done |= event.as_ref().is_ok_and(|event| event.data == DONE);
            if result.is_ok() {
                result = read_event(&mut self.choices, event, events).map_err(Failure::from);
            }
        });
        result
    }

    /// Says whether `[DONE]` came: whatever a provider sends in later segments belongs to nobody.
    pub const fn has_ended(&self) -> bool {
        self.is_done
    }

    /// Ends the stream at the provider's end of file, or at its `[DONE]`. Whether that came, and how
    /// often, does not matter; a finish reason does.
    ///
    /// # Errors
    /// The stream ended without any finish reason or inside an event.
    pub fn finish(mut self, events: &mut Vec<Event>) -> Result<Answer, Failure> {
        let mut result = Ok(());
        self.splitter.finish(|event| {
            result = match read_event(&mut self.choices, event, events) {
                Ok(()) => Ok(()),
                Err(ReadError::Failed(failure)) => Err(failure),
                Err(ReadError::Malformed(_) | ReadError::NotUtf8) => {
                    let cut_off = event.is_ok_and(|event| DONE.starts_with(event.data));
                    if cut_off { Ok(()) } else { Err(truncated("inside an event")) }
                }
            };
        });
        result?;
        if !self.choices.has_finished() {
            return Err(truncated("without a finish reason"));
        }
        Ok(self.choices.into_answer())
    }
}

fn read_event(
    choices: &mut Choices,
    event: Result<sse::Event<'_>, EventTooLarge>,
    events: &mut Vec<Event>,
) -> Result<(), ReadError> {
    let event = event.map_err(|error| {
        let message = format!("provider's stream cannot be read: {error}");
        Failure::new(ErrorCode::ProviderError, message)
    })?;
    match event.name {
        b"ping" => Ok(()),
        b"error" => Err(ProviderError::from_event(event.data).into_failure(None).into()),
        _ if event.data.trim_ascii().is_empty() || event.data == DONE => Ok(()),
        _ => choices.read(event.data, Extent::Pieces, events),
    }
}

fn truncated(how: &str) -> Failure {
    Failure::new(ErrorCode::Truncated, format!("provider's stream ended {how}"))
}
