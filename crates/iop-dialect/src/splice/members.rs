//! Finds a few members of a JSON object, strictly, without parsing the rest of it into anything.

use std::borrow::Cow;
use std::fmt;

use memchr::{memchr2, memchr2_iter};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::BodyError;

/// The deepest nesting that is accepted. serde_json, which reads the body again where a run is
/// translated, stops one level further; providers have limits of the same order.
pub(super) const MAX_DEPTH: usize = 127;

/// A member to look for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    /// Its key.
    pub(crate) key: &'static str,
    /// How errors name it, with the path that leads to it.
    pub(crate) label: &'static str,
}

impl Member {
    /// Makes a member of the body itself.
    pub(crate) const fn top(key: &'static str) -> Self {
        Self { key, label: key }
    }
}

/// Reads a body that must be one JSON object and returns the values of the wanted members.
///
/// The values are slices of the body. Fails on a wanted member that appears twice, and on a key that
/// is not wanted but that a reader without regard to case would take for one.
pub(crate) fn read_body<const N: usize>(
    body: &[u8],
    wanted: [Member; N],
) -> Result<[Option<&str>; N], BodyError> {
    let text = simdutf8::basic::from_utf8(body).map_err(|_| BodyError::NotUtf8 {
        // The fast check does not say where; the slow one does.
        offset: std::str::from_utf8(body).err().map_or(0, |error| error.valid_up_to()),
    })?;
    let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
    if first.is_some_and(|first| *first != b'{') {
        return Err(match serde_json::from_str::<IgnoredAny>(text) {
            Ok(_) => BodyError::NotObject { found: type_name(text.trim_ascii_start()) },
            Err(error) => not_json(&error),
        });
    }
    let found = read_object(text, wanted)?;
    // Only bodies with many brackets can be deep, and counting them is nearly free.
    let has_many_brackets = memchr2_iter(b'{', b'[', body).nth(MAX_DEPTH).is_some();
    if has_many_brackets && depth(body) > MAX_DEPTH {
        return Err(BodyError::TooDeep { limit: MAX_DEPTH });
    }
    Ok(found)
}

/// Reads every member of an object, in order; the values are slices of the text.
pub(crate) fn read_members(text: &str) -> Result<Vec<(Cow<'_, str>, &str)>, BodyError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let members = deserializer.deserialize_map(Everything).map_err(|error| not_json(&error))?;
    deserializer.end().map_err(|error| not_json(&error))?;
    Ok(members)
}

/// Reads an object that is known to be an object.
pub(crate) fn read_object<const N: usize>(
    text: &str,
    wanted: [Member; N],
) -> Result<[Option<&str>; N], BodyError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let mut search = Search { wanted, values: [None; N], problem: None };
    deserializer
        .deserialize_map(&mut search)
        .and_then(|()| deserializer.end())
        .map_err(|error| not_json(&error))?;
    search.problem.map_or(Ok(search.values), Err)
}

/// Names the type of a JSON value by its first byte, with an article.
pub(crate) fn type_name(value: &str) -> &'static str {
    match value.as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        Some(_) | None => "a number",
    }
}

fn not_json(error: &serde_json::Error) -> BodyError {
    let text = error.to_string();
    let reason = text.split(" at line ").next().unwrap_or_default().to_owned();
    BodyError::NotJson { line: error.line(), column: error.column(), reason }
}

/// Counts the nesting of a text that is known to be JSON.
fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut rest = json;
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => rest = after_string(tail),
            _ => {}
        }
    }
    deepest
}

/// Skips the rest of a string, its closing quote included.
fn after_string(mut rest: &[u8]) -> &[u8] {
    while let Some(at) = memchr2(b'"', b'\\', rest) {
        if rest[at] == b'"' {
            return &rest[at + 1..];
        }
        rest = rest.get(at + 2..).unwrap_or_default();
    }
    &[]
}

/// Visits the members of one object. The first problem is kept until the text is known to be JSON,
/// because what is not JSON has no members.
struct Search<'b, const N: usize> {
    wanted: [Member; N],
    values: [Option<&'b str>; N],
    problem: Option<BodyError>,
}

impl<'b, const N: usize> Visitor<'b> for &mut Search<'b, N> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'b>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key_seed(KeySeed)? {
            let Some(place) = self.wanted.iter().position(|member| member.key == key) else {
                self.refuse_look_alike(&key);
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let value = map.next_value::<&'b RawValue>()?;
            if self.values[place].replace(value.get()).is_some() {
                let key = self.wanted[place].label;
                self.problem.get_or_insert(BodyError::Duplicate { key });
            }
        }
        Ok(())
    }
}

impl<const N: usize> Search<'_, N> {
    fn refuse_look_alike(&mut self, key: &str) {
        if let Some(member) = self.wanted.iter().find(|member| folds_to(key, member.key)) {
            let found = key.to_owned();
            self.problem.get_or_insert(BodyError::LookAlike { key: member.label, found });
        }
    }
}

/// Visits the members of one object and keeps all of them.
struct Everything;

impl<'b> Visitor<'b> for Everything {
    type Value = Vec<(Cow<'b, str>, &'b str)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'b>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(key) = map.next_key_seed(KeySeed)? {
            members.push((key, map.next_value::<&'b RawValue>()?.get()));
        }
        Ok(members)
    }
}

/// Says whether a reader without regard to case takes `key` for `wanted`, which is lower case.
///
/// Two characters outside ASCII fold into it: U+017F to `s` and U+212A to `k`.
fn folds_to(key: &str, wanted: &str) -> bool {
    // Each of a key's characters folds to one byte and has at most three.
    if key.len() < wanted.len() || key.len() > 3 * wanted.len() {
        return false;
    }
    let folded = key.chars().map(|character| match character {
        '\u{17F}' => 's',
        '\u{212A}' => 'k',
        other => other.to_ascii_lowercase(),
    });
    folded.eq(wanted.chars())
}

/// Reads a key without copying it, unless it is written with escapes.
struct KeySeed;

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}

/// Returns the offset of `part`, which must be a slice of `whole`.
pub(super) fn offset_in(whole: &[u8], part: &str) -> usize {
    let offset = (part.as_ptr() as usize).wrapping_sub(whole.as_ptr() as usize);
    debug_assert!(offset + part.len() <= whole.len());
    offset
}
