//! Finds the usage of a relayed unary JSON answer in bounded memory.

use iop_types::Usage;

use super::read_figures;
use super::search::USAGE;

/// What is kept of the beginning and of the end of a body, each. Servers write the usage object
/// before or after the content, and it is a few hundred bytes long.
const WINDOW: usize = 16 << 10;

/// Learns usage of a unary JSON answer from the bytes that pass.
///
/// Keeps the first and the last 16 KiB; usage that lies elsewhere is unknown.
#[derive(Debug, Default)]
pub struct BodyObserver {
    head: Vec<u8>,
    /// The last bytes behind the head: at least a window of them where there are so many.
    tail: Vec<u8>,
    /// Bytes between head and tail were let go.
    has_gap: bool,
}

impl BodyObserver {
    /// Makes an observer for the beginning of a body.
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks at the next segment.
    pub fn observe(&mut self, segment: &[u8]) {
        let (head, rest) = segment.split_at(segment.len().min(WINDOW - self.head.len()));
        self.head.extend_from_slice(head);
        let last = &rest[rest.len().saturating_sub(WINDOW)..];
        let keep = WINDOW - last.len();
        let is_full = self.tail.len() + last.len() > 2 * WINDOW;
        // Half of the buffer moves at a time, so that each byte moves once on average.
        if is_full || last.len() < rest.len() {
            let let_go = self.tail.len().saturating_sub(keep);
            self.has_gap |= let_go > 0 || last.len() < rest.len();
            self.tail.drain(..let_go);
        }
        self.tail.extend_from_slice(last);
    }

    /// Ends the body and returns its usage, `None` when it has none that can be read.
    pub fn finish(mut self) -> Option<Usage> {
        if self.has_gap {
            find_usage(&self.tail).or_else(|| find_usage(&self.head))
        } else {
            self.head.append(&mut self.tail);
            find_usage(&self.head)
        }
    }
}

/// Finds the last usage object that can be read.
fn find_usage(text: &[u8]) -> Option<Usage> {
    USAGE.values(text).filter(|value| value[0] == b'{').filter_map(read_figures).last()
}

#[cfg(test)]
mod tests {
    use super::*;

    const USAGE_TEXT: &str = r#""usage":{"prompt_tokens":7,"completion_tokens":5}"#;
    const EXPECTED: Option<Usage> = Some(Usage { input_tokens: 7, output_tokens: 5 });

    fn observe(body: &[u8], segment: usize) -> Option<Usage> {
        let mut observer = BodyObserver::new();
        for part in body.chunks(segment) {
            observer.observe(part);
            assert!(observer.head.len() + observer.tail.len() <= 3 * WINDOW);
        }
        observer.finish()
    }

    #[test]
    fn usage_is_found_before_and_after_content_of_any_size() {
        for len in [0, 100, WINDOW - 30, WINDOW, 2 * WINDOW - 20, 3 * WINDOW, 100 * WINDOW] {
            let content = "x".repeat(len);
            let after = format!(r#"{{"choices":[{{"text":"{content}"}}],{USAGE_TEXT}}}"#);
            let before = format!(r#"{{{USAGE_TEXT},"choices":[{{"text":"{content}"}}]}}"#);
            for segment in [61, 1_000, WINDOW, 40_000, usize::MAX] {
                assert_eq!(observe(after.as_bytes(), segment), EXPECTED, "{len} in {segment}");
                assert_eq!(observe(before.as_bytes(), segment), EXPECTED, "{len} in {segment}");
            }
        }
    }

    #[test]
    fn content_that_looks_like_usage_is_not_usage() {
        let body =
            r#"{"choices":[{"text":"\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}"}]}"#;
        assert_eq!(observe(body.as_bytes(), 10), None);
    }

    #[test]
    fn what_lies_before_and_behind_a_gap_is_not_joined() {
        let before = r#""usage":{"prompt_tokens":9"#;
        let behind = r#","completion_tokens":9}"#;
        let padding = |len| "x".repeat(len);
        let head = format!("{}{before}", padding(WINDOW - before.len()));
        let tail = format!("{behind}{}", padding(WINDOW - behind.len()));
        let body = format!("{head}{}{tail}", padding(2 * WINDOW));
        for segment in [WINDOW, 3 * WINDOW, usize::MAX] {
            assert_eq!(observe(body.as_bytes(), segment), None, "{segment}");
        }
        let whole = format!("{head}{tail}");
        assert!(observe(whole.as_bytes(), usize::MAX).is_some());
    }

    #[test]
    fn a_body_without_readable_usage_is_unknown() {
        for body in [
            "",
            "{}",
            "nope",
            r#"{"usage":null}"#,
            r#"{"usage":{"prompt_tokens":"a"}}"#,
            r#"{"usage":{"#,
        ] {
            assert_eq!(observe(body.as_bytes(), 3), None, "{body}");
        }
    }
}
