//! Removes the one usage chunk that the client did not ask for.
//!
//! The chunk is an event of at most 8 KiB with exactly one `data` line whose JSON has an empty
//! `choices` array and a `usage` object. A provider that was asked for usage also puts
//! `"usage":null` into every other chunk, and some send empty `choices` without usage: those stay.
//! Doubt passes the bytes.
//!
//! A complete event is decided at once. Of an incomplete one only the beginning is held, until the
//! byte behind `"choices":[` shows that it is an ordinary chunk:
//!
//! ```text
//!               .--blank line, and it is the chunk--------------> Removed
//!  Undecided ---+--blank line, and it is not--------------------> Undecided (the next event)
//!      ^        +--an ordinary chunk, or 8 KiB--> Passing(Event) --blank line--.
//!      |        '--a comment--------------------> Passing(Line) ---line end----|
//!      '-----------------------------------------------------------------------'
//! ```

use bytes::Bytes;
use memchr::memchr2;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::search::{CHOICES, skip_space};

/// The longest event that can be the chunk, and so the most that is ever held.
const MAX_CHUNK: usize = 8 << 10;

/// Takes the injected usage chunk out of an OpenAI SSE stream; every other byte passes.
#[derive(Debug)]
pub struct ChunkFilter {
    state: State,
    /// What came of the current event in earlier segments, while it is undecided.
    held: Vec<u8>,
    /// The current line has no byte yet.
    line_is_blank: bool,
    /// The last segment ended with CR: a LF that follows belongs to it.
    after_cr: bool,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Undecided,
    /// Let go, up to the end of this.
    Passing(Until),
    /// The chunk is out; the rest of the stream passes.
    Removed,
}

#[derive(Debug, Clone, Copy)]
enum Until {
    LineEnd,
    EventEnd,
}

impl Default for ChunkFilter {
    fn default() -> Self {
        Self::new()
    }
}

impl ChunkFilter {
    /// Makes a filter for the beginning of a stream.
    pub const fn new() -> Self {
        Self { state: State::Undecided, held: Vec::new(), line_is_blank: true, after_cr: false }
    }

    /// Says whether the chunk was removed.
    pub const fn has_removed(&self) -> bool {
        matches!(self.state, State::Removed)
    }

    /// Takes the next segment and hands out what may pass, in order, as slices of it where nothing
    /// was held.
    pub fn push(&mut self, segment: Bytes, mut pass: impl FnMut(Bytes)) {
        let Some(first) = segment.first() else { return };
        let lf = usize::from(std::mem::take(&mut self.after_cr) && *first == b'\n');
        if self.has_removed() {
            hand_out(segment.slice(lf..), &mut pass);
            return;
        }
        // The current event began before this segment, or begins here.
        let mut event = if self.held.is_empty() { lf } else { 0 };
        let mut line = lf;
        while let Some(len) = memchr2(b'\n', b'\r', &segment[line..]) {
            let is_blank = std::mem::replace(&mut self.line_is_blank, true) && len == 0;
            line += len + 1;
            if segment[line - 1] == b'\r' {
                match segment.get(line) {
                    Some(b'\n') => line += 1,
                    Some(_) => {}
                    None => self.after_cr = true,
                }
            }
            let has_ended = match self.state {
                State::Passing(Until::EventEnd) => is_blank,
                State::Passing(Until::LineEnd) => true,
                State::Undecided if is_blank => {
                    if self.is_chunk(&segment[event..line]) {
                        self.held = Vec::new();
                        self.state = State::Removed;
                        hand_out(segment.slice(..event), &mut pass);
                        hand_out(segment.slice(line..), &mut pass);
                        return;
                    }
                    true
                }
                // A comment before the fields of an event is no part of it.
                State::Undecided => self.begins_with_comment(&segment[event..line]),
                State::Removed => false,
            };
            if has_ended {
                self.release(&mut pass);
                self.state = State::Undecided;
                event = line;
            }
        }
        self.line_is_blank &= line == segment.len();
        let end = if self.keeps(&segment[event..], &mut pass) { event } else { segment.len() };
        hand_out(segment.slice(..end), &mut pass);
    }

    /// Ends the stream: hands out what is still held, unless it is the chunk.
    pub fn finish(&mut self, mut pass: impl FnMut(Bytes)) {
        if self.is_chunk(&[]) {
            self.held = Vec::new();
            self.state = State::Removed;
        } else {
            self.release(&mut pass);
        }
    }

    /// Holds the end of a segment if its event is still undecided; else lets the event go.
    fn keeps(&mut self, end: &[u8], pass: &mut impl FnMut(Bytes)) -> bool {
        if end.is_empty() || !matches!(self.state, State::Undecided) {
            return false;
        }
        let until = if self.begins_with_comment(end) {
            Until::LineEnd
        } else if self.held.len() + end.len() > MAX_CHUNK {
            Until::EventEnd
        } else {
            let held = self.held.len();
            self.held.extend_from_slice(end);
            match Look::at(&self.held) {
                Look::Unclear | Look::Candidate => return true,
                Look::Ordinary => self.held.truncate(held),
            }
            Until::EventEnd
        };
        self.state = State::Passing(until);
        self.release(pass);
        false
    }

    fn release(&mut self, pass: &mut impl FnMut(Bytes)) {
        hand_out(std::mem::take(&mut self.held).into(), pass);
    }

    fn begins_with_comment(&self, rest: &[u8]) -> bool {
        self.held.first().or(rest.first()) == Some(&b':')
    }

    /// Judges the complete event that is made of what is held and `rest`.
    fn is_chunk(&mut self, rest: &[u8]) -> bool {
        if self.held.is_empty() {
            return is_usage_chunk(rest);
        }
        let held = self.held.len();
        if held + rest.len() > MAX_CHUNK {
            return false;
        }
        self.held.extend_from_slice(rest);
        let is_chunk = is_usage_chunk(&self.held);
        self.held.truncate(held);
        is_chunk
    }
}

fn hand_out(part: Bytes, pass: &mut impl FnMut(Bytes)) {
    if !part.is_empty() {
        pass(part);
    }
}

/// What the beginning of an event says; more bytes only ever clear up what is unclear.
enum Look {
    Unclear,
    Ordinary,
    /// `choices` is there and empty.
    Candidate,
}

impl Look {
    fn at(event: &[u8]) -> Self {
        for rest in CHOICES.occurrences(event) {
            let value = match skip_space(rest) {
                [] => return Self::Unclear,
                [b':', value @ ..] => skip_space(value),
                // The word is a value, not a key.
                [_, ..] => continue,
            };
            return match value {
                [] => Self::Unclear,
                [b'[', inner @ ..] => match skip_space(inner) {
                    [] => Self::Unclear,
                    [b']', ..] => Self::Candidate,
                    [_, ..] => Self::Ordinary,
                },
                [_, ..] => Self::Ordinary,
            };
        }
        Self::Unclear
    }
}

fn is_usage_chunk(event: &[u8]) -> bool {
    event.len() <= MAX_CHUNK
        && matches!(Look::at(event), Look::Candidate)
        && only_data(event).is_some_and(|data| {
            serde_json::from_slice::<UsageChunk<'_>>(data)
                .is_ok_and(|chunk| chunk.choices.is_empty() && chunk.usage.get().starts_with('{'))
        })
}

/// Returns the value of the only `data` line of an event that has no comments.
fn only_data(event: &[u8]) -> Option<&[u8]> {
    let mut data = None;
    for line in event.split(|byte| matches!(byte, b'\n' | b'\r')) {
        if let Some(value) = line.strip_prefix(b"data:") {
            if data.replace(value).is_some() {
                return None;
            }
        } else if line.starts_with(b":") || line == b"data" {
            return None;
        }
    }
    data
}

#[derive(Deserialize)]
struct UsageChunk<'a> {
    choices: Vec<IgnoredAny>,
    #[serde(borrow)]
    usage: &'a RawValue,
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT: &str =
        r#"data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"}}],"usage":null}"#;
    const CHUNK: &str =
        r#"data: {"id":"c","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}"#;

    fn filter(segments: &[&[u8]]) -> Vec<u8> {
        let mut filter = ChunkFilter::new();
        let mut passed = Vec::new();
        for segment in segments {
            filter.push(Bytes::copy_from_slice(segment), |part| passed.extend_from_slice(&part));
            assert!(filter.held.len() <= MAX_CHUNK);
        }
        filter.finish(|part| passed.extend_from_slice(&part));
        passed
    }

    /// Filters the text whole, in single bytes and at every cut, and insists on equal results.
    fn filter_anyhow(text: &str) -> String {
        let text = text.as_bytes();
        let whole = filter(&[text]);
        assert_eq!(filter(&text.chunks(1).collect::<Vec<_>>()), whole);
        for cut in 0..=text.len() {
            let (head, tail) = text.split_at(cut);
            assert_eq!(filter(&[head, b"", tail]), whole, "cut at {cut}");
        }
        String::from_utf8(whole).unwrap()
    }

    #[test]
    fn only_the_usage_chunk_is_removed_whatever_the_line_ends() {
        for end in ["\n", "\r\n", "\r"] {
            let text = format!("{CONTENT}{end}{end}{CHUNK}{end}{end}data: [DONE]{end}{end}");
            let expected = format!("{CONTENT}{end}{end}data: [DONE]{end}{end}");
            assert_eq!(filter_anyhow(&text), expected);
        }
    }

    #[test]
    fn white_space_in_the_json_and_other_fields_of_the_event_do_not_hide_the_chunk() {
        let chunk = "id: 4\nevent: message\ndata:{\"usage\" : {\"prompt_tokens\": 1}, \"choices\" : [ ] }\nretry: 1\n\n";
        assert_eq!(
            filter_anyhow(&format!("{CONTENT}\n\n{chunk}{CONTENT}\n\n")),
            format!("{CONTENT}\n\n{CONTENT}\n\n")
        );
    }

    #[test]
    fn the_chunk_is_removed_at_the_end_of_the_stream_without_its_blank_line() {
        for end in ["", "\n", "\r", "\r\n"] {
            assert_eq!(
                filter_anyhow(&format!("{CONTENT}\n\n{CHUNK}{end}")),
                format!("{CONTENT}\n\n")
            );
        }
    }

    #[test]
    fn what_is_not_surely_the_chunk_passes() {
        for text in [
            // Azure's first chunk.
            "data: {\"choices\":[],\"prompt_filter_results\":[]}\n\n",
            "data: {\"choices\":[],\"usage\":null}\n\n",
            "data: {\"choices\":[],\"usage\":{\n\n",
            "data: {\"choices\":[]\ndata: ,\"usage\":{}}\n\n",
            "data: {\"choices\":[],\"usage\":{}}\n: comment\n\n",
            "data: {\"choices\":null,\"usage\":{}}\n\n",
            "data: {\"text\":\"choices\",\"usage\":{}}\n\n",
            "data: {\"x\":{\"choices\":[]},\"usage\":{}}\n\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"choices\\\":[],\\\"usage\\\":{}\"}}]}\n\n",
            "{\"choices\":[],\"usage\":{}}\n\n",
            ": {\"choices\":[],\"usage\":{}}\n\n",
            "\r\n\r\n\n\r",
            "data: [DONE]",
        ] {
            assert_eq!(filter_anyhow(text), text);
        }
    }

    #[test]
    fn only_one_chunk_is_removed() {
        assert_eq!(
            filter_anyhow(&format!("{CHUNK}\r\n\r\n{CHUNK}\r\n\r\n")),
            format!("{CHUNK}\r\n\r\n")
        );
    }

    #[test]
    fn a_comment_before_the_chunk_stays() {
        assert_eq!(
            filter_anyhow(&format!(": ping\n: pong\n{CHUNK}\n\n: end")),
            ": ping\n: pong\n: end"
        );
    }

    #[test]
    fn an_event_above_the_cap_passes_however_it_is_cut() {
        let text = format!(
            "{}\n\n",
            CHUNK.replace(":9", &format!(":9,\"x\":\"{}\"", "x".repeat(MAX_CHUNK)))
        );
        for segment in [100, 5_000, usize::MAX] {
            let segments: Vec<_> = text.as_bytes().chunks(segment).collect();
            assert_eq!(filter(&segments), text.as_bytes());
        }
    }

    #[test]
    fn content_leaves_at_once_and_without_a_copy() {
        let mut filter = ChunkFilter::new();
        let segment = Bytes::from(format!("{CONTENT}\n\n{CONTENT}"));
        let mut passed = Vec::new();
        filter.push(segment.clone(), |part| passed.push(part));
        assert_eq!(passed, std::slice::from_ref(&segment));
        assert_eq!(passed[0].as_ptr(), segment.as_ptr());
    }

    #[test]
    fn an_incomplete_event_is_held_only_until_its_choices_show() {
        let mut filter = ChunkFilter::new();
        let mut passed = Vec::new();
        for part in ["data: {\"choices\"", ":[", "{"] {
            assert!(passed.is_empty());
            filter.push(Bytes::from(part), |part| passed.extend_from_slice(&part));
        }
        assert_eq!(passed, b"data: {\"choices\":[{");
    }
}
