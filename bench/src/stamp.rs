//! The mark inside each content chunk: its index and the moment when it was made.
//!
//! It is part of the text, so it survives every gateway that hands text on, and it tells the
//! receiver two things at once: how long the chunk was under way, and whether one is missing, doubled
//! or out of order.

use memchr::{memchr, memmem};

const MARK: &[u8] = b"@#";
const INDEX_DIGITS: usize = 7;
const TIME_DIGITS: usize = 20;
const DONE: &[u8] = b"data: [DONE]";

/// One mark as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The index of the chunk in its stream.
    pub(crate) index: u64,
    /// When the chunk was made, on the machine's monotonic clock.
    pub(crate) made_ns: u64,
}

impl Stamp {
    /// The mark as text.
    pub(crate) fn text(self) -> String {
        format!("@#{:0INDEX_DIGITS$}:{:0TIME_DIGITS$}", self.index, self.made_ns)
    }

    fn read(line: &[u8]) -> Option<Self> {
        let start = memmem::find(line, MARK)? + MARK.len();
        let text = line.get(start..start + INDEX_DIGITS + 1 + TIME_DIGITS)?;
        let (index, time) = std::str::from_utf8(text).ok()?.split_once(':')?;
        Some(Self { index: index.parse().ok()?, made_ns: time.parse().ok()? })
    }
}

/// Reads the marks of one stream, whatever its segmentation.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    tail: Vec<u8>,
    done: bool,
}

impl Reader {
    /// Hands each mark of this segment to `seen`.
    pub(crate) fn read(&mut self, mut bytes: &[u8], mut seen: impl FnMut(Stamp)) {
        while let Some(end) = memchr(b'\n', bytes) {
            let (line, rest) = bytes.split_at(end);
            bytes = &rest[1..];
            if self.tail.is_empty() {
                self.line(line, &mut seen);
            } else {
                let mut whole = std::mem::take(&mut self.tail);
                whole.extend_from_slice(line);
                self.line(&whole, &mut seen);
            }
        }
        self.tail.extend_from_slice(bytes);
    }

    /// Whether `[DONE]` was the last event.
    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    fn line(&mut self, line: &[u8], seen: &mut impl FnMut(Stamp)) {
        if line.starts_with(DONE) {
            self.done = true;
        } else if let Some(stamp) = Stamp::read(line) {
            self.done = false;
            seen(stamp);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_from_any_segmentation() {
        let stamps = [Stamp { index: 0, made_ns: 17 }, Stamp { index: 1, made_ns: u64::MAX }];
        let mut wire = Vec::new();
        for stamp in stamps {
            wire.extend_from_slice(
                format!("data: {{\"content\":\"{} tok\"}}\n\n", stamp.text()).as_bytes(),
            );
        }
        wire.extend_from_slice(b"data: [DONE]\n\n");
        for size in 1..=wire.len() {
            let (mut reader, mut seen) = (Reader::default(), Vec::new());
            for segment in wire.chunks(size) {
                reader.read(segment, |stamp| seen.push(stamp));
            }
            assert_eq!(seen, stamps, "segments of {size}");
            assert!(reader.is_done());
        }
    }

    #[test]
    fn a_stream_without_done_is_not_done() {
        let mut reader = Reader::default();
        reader.read(b"data: [DONE", |_| {});
        assert!(!reader.is_done());
    }
}
