//! Newline-delimited JSON: splits a byte stream into lines, whatever the segmentation.

use memchr::memchr;

/// Incremental line splitter. Lines end with LF or CRLF; blank lines are dropped.
#[derive(Debug)]
pub struct Splitter {
    limit: usize,
    line: Vec<u8>,
    oversize: bool,
}

/// A line passed the cap; it is left out, the lines after it are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a line of the stream is larger than the cap of {limit} bytes")]
pub struct LineTooLarge {
    /// The cap in bytes.
    pub limit: usize,
}

impl Default for Splitter {
    fn default() -> Self {
        Self::new(crate::sse::MAX_EVENT)
    }
}

impl Splitter {
    /// Makes a splitter that keeps at most `limit` bytes of one line.
    pub fn new(limit: usize) -> Self {
        Self { limit, line: Vec::new(), oversize: false }
    }

    /// Takes the next segment and hands out every line that ends in it.
    pub fn push(&mut self, segment: &[u8], mut on_line: impl FnMut(Result<&[u8], LineTooLarge>)) {
        let mut rest = segment;
        while let Some(end) = memchr(b'\n', rest) {
            let (head, tail) = rest.split_at(end);
            rest = &tail[1..];
            self.end_line(head, &mut on_line);
        }
        self.keep(rest);
    }

    /// Ends the stream: what is left counts as a line although no line feed follows it.
    pub fn finish(&mut self, mut on_line: impl FnMut(Result<&[u8], LineTooLarge>)) {
        self.end_line(b"", &mut on_line);
    }

    fn end_line(&mut self, last: &[u8], on_line: &mut impl FnMut(Result<&[u8], LineTooLarge>)) {
        if !self.line.is_empty() || self.oversize {
            self.keep(last);
        }
        let line = if self.line.is_empty() { last } else { &self.line };
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if self.oversize || line.len() > self.limit {
            on_line(Err(LineTooLarge { limit: self.limit }));
            self.line = Vec::new();
        } else if !line.trim_ascii().is_empty() {
            on_line(Ok(line));
        }
        self.line.clear();
        self.oversize = false;
    }

    fn keep(&mut self, part: &[u8]) {
        // One more for the CR that is not part of the line.
        if self.line.len() + part.len() <= self.limit.saturating_add(1) {
            self.line.extend_from_slice(part);
        } else {
            self.oversize = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(segments: &[&[u8]], limit: usize) -> Vec<Result<Vec<u8>, LineTooLarge>> {
        let mut splitter = Splitter::new(limit);
        let mut seen = Vec::new();
        for segment in segments {
            splitter.push(segment, |line| seen.push(line.map(<[u8]>::to_vec)));
        }
        splitter.finish(|line| seen.push(line.map(<[u8]>::to_vec)));
        seen
    }

    #[test]
    fn lines_are_the_same_for_every_cut() {
        let text = b"{\"a\":1}\r\n\n{\"b\":\"\xEC\x95\x88\"}\n \n{\"c\":3}";
        let whole = lines(&[text], 64);
        assert_eq!(whole.len(), 3);
        for cut in 0..=text.len() {
            let (head, tail) = text.split_at(cut);
            assert_eq!(lines(&[head, tail], 64), whole, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(lines(&bytes, 64), whole);
    }

    #[test]
    fn a_line_above_the_cap_is_left_out_and_the_next_is_not() {
        let text = b"123456\n1234\r\n12345\r\n";
        let expected = vec![
            Err(LineTooLarge { limit: 4 }),
            Ok(b"1234".to_vec()),
            Err(LineTooLarge { limit: 4 }),
        ];
        assert_eq!(lines(&[text], 4), expected);
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(lines(&bytes, 4), expected);
    }
}
