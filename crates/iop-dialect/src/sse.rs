//! Server-sent events: splitting them, and telling progress from keep-alives.

mod progress;
mod splitter;

pub use progress::ProgressScan;
pub use splitter::{Event, EventTooLarge, MAX_EVENT, Splitter};

/// Says whether a `content-type` value announces an SSE stream.
pub fn is_event_stream(content_type: &[u8]) -> bool {
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_type_is_recognised_whatever_its_case_and_parameters() {
        assert!(is_event_stream(b"text/event-stream"));
        assert!(is_event_stream(b"Text/Event-Stream; charset=utf-8"));
        assert!(is_event_stream(b" text/event-stream ;charset=utf-8"));
        assert!(!is_event_stream(b"text/event-stream-2"));
        assert!(!is_event_stream(b"application/json"));
        assert!(!is_event_stream(b""));
    }
}
