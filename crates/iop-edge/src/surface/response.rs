//! Response bodies of every surface.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use http_body::{Body, Frame, SizeHint};

use crate::command::Answer;
use crate::relay::{Broken, RelayBody};

/// A response body.
pub(crate) enum ResponseBody {
    /// In memory, perhaps empty, perhaps taken already.
    Whole(Bytes),
    /// Relayed from a provider as it comes.
    Relayed(RelayBody),
    /// Of a command, as it comes.
    Command(Answer),
}

impl ResponseBody {
    /// Makes a body that is in memory.
    pub(crate) const fn whole(bytes: Bytes) -> Self {
        Self::Whole(bytes)
    }

    /// Makes a body without bytes.
    pub(crate) const fn empty() -> Self {
        Self::Whole(Bytes::new())
    }
}

/// Answers 200 with JSON.
pub(crate) fn json(body: impl Into<Bytes>) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::whole(body.into()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Relayed(body) => body.poll_frame(cx),
            Self::Command(answer) => answer.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Relayed(_) | Self::Command(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Relayed(_) | Self::Command(_) => SizeHint::default(),
        }
    }
}
