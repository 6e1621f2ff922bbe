//! Tells progress from keep-alives in a relayed SSE stream, and notices where the stream says that it is
//! done, without buffering or copying.
//!
//! Not progress: comments, blank lines, `id`, `retry` and `event` fields, `data` without anything
//! but white space, and whatever is in an event that named itself `ping` before its data. Every
//! other byte is progress, also one that is not SSE at all.
//!
//! ```text
//!            ':'                                     any line end
//!  LineStart ----> Skipped -------------------------------------------> LineStart
//!     |  name byte
//!     '---------> Field --"event:"--> Name ---------------------------> LineStart (ping or not)
//!                   |----"data:"---> Data --other than white space--> Content --> LineStart
//!                   |                 '--------"[DONE]"-----> Mark ----------------> LineStart (done)
//!                   |----"id:" ----> Skipped
//!                   '----else -----> Content
//! ```
//!
//! The mark is the first `data` line of its event and holds nothing else. Where it ends, the stream is
//! done: that a blank line must follow is a rule that providers break.

use memchr::memchr2;

/// Watches the bytes of one SSE stream.
#[derive(Debug)]
pub struct ProgressScan {
    at: At,
    /// The event named itself `ping`.
    is_ping: bool,
    /// The event has a `data` line already.
    has_data: bool,
    is_done: bool,
    after_cr: bool,
    /// How much of a byte order mark was seen; past it, the stream has begun.
    mark: usize,
}

#[derive(Debug, Clone, Copy)]
enum At {
    LineStart,
    /// In a field's name, which begins with these bytes.
    Field {
        name: [u8; MAX_FIELD],
        len: usize,
    },
    /// In the value of `event`, which matches this many bytes of `ping`.
    Name {
        matched: Option<usize>,
    },
    /// In the value of `data`, white space so far.
    Data {
        /// Whether it is the first of its event.
        is_first: bool,
    },
    /// In a value that matches this many bytes of `[DONE]`.
    Mark {
        matched: usize,
    },
    /// In a line that shows progress.
    Content,
    /// In a line that does not, whatever else it holds.
    Skipped,
}

const BOM: &[u8] = b"\xEF\xBB\xBF";
const PING: &[u8] = b"ping";
/// How OpenAI's streams end.
const DONE: &[u8] = b"[DONE]";
/// The longest field name that means something: `event` and `retry`.
const MAX_FIELD: usize = 5;

impl Default for ProgressScan {
    fn default() -> Self {
        Self::new()
    }
}

impl ProgressScan {
    /// Makes a scan for the beginning of a stream.
    pub const fn new() -> Self {
        Self {
            at: At::LineStart,
            is_ping: false,
            has_data: false,
            is_done: false,
            after_cr: false,
            mark: 0,
        }
    }

    /// Says whether the stream's own mark of its end passed, `data: [DONE]`.
    pub const fn is_done(&self) -> bool {
        self.is_done
    }

    /// Says whether the next segment shows that the provider is getting on.
    pub fn scan(&mut self, segment: &[u8]) -> bool {
        let mut progress = false;
        let mut rest = self.skip_byte_order_mark(segment);
        if self.after_cr && !rest.is_empty() {
            self.after_cr = false;
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while !rest.is_empty() {
            // A whole line of content is the common case and needs no look at its single bytes.
            let end = memchr2(b'\n', b'\r', rest);
            let line = &rest[..end.unwrap_or(rest.len())];
            progress |= self.scan_line(line);
            let Some(end) = end else { break };
            progress |= self.end_line();
            rest = match &rest[end..] {
                [b'\r'] => {
                    self.after_cr = true;
                    &[]
                }
                [b'\r', b'\n', rest @ ..] | [_, rest @ ..] => rest,
                [] => &[],
            };
        }
        progress
    }

    fn skip_byte_order_mark<'s>(&mut self, segment: &'s [u8]) -> &'s [u8] {
        let mut rest = segment;
        while let (Some(expected), Some((byte, tail))) = (BOM.get(self.mark), rest.split_first()) {
            if byte != expected {
                self.mark = BOM.len();
                break;
            }
            self.mark += 1;
            rest = tail;
        }
        rest
    }

    /// Looks at the next part of a line.
    fn scan_line(&mut self, part: &[u8]) -> bool {
        let mut progress = false;
        let mut rest = part;
        while let Some((&byte, tail)) = rest.split_first() {
            self.at = match self.at {
                At::Content => return true,
                At::Skipped => return progress,
                At::LineStart if byte == b':' => At::Skipped,
                At::LineStart => match rest.strip_prefix(b"data:") {
                    Some(value) => {
                        rest = value;
                        self.at = self.data();
                        continue;
                    }
                    None => Self::field([0; MAX_FIELD], 0, byte),
                },
                At::Field { name, len } if byte == b':' => match &name[..len] {
                    b"data" => self.data(),
                    b"event" => At::Name { matched: Some(0) },
                    b"id" | b"retry" => At::Skipped,
                    _ => At::Content,
                },
                At::Field { name, len } => Self::field(name, len, byte),
                At::Name { matched: Some(0) } if byte == b' ' => self.at,
                At::Name { matched } => At::Name {
                    matched: matched
                        .filter(|matched| PING.get(*matched) == Some(&byte))
                        .map(|matched| matched + 1),
                },
                At::Data { .. } if matches!(byte, b' ' | b'\t') => self.at,
                At::Data { is_first: true } if byte == DONE[0] => At::Mark { matched: 1 },
                At::Data { .. } => At::Content,
                At::Mark { matched } => match DONE.get(matched) {
                    Some(&expected) if byte == expected => At::Mark { matched: matched + 1 },
                    Some(_) | None => At::Content,
                },
            };
            match self.at {
                At::Content => return true,
                At::Mark { .. } => progress = true,
                At::LineStart
                | At::Field { .. }
                | At::Name { .. }
                | At::Data { .. }
                | At::Skipped => {}
            }
            rest = tail;
        }
        progress
    }

    fn data(&mut self) -> At {
        let is_first = !std::mem::replace(&mut self.has_data, true);
        if self.is_ping { At::Skipped } else { At::Data { is_first } }
    }

    fn field(mut name: [u8; MAX_FIELD], len: usize, byte: u8) -> At {
        match name.get_mut(len) {
            Some(place) => {
                *place = byte;
                At::Field { name, len: len + 1 }
            }
            None => At::Content,
        }
    }

    fn end_line(&mut self) -> bool {
        match std::mem::replace(&mut self.at, At::LineStart) {
            At::LineStart => {
                self.is_ping = false;
                self.has_data = false;
            }
            At::Field { name, len } => match &name[..len] {
                b"data" => self.has_data = true,
                b"id" | b"retry" => {}
                b"event" => self.is_ping = false,
                _ => return true,
            },
            At::Name { matched } => self.is_ping = matched == Some(PING.len()),
            At::Mark { matched } => self.is_done |= matched == DONE.len(),
            At::Data { .. } | At::Content | At::Skipped => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scans the text whole, in single bytes and at every cut, and insists on one answer.
    fn progresses(text: &[u8]) -> bool {
        let whole = ProgressScan::new().scan(text);
        let mut scan = ProgressScan::new();
        let bytes = text.chunks(1).fold(false, |seen, byte| seen | scan.scan(byte));
        assert_eq!(bytes, whole, "in bytes: {text:?}");
        for cut in 0..=text.len() {
            let (head, tail) = text.split_at(cut);
            let mut scan = ProgressScan::new();
            let cut_up = scan.scan(head) | scan.scan(b"") | scan.scan(tail);
            assert_eq!(cut_up, whole, "cut at {cut}: {text:?}");
        }
        whole
    }

    #[test]
    fn keep_alives_are_not_progress() {
        for text in [
            &b""[..],
            b"\n",
            b"\r\n\r\n",
            b":\n\n",
            b": keep-alive {\"choices\":[]}\r\n\r\n",
            b"event: ping\ndata: {\"type\": \"ping\"}\n\n",
            b"event:ping\r\ndata: {}\r\n\r\n",
            b"data:\n\n",
            b"data: \t\n\n",
            b"data\n\n",
            b"id: 7\nretry: 100\n\n",
            b"id\nretry\nevent\n\n",
            b"event: message\n\n",
            b"\xEF\xBB\xBF: hello\n\n",
        ] {
            assert!(!progresses(text), "{text:?}");
        }
    }

    #[test]
    fn data_is_progress() {
        for text in [
            &b"data: {\"choices\":[]}\n\n"[..],
            b"data:x",
            b"data: [DONE]\n\n",
            b"event: pings\ndata: x\n\n",
            b"event: pin\ndata: x\n\n",
            b"event: ping\n\ndata: x\n\n",
            b"event: ping\nevent: message\ndata: x\n\n",
            b"event: ping\nevent\ndata: x\n\n",
            b": busy\n\ndata: x\n\n",
            b"\xEF\xBB\xBFdata: x\n\n",
        ] {
            assert!(progresses(text), "{text:?}");
        }
    }

    /// Scans the text in every cut, and insists on one answer.
    fn is_done(text: &[u8]) -> bool {
        let mut scan = ProgressScan::new();
        scan.scan(text);
        let whole = scan.is_done();
        for cut in 0..=text.len() {
            let (head, tail) = text.split_at(cut);
            let mut scan = ProgressScan::new();
            scan.scan(head);
            scan.scan(tail);
            assert_eq!(scan.is_done(), whole, "cut at {cut}: {text:?}");
        }
        whole
    }

    #[test]
    fn a_stream_is_done_where_the_line_of_its_mark_ends() {
        for text in [
            &b"data: [DONE]\n"[..],
            b"data: {}\n\ndata: [DONE]\n\n",
            b"data:[DONE]\r\n\r\n",
            b"data: x\r\rdata: [DONE]\r\r: and more\r\r",
            b"event: message\nid: 7\ndata: [DONE]\n\n",
            b"data: [DONE]\n\ndata: x\n\n",
        ] {
            assert!(is_done(text), "{text:?}");
        }
    }

    #[test]
    fn what_only_looks_like_the_mark_ends_nothing() {
        for text in [
            &b"data: [DONE]"[..],
            b"data: [DONE\n\n",
            b"data: [DONE]]\n\n",
            b"data: [DONE] x\n\n",
            b"data: \"[DONE]\"\n\n",
            b"data: [done]\n\n",
            b": [DONE]\n\n",
            b": data: [DONE]\n\n",
            b"[DONE]\n\n",
            b"id: [DONE]\n\n",
            b"data: a\ndata: [DONE]\n\n",
            b"data\ndata: [DONE]\n\n",
            b"event: ping\ndata: [DONE]\n\n",
        ] {
            assert!(!is_done(text), "{text:?}");
        }
    }

    #[test]
    fn bytes_that_are_not_sse_are_progress() {
        for text in [&b"{\"error\":\"x\"}"[..], b"<html>", b"longfield: x\n", b"dat\n", b"\xFF\n"] {
            assert!(progresses(text), "{text:?}");
        }
    }

    #[test]
    fn each_segment_of_a_long_line_is_progress() {
        let mut scan = ProgressScan::new();
        assert!(!scan.scan(b"data: "));
        assert!(scan.scan(b"{\"content\":\"a"));
        assert!(scan.scan(b"b"));
        assert!(!scan.scan(b"\n\n: ping"));
        assert!(!scan.scan(b" and more\n"));
    }
}
