//! What operations take: the few members that each knows, each once and spelled as it is.
//!
//! Go's decoder, which Ollama uses, takes `Model` and `MODEL` for `model` and the last of several; a
//! member that is not spelled exactly is therefore refused and not left out, and what is sent is
//! written anew. `stream` is ours to say.

use iop_types::{MAX_COMMAND_BODY, OllamaOperation};
use serde::{Deserialize, Serialize};

/// Longest name of a model, in bytes.
const MAX_NAME: usize = 512;

/// A body that an operation does not take.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("{operation} takes no body")]
    Unwanted { operation: OllamaOperation },
    #[error("{operation} needs a body: a JSON object with {takes}")]
    Missing { operation: OllamaOperation, takes: &'static str },
    #[error("the body is {bytes} bytes long, at most {MAX_COMMAND_BODY} are taken")]
    TooLong { bytes: usize },
    #[error("the body of {operation} is not a JSON object with {takes}: {problem}")]
    Malformed { operation: OllamaOperation, takes: &'static str, problem: String },
    #[error(
        "`{member}` of {operation} is not a name of 1 to {MAX_NAME} bytes without control characters"
    )]
    Name { operation: OllamaOperation, member: &'static str },
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Show {
    model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    verbose: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pull {
    model: String,
    /// Accepted where it says what happens anyway.
    #[serde(default)]
    stream: Option<bool>,
}

#[derive(Serialize)]
struct Streamed<'a> {
    model: &'a str,
    stream: bool,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Copy {
    source: String,
    destination: String,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Delete {
    model: String,
}

/// Writes the body that is sent, `None` where there is none.
///
/// # Errors
/// The body is not what the operation takes.
pub(super) fn written(operation: OllamaOperation, body: &[u8]) -> Result<Option<Vec<u8>>, Refused> {
    if body.len() > MAX_COMMAND_BODY {
        return Err(Refused::TooLong { bytes: body.len() });
    }
    let text = match operation {
        OllamaOperation::Version | OllamaOperation::Tags | OllamaOperation::Ps => {
            return match body.is_empty() {
                true => Ok(None),
                false => Err(Refused::Unwanted { operation }),
            };
        }
        OllamaOperation::Show => {
            let show: Show = read(operation, "`model` and perhaps `verbose`", body)?;
            name(operation, "model", &show.model)?;
            serde_json::to_vec(&show)
        }
        OllamaOperation::Pull => {
            let takes = "`model`";
            let pull: Pull = read(operation, takes, body)?;
            name(operation, "model", &pull.model)?;
            if pull.stream == Some(false) {
                let problem = "`stream` cannot be false, for progress is what keeps a pull alive";
                return Err(Refused::Malformed { operation, takes, problem: problem.to_owned() });
            }
            serde_json::to_vec(&Streamed { model: &pull.model, stream: true })
        }
        OllamaOperation::Copy => {
            let copy: Copy = read(operation, "`source` and `destination`", body)?;
            name(operation, "source", &copy.source)?;
            name(operation, "destination", &copy.destination)?;
            serde_json::to_vec(&copy)
        }
        OllamaOperation::Delete => {
            let delete: Delete = read(operation, "`model`", body)?;
            name(operation, "model", &delete.model)?;
            serde_json::to_vec(&delete)
        }
    };
    Ok(Some(text.expect("members have text for keys")))
}

/// Reads exactly the members of `T`; a member that comes twice is an error of serde's.
fn read<T: for<'de> Deserialize<'de>>(
    operation: OllamaOperation,
    takes: &'static str,
    body: &[u8],
) -> Result<T, Refused> {
    let malformed = |problem: String| Refused::Malformed { operation, takes, problem };
    if body.is_empty() {
        return Err(Refused::Missing { operation, takes });
    }
    // Serde would read an array as a list of the members.
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(malformed("it does not begin with `{`".to_owned()));
    }
    serde_json::from_slice(body).map_err(|error| malformed(error.to_string()))
}

fn name(operation: OllamaOperation, member: &'static str, text: &str) -> Result<(), Refused> {
    let is_name = (1..=MAX_NAME).contains(&text.len()) && !text.chars().any(char::is_control);
    if is_name { Ok(()) } else { Err(Refused::Name { operation, member }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(operation: OllamaOperation, body: &str) -> Result<Option<String>, Refused> {
        let written = written(operation, body.as_bytes())?;
        Ok(written.map(|text| String::from_utf8(text).unwrap()))
    }

    #[test]
    fn what_is_sent_is_written_anew() {
        for (operation, body, expected) in [
            (OllamaOperation::Tags, "", None),
            (OllamaOperation::Show, r#" { "m\u006fdel" : "a:b" } "#, Some(r#"{"model":"a:b"}"#)),
            (
                OllamaOperation::Show,
                r#"{"verbose":true,"model":"a"}"#,
                Some(r#"{"model":"a","verbose":true}"#),
            ),
            (OllamaOperation::Pull, r#"{"model":"a"}"#, Some(r#"{"model":"a","stream":true}"#)),
            (
                OllamaOperation::Pull,
                r#"{"model":"a","stream":true}"#,
                Some(r#"{"model":"a","stream":true}"#),
            ),
            (
                OllamaOperation::Copy,
                r#"{"source":"a","destination":"b"}"#,
                Some(r#"{"source":"a","destination":"b"}"#),
            ),
            (OllamaOperation::Delete, r#"{"model":"a"}"#, Some(r#"{"model":"a"}"#)),
        ] {
            assert_eq!(sent(operation, body), Ok(expected.map(str::to_owned)), "{operation}");
        }
    }

    #[test]
    fn doubled_disguised_and_foreign_members_are_refused() {
        for (operation, body) in [
            (OllamaOperation::Tags, "{}"),
            (OllamaOperation::Show, ""),
            (OllamaOperation::Show, "[\"a\"]"),
            (OllamaOperation::Show, "\"a\""),
            (OllamaOperation::Show, "null"),
            (OllamaOperation::Show, r#"{"model":"a"} {}"#),
            (OllamaOperation::Show, r#"{"Model":"a"}"#),
            (OllamaOperation::Show, r#"{"model":"a","MODEL":"b"}"#),
            (OllamaOperation::Show, r#"{"name":"a"}"#),
            (OllamaOperation::Delete, r#"{"model":"a","model":"b"}"#),
            (OllamaOperation::Delete, r#"{"model":"a","m\u006fdel":"b"}"#),
            (OllamaOperation::Delete, r#"{"model":["a"]}"#),
            (OllamaOperation::Delete, r#"{"model":""}"#),
            (OllamaOperation::Delete, "{\"model\":\"a\\n\"}"),
            (OllamaOperation::Pull, r#"{"model":"a","stream":false}"#),
            (OllamaOperation::Pull, r#"{"model":"a","insecure":true}"#),
            (OllamaOperation::Copy, r#"{"source":"a"}"#),
        ] {
            assert!(sent(operation, body).is_err(), "{operation} took {body}");
        }
        let long = format!(r#"{{"model":"{}"}}"#, "x".repeat(MAX_COMMAND_BODY));
        assert!(matches!(sent(OllamaOperation::Pull, &long), Err(Refused::TooLong { .. })));
    }

    #[test]
    fn a_refusal_says_what_is_taken() {
        let refused = sent(OllamaOperation::Pull, r#"{"name":"a"}"#).unwrap_err().to_string();
        assert!(refused.contains("POST /api/pull") && refused.contains("`model`"), "{refused}");
    }
}
