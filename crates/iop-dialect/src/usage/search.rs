//! Finds members in JSON text without parsing it.
//!
//! A quote inside a JSON string is always escaped, so `"usage"` with both its quotes is either a key
//! or a whole value, and only a key is followed by a colon. Content can therefore not pretend to be
//! a member; at most a member of a nested object is found, which the parse that follows settles.

use std::sync::LazyLock;

use memchr::memmem::Finder;

/// A key with its quotes.
#[derive(Debug)]
pub(super) struct Key(LazyLock<Finder<'static>>);

macro_rules! keys {
    ($($name:ident = $key:literal;)*) => {
        $(pub(super) static $name: Key = Key(LazyLock::new(|| Finder::new($key)));)*
    };
}

keys! {
    ARGUMENTS = "\"arguments\"";
    CHOICES = "\"choices\"";
    CONTENT = "\"content\"";
    ERROR = "\"error\"";
    FINISH_REASON = "\"finish_reason\"";
    REASONING = "\"reasoning\"";
    REASONING_CONTENT = "\"reasoning_content\"";
    TEXT = "\"text\"";
    USAGE = "\"usage\"";
}

impl Key {
    /// Iterates over what follows each occurrence of the key with its quotes: the closing quote of
    /// the key is behind, white space and a colon may be next.
    pub(super) fn occurrences<'t>(&'static self, text: &'t [u8]) -> impl Iterator<Item = &'t [u8]> {
        let len = self.0.needle().len();
        self.0.find_iter(text).map(move |at| &text[at + len..])
    }

    /// Iterates over the text from the first byte of each value of this member.
    pub(super) fn values<'t>(&'static self, text: &'t [u8]) -> impl Iterator<Item = &'t [u8]> {
        self.occurrences(text).filter_map(|rest| value(rest).filter(|value| !value.is_empty()))
    }

    /// Says whether the text has such a member.
    pub(super) fn is_in(&'static self, text: &[u8]) -> bool {
        self.values(text).next().is_some()
    }
}

/// Reads up to the value behind a key; `None` when no colon follows.
fn value(after_key: &[u8]) -> Option<&[u8]> {
    // The common spelling first: most servers write no white space.
    match after_key {
        [b':', rest @ ..] => Some(skip_space(rest)),
        _ => Some(skip_space(skip_space(after_key).strip_prefix(b":")?)),
    }
}

/// Skips JSON white space that can stand inside one line.
pub(super) fn skip_space(text: &[u8]) -> &[u8] {
    let space = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    &text[space..]
}
