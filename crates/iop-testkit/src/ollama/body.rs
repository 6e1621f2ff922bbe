//! A body as Go's decoder reads it.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::Refusal;

/// The members of a body in the order of their arrival.
#[derive(Debug)]
pub(super) struct Body(Vec<(String, Value)>);

impl Body {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Refusal> {
        if bytes.is_empty() {
            return Err(Refusal(400, "missing request body".to_owned()));
        }
        serde_json::from_slice(bytes).map_err(|error| Refusal(400, error.to_string()))
    }

    /// The value of a field: keys without regard to case, the last one wins.
    pub(super) fn field(&self, name: &str) -> &Value {
        let found = self.0.iter().rev().find(|(key, _)| folds_to(key, name));
        found.map_or(&Value::Null, |(_, value)| value)
    }

    /// A field that must be a text; absent is empty.
    pub(super) fn text(&self, name: &str) -> Result<&str, Refusal> {
        match self.field(name) {
            Value::Null => Ok(""),
            Value::String(text) => Ok(text),
            other => {
                let message =
                    format!("json: cannot unmarshal {} into Go struct field {name}", kind(other));
                Err(Refusal(400, message))
            }
        }
    }

    /// Whether a stream is wanted: yes unless the body says no.
    pub(super) fn streams(&self) -> bool {
        self.field("stream") != &Value::Bool(false)
    }

    /// The context length that is asked for.
    pub(super) fn num_ctx(&self) -> Result<Option<u64>, Refusal> {
        match &self.field("options")["num_ctx"] {
            Value::Null => Ok(None),
            Value::Number(number) if number.is_u64() => Ok(number.as_u64()),
            _ => Err(Refusal(400, "option \"num_ctx\" must be of type integer".to_owned())),
        }
    }

    /// How long the model shall stay, in seconds; `None` is for ever.
    pub(super) fn keep_alive(&self) -> Result<Option<f64>, Refusal> {
        const USUAL: f64 = 300.0;
        let seconds = match self.field("keep_alive") {
            Value::Null => USUAL,
            Value::Number(number) => number.as_f64().unwrap_or(USUAL),
            Value::String(text) => go_duration(text)?,
            other => {
                return Err(Refusal(400, format!("invalid keep_alive type: {}", kind(other))));
            }
        };
        Ok((seconds >= 0.0).then_some(seconds))
    }
}

/// Reads one number with one unit, which is all that tests send.
fn go_duration(text: &str) -> Result<f64, Refusal> {
    let refuse = |what: &str| Refusal(400, format!("time: {what} in duration \"{text}\""));
    let letters = text.trim_start_matches(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    let number: f64 = text[..text.len() - letters.len()]
        .parse()
        .map_err(|_| Refusal(400, format!("time: invalid duration \"{text}\"")))?;
    let unit = match letters {
        "" if number == 0.0 => 0.0,
        "" => return Err(refuse("missing unit")),
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        _ => return Err(refuse("unknown unit")),
    };
    Ok(number * unit)
}

pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn folds_to(key: &str, name: &str) -> bool {
    let folded = key.chars().map(|character| match character {
        '\u{17F}' => 's',
        '\u{212A}' => 'k',
        other => other.to_ascii_lowercase(),
    });
    folded.eq(name.chars())
}

impl<'de> Deserialize<'de> for Body {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Members)
    }
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Body;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Body, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Body(members))
    }
}
