//! Splits a byte stream into server-sent events, whatever the segmentation.
//!
//! Lines end with LF, CRLF or CR, also where a segment ends between CR and LF. A byte order mark at
//! the very start, comments and fields other than `data` and `event` are dropped; several `data`
//! lines join with LF; one space after the colon is optional. An event ends at a blank line, or at
//! the end of the stream: providers do leave the last blank line out.

use memchr::memchr2;

/// Cap on the data of one event, 8 MiB: the largest response event of a run (DESIGN section 9).
pub const MAX_EVENT: usize = 8 << 20;

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// Incremental SSE parser.
///
/// An event that lies whole in one segment is handed out without being copied.
#[derive(Debug)]
pub struct Splitter {
    limit: usize,
    /// The line that the last segment left unfinished, cut off where it passes the cap.
    line: Vec<u8>,
    line_cut_off: bool,
    /// Data of the event that the last segments left unfinished.
    data: Vec<u8>,
    /// Whether the event has a `data` line yet; an empty one counts.
    has_data: bool,
    /// The data passed the cap: the event is skipped up to its end.
    oversize: bool,
    name: Vec<u8>,
    /// The last segment ended with CR: a LF that follows belongs to it.
    after_cr: bool,
    at_start: bool,
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// Value of the `event` field, at most 64 bytes of it; empty when there was none.
    pub name: &'a [u8],
    /// The `data` lines, joined with LF.
    pub data: &'a [u8],
}

/// An event passed the cap; it is left out, the events after it are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is larger than the cap of {limit} bytes")]
pub struct EventTooLarge {
    /// The cap in bytes.
    pub limit: usize,
}

impl Default for Splitter {
    fn default() -> Self {
        Self::new(MAX_EVENT)
    }
}

impl Splitter {
    /// Makes a parser for events with at most `limit` bytes of data.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            line_cut_off: false,
            data: Vec::new(),
            has_data: false,
            oversize: false,
            name: Vec::new(),
            after_cr: false,
            at_start: true,
        }
    }

    /// Takes the next segment and hands out every event that ends in it.
    pub fn push(
        &mut self,
        segment: &[u8],
        mut on_event: impl FnMut(Result<Event<'_>, EventTooLarge>),
    ) {
        let mut rest = segment;
        if self.after_cr && !rest.is_empty() {
            self.after_cr = false;
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        // The event's only data line so far, as long as it need not outlive the segment.
        let mut borrowed = None;
        while let Some(end) = memchr2(b'\n', b'\r', rest) {
            let (head, tail) = rest.split_at(end);
            rest = match tail {
                [b'\r'] => {
                    self.after_cr = true;
                    &[]
                }
                [b'\r', b'\n', rest @ ..] | [_, rest @ ..] => rest,
                [] => &[],
            };
            if self.line.is_empty() {
                self.end_line(head, &mut borrowed, &mut on_event);
            } else {
                self.keep_line(head);
                self.end_kept_line(&mut on_event);
            }
        }
        if let Some(data) = borrowed {
            self.keep_data(data);
        }
        self.keep_line(rest);
    }

    /// Ends the stream: what is left counts as an event although no blank line follows it.
    ///
    /// The caller judges whether that last event is complete.
    pub fn finish(&mut self, mut on_event: impl FnMut(Result<Event<'_>, EventTooLarge>)) {
        if !self.line.is_empty() {
            self.end_kept_line(&mut on_event);
        }
        self.end_event(None, &mut on_event);
    }

    fn end_kept_line(&mut self, on_event: &mut impl FnMut(Result<Event<'_>, EventTooLarge>)) {
        let mut line = std::mem::take(&mut self.line);
        let mut borrowed = None;
        self.end_line(&line, &mut borrowed, on_event);
        if let Some(data) = borrowed {
            self.keep_data(data);
        }
        self.line_cut_off = false;
        line.clear();
        self.line = line;
    }

    fn end_line<'s>(
        &mut self,
        mut line: &'s [u8],
        borrowed: &mut Option<&'s [u8]>,
        on_event: &mut impl FnMut(Result<Event<'_>, EventTooLarge>),
    ) {
        if std::mem::take(&mut self.at_start) {
            line = line.strip_prefix(BOM).unwrap_or(line);
        }
        match Line::read(line) {
            Line::Blank => self.end_event(borrowed.take(), on_event),
            Line::Data(_) if self.line_cut_off => {
                self.has_data = true;
                self.skip_event();
            }
            Line::Data(value) if self.has_data => {
                if let Some(first) = borrowed.take() {
                    self.keep_data(first);
                }
                self.keep_data(b"\n");
                self.keep_data(value);
            }
            Line::Data(value) => {
                self.has_data = true;
                *borrowed = Some(value);
            }
            Line::Name(value) => {
                self.name.clear();
                self.name.extend_from_slice(&value[..value.len().min(MAX_NAME)]);
            }
            Line::Other => {}
        }
    }

    fn end_event(
        &mut self,
        borrowed: Option<&[u8]>,
        on_event: &mut impl FnMut(Result<Event<'_>, EventTooLarge>),
    ) {
        let data = borrowed.unwrap_or(&self.data);
        if self.oversize || data.len() > self.limit {
            on_event(Err(EventTooLarge { limit: self.limit }));
        } else if self.has_data {
            on_event(Ok(Event { name: &self.name, data }));
        }
        self.data.clear();
        self.name.clear();
        self.has_data = false;
        self.oversize = false;
    }

    fn keep_data(&mut self, value: &[u8]) {
        if self.data.len() + value.len() > self.limit {
            self.skip_event();
        } else if !self.oversize {
            self.data.extend_from_slice(value);
        }
    }

    fn skip_event(&mut self) {
        self.oversize = true;
        // Not `clear`: one huge event must not pin its memory for the rest of the stream.
        self.data = Vec::new();
    }

    fn keep_line(&mut self, part: &[u8]) {
        // Whatever is cut off here is more data than the event may have, or more of a name than is
        // kept of it, also where the data leaves little room.
        let room = self.limit.saturating_add(MAX_LINE_HEAD).saturating_sub(self.data.len());
        let room = room.max(MAX_NAME_LINE).saturating_sub(self.line.len());
        self.line_cut_off |= part.len() > room;
        self.line.extend_from_slice(&part[..part.len().min(room)]);
    }
}

/// What may stand before the value of a data line: a byte order mark and `data: `.
const MAX_LINE_HEAD: usize = BOM.len() + b"data: ".len();

/// Event names that mean something here are far shorter.
const MAX_NAME: usize = 64;

/// A line whose name is as long as is kept.
const MAX_NAME_LINE: usize = BOM.len() + b"event: ".len() + MAX_NAME;

enum Line<'l> {
    Blank,
    Data(&'l [u8]),
    Name(&'l [u8]),
    /// A comment or a field without meaning here.
    Other,
}

impl<'l> Line<'l> {
    fn read(line: &'l [u8]) -> Self {
        if line.is_empty() {
            Self::Blank
        } else if let Some(rest) = line.strip_prefix(b"data") {
            field_value(rest).map_or(Self::Other, Self::Data)
        } else if let Some(rest) = line.strip_prefix(b"event") {
            field_value(rest).map_or(Self::Other, Self::Name)
        } else {
            Self::Other
        }
    }
}

/// Reads what follows a field name; a field without a colon has an empty value.
fn field_value(rest: &[u8]) -> Option<&[u8]> {
    match rest.strip_prefix(b":") {
        Some(value) => Some(value.strip_prefix(b" ").unwrap_or(value)),
        None => rest.is_empty().then_some(rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Seen = Result<(String, String), EventTooLarge>;

    fn split(segments: &[&[u8]], limit: usize) -> Vec<Seen> {
        let mut splitter = Splitter::new(limit);
        let mut seen = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        for segment in segments {
            splitter.push(segment, |event| {
                seen.push(event.map(|event| (text(event.name), text(event.data))));
            });
        }
        splitter.finish(|event| seen.push(event.map(|event| (text(event.name), text(event.data)))));
        seen
    }

    /// Splits the text whole, in single bytes and at every cut, and insists on equal results.
    fn split_anyhow(text: &[u8], limit: usize) -> Vec<Seen> {
        let whole = split(&[text], limit);
        assert_eq!(split(&text.chunks(1).collect::<Vec<_>>(), limit), whole);
        for cut in 0..=text.len() {
            let (head, tail) = text.split_at(cut);
            assert_eq!(split(&[head, b"", tail], limit), whole, "cut at {cut}");
        }
        whole
    }

    fn data(text: &str) -> Seen {
        Ok((String::new(), text.to_owned()))
    }

    #[test]
    fn every_line_end_ends_a_line_also_mixed() {
        for text in [
            "data: a\n\ndata: b\n\n",
            "data: a\r\n\r\ndata: b\r\n\r\n",
            "data: a\r\rdata: b\r\r",
            "data: a\n\r\ndata: b\r\r\n",
        ] {
            assert_eq!(split_anyhow(text.as_bytes(), 64), [data("a"), data("b")], "{text:?}");
        }
    }

    #[test]
    fn one_space_after_the_colon_is_optional_and_only_one_is_dropped() {
        assert_eq!(split_anyhow(b"data:x\n\ndata:  x\n\n", 64), [data("x"), data(" x")]);
    }

    #[test]
    fn comments_and_other_fields_are_dropped() {
        let text = b": busy\n\n:\nid: q-1\nevent: message\nretry: 100\ndatum: z\ndata: y\n\n";
        assert_eq!(split_anyhow(text, 64), [Ok(("message".to_owned(), "y".to_owned()))]);
    }

    #[test]
    fn data_lines_join_with_line_feeds_and_empty_ones_count() {
        assert_eq!(
            split_anyhow(b"data: a\ndata\ndata: b\n\ndata:\n\n", 64),
            [data("a\n\nb"), data("")]
        );
    }

    #[test]
    fn a_byte_order_mark_is_dropped_at_the_start_only() {
        let text = b"\xEF\xBB\xBFdata: a\n\n\xEF\xBB\xBFdata: b\n\ndata: c\n\n";
        assert_eq!(split_anyhow(text, 64), [data("a"), data("c")]);
    }

    #[test]
    fn the_last_event_needs_no_blank_line() {
        for text in ["data: a", "data: a\n", "data: a\r", "data: a\r\n"] {
            assert_eq!(split_anyhow(text.as_bytes(), 64), [data("a")], "{text:?}");
        }
        assert_eq!(split_anyhow(b"event: x\n", 64), []);
    }

    #[test]
    fn a_name_behind_much_data_is_read_the_same_however_it_is_cut() {
        let stream = format!("data: {}\nevent: error\n\n", "x".repeat(60));
        for cut in 0..stream.len() {
            let mut splitter = Splitter::new(64);
            let mut names = Vec::new();
            for part in [&stream[..cut], &stream[cut..]] {
                splitter.push(part.as_bytes(), |event| {
                    names.push(event.map(|event| event.name.to_vec()));
                });
            }
            assert_eq!(names, [Ok(b"error".to_vec())], "cut at {cut}");
        }
    }

    #[test]
    fn a_name_belongs_to_one_event() {
        let text = b"event: ping\n\nevent: error\ndata: a\n\ndata: b\n\n";
        assert_eq!(split_anyhow(text, 64), [Ok(("error".to_owned(), "a".to_owned())), data("b")]);
    }

    #[test]
    fn an_event_above_the_cap_is_left_out_and_the_next_is_not() {
        let large = Err(EventTooLarge { limit: 4 });
        let text = b"data: 12345\n\ndata: 1234\n\ndata: 12\ndata: 34\n\ndata: 12\ndata: 3\n\n";
        assert_eq!(
            split_anyhow(text, 4),
            [large.clone(), data("1234"), large.clone(), data("12\n3")]
        );
        assert_eq!(split_anyhow(b"data:123456789\ndata: 1\n\ndata: 1\n\n", 4), [large, data("1")]);
    }

    #[test]
    fn a_long_comment_is_not_an_event_above_the_cap() {
        assert_eq!(split_anyhow(b": a comment beyond the cap\ndata: 1\n\n", 4), [data("1")]);
    }
}
