//! Which requests a connection has in flight, and since when it has none.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::Version;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::Instant;

use super::Peer;

/// What goes on on one connection.
pub(super) struct Activity {
    state: Mutex<State>,
    is_http_10: AtomicBool,
}

struct State {
    in_flight: usize,
    idle_since: Instant,
}

impl Activity {
    pub(super) fn new() -> Self {
        let state = Mutex::new(State { in_flight: 0, idle_since: Instant::now() });
        Self { state, is_http_10: AtomicBool::new(false) }
    }

    /// Says whether the client speaks a version that cannot tell an abort from an end.
    pub(super) fn is_http_10(&self) -> bool {
        self.is_http_10.load(Ordering::Relaxed)
    }

    /// Says whether a request is in flight.
    pub(super) fn is_busy(&self) -> bool {
        self.with(|state| state.in_flight > 0)
    }

    /// Completes once no request was in flight for `limit`, counted from now at the earliest.
    ///
    /// There is one timer, armed again only when it fires: requests do not touch it.
    pub(super) async fn idle_for(&self, limit: Duration) {
        let started = Instant::now();
        loop {
            let now = Instant::now();
            let since = self.with(|state| if state.in_flight > 0 { now } else { state.idle_since });
            let deadline = since.max(started) + limit;
            if deadline <= now {
                return;
            }
            tokio::time::sleep_until(deadline).await;
        }
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A request in flight, until its response body ended or was dropped.
pub(super) struct InFlight(Peer);

impl InFlight {
    pub(super) fn begin(peer: Peer, version: Version) -> Self {
        if version == Version::HTTP_10 {
            peer.activity().is_http_10.store(true, Ordering::Relaxed);
        }
        peer.activity().with(|state| state.in_flight += 1);
        Self(peer)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.activity().with(|state| {
            state.in_flight -= 1;
            state.idle_since = Instant::now();
        });
    }
}

pin_project! {
    /// A response body that keeps its request in flight.
    pub(super) struct Answer<B> {
        #[pin]
        pub(super) body: B,
        pub(super) in_flight: InFlight,
    }
}

impl<B: Body> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().body.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
