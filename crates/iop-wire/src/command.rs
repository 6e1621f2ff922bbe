//! Commands on the wire: what an Edge asks of a Node beside requests.

use bytes::Bytes;
use iop_types::{
    ApiCall, Command, CommandId, CommandKind, CommandRequest, MAX_COMMAND_BODY, Operation,
    ProviderKey, Refusal, SessionId,
};

use crate::v1;

impl From<CommandRequest> for v1::NodeCommandRequest {
    fn from(request: CommandRequest) -> Self {
        let head = Self {
            command_id: Bytes::copy_from_slice(request.id.as_bytes()),
            kind: v1::CommandKind::from(request.command.kind()).into(),
            session_id: request.session_id.map_or_else(String::new, |id| id.as_str().to_owned()),
            ..Self::default()
        };
        match request.command {
            Command::Capabilities | Command::TransportStatus => head,
            Command::OllamaApi(call) => Self {
                adapter: call.provider.as_str().to_owned(),
                method: call.operation.method,
                path: call.operation.path,
                body: call.body,
                ..head
            },
        }
    }
}

impl TryFrom<v1::NodeCommandRequest> for CommandRequest {
    type Error = Refusal;

    fn try_from(request: v1::NodeCommandRequest) -> Result<Self, Refusal> {
        let malformed = |field, problem| Refusal::Malformed { field, problem };
        let id = CommandId::from_slice(&request.command_id)
            .map_err(|_| malformed("command_id", "not 16 bytes long"))?;
        let session_id = match request.session_id.as_str() {
            "" => None,
            text => Some(
                SessionId::new(text)
                    .map_err(|_| malformed("session_id", "longer than 128 bytes"))?,
            ),
        };
        let kind = CommandKind::try_from(request.kind())
            .map_err(|UnknownCommand| malformed("kind", "not a command that this node knows"))?;
        let command = match kind {
            CommandKind::Capabilities => Command::Capabilities,
            CommandKind::TransportStatus => Command::TransportStatus,
            CommandKind::OllamaApi => {
                if request.adapter.is_empty() {
                    return Err(malformed("adapter", "empty"));
                }
                if request.body.len() > MAX_COMMAND_BODY {
                    return Err(malformed("body", "longer than 16 KiB"));
                }
                Command::OllamaApi(ApiCall {
                    provider: ProviderKey::from(request.adapter),
                    operation: Operation { method: request.method, path: request.path },
                    // It must not pin the read buffer for as long as the command takes.
                    body: Bytes::copy_from_slice(&request.body),
                })
            }
        };
        Ok(Self { id, session_id, command })
    }
}

impl From<CommandKind> for v1::CommandKind {
    fn from(kind: CommandKind) -> Self {
        match kind {
            CommandKind::Capabilities => Self::Capabilities,
            CommandKind::TransportStatus => Self::TransportStatus,
            CommandKind::OllamaApi => Self::OllamaApi,
        }
    }
}

/// A kind of command that this version does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown kind of command")]
pub struct UnknownCommand;

impl TryFrom<v1::CommandKind> for CommandKind {
    type Error = UnknownCommand;

    fn try_from(kind: v1::CommandKind) -> Result<Self, UnknownCommand> {
        match kind {
            v1::CommandKind::Unspecified => Err(UnknownCommand),
            v1::CommandKind::Capabilities => Ok(Self::Capabilities),
            v1::CommandKind::TransportStatus => Ok(Self::TransportStatus),
            v1::CommandKind::OllamaApi => Ok(Self::OllamaApi),
        }
    }
}
