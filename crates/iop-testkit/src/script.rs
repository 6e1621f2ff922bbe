//! The behaviour language of the scripted provider: an answer as a list of small steps.
//!
//! ```
//! use iop_testkit::script::{Cut, OnCancel, Script};
//! use std::time::Duration;
//!
//! // Two events, each byte in a segment of its own, then a reset in the middle of the body.
//! let script = Script::new()
//!     .cut(Cut::EveryByte)
//!     .head(200, &[("content-type", "text/event-stream"), ("transfer-encoding", "chunked")])
//!     .event(r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#)
//!     .wait(Duration::from_millis(5))
//!     .event(r#"{"choices":[{"index":0,"delta":{"content":"b"}}]}"#)
//!     .on_cancel(OnCancel::Ignore)
//!     .reset();
//! assert_eq!(script.steps().len(), 7);
//! ```
//!
//! A script says nothing about framing being right: a `content-length` that is too long and a
//! chunked body without its last chunk are ordinary scripts (see the functions in [`crate::answer`]).

use bytes::Bytes;
use std::fmt::Write as _;
use std::time::Duration;

/// What the provider does with one request, step by step.
#[derive(Clone, Debug, Default)]
pub struct Script(Vec<Step>);

/// One thing that a provider does.
#[derive(Clone, Debug)]
pub enum Step {
    /// Does nothing for a while.
    Wait(Duration),
    /// Writes these bytes as they are.
    Bytes(Bytes),
    /// Reads the rest of the request body, which an early script has left unread.
    ReadBody,
    /// Chooses how the following bytes are cut into segments.
    Cut(Cut),
    /// Chooses what the peer's departure does to the rest of the script.
    OnCancel(OnCancel),
    /// Waits until [`ScriptedProvider::release`](crate::ScriptedProvider::release) is called.
    Hold,
    /// Shuts the sending side, reads on until the peer ends, and closes.
    Fin,
    /// Closes with a TCP reset.
    Reset,
    /// Closes the connection when no other request has come within this time after the answer.
    KeepAlive(Duration),
}

/// How bytes are cut into TCP segments.
#[derive(Clone, Debug, Default)]
pub enum Cut {
    /// One write for each step.
    #[default]
    Whole,
    /// One write for each byte.
    EveryByte,
    /// Writes of these sizes in turn, starting again at the first; zeros are skipped.
    Sizes(Vec<usize>),
}

/// What the provider does when the peer closes its sending side during a script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnCancel {
    /// Stops and closes at once, as a server that watches its client does.
    #[default]
    Stop,
    /// Goes on for this long, then closes.
    StopAfter(Duration),
    /// Goes on to the end of the script, as a server that only notices failed writes does.
    Ignore,
}

impl Script {
    /// Makes a script that does nothing: the connection stays open and silent for the next request.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The steps in order.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// Adds a step.
    #[must_use]
    pub fn then(mut self, step: Step) -> Self {
        self.0.push(step);
        self
    }

    /// Adds all steps of another script.
    #[must_use]
    pub fn chain(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Waits.
    #[must_use]
    pub fn wait(self, time: Duration) -> Self {
        self.then(Step::Wait(time))
    }

    /// Writes raw bytes.
    #[must_use]
    pub fn bytes(self, bytes: impl Into<Bytes>) -> Self {
        self.then(Step::Bytes(bytes.into()))
    }

    /// Writes a status line, these headers and the blank line.
    #[must_use]
    pub fn head(self, status: u16, headers: &[(&str, &str)]) -> Self {
        let mut head = format!("HTTP/1.1 {status} {}\r\n", reason(status));
        for (name, value) in headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        head.push_str("\r\n");
        self.bytes(head)
    }

    /// Writes one chunk of a chunked body.
    #[must_use]
    pub fn chunk(self, payload: impl AsRef<[u8]>) -> Self {
        let payload = payload.as_ref();
        let mut chunk = format!("{:x}\r\n", payload.len()).into_bytes();
        chunk.extend_from_slice(payload);
        chunk.extend_from_slice(b"\r\n");
        self.bytes(chunk)
    }

    /// Writes one server-sent event with this data, as one chunk of a chunked body.
    #[must_use]
    pub fn event(self, data: impl AsRef<str>) -> Self {
        self.chunk(format!("data: {}\n\n", data.as_ref()))
    }

    /// Ends a chunked body.
    #[must_use]
    pub fn last_chunk(self) -> Self {
        self.bytes("0\r\n\r\n")
    }

    /// Reads the rest of the request body (only useful in an early script).
    #[must_use]
    pub fn read_body(self) -> Self {
        self.then(Step::ReadBody)
    }

    /// Cuts the bytes of the following steps into segments.
    #[must_use]
    pub fn cut(self, cut: Cut) -> Self {
        self.then(Step::Cut(cut))
    }

    /// Chooses what the peer's departure does from here on.
    #[must_use]
    pub fn on_cancel(self, on_cancel: OnCancel) -> Self {
        self.then(Step::OnCancel(on_cancel))
    }

    /// Waits until the test releases the provider.
    #[must_use]
    pub fn hold(self) -> Self {
        self.then(Step::Hold)
    }

    /// Shuts the sending side and closes once the peer has ended too.
    #[must_use]
    pub fn fin(self) -> Self {
        self.then(Step::Fin)
    }

    /// Resets the connection.
    #[must_use]
    pub fn reset(self) -> Self {
        self.then(Step::Reset)
    }

    /// Closes the connection when it was idle for `time` after this answer.
    #[must_use]
    pub fn keep_alive(self, time: Duration) -> Self {
        self.then(Step::KeepAlive(time))
    }
}

impl Cut {
    /// Cuts `bytes` into the segments that are written one by one.
    pub(crate) fn segments<'a>(&self, bytes: &'a [u8]) -> Vec<&'a [u8]> {
        let mut sizes: Box<dyn Iterator<Item = usize> + '_> = match self {
            Self::Sizes(sizes) if sizes.iter().any(|&size| size > 0) => {
                Box::new(sizes.iter().copied().filter(|&size| size > 0).cycle())
            }
            Self::EveryByte => Box::new(std::iter::repeat(1)),
            Self::Whole | Self::Sizes(_) => Box::new(std::iter::repeat(usize::MAX)),
        };
        let mut rest = bytes;
        let mut segments = Vec::new();
        while !rest.is_empty() {
            let size = sizes.next().unwrap_or(usize::MAX).min(rest.len());
            let (segment, tail) = rest.split_at(size);
            segments.push(segment);
            rest = tail;
        }
        segments
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        302 => "Found",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Status",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_start_again_when_they_are_used_up_and_zeros_never_loop() {
        let cut = Cut::Sizes(vec![1, 0, 2]);
        assert_eq!(cut.segments(b"abcdefg"), [&b"a"[..], b"bc", b"d", b"ef", b"g"]);
        assert_eq!(Cut::Sizes(vec![0]).segments(b"ab"), [b"ab"]);
        assert!(Cut::EveryByte.segments(b"").is_empty());
    }
}
