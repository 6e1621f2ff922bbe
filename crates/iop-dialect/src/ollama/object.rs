//! JSON objects whose values stay as they were written.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::error::RequestError;
use crate::splice::{read_members, type_name};

/// The members of an object that are still to be dealt with, in their order.
pub(super) struct Members<'b> {
    /// Where the object is, for errors; empty for the body itself.
    at: String,
    left: Vec<(Cow<'b, str>, &'b str)>,
}

impl<'b> Members<'b> {
    /// Reads an object.
    ///
    /// # Errors
    /// It is none, or has a member twice: readers disagree about which one counts.
    pub(super) fn read(at: impl Into<String>, json: &'b str) -> Result<Self, RequestError> {
        let at = at.into();
        if type_name(json) != "an object" {
            return Err(RequestError::at(at, format!("is {}: send an object", type_name(json))));
        }
        let left = read_members(json)?;
        let mut sorted: Vec<&str> = left.iter().map(|(key, _)| key.as_ref()).collect();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            let member = join(&at, twice[0]);
            return Err(RequestError::at(member, "appears more than once: send it once"));
        }
        Ok(Self { at, left })
    }

    /// Takes a member out; null, which some clients send for what they leave out, is none.
    pub(super) fn take(&mut self, key: &str) -> Option<&'b str> {
        let at = self.left.iter().position(|(name, _)| name == key)?;
        let (_, value) = self.left.remove(at);
        (value != "null").then_some(value)
    }

    /// Takes a member that is a text.
    pub(super) fn take_text(&mut self, key: &str) -> Result<Option<String>, RequestError> {
        let Some(raw) = self.take(key) else { return Ok(None) };
        text(self.path(key), raw).map(Some)
    }

    /// Returns the path of a member.
    pub(super) fn path(&self, key: &str) -> String {
        join(&self.at, key)
    }

    /// Returns what nobody took.
    pub(super) fn rest(self) -> impl Iterator<Item = (Cow<'b, str>, &'b str)> {
        self.left.into_iter()
    }
}

fn join(at: &str, key: &str) -> String {
    if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") }
}

/// Reads a text.
pub(super) fn text(at: String, raw: &str) -> Result<String, RequestError> {
    if !raw.starts_with('"') {
        return Err(RequestError::at(at, format!("is {}: send a text", type_name(raw))));
    }
    serde_json::from_str(raw)
        .map_err(|_| RequestError::at(at, "is a broken string: check its escapes"))
}

/// Reads the items of an array, each as it was written.
pub(super) fn items<'b>(at: &str, raw: &'b str) -> Result<Vec<&'b RawValue>, RequestError> {
    if !raw.starts_with('[') {
        return Err(RequestError::at(at, format!("is {}: send an array", type_name(raw))));
    }
    serde_json::from_str(raw).map_err(|_| RequestError::at(at, "is no array: check its brackets"))
}

/// An object or array that is being written.
pub(super) struct Writing {
    text: String,
    close: char,
}

impl Writing {
    pub(super) fn object() -> Self {
        Self { text: "{".to_owned(), close: '}' }
    }

    pub(super) fn array() -> Self {
        Self { text: "[".to_owned(), close: ']' }
    }

    /// Adds a member whose value is JSON already.
    pub(super) fn put(&mut self, key: &str, json: &str) {
        self.separate();
        self.text.push_str(&quoted(key));
        self.text.push(':');
        self.text.push_str(json);
    }

    /// Adds a member that is a text.
    pub(super) fn put_text(&mut self, key: &str, text: &str) {
        self.put(key, &quoted(text));
    }

    /// Adds an item that is JSON already.
    pub(super) fn push(&mut self, json: &str) {
        self.separate();
        self.text.push_str(json);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.len() == 1
    }

    pub(super) fn finish(mut self) -> String {
        self.text.push(self.close);
        self.text
    }

    fn separate(&mut self) {
        if !self.is_empty() {
            self.text.push(',');
        }
    }
}

/// Writes a text as JSON.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
