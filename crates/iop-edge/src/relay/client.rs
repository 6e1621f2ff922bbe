//! The client's side of a request: whether it is there and whether it reads.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use http_body::Frame;
use iop_dispatch::{ClientIdle, IdleRule};

use super::answer::Head;
use super::{Broken, Incoming, Request};

/// What is known of a client.
pub(super) struct Client {
    idle: ClientIdle,
    /// Bytes that were handed over last and are not known to be accepted.
    handed: u64,
    /// Whoever polls on the client's behalf.
    waker: Option<Waker>,
}

impl Client {
    /// A client that has been handed nothing.
    pub(super) const fn new(rule: IdleRule) -> Self {
        Self { idle: ClientIdle::new(rule), handed: 0, waker: None }
    }

    /// Bytes were handed over: the ones before them have found room.
    pub(super) fn handle_handed(&mut self, now: Instant, bytes: usize) {
        self.idle.handle_accepted(now, std::mem::replace(&mut self.handed, bytes as u64), true);
    }

    /// More was asked for than there is: all that was handed over has found room.
    pub(super) fn handle_caught_up(&mut self, now: Instant) {
        self.idle.handle_accepted(now, std::mem::take(&mut self.handed), false);
    }

    /// Says whether the client has stopped reading.
    pub(super) fn is_stalled(&self, now: Instant) -> bool {
        self.idle.is_stalled(now)
    }

    /// Nobody polls any more.
    pub(super) fn handle_gone(&mut self) {
        self.waker = None;
    }

    /// Whoever polls is to be woken.
    pub(super) fn note(&mut self, cx: &Context<'_>) {
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
    }

    /// Something happened that nobody polled for.
    pub(super) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

/// The client's presence: held by the handler, then by the response body. Dropping it means that the
/// client is gone.
pub(crate) struct Attendance(pub(super) Arc<Request>);

impl Attendance {
    /// Waits for the head of the answer.
    pub(crate) async fn head(&self) -> Head {
        std::future::poll_fn(|cx| self.0.poll_head(cx)).await
    }

    /// Returns what is left of the client's body when an error answers it too early. A body that is
    /// answered otherwise goes on to the provider.
    pub(crate) fn unread(&self, head: &Head) -> Option<Box<dyn Incoming>> {
        let is_error = match head {
            Head::Whole(response) => !response.status().is_success(),
            Head::Relayed { status, .. } => status.is_client_error() || status.is_server_error(),
        };
        let upload = self.0.with(|state, _| state.upload.take_if(|_| is_error))?;
        (!upload.has_ended()).then(|| upload.into_source())
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        self.0.handle_client_gone();
    }
}

/// The body of a relayed answer, as hyper sees it. Dropping it before its end means that the client is
/// gone.
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
        self.0.0.poll_frame(cx)
    }
}
