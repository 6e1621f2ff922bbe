//! A relayed answer as hyper sees it.

use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;

use super::{Attendance, Broken};

/// The body of a relayed answer. Dropping it before its end means that the client is gone.
pub(crate) struct RelayBody(Attendance);

impl RelayBody {
    /// Relays what the request yields from now on.
    pub(crate) const fn new(attendance: Attendance) -> Self {
        Self(attendance)
    }

    /// Yields the next piece.
    pub(crate) fn poll_frame(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.0.poll_frame(cx)
    }
}
