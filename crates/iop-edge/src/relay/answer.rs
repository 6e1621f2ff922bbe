//! The client's answer as it comes into being: its head, what of its body is ready, how it ends.
//!
//! ```text
//! nothing ─► head, perhaps held ─► body … ─► clean end
//!    │          │                    └─────► broken off (relayed), or one error event (written here)
//!    └──────────┴─► whole: an error, or an answer that is written at once
//! ```

use std::collections::VecDeque;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::Frame;
use iop_dialect::openai::error_event;
use iop_dialect::usage::settle;
use iop_dispatch::{ClientEnd, Evidence};
use iop_types::{ErrorCode, Event, EventKind, Failure, Header, ResponseHead, Usage, UsageSource};

use super::passage::{Passage, UsageChunk};
use super::translation::Translation;
use super::{Broken, Request};
use crate::surface::errors::ErrorAnswer;
use crate::surface::headers;
use crate::surface::response::{ResponseBody, json};
use iop_net::memory::OverBudget;

/// How an answer begins.
pub(crate) enum Head {
    /// It is all there.
    Whole(Response<ResponseBody>),
    /// Its body follows.
    Relayed {
        /// The provider's status.
        status: StatusCode,
        /// Headers for the client.
        headers: HeaderMap,
    },
}

/// One answer.
#[derive(Default)]
pub(super) struct Answer {
    source: Source,
    head: Option<Head>,
    /// Whether the head is kept back, and what came behind it with it.
    is_held: bool,
    ready: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    end: Option<End>,
    /// Bytes of the body that its head promised and that were not handed over yet.
    owed: Option<u64>,
    seen: Seen,
    /// When something was last written to the client.
    written_at: Option<Instant>,
}

/// Where its bytes come from.
#[derive(Default)]
enum Source {
    #[default]
    Nothing,
    /// The provider's own.
    Tunnel(Box<Passage>),
    /// Written here.
    Run(Box<Translation>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Clean,
    /// Wait once, then fail: in the same poll as data, hyper would lose the data.
    Breaking,
    Broken,
}

/// What was learned of the result on the way.
#[derive(Default)]
struct Seen {
    /// A provider said that it would do it.
    is_accepted: bool,
    usage: Option<Usage>,
    deltas: u64,
    complete: Option<Event>,
}

/// Tells a client, and what is between, that the connection lives; no parser takes it for an event.
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

impl Answer {
    // ---- from the provider ----

    /// The provider's head came and is the client's.
    pub(super) fn handle_head(&mut self, head: &ResponseHead, usage: UsageChunk) {
        let mut headers = headers::for_client(&head.headers);
        let passage = Passage::new(head.status, &headers, usage);
        if passage.reframes() {
            headers.remove(CONTENT_LENGTH);
        }
        self.source = Source::Tunnel(Box::new(passage));
        self.seen.is_accepted = (200..300).contains(&head.status);
        let status = StatusCode::from_u16(head.status).unwrap_or(StatusCode::BAD_GATEWAY);
        self.owed = match status {
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED => {
                // A length here promises a body that may not come; some clients wait for it.
                headers.remove(CONTENT_LENGTH);
                Some(0)
            }
            _ => headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok()),
        };
        self.head = Some(Head::Relayed { status, headers });
    }

    /// The head that came is kept back until [`release`](Self::release).
    pub(super) const fn hold(&mut self) {
        self.is_held = true;
        // Our own keep-alives begin behind the head.
        self.written_at = None;
    }

    /// Counts what is kept behind a head that is held.
    pub(super) fn held_bytes(&self) -> usize {
        self.ready.iter().map(Bytes::len).sum()
    }

    /// The client gets the head that was kept back.
    pub(super) fn release(&mut self, now: Instant) {
        self.is_held = false;
        if matches!(self.source, Source::Run(_)) {
            self.written_at = Some(now);
        }
    }

    /// A piece of the provider's body came and is the client's.
    pub(super) fn handle_body(&mut self, data: Bytes) {
        if let Source::Tunnel(passage) = &mut self.source {
            passage.push(data, |bytes| self.ready.push_back(bytes));
        }
    }

    /// Headers after the provider's body came.
    pub(super) fn handle_trailers(&mut self, trailers: &[Header]) {
        self.trailers = Some(headers::for_client(trailers));
    }

    /// The provider's body is over; tells what speaks for its being whole.
    pub(super) fn close(&mut self) -> Evidence {
        self.end_body(true)
    }

    /// The rest of the provider's body is lost.
    pub(super) fn break_off(&mut self) {
        self.end_body(false);
    }

    fn end_body(&mut self, is_over: bool) -> Evidence {
        let Source::Tunnel(passage) = &mut self.source else { return Evidence::default() };
        let findings = passage.finish(is_over, |bytes| self.ready.push_back(bytes));
        self.seen.usage = findings.usage;
        self.seen.deltas = findings.deltas;
        self.source = Source::Nothing;
        findings.evidence
    }

    /// A run is asked for; its events will be written like this.
    pub(super) fn expect_run(&mut self, translation: Translation) {
        self.source = Source::Run(Box::new(translation));
    }

    /// The run's result begins.
    pub(super) fn handle_start(&mut self, now: Instant) {
        self.seen.is_accepted = true;
        if let Source::Run(translation) = &self.source
            && translation.is_stream()
            && self.written_at.is_none()
        {
            self.written_at = Some(now);
            self.head = Some(event_stream());
        }
    }

    /// A piece of the run's result came and is the client's.
    ///
    /// # Errors
    /// An answer that is written at once has become too large for memory.
    pub(super) fn handle_event(&mut self, event: &Event) -> Result<(), OverBudget> {
        self.note_usage(event);
        if let Source::Run(translation) = &mut self.source {
            let bytes = translation.push(event)?;
            if !bytes.is_empty() {
                self.ready.push_back(bytes);
            }
        }
        Ok(())
    }

    /// The run completed; what is written of it waits for the verdict.
    pub(super) fn handle_complete(&mut self, event: Event) -> Evidence {
        self.note_usage(&event);
        let finish_seen =
            matches!(&event.kind, EventKind::Complete { finish } if !finish.is_empty());
        self.seen.complete = Some(event);
        Evidence { finish_seen, done_seen: true, error: None }
    }

    /// Usage may ride on any event.
    pub(super) fn note_usage(&mut self, event: &Event) {
        self.seen.usage = event.usage.or(self.seen.usage);
    }

    // ---- the end ----

    /// The request is over: the client gets what is left for it. Returns what it consumed.
    pub(super) fn finish(
        &mut self,
        request: &Request,
        now: Instant,
        client: ClientEnd,
    ) -> Option<(Usage, UsageSource)> {
        // A client that left takes the tail of a relayed body with it.
        self.break_off();
        // Whatever is left of a head that was held is no news any more.
        self.is_held = false;
        match client {
            ClientEnd::Clean => self.finish_clean(now),
            ClientEnd::KeptAnswer => self.end = Some(End::Clean),
            ClientEnd::Error(failure) => self.fail(&failure),
            ClientEnd::ErrorEvent(failure) => {
                self.ready.push_back(error_event(failure.code, &failure.message));
                self.end = Some(End::Clean);
            }
            ClientEnd::Abort | ClientEnd::Nothing => self.end = Some(End::Breaking),
        }
        if let Source::Run(translation) = &self.source {
            self.seen.deltas = translation.deltas();
        }
        self.source = Source::Nothing;
        let Seen { is_accepted, usage, deltas, .. } = self.seen;
        let can_estimate = is_accepted && request.call.operation.can_estimate(deltas);
        let bytes = request.call.body_bytes as u64;
        (usage.is_some() || can_estimate).then(|| settle(usage, bytes, deltas))
    }

    fn finish_clean(&mut self, now: Instant) {
        self.end = Some(End::Clean);
        if matches!(self.source, Source::Run(_)) {
            // An empty result has no event before this one.
            self.handle_start(now);
        }
        let Source::Run(mut translation) = std::mem::take(&mut self.source) else { return };
        self.seen.deltas = translation.deltas();
        let written = match self.seen.complete.take() {
            Some(complete) => translation.push(&complete),
            None => Ok(Bytes::new()),
        };
        match (written, translation.is_stream()) {
            (Ok(bytes), true) => self.ready.push_back(bytes),
            (Ok(_), false) => {
                self.head = translation.into_whole().map(|body| Head::Whole(json(body)));
            }
            (Err(over), _) => self.fail(&too_large(over)),
        }
    }

    fn fail(&mut self, failure: &Failure) {
        // What came behind a head that the client never got.
        self.ready.clear();
        self.trailers = None;
        self.head = Some(Head::Whole(ErrorAnswer::from_failure(failure).into_response()));
        self.end = Some(End::Clean);
    }

    // ---- to the client ----

    /// Returns the head, once.
    pub(super) const fn take_head(&mut self) -> Option<Head> {
        if self.is_held { None } else { self.head.take() }
    }

    /// Yields what is ready of the body.
    pub(super) fn poll_frame(
        &mut self,
        cx: &Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if let Some(bytes) = self.ready.pop_front() {
            self.owed = self.owed.map(|owed| owed.saturating_sub(bytes.len() as u64));
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        match self.end {
            None => Poll::Pending,
            Some(End::Clean) => {
                Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
            }
            Some(End::Breaking) => {
                self.end = Some(End::Broken);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Some(End::Broken) => Poll::Ready(Some(Err(Broken))),
        }
    }

    /// Bytes were handed to the client.
    pub(super) const fn note_written(&mut self, now: Instant) {
        self.written_at = Some(now);
    }

    /// Says whether the client was handed everything, though the provider's end is still to come: all
    /// that the head promised, or a stream up to its `[DONE]`.
    pub(super) fn is_handed_over(&self) -> bool {
        let is_done = match &self.source {
            Source::Tunnel(passage) => passage.is_done(),
            Source::Run(_) | Source::Nothing => false,
        };
        self.head.is_none() && self.ready.is_empty() && (is_done || self.owed == Some(0))
    }

    /// Returns when the client must hear that the connection lives.
    pub(super) fn keep_alive_at(&self, period: Duration) -> Option<Instant> {
        match &self.source {
            Source::Run(translation) if translation.is_stream() && self.end.is_none() => {
                self.written_at.map(|at| at + period)
            }
            Source::Run(_) | Source::Tunnel(_) | Source::Nothing => None,
        }
    }

    /// Time has passed.
    pub(super) fn handle_time(&mut self, now: Instant, period: Duration) {
        if self.keep_alive_at(period).is_some_and(|at| at <= now) {
            self.ready.push_back(Bytes::from_static(KEEP_ALIVE));
            self.written_at = Some(now);
        }
    }
}

/// The failure of an answer that does not fit into memory.
pub(super) fn too_large(over: OverBudget) -> Failure {
    Failure::new(
        ErrorCode::OverMemoryBudget,
        format!("{over}: ask for a stream, or raise `limits.buffered_bodies` in the edge's file"),
    )
}

fn event_stream() -> Head {
    let headers = HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform")),
        (headers::ACCEL_BUFFERING, HeaderValue::from_static("no")),
    ]);
    Head::Relayed { status: StatusCode::OK, headers }
}
