//! Commands: what an Edge may ask of a Node beside requests.
//!
//! The set is closed, and none of them executes inference, runs a program or reads a file. Whatever
//! is not spelled exactly as [`OllamaOperation::ALL`] spells it does not exist: no query, no other
//! case, no encoded or additional slash.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::{CommandId, ProviderKey, SessionId};
use crate::provider::Operation;
use crate::terminal::Failure;

/// One command for a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandRequest {
    /// Correlates the answers; cancels.
    pub id: CommandId,
    /// The caller's correlation value.
    pub session_id: Option<SessionId>,
    /// What is asked.
    pub command: Command,
}

/// What a command asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// What the Node and its providers can do.
    Capabilities,
    /// The Node's view of its link and of its connections to providers.
    TransportStatus,
    /// One operation of a provider's own management API.
    OllamaApi(ApiCall),
}

/// A call of a provider's management API, as it was asked for: not checked yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiCall {
    /// The provider.
    pub provider: ProviderKey,
    /// Method and path.
    pub operation: Operation,
    /// JSON object, or nothing.
    pub body: Bytes,
}

/// Longest body of a command, in bytes: they hold a few names.
pub const MAX_COMMAND_BODY: usize = 16 * 1024;

impl Command {
    /// Returns the kind.
    pub const fn kind(&self) -> CommandKind {
        match self {
            Self::Capabilities => CommandKind::Capabilities,
            Self::TransportStatus => CommandKind::TransportStatus,
            Self::OllamaApi(_) => CommandKind::OllamaApi,
        }
    }

    /// Returns how long the Node may take.
    pub fn patience(&self) -> Patience {
        match self {
            Self::Capabilities | Self::TransportStatus => OWN_PATIENCE,
            Self::OllamaApi(call) => {
                OllamaOperation::find(&call.operation.method, &call.operation.path)
                    .map_or(CALL_PATIENCE, OllamaOperation::patience)
            }
        }
    }
}

/// Which kind of command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum CommandKind {
    /// What the Node and its providers can do.
    Capabilities,
    /// The Node's view of its link and of its connections to providers.
    TransportStatus,
    /// One operation of Ollama's management API.
    OllamaApi,
}

impl CommandKind {
    /// Every kind.
    pub const ALL: &[Self] = &[Self::Capabilities, Self::TransportStatus, Self::OllamaApi];

    /// Returns the stable text of the kind.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Capabilities => "CAPABILITIES",
            Self::TransportStatus => "TRANSPORT_STATUS",
            Self::OllamaApi => "OLLAMA_API",
        }
    }

    /// Finds a kind by its text.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == text)
    }
}

impl fmt::Display for CommandKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One operation of Ollama's management API. Nothing of it executes a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OllamaOperation {
    /// The server's version.
    Version,
    /// The models that it has.
    Tags,
    /// The models that it holds in memory.
    Ps,
    /// One model's details.
    Show,
    /// Fetches a model from its registry.
    Pull,
    /// Gives a model a second name.
    Copy,
    /// Removes a model.
    Delete,
}

impl OllamaOperation {
    /// The closed list.
    pub const ALL: &[Self] =
        &[Self::Version, Self::Tags, Self::Ps, Self::Show, Self::Pull, Self::Copy, Self::Delete];

    /// Finds an operation by its exact spelling.
    pub fn find(method: &str, path: &str) -> Option<Self> {
        let is_meant = |operation: &Self| (operation.method(), operation.path()) == (method, path);
        Self::ALL.iter().copied().find(is_meant)
    }

    /// Returns the method in capitals.
    pub const fn method(self) -> &'static str {
        match self {
            Self::Version | Self::Tags | Self::Ps => "GET",
            Self::Show | Self::Pull | Self::Copy => "POST",
            Self::Delete => "DELETE",
        }
    }

    /// Returns the path.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Version => "/api/version",
            Self::Tags => "/api/tags",
            Self::Ps => "/api/ps",
            Self::Show => "/api/show",
            Self::Pull => "/api/pull",
            Self::Copy => "/api/copy",
            Self::Delete => "/api/delete",
        }
    }

    /// Says whether it changes what the server holds, which needs permission.
    pub const fn manages(self) -> bool {
        match self {
            Self::Version | Self::Tags | Self::Ps | Self::Show => false,
            Self::Pull | Self::Copy | Self::Delete => true,
        }
    }

    /// Returns how long the server may take.
    pub const fn patience(self) -> Patience {
        match self {
            Self::Version | Self::Tags | Self::Ps | Self::Show | Self::Copy | Self::Delete => {
                CALL_PATIENCE
            }
            Self::Pull => PULL_PATIENCE,
        }
    }
}

impl fmt::Display for OllamaOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method(), self.path())
    }
}

/// How long a command may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// From its start to its end.
    Whole(Duration),
    /// From one part of its answer to the next; unbounded as a whole.
    Idle(Duration),
}

impl Patience {
    /// Returns the time.
    pub const fn time(self) -> Duration {
        match self {
            Self::Whole(time) | Self::Idle(time) => time,
        }
    }

    /// Returns the same with `more` time.
    #[must_use]
    pub const fn extended(self, more: Duration) -> Self {
        match self {
            Self::Whole(time) => Self::Whole(time.saturating_add(more)),
            Self::Idle(time) => Self::Idle(time.saturating_add(more)),
        }
    }
}

impl fmt::Display for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(time) => write!(f, "no end within {time:?}"),
            Self::Idle(time) => write!(f, "nothing new for {time:?}"),
        }
    }
}

/// What a Node answers from memory; the rest is for a slow link.
const OWN_PATIENCE: Patience = Patience::Whole(Duration::from_secs(10));
/// A list or a manifest; a server that loads a model meanwhile may take some seconds for it.
const CALL_PATIENCE: Patience = Patience::Whole(Duration::from_secs(30));
/// Models are tens of gigabytes, so that a pull has no bound as a whole. It reports several times a
/// second, except while it verifies what it fetched: 60 GB at 100 MB/s are ten minutes.
const PULL_PATIENCE: Patience = Patience::Idle(Duration::from_secs(600));

/// One step of a command's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandFrame {
    /// The next bytes: of one JSON object in all, or of JSON objects in lines while a model is
    /// pulled.
    Part(Bytes),
    /// The answer is complete; nothing follows.
    End,
    /// The command failed; nothing follows.
    Error(Failure),
    /// The command was cancelled; nothing follows.
    Cancelled,
}

impl CommandFrame {
    /// Says whether this ends the answer.
    pub const fn is_terminal(&self) -> bool {
        match self {
            Self::Part(_) => false,
            Self::End | Self::Error(_) | Self::Cancelled => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Spells an operation otherwise: as somebody would who looks for a way around the list.
    fn disguised() -> impl Strategy<Value = (String, String)> {
        let operation = proptest::sample::select(OllamaOperation::ALL.to_vec());
        (operation, any::<proptest::sample::Index>(), 0..12_u8).prop_map(|(operation, at, how)| {
            let (method, path) = (operation.method(), operation.path());
            let at = at.index(path.len());
            let (front, back) = path.split_at(at);
            let path = match how {
                0 => format!("{path}/"),
                1 => format!("{path}?"),
                2 => format!("{path}?stream=false"),
                3 => format!("/{path}"),
                4 => format!("{front}/{back}"),
                5 => format!("{front}%2f{back}"),
                6 => path.to_uppercase(),
                7 => format!("/x/..{path}"),
                8 => format!("{front}\0{back}"),
                9 => format!("{path}#"),
                10 => format!("{path} "),
                _ => path.replace("/api", "/api/."),
            };
            (method.to_owned(), path)
        })
    }

    proptest! {
        #[test]
        fn nothing_but_the_closed_list_is_found(method in ".{0,8}", path in ".{0,24}") {
            let is_listed = OllamaOperation::ALL
                .iter()
                .any(|operation| operation.method() == method && operation.path() == path);
            prop_assert_eq!(OllamaOperation::find(&method, &path).is_some(), is_listed);
        }

        #[test]
        fn no_other_spelling_of_an_operation_is_found((method, path) in disguised()) {
            prop_assert_eq!(OllamaOperation::find(&method, &path), None);
        }

        #[test]
        fn every_operation_has_its_own_method_only(
            operation in proptest::sample::select(OllamaOperation::ALL.to_vec()),
            method in "(GET|POST|DELETE|PUT|PATCH|HEAD|get|post|delete|Post| GET|GET |)",
        ) {
            let found = OllamaOperation::find(&method, operation.path());
            prop_assert_eq!(found, (method == operation.method()).then_some(operation));
        }
    }

    #[test]
    fn inference_is_on_no_list() {
        for path in
            ["/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/v1/chat/completions"]
        {
            for method in ["GET", "POST", "DELETE"] {
                assert_eq!(OllamaOperation::find(method, path), None, "{method} {path}");
            }
        }
    }

    #[test]
    fn a_kind_is_found_by_its_own_text_only() {
        for kind in CommandKind::ALL {
            assert_eq!(CommandKind::parse(kind.as_str()), Some(*kind));
            assert_eq!(CommandKind::parse(&kind.as_str().to_lowercase()), None);
        }
    }
}
