//! Recognises the next ordinary event by its likeness to the last one.
//!
//! The chunks of a stream differ in the text that they carry and in little else. An event that
//! begins and ends like one that was found ordinary, and has nothing between but plain characters
//! of the same JSON string, has the same members with the same other values: it is ordinary too.
//! Two comparisons are far cheaper than a search for every member that could matter.

use memchr::memchr2;

use super::search::{ARGUMENTS, CONTENT, REASONING_CONTENT, TEXT};

/// Larger events are rare and would only hold memory.
const MAX_EVENT: usize = 2 << 10;

/// Misses in a row after which nothing more is learnt: some servers pad every chunk with random
/// text of its own, so that no two are alike.
const MAX_MISSES: u8 = 8;

/// What ordinary events have in common.
#[derive(Debug, Default)]
pub(super) struct Likeness {
    /// Up to the first character of the text; empty as long as nothing was learnt.
    opening: Vec<u8>,
    /// From the quote behind the text.
    ending: Vec<u8>,
    misses: u8,
}

impl Likeness {
    /// Says whether the event is surely like the last one that was learnt from.
    pub(super) fn covers(&mut self, event: &[u8]) -> bool {
        let text = event
            .strip_prefix(self.opening.as_slice())
            .and_then(|rest| rest.strip_suffix(self.ending.as_slice()));
        let covers = !self.opening.is_empty()
            && text.is_some_and(|text| memchr2(b'"', b'\\', text).is_none());
        if covers {
            self.misses = 0;
        }
        covers
    }

    /// Learns from an event that was found ordinary.
    pub(super) fn learn(&mut self, event: &[u8]) {
        if self.misses == MAX_MISSES || event.len() > MAX_EVENT {
            return;
        }
        self.misses += 1;
        let strings = [&CONTENT, &TEXT, &REASONING_CONTENT, &ARGUMENTS].into_iter();
        let Some(text) = strings.filter_map(|key| key.values(event).find_map(string)).next() else {
            return;
        };
        let Some(len) = closing_quote(text) else { return };
        let start = event.len() - text.len();
        self.opening.clear();
        self.opening.extend_from_slice(&event[..start]);
        self.ending.clear();
        self.ending.extend_from_slice(&text[len..]);
    }
}

fn string(value: &[u8]) -> Option<&[u8]> {
    value.strip_prefix(b"\"")
}

/// Finds the quote that ends a string.
fn closing_quote(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(text: &str) -> String {
        format!(r#"{{"choices":[{{"delta":{{"content":"{text}"}},"finish_reason":null}}]}}"#)
    }

    fn learnt(event: &str) -> Likeness {
        let mut likeness = Likeness::default();
        likeness.learn(event.as_bytes());
        likeness
    }

    #[test]
    fn events_that_differ_in_their_text_are_alike() {
        for first in ["", "a", "\\\"quoted\\\"", "안"] {
            let mut likeness = learnt(&chunk(first));
            for next in ["", "b", "a longer text", "녕", "}],{:"] {
                assert!(likeness.covers(chunk(next).as_bytes()), "{first} {next}");
            }
        }
    }

    #[test]
    fn what_may_differ_in_more_is_not_alike() {
        let mut likeness = learnt(&chunk("a"));
        for next in [
            chunk("\\n"),
            chunk("a\",\"x\":\""),
            chunk("a").replace("null", "\"stop\""),
            chunk("a").replace("]}", "],\"usage\":{}}"),
            chunk("a").replace("choices", "Choices"),
            String::new(),
        ] {
            assert!(!likeness.covers(next.as_bytes()), "{next}");
        }
    }

    #[test]
    fn an_event_shorter_than_opening_and_ending_is_not_alike() {
        let mut likeness = learnt(r#"{"text":""}"#);
        assert!(!likeness.covers(br#"{"text":"}"#));
        assert!(likeness.covers(br#"{"text":""}"#));
    }

    #[test]
    fn nothing_is_alike_before_something_was_learnt() {
        assert!(!Likeness::default().covers(b""));
        let mut likeness = learnt(r#"{"choices":[{"delta":{"content":null}}]}"#);
        assert!(!likeness.covers(b""));
        let mut cut_off = learnt(r#"{"text":"a\"#);
        assert!(!cut_off.covers(br#"{"text":"a\"#));
    }

    #[test]
    fn a_stream_whose_events_are_never_alike_is_given_up() {
        let mut likeness = Likeness::default();
        for padding in 0..20 {
            let event = format!(r#"{{"text":"a","obfuscation":"{padding}"}}"#);
            assert!(!likeness.covers(event.as_bytes()));
            likeness.learn(event.as_bytes());
        }
        assert!(likeness.ending.ends_with(br#""7"}"#));
    }
}
