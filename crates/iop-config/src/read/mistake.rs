//! What the parser could not make sense of, in words that help.
//!
//! Values are not repeated, except by our own messages and where one of a few words is expected: one
//! that is out of place may be a secret.

use serde_saphyr::Error as YamlError;

use crate::error::{Position, Problem};
use crate::path::Path;
use crate::tree::{Tree, place};

/// Turns the parser's error into a problem.
pub(super) fn problem(error: &YamlError, tree: &Tree) -> Problem {
    let error = error.without_snippet();
    let mut position = error.location().and_then(place);
    let key = position.and_then(|position| tree.key_at(position));
    let value = position.and_then(|position| tree.value_at(position));
    let near = || position.and_then(|position| tree.before(position));
    let mut path = value.or(key).or_else(near).cloned().unwrap_or_default();
    let message = match error {
        YamlError::SerdeUnknownField { field, expected, .. } => {
            path = key.or(value).cloned().unwrap_or_default();
            not_yet(field, expected)
                .map(str::to_owned)
                .or_else(|| elsewhere(field))
                .unwrap_or_else(|| unknown("key", field, expected))
        }
        YamlError::SerdeMissingField { field, .. } => {
            // The place is the last key beside which the field is missing, or the empty owner.
            let owner = value.cloned().or_else(|| key.and_then(Path::parent)).unwrap_or_default();
            position = tree.position(&owner).or(position);
            path = owner.key(field);
            "is missing".to_owned()
        }
        _ if let Some(hint) = secret_hint(&path) => hint.to_owned(),
        YamlError::SerdeUnknownVariant { variant, expected, .. } => {
            unknown(&format!("value{}", repeated(variant)), variant, expected)
        }
        YamlError::DuplicateMappingKey { key, .. } => {
            format!("`{}` is written twice: keep one of them", key.as_deref().unwrap_or("a key"))
        }
        YamlError::SerdeInvalidValue { expected, .. } if expected.starts_with("a nonzero") => {
            "must be more than 0: write a number, or remove the key for the default".to_owned()
        }
        YamlError::SerdeInvalidType { expected, .. }
        | YamlError::SerdeInvalidValue { expected, .. } => format!("expects {expected}"),
        YamlError::Unexpected { expected: "mapping start", .. } => {
            "expects keys with values below it: write `{}` for none, or remove the key".to_owned()
        }
        YamlError::Unexpected { expected: "sequence start", .. } => {
            "expects a list: write [a, b], or one item per line behind a hyphen".to_owned()
        }
        YamlError::Unexpected { expected: "string scalar", .. } => "expects one text".to_owned(),
        YamlError::InvalidScalar { ty, .. } => number(ty),
        YamlError::InvalidBooleanStrict { .. } => "expects true or false".to_owned(),
        YamlError::NullIntoString { .. } => "has no value: write one, or remove the key".to_owned(),
        YamlError::MultipleDocuments { .. } => {
            "holds several documents: keep one, without `---` in between".to_owned()
        }
        YamlError::Eof { .. } => "ends too early: the smallest file is `version: 1`".to_owned(),
        YamlError::Message { msg, .. } => msg.clone(),
        other => without_place(&other.to_string(), position),
    };
    Problem { position, path, message }
}

/// Says that a key or value is not known, what was probably meant, and what there is.
fn unknown(what: &str, text: &str, allowed: &[&str]) -> String {
    let mut message = format!("unknown {what}");
    if let Some(close) = closest(text, allowed.iter().copied()) {
        message.push_str(&format!("; did you mean `{close}`?"));
    }
    message.push_str(&format!(" (allowed: {})", allowed.join(", ")));
    message
}

/// Repeats a word that is no longer than one is.
fn repeated(word: &str) -> String {
    let is_word = word.len() <= 40 && !word.chars().any(char::is_control);
    if is_word { format!(" `{word}`") } else { String::new() }
}

/// Says where a key belongs that is known at one other place only.
fn elsewhere(key: &str) -> Option<String> {
    let (place, _) = PLACES.into_iter().find(|(_, keys)| keys.contains(&key))?;
    Some(format!("is no key of this place: it belongs to `{place}.{key}`"))
}

/// Keys that people write at another place, and where they belong.
const PLACES: [(&str, &[&str]); 3] = [
    (
        "nodes.NODE.providers.PROVIDER",
        &[
            "adapter",
            "endpoint",
            "targets",
            "max_concurrency",
            "context_size",
            "response_stall_timeout",
            "first_response_timeout",
            "hosted",
            "manage_models",
        ],
    ),
    ("routes.ROUTE", &["policy", "candidates", "hold_head", "recovery"]),
    ("routes.ROUTE.queue", &["max_waiting", "wait_for_node"]),
];

/// Finds the name that was probably meant.
pub(crate) fn closest<'a>(text: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |name: &&str| strsim::damerau_levenshtein(text, name);
    let best = names.into_iter().min_by_key(distance)?;
    // A third of the letters wrong is a slip; more is another word.
    (distance(&best) <= (best.chars().count() / 3).max(1)).then_some(best)
}

/// Says what to write where a secret is spoken of, whatever was written instead.
fn secret_hint(path: &Path) -> Option<&'static str> {
    if path.contains_key("api_key") {
        Some(
            "a secret is never written inline: write `{ node_secret: NAME }` and put the secret into \
             the Node's own file",
        )
    } else if path.first_key() == Some("secrets") {
        Some(
            "says where secrets are kept: write `NAME: { env: VARIABLE }` or `NAME: { file: PATH }`",
        )
    } else {
        None
    }
}

fn number(kind: &str) -> String {
    if kind.starts_with('u') {
        "expects a whole number from 0 on that is not too large".to_owned()
    } else {
        format!("is no valid {kind}")
    }
}

/// The parser puts the place into its text; it is already said in front.
fn without_place(text: &str, position: Option<Position>) -> String {
    let first = text.lines().next().unwrap_or_default();
    match position {
        Some(Position { line, column }) => {
            first.replace(&format!(" at line {line}, column {column}"), "")
        }
        None => first.to_owned(),
    }
}

/// Keys of features that are to come, refused by name: the key, a key that stands beside it, what to
/// say.
const NOT_YET: [(&str, &str, &str); 1] =
    [("priority", "candidates", "priorities of routes are not available yet: remove the key")];

fn not_yet(key: &str, allowed: &[&str]) -> Option<&'static str> {
    NOT_YET
        .into_iter()
        .find(|(name, beside, _)| *name == key && allowed.contains(beside))
        .map(|(_, _, message)| message)
}
