//! Events of a run.

use bytes::{BufMut, Bytes, BytesMut};
use iop_types::{Event, EventKind, Failure, Finish, Part, Refusal, SessionId, Usage};

use super::{AnswerError, Refused, echo};
use crate::v1::run_event::Kind;
use crate::v1::{self, run_error};

/// One whole event of a run, as the Edge reads it.
#[derive(Debug, Clone, PartialEq)]
pub enum RunAnswer {
    /// The run got on or ended.
    Event(Event),
    /// The Node did not start it.
    Refused(Refused),
}

/// Writes an event; `session` is echoed where it belongs.
pub fn run_event(event: Event, session: Option<&SessionId>) -> v1::RunEvent {
    let mut wire = v1::RunEvent {
        usage: event.usage.map(|usage| v1::Usage {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
        }),
        ..v1::RunEvent::default()
    };
    let kind = match event.kind {
        EventKind::Start => {
            wire.session_id = echo(session);
            Kind::Start(v1::Start {})
        }
        EventKind::Delta { choice, part } => {
            wire.choice = choice;
            let (kind, payload) = part_to_wire(part);
            wire.payload = payload;
            kind
        }
        EventKind::ReasoningDelta { choice, text } => {
            wire.choice = choice;
            wire.payload = text.into();
            Kind::Reasoning(v1::TextDelta {})
        }
        EventKind::Complete { finish } => {
            wire.session_id = echo(session);
            let finish = finish
                .into_iter()
                .map(|finish| v1::Finish { choice: finish.choice, reason: finish.reason })
                .collect();
            Kind::Complete(v1::Complete { finish })
        }
        EventKind::Error(failure) => {
            wire.session_id = echo(session);
            let error = Some(run_error::Error::Failure(failure.into()));
            Kind::Error(v1::RunError { error })
        }
        EventKind::Cancelled => {
            wire.session_id = echo(session);
            Kind::Cancelled(v1::Cancelled {})
        }
    };
    wire.kind = Some(kind);
    wire
}

/// Writes the refusal of a run.
pub fn run_refusal(refusal: &Refusal, session: Option<&SessionId>) -> v1::RunEvent {
    let error = Some(run_error::Error::Refused(refusal.into()));
    v1::RunEvent {
        session_id: echo(session),
        kind: Some(Kind::Error(v1::RunError { error })),
        ..v1::RunEvent::default()
    }
}

impl v1::RunEvent {
    /// Says whether this event ends the run.
    pub const fn is_terminal(&self) -> bool {
        match &self.kind {
            Some(Kind::Complete(_) | Kind::Error(_) | Kind::Cancelled(_)) => true,
            Some(
                Kind::Start(_)
                | Kind::Text(_)
                | Kind::Reasoning(_)
                | Kind::ToolCall(_)
                | Kind::Logprobs(_)
                | Kind::Embedding(_)
                | Kind::Score(_)
                | Kind::Continuation(_),
            )
            | None => false,
        }
    }
}

impl TryFrom<v1::RunEvent> for RunAnswer {
    type Error = AnswerError;

    /// Reads an event that was joined ([`super::EventJoiner`]).
    fn try_from(wire: v1::RunEvent) -> Result<Self, AnswerError> {
        let usage = wire.usage.map(|usage| Usage {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
        });
        let choice = wire.choice;
        let delta = |part| EventKind::Delta { choice, part };
        let kind = match wire.kind {
            Some(Kind::Start(_)) => EventKind::Start,
            Some(Kind::Text(_)) => delta(Part::Text(text(&wire.payload)?)),
            Some(Kind::Reasoning(_)) => {
                EventKind::ReasoningDelta { choice, text: text(&wire.payload)? }
            }
            Some(Kind::ToolCall(call)) => delta(Part::ToolCall {
                index: call.index,
                id: call.id,
                name: call.name,
                arguments: text(&wire.payload)?,
            }),
            Some(Kind::Logprobs(_)) => delta(Part::Logprobs(text(&wire.payload)?)),
            Some(Kind::Embedding(_)) => delta(Part::Embedding(vector(&wire.payload)?)),
            Some(Kind::Score(score)) => delta(Part::Score(score.score)),
            Some(Kind::Complete(complete)) => EventKind::Complete {
                finish: complete
                    .finish
                    .into_iter()
                    .map(|finish| Finish { choice: finish.choice, reason: finish.reason })
                    .collect(),
            },
            Some(Kind::Error(error)) => match error.error {
                Some(run_error::Error::Failure(failure)) => {
                    EventKind::Error(Failure::from(failure))
                }
                Some(run_error::Error::Refused(refusal)) => {
                    return Ok(Self::Refused(refusal.into()));
                }
                None => return Err(AnswerError { field: "error", problem: UNKNOWN }),
            },
            Some(Kind::Cancelled(_)) => EventKind::Cancelled,
            Some(Kind::Continuation(_)) => {
                return Err(AnswerError { field: "continuation", problem: "without a beginning" });
            }
            None => return Err(AnswerError { field: "kind", problem: UNKNOWN }),
        };
        Ok(Self::Event(Event { kind, usage }))
    }
}

const UNKNOWN: &str = "missing or not known to this version";

fn part_to_wire(part: Part) -> (Kind, Bytes) {
    match part {
        Part::Text(text) => (Kind::Text(v1::TextDelta {}), text.into()),
        Part::ToolCall { index, id, name, arguments } => {
            (Kind::ToolCall(v1::ToolCallDelta { index, id, name }), arguments.into())
        }
        Part::Logprobs(json) => (Kind::Logprobs(v1::LogprobsDelta {}), json.into()),
        Part::Embedding(vector) => {
            let mut payload = BytesMut::with_capacity(vector.len() * size_of::<f32>());
            for value in vector {
                payload.put_f32_le(value);
            }
            (Kind::Embedding(v1::EmbeddingDelta {}), payload.freeze())
        }
        Part::Score(score) => (Kind::Score(v1::ScoreDelta { score }), Bytes::new()),
    }
}

fn text(payload: &Bytes) -> Result<String, AnswerError> {
    let text = std::str::from_utf8(payload)
        .map_err(|_| AnswerError { field: "payload", problem: "not UTF-8" })?;
    Ok(text.to_owned())
}

fn vector(payload: &Bytes) -> Result<Vec<f32>, AnswerError> {
    let (values, rest) = payload.as_chunks::<{ size_of::<f32>() }>();
    if rest.is_empty() {
        Ok(values.iter().map(|value| f32::from_le_bytes(*value)).collect())
    } else {
        Err(AnswerError { field: "payload", problem: "not a whole number of 32-bit floats" })
    }
}
