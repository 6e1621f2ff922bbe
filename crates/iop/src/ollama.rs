//! `iop ollama`: one operation of the closed list, at one Ollama server.

mod pull;

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::str::FromStr;

use http_body_util::BodyExt as _;
use iop_dialect::ndjson::Splitter;
use iop_types::OllamaOperation;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use self::pull::Progress;
use crate::cli::{Ollama, Output};
use crate::client::{AskError, Base, encoded, words_of};
use crate::table::{printable_json, table};

/// Runs `iop ollama` and returns what it prints at its end.
///
/// # Errors
/// The operation is not on the list, the Edge could not be asked, or the command failed.
pub(crate) async fn run(ollama: &Ollama) -> Result<String, OllamaError> {
    let base = Base::parse(&ollama.asking.admin, "--admin")?;
    let operation = OllamaOperation::find(&ollama.method, &ollama.path)
        .ok_or_else(|| OllamaError::NotListed(ollama.method.clone(), ollama.path.clone()))?;
    let mut asked = json!({
        "kind": "OLLAMA_API",
        "provider": ollama.server.provider,
        "method": operation.method(),
        "path": operation.path(),
    });
    if let Some(body) = &ollama.body {
        asked["body"] = json!({});
        // Spliced in as it was typed: what it means is for the node to check.
        let whole = asked.to_string().replacen("\"body\":{}", &format!("\"body\":{}", body.0), 1);
        return send(ollama, &base, operation, whole.into_bytes()).await;
    }
    send(ollama, &base, operation, asked.to_string().into_bytes()).await
}

async fn send(
    ollama: &Ollama,
    base: &Base,
    operation: OllamaOperation,
    asked: Vec<u8>,
) -> Result<String, OllamaError> {
    let path = format!("/api/v1/nodes/{}/commands", encoded(&ollama.server.node));
    let response = base.post(&path, asked).await?;
    if operation == OllamaOperation::Pull {
        follow(response, ollama.asking.output).await?;
        return Ok(String::new());
    }
    let body = response.into_body().collect().await;
    let body = body.map_err(|source| AskError::Lost { base: base.clone(), source })?.to_bytes();
    let answer: Value =
        serde_json::from_slice(&body).map_err(|source| AskError::Unreadable { source })?;
    Ok(match (ollama.asking.output, operation) {
        (Output::Table, OllamaOperation::Tags | OllamaOperation::Ps) => models(&answer),
        (Output::Table, OllamaOperation::Copy | OllamaOperation::Delete) => String::new(),
        (Output::Table | Output::Json, _) => printable_json(&format!("{answer:#}\n")),
    })
}

/// Shows a pull as it goes on.
async fn follow(
    response: http::Response<hyper::body::Incoming>,
    output: Output,
) -> Result<(), OllamaError> {
    let mut progress = match output {
        Output::Json => Progress::json(),
        Output::Table if io::stderr().is_terminal() => Progress::bar(),
        Output::Table => Progress::lines(),
    };
    let mut splitter = Splitter::default();
    let mut body = response.into_body();
    let mut ended = Ok(());
    loop {
        let frame = body.frame().await;
        let mut see = |line: Result<&[u8], _>| {
            let Ok(line) = line else { return };
            match words_of(line) {
                Some(words) => ended = Err(OllamaError::Failed(words)),
                None => progress.see(line),
            }
        };
        match frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    splitter.push(data, &mut see);
                }
            }
            Some(Err(_)) => {
                progress.leave();
                return Err(OllamaError::BrokenOff);
            }
            None => {
                splitter.finish(&mut see);
                break;
            }
        }
    }
    progress.leave();
    ended?;
    if progress.is_done() { Ok(()) } else { Err(OllamaError::BrokenOff) }
}

/// Lays out what `tags` and `ps` list.
fn models(answer: &Value) -> String {
    let listed = answer["models"].as_array().map(Vec::as_slice).unwrap_or_default();
    if listed.is_empty() {
        eprintln!("No models.");
        return String::new();
    }
    let rows: Vec<_> = listed
        .iter()
        .map(|model| {
            let text = |name: &str| model[name].as_str().unwrap_or("-").to_owned();
            [
                text("name"),
                model["size"].as_u64().map_or_else(|| "-".to_owned(), size),
                model["context_length"].as_u64().map_or_else(|| "-".to_owned(), |n| n.to_string()),
                text(if model["expires_at"].is_string() { "expires_at" } else { "modified_at" }),
            ]
        })
        .collect();
    let last = if listed.iter().any(|model| model["expires_at"].is_string()) {
        "UNTIL"
    } else {
        "MODIFIED"
    };
    table(["MODEL", "SIZE", "CONTEXT", last], &rows)
}

fn size(bytes: u64) -> String {
    let mut text = String::new();
    let (unit, name) = match bytes {
        0..1_000_000 => (1_000, "kB"),
        1_000_000..1_000_000_000 => (1_000_000, "MB"),
        _ => (1_000_000_000, "GB"),
    };
    let _ = write!(text, "{}.{} {name}", bytes / unit, bytes % unit * 10 / unit);
    text
}

/// A server, as it is typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Server {
    node: String,
    provider: String,
}

impl FromStr for Server {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text.split_once('/') {
            Some((node, provider)) if !node.is_empty() && !provider.is_empty() => {
                Ok(Self { node: node.to_owned(), provider: provider.to_owned() })
            }
            Some(_) | None => {
                Err("write NODE/PROVIDER, like workstation/ollama; `iop providers list` has them")
            }
        }
    }
}

/// A JSON object, as it is typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Object(String);

impl FromStr for Object {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let example = r#"write a JSON object, like '{"model":"llama3.2:3b"}'"#;
        if !text.trim_start().starts_with('{') {
            return Err(example.to_owned());
        }
        match serde_json::from_str::<&RawValue>(text) {
            Ok(object) => Ok(Self(object.get().to_owned())),
            Err(error) => Err(format!("{error}: {example}")),
        }
    }
}

/// Why an operation came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OllamaError {
    /// There is no such operation.
    #[error(
        "`{0} {1}` is not among the operations that can be called: {list}",
        list = OllamaOperation::ALL.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    NotListed(String, String),
    /// The Edge could not be asked, or refused.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// It began and failed.
    #[error("{0}")]
    Failed(String),
    /// The answer ended too early.
    #[error("the answer broke off before it was finished")]
    BrokenOff,
}

#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    status: String,
    digest: Option<String>,
    total: Option<u64>,
    completed: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_by_its_node_and_its_key() {
        let server: Server = "ws/ollama".parse().unwrap();
        assert_eq!((server.node.as_str(), server.provider.as_str()), ("ws", "ollama"));
        for text in ["ollama", "/ollama", "ws/", ""] {
            assert!(text.parse::<Server>().unwrap_err().contains("NODE/PROVIDER"), "{text}");
        }
    }

    #[test]
    fn a_body_is_taken_as_it_is_typed_when_it_is_an_object() {
        let body: Object = r#" {"a":1, "a":2} "#.parse().unwrap();
        assert_eq!(body.0, r#"{"a":1, "a":2}"#);
        for text in ["[1]", "{", "model", "{} {}"] {
            assert!(text.parse::<Object>().is_err(), "{text}");
        }
    }

    #[test]
    fn models_are_listed_with_their_size() {
        let tags = json!({ "models": [
            { "name": "a\u{1b}[2J", "size": 2_019_393_189_u64, "modified_at": "2026-01-31" },
            { "name": "b", "size": 512 },
        ] });
        let text = models(&tags);
        assert!(text.contains("2.0 GB") && text.contains("0.5 kB"), "{text}");
        assert!(text.starts_with("MODEL") && !text.contains('\u{1b}'), "{text}");
    }
}
