//! What a command is asked with.

use bytes::Bytes;
use iop_types::{
    ApiCall, Command, CommandId, CommandKind, ErrorCode, MAX_COMMAND_BODY, OllamaOperation,
    Operation, ProviderKey,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::surface::errors::ErrorAnswer;

/// A command that may be sent.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) id: CommandId,
    pub(super) command: Command,
}

/// The request as it is written; a member that is unknown or comes twice is an error.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written<'a> {
    id: Option<CommandId>,
    kind: String,
    provider: Option<ProviderKey>,
    method: Option<String>,
    path: Option<String>,
    /// As it came: what it means is the Node's to check.
    #[serde(borrow)]
    body: Option<&'a RawValue>,
}

/// Reads a command and holds it against the closed lists.
///
/// # Errors
/// Says what is wrong with it.
pub(super) fn read(text: &[u8]) -> Result<Asked, ErrorAnswer> {
    if !text.trim_ascii_start().starts_with(b"{") {
        return Err(refuse(format!("a command is a JSON object: {EXAMPLE}")));
    }
    let written: Written<'_> = serde_json::from_slice(text)
        .map_err(|error| refuse(format!("the command cannot be read: {error}: {EXAMPLE}")))?;
    let id = written.id.unwrap_or_else(|| CommandId::from_uuid(Uuid::new_v4()));
    let command = command(&written)?;
    Ok(Asked { id, command })
}

const EXAMPLE: &str =
    r#"send {"kind":"OLLAMA_API","provider":"ollama","method":"GET","path":"/api/ps"}"#;

fn command(written: &Written<'_>) -> Result<Command, ErrorAnswer> {
    let kind = CommandKind::parse(&written.kind).ok_or_else(|| {
        let kinds: Vec<_> = CommandKind::ALL.iter().map(|kind| kind.as_str()).collect();
        let kind = shown(&written.kind);
        refuse(format!("there is no command `{kind}`: there are {}", kinds.join(", ")))
            .about(Some("kind"))
    })?;
    match kind {
        CommandKind::OllamaApi => api_call(written).map(Command::OllamaApi),
        CommandKind::Capabilities => alone(written, Command::Capabilities),
        CommandKind::TransportStatus => alone(written, Command::TransportStatus),
    }
}

/// A command of the Node itself has nothing but its kind.
fn alone(written: &Written<'_>, command: Command) -> Result<Command, ErrorAnswer> {
    let excess = [
        ("provider", written.provider.is_some()),
        ("method", written.method.is_some()),
        ("path", written.path.is_some()),
        ("body", written.body.is_some()),
    ];
    match excess.iter().find(|(_, is_there)| *is_there) {
        None => Ok(command),
        Some((member, _)) => {
            let message = format!("{} takes no `{member}`: leave it out", command.kind());
            Err(refuse(message).about(Some(member)))
        }
    }
}

fn api_call(written: &Written<'_>) -> Result<ApiCall, ErrorAnswer> {
    let missing = |member: &'static str| {
        refuse(format!("OLLAMA_API needs a `{member}`: {EXAMPLE}")).about(Some(member))
    };
    let provider = written.provider.clone().ok_or_else(|| missing("provider"))?;
    let method = written.method.as_deref().ok_or_else(|| missing("method"))?;
    let path = written.path.as_deref().ok_or_else(|| missing("path"))?;
    let Some(operation) = OllamaOperation::find(method, path) else {
        let listed: Vec<_> = OllamaOperation::ALL.iter().map(ToString::to_string).collect();
        return Err(refuse(format!(
            "`{} {}` is not among the operations that commands call, spelled exactly so: {}; \
             inference goes to the client listener",
            shown(method),
            shown(path),
            listed.join(", ")
        ))
        .about(Some("path")));
    };
    let body = written.body.map_or("", RawValue::get);
    if body.len() > MAX_COMMAND_BODY {
        let message =
            format!("`body` is {} bytes long, at most {MAX_COMMAND_BODY} are taken", body.len());
        return Err(ErrorAnswer::new(ErrorCode::BodyTooLarge, message).about(Some("body")));
    }
    Ok(ApiCall {
        provider,
        operation: Operation {
            method: operation.method().to_owned(),
            path: operation.path().to_owned(),
        },
        body: Bytes::copy_from_slice(body.as_bytes()),
    })
}

fn refuse(message: String) -> ErrorAnswer {
    ErrorAnswer::new(ErrorCode::InvalidRequest, message)
}

/// Cuts what was sent down to what fits into a message.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        match read(text.as_bytes()) {
            Ok(asked) => panic!("{text} was taken for {:?}", asked.command),
            Err(answer) => answer.message().to_owned(),
        }
    }

    #[test]
    fn each_kind_is_read() {
        let read = |text: &str| read(text.as_bytes()).unwrap();
        assert_eq!(read(r#"{"kind":"CAPABILITIES"}"#).command, Command::Capabilities);
        assert_eq!(read(r#"{"kind":"TRANSPORT_STATUS"}"#).command, Command::TransportStatus);
        let asked = read(
            r#"{"id":"00000000-0000-0000-0000-000000000007","kind":"OLLAMA_API","provider":"o",
                "method":"POST","path":"/api/show","body":{"model": "a"}}"#,
        );
        assert_eq!(asked.id.as_bytes()[15], 7);
        let Command::OllamaApi(call) = asked.command else { panic!("another kind") };
        assert_eq!(call.body, r#"{"model": "a"}"#);
    }

    #[test]
    fn what_is_not_on_the_list_is_refused_and_the_list_told() {
        for (method, path) in [
            ("POST", "/api/chat"),
            ("POST", "/api/generate"),
            ("POST", "/api/embed"),
            ("POST", "/v1/chat/completions"),
            ("GET", "/api/ps?x"),
            ("GET", "/api/ps/"),
            ("GET", "/api//ps"),
            ("GET", "/api/../api/ps"),
            ("GET", "/api%2fps"),
            ("GET", "/API/ps"),
            ("get", "/api/ps"),
            ("POST", "/api/ps"),
            ("DELETE", "/api/tags"),
            ("POST", "/api/push"),
            ("POST", "/api/create"),
            ("GET", ""),
        ] {
            let text = format!(
                r#"{{"kind":"OLLAMA_API","provider":"o","method":"{method}","path":"{path}"}}"#
            );
            assert!(refused(&text).contains("GET /api/ps"), "{method} {path}");
        }
    }

    #[test]
    fn other_kinds_and_members_are_refused() {
        assert!(refused(r#"{"kind":"SHELL"}"#).contains("CAPABILITIES, TRANSPORT_STATUS"));
        assert!(refused(r#"{"kind":"capabilities"}"#).contains("OLLAMA_API"));
        assert!(refused(r#"{"kind":"CAPABILITIES","path":"/x"}"#).contains("`path`"));
        assert!(refused(r#"{"kind":"OLLAMA_API"}"#).contains("`provider`"));
        for text in [
            "",
            "[]",
            "{}",
            r#"["CAPABILITIES"]"#,
            r#"{"kind":"CAPABILITIES","kind":"CAPABILITIES"}"#,
            r#"{"kind":"CAPABILITIES","Kind":"x"}"#,
            r#"{"kind":"CAPABILITIES","id":"x"}"#,
            r#"{"kind":"CAPABILITIES"} x"#,
        ] {
            assert!(refused(text).contains("send {"), "{text}");
        }
    }

    #[test]
    fn a_body_is_bounded() {
        let body = "x".repeat(MAX_COMMAND_BODY);
        let text = format!(
            r#"{{"kind":"OLLAMA_API","provider":"o","method":"POST","path":"/api/show","body":{{"model":"{body}"}}}}"#
        );
        assert!(refused(&text).contains("at most 16384"));
    }
}
