//! From text to a checked value, and from a mistake to a message that says where and what instead.

use serde::de::DeserializeOwned;
use serde_saphyr::Error as YamlError;

use crate::error::{ConfigError, Position, Problem};
use crate::path::Path;
use crate::tree::{Tree, place};

/// A file is this long at most: nobody writes more by hand, and a wrong path may be a model.
const MAX_BYTES: usize = 4 << 20;

/// Collects what a check finds.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<(Path, String)>);

impl Findings {
    /// Notes a mistake.
    pub(crate) fn add(&mut self, path: Path, message: impl Into<String>) {
        self.0.push((path, message.into()));
    }
}

/// Reads a file and checks it.
pub(crate) fn file<T: DeserializeOwned>(
    text: &str,
    file_name: &str,
    check: impl FnOnce(&mut T, &mut Findings),
) -> Result<T, ConfigError> {
    let refuse = |problems| ConfigError { source_name: file_name.to_owned(), problems };
    if text.len() > MAX_BYTES {
        let message = format!("is {} bytes long, a configuration is at most 4 MiB", text.len());
        return Err(refuse(vec![Problem { position: None, path: Path::root(), message }]));
    }
    let options = serde_saphyr::options! { with_snippet: false, strict_booleans: true };
    let tree = Tree::of(text);
    let mut value: T = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| refuse(vec![problem(&error, &tree)]))?;
    let mut findings = Findings::default();
    check(&mut value, &mut findings);
    settle(value, findings, &tree).map_err(refuse)
}

/// Checks a value that was not read from a file.
pub(crate) fn value<T>(
    mut value: T,
    origin: &str,
    check: impl FnOnce(&mut T, &mut Findings),
) -> Result<T, ConfigError> {
    let mut findings = Findings::default();
    check(&mut value, &mut findings);
    settle(value, findings, &Tree::default())
        .map_err(|problems| ConfigError { source_name: origin.to_owned(), problems })
}

fn settle<T>(value: T, findings: Findings, tree: &Tree) -> Result<T, Vec<Problem>> {
    if findings.0.is_empty() {
        return Ok(value);
    }
    let mut problems: Vec<_> = findings
        .0
        .into_iter()
        .map(|(path, message)| Problem { position: tree.position(&path), path, message })
        .collect();
    problems.sort_by_key(|problem| problem.position);
    Err(problems)
}

/// Turns the parser's error into a problem. The text's values are not repeated unless one of our own
/// messages does: a value that is out of place may be a secret.
fn problem(error: &YamlError, tree: &Tree) -> Problem {
    let error = error.without_snippet();
    let position = error.location().and_then(place);
    let at_key = || position.and_then(|position| tree.key_at(position));
    let at_value = || position.and_then(|position| tree.value_at(position));
    match error {
        YamlError::SerdeUnknownField { field, expected, .. } => {
            let path = match at_key().cloned() {
                Some(path) if path.last_key() == Some(field) => path,
                Some(_) | None => Path::root().key(field),
            };
            let message =
                not_yet(field).map_or_else(|| unknown("key", field, expected), str::to_owned);
            Problem { position, path, message }
        }
        YamlError::SerdeUnknownVariant { variant, expected, .. } => {
            let path = at_value().cloned().unwrap_or_default();
            let message = if path.last_key() == Some("mode") && variant == "managed" {
                MANAGED.to_owned()
            } else {
                unknown("value", variant, expected)
            };
            Problem { position, path, message }
        }
        YamlError::SerdeMissingField { field, .. } => {
            let owner = at_value().or_else(at_key).cloned().unwrap_or_default();
            Problem { position, path: owner.key(field), message: "is missing".to_owned() }
        }
        YamlError::DuplicateMappingKey { key, .. } => {
            let key = key.as_deref().unwrap_or("a key");
            let message = format!("`{key}` is written twice: keep one of them");
            Problem { position, path: Path::root(), message }
        }
        YamlError::SerdeInvalidType { unexpected, expected, .. }
        | YamlError::SerdeInvalidValue { unexpected, expected, .. } => {
            let path = at_value().or_else(at_key).cloned().unwrap_or_default();
            let message = wrong_type(&path, unexpected, expected);
            Problem { position, path, message }
        }
        YamlError::Message { msg, .. } => {
            let path = at_value().or_else(at_key).cloned().unwrap_or_default();
            Problem { position, path, message: msg.clone() }
        }
        other => {
            let path = at_value().or_else(at_key).cloned().unwrap_or_default();
            Problem { position, path, message: without_place(&other.to_string(), position) }
        }
    }
}

/// Says that a key or value is not known, what was probably meant, and what there is.
fn unknown(what: &str, text: &str, expected: &[&str]) -> String {
    let mut message = format!("unknown {what}");
    if let Some(close) = closest(text, expected.iter().copied()) {
        message.push_str(&format!("; did you mean `{close}`?"));
    }
    message.push_str(&format!(" (allowed: {})", expected.join(", ")));
    message
}

/// Finds the name that was probably meant.
pub(crate) fn closest<'a>(
    text: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let distance = |name: &&str| strsim::damerau_levenshtein(text, name);
    let best = names.into_iter().min_by_key(distance)?;
    // A third of the letters wrong is a slip; more is another word.
    (distance(&best) <= (best.chars().count() / 3).max(1)).then_some(best)
}

/// Says that a value is of another kind than the field, without repeating it.
fn wrong_type(path: &Path, unexpected: &str, expected: &str) -> String {
    if path.last_key() == Some("api_key") {
        return "a secret is never written inline: write `{ node_secret: NAME }` and put the secret \
                into the Node's own file"
            .to_owned();
    }
    // serde says `string "value"`; the kind is what comes before the value.
    let kind = unexpected.split(['"', '`']).next().unwrap_or_default().trim_end();
    format!("is {} where {expected} is expected", if kind.is_empty() { "a value" } else { kind })
}

/// The parser puts the place into its text; it is already said in front.
fn without_place(text: &str, position: Option<Position>) -> String {
    let Some(Position { line, column }) = position else { return text.to_owned() };
    let first = text.lines().next().unwrap_or_default();
    first.replace(&format!(" at line {line}, column {column}"), "")
}

const MANAGED: &str = "managed mode is not available yet: write `mode: local` and keep clients, Edge \
                       and Nodes on this machine";

/// Keys of features that are to come, refused by name.
fn not_yet(key: &str) -> Option<&'static str> {
    match key {
        "credential" => Some(
            "credentials that the Edge holds need managed mode, which is not available yet: name a \
             secret of the Node with `api_key: { node_secret: NAME }`",
        ),
        "profile" => Some(
            "credential profiles need managed mode, which is not available yet: `api_key` is sent \
             as `authorization: Bearer`",
        ),
        _ => None,
    }
}
