//! Answers to commands.

use bytes::Bytes;
use iop_types::{CommandFrame, CommandId, Failure, Refusal, SessionId};

use super::{AnswerError, Refused, echo};
use crate::v1::node_command_response::Kind;
use crate::v1::{self, command_error};

/// One step of a command's answer, as the Edge reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandAnswer {
    /// The command got on or ended.
    Frame(CommandFrame),
    /// The Node did not start it.
    Refused(Refused),
}

/// Writes a step; `session` is echoed on the last.
pub fn command_frame(
    id: CommandId,
    frame: CommandFrame,
    session: Option<&SessionId>,
) -> v1::NodeCommandResponse {
    let (session_id, kind) = match frame {
        CommandFrame::Part(data) => (String::new(), Kind::Part(v1::CommandPart { data })),
        CommandFrame::End => (echo(session), Kind::End(v1::CommandEnd {})),
        CommandFrame::Error(failure) => {
            let error = Some(command_error::Error::Failure(failure.into()));
            (echo(session), Kind::Error(v1::CommandError { error }))
        }
        CommandFrame::Cancelled => (echo(session), Kind::Cancelled(v1::Cancelled {})),
    };
    v1::NodeCommandResponse { command_id: bytes(id), session_id, kind: Some(kind) }
}

/// Writes the refusal of a command.
pub fn command_refusal(
    id: CommandId,
    refusal: &Refusal,
    session: Option<&SessionId>,
) -> v1::NodeCommandResponse {
    let error = Some(command_error::Error::Refused(refusal.into()));
    v1::NodeCommandResponse {
        command_id: bytes(id),
        session_id: echo(session),
        kind: Some(Kind::Error(v1::CommandError { error })),
    }
}

impl v1::NodeCommandResponse {
    /// Says whether this ends the answer.
    pub const fn is_terminal(&self) -> bool {
        match &self.kind {
            Some(Kind::End(_) | Kind::Error(_) | Kind::Cancelled(_)) => true,
            Some(Kind::Part(_)) | None => false,
        }
    }
}

impl TryFrom<v1::NodeCommandResponse> for CommandAnswer {
    type Error = AnswerError;

    fn try_from(wire: v1::NodeCommandResponse) -> Result<Self, AnswerError> {
        let frame = match wire.kind {
            Some(Kind::Part(part)) => CommandFrame::Part(part.data),
            Some(Kind::End(_)) => CommandFrame::End,
            Some(Kind::Cancelled(_)) => CommandFrame::Cancelled,
            Some(Kind::Error(error)) => match error.error {
                Some(command_error::Error::Failure(failure)) => {
                    CommandFrame::Error(Failure::from(failure))
                }
                Some(command_error::Error::Refused(refusal)) => {
                    return Ok(Self::Refused(refusal.into()));
                }
                None => return Err(AnswerError { field: "error", problem: UNKNOWN }),
            },
            None => return Err(AnswerError { field: "kind", problem: UNKNOWN }),
        };
        Ok(Self::Frame(frame))
    }
}

const UNKNOWN: &str = "missing or not known to this version";

fn bytes(id: CommandId) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}
