//! The body of a streamed chat answer.

use super::knobs::Knobs;
use crate::monotonic::now_ns;
use crate::stamp::Stamp;
use bytes::Bytes;
use http_body::{Body, Frame};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Any fixed time: nobody interprets it.
pub(super) const CREATED: u64 = 1_733_000_000;

/// Yields one event a frame, each in a write of its own.
#[derive(Debug)]
pub(crate) struct SseBody {
    knobs: Knobs,
    usage: bool,
    /// What every event of this stream begins with, up to the value of `choices`.
    prefix: String,
    next: Next,
    schedule: Pin<Box<Sleep>>,
    start: Instant,
    /// Whether the connection has had its turn to write the last frame.
    flushed: bool,
}

#[derive(Clone, Copy, Debug)]
enum Next {
    Role,
    Content(u64),
    Finish,
    Usage,
    Done,
    End,
}

impl SseBody {
    pub(super) fn new(model: &str, knobs: Knobs, usage: bool) -> Self {
        let model = serde_json::Value::from(model);
        let prefix = format!(
            "data: {{\"id\":\"chatcmpl-bench-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\
             \"created\":{CREATED},\"model\":{model},\"choices\":["
        );
        let start = Instant::now();
        let schedule = Box::pin(tokio::time::sleep_until(start));
        Self { knobs, usage, prefix, next: Next::Role, schedule, start, flushed: true }
    }

    fn choice(&self, delta: &str, finish: &str) -> Bytes {
        let prefix = &self.prefix;
        let rest = format_args!(
            "{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{finish}}}]}}\n\n"
        );
        Bytes::from(format!("{prefix}{rest}"))
    }

    fn content(&self, index: u64) -> Bytes {
        let stamp = Stamp { index, made_ns: now_ns() }.text();
        let pad = "x".repeat(self.knobs.pad);
        self.choice(&format!("{{\"content\":\"{stamp} {pad}tok\"}}"), "null")
    }

    /// The frame that is due and what follows it.
    fn step(&self) -> Option<(Bytes, Next)> {
        let chunks = self.knobs.chunks;
        let content_or_finish =
            |index| if index < chunks { Next::Content(index) } else { Next::Finish };
        Some(match self.next {
            Next::Role => {
                let delta = "{\"role\":\"assistant\",\"content\":\"\"}";
                (self.choice(delta, "null"), content_or_finish(0))
            }
            Next::Content(index) => (self.content(index), content_or_finish(index + 1)),
            Next::Finish => {
                let next = if self.usage { Next::Usage } else { Next::Done };
                (self.choice("{}", "\"stop\""), next)
            }
            Next::Usage => {
                let usage = format!(
                    "{}],\"usage\":{{\"prompt_tokens\":16,\"completion_tokens\":{chunks},\
                     \"total_tokens\":{}}}}}\n\n",
                    self.prefix,
                    chunks + 16
                );
                (Bytes::from(usage), Next::Done)
            }
            Next::Done => (Bytes::from_static(b"data: [DONE]\n\n"), Next::End),
            Next::End => return None,
        })
    }
}

impl Body for SseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if !self.flushed {
            // hyper writes when its body has nothing to give: one chunk, one write.
            self.flushed = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Next::Content(index) = self.next {
            if self.knobs.cut == Some(index) {
                return Poll::Ready(Some(Err(io::Error::other("cut as the prompt asked"))));
            }
            if self.knobs.delay_us > 0 {
                let due = self.start + Duration::from_micros(self.knobs.delay_us * index);
                if self.schedule.deadline() != due {
                    self.schedule.as_mut().reset(due);
                }
                ready!(self.schedule.as_mut().poll(context));
            }
        }
        let Some((frame, next)) = self.step() else { return Poll::Ready(None) };
        self.next = next;
        self.flushed = false;
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }
}
