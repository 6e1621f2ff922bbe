//! What is sent to a provider.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::http::{HeaderMap, Method};
use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::wire::Line;

/// A request to a provider.
///
/// The pool owns the framing: `host`, `content-length`, `transfer-encoding`, `expect` and the headers
/// that describe a connection are dropped from `headers` and written anew.
#[derive(Debug)]
pub struct Request {
    /// Method.
    pub method: Method,
    /// Path and query as a client would write them; see [`Endpoint`](super::Endpoint) for how they
    /// are joined to the base.
    pub path: String,
    /// Headers of the message.
    pub headers: HeaderMap,
    /// Body.
    pub body: Body,
}

/// The body of a request to a provider.
pub enum Body {
    /// In memory; possibly empty.
    Full(Bytes),
    /// Still arriving.
    Stream {
        /// Yields the parts.
        source: Box<dyn BodySource>,
        /// Its size, where known: sent as `content-length`, else the body is chunked.
        length: Option<u64>,
    },
}

impl Body {
    /// Makes an empty body.
    pub const fn empty() -> Self {
        Self::Full(Bytes::new())
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(bytes) => write!(f, "Full({} bytes)", bytes.len()),
            Self::Stream { length, .. } => write!(f, "Stream({length:?})"),
        }
    }
}

/// A request body that is still arriving.
pub trait BodySource: Send + 'static {
    /// Yields the next part, `None` after the last.
    ///
    /// # Errors
    /// The body will never be complete.
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyLost>>>;
}

/// A request body that will never be complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyLost {
    /// Its source ended early.
    #[error("the request body was cut off")]
    CutOff,
    /// It is not as long as announced.
    #[error("the request body does not have its announced length")]
    WrongLength,
}

/// A [`Body`] as hyper polls it: tells the line when the last byte was handed on, and falls silent
/// once the line is fenced.
pub(super) struct Outgoing {
    body: Body,
    line: Line,
}

impl Outgoing {
    pub(super) fn new(body: Body, line: Line) -> Self {
        let outgoing = Self { body, line };
        if outgoing.is_finished() {
            outgoing.line.body_ended();
        }
        outgoing
    }

    fn is_finished(&self) -> bool {
        match &self.body {
            Body::Full(bytes) => bytes.is_empty(),
            Body::Stream { length, .. } => *length == Some(0),
        }
    }
}

impl http_body::Body for Outgoing {
    type Data = Bytes;
    type Error = BodyLost;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyLost>>> {
        let this = self.get_mut();
        let Some(waker) = this.line.wants_body() else { return Poll::Pending };
        let part = match &mut this.body {
            Body::Full(bytes) if bytes.is_empty() => None,
            Body::Full(bytes) => Some(Ok(std::mem::take(bytes))),
            Body::Stream { source, length } => {
                let part = source.poll_part(&mut Context::from_waker(&waker));
                this.line.body_waits(part.is_pending());
                count(ready!(part), length)
            }
        };
        match part {
            Some(Err(lost)) => this.line.body_lost(lost),
            Some(Ok(_)) if !this.is_finished() => {}
            Some(Ok(_)) | None => this.line.body_ended(),
        }
        Poll::Ready(part.map(|part| part.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.is_finished()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Body::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Body::Stream { length, .. } => {
                length.map_or_else(SizeHint::default, SizeHint::with_exact)
            }
        }
    }
}

/// Holds a part against what is left of the announced length.
fn count(
    part: Option<Result<Bytes, BodyLost>>,
    left: &mut Option<u64>,
) -> Option<Result<Bytes, BodyLost>> {
    let Some(left) = left else { return part };
    match part {
        Some(Ok(bytes)) => match left.checked_sub(bytes.len() as u64) {
            Some(rest) => {
                *left = rest;
                Some(Ok(bytes))
            }
            None => Some(Err(BodyLost::WrongLength)),
        },
        None if *left > 0 => Some(Err(BodyLost::WrongLength)),
        ended => ended,
    }
}
