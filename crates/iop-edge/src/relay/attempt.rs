//! One send: what goes to the Node, and what its answers mean to the machine.

use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use http::HeaderMap;
use iop_admission::Candidate;
use iop_dialect::openai::{EmbeddingsRequest, Head};
use iop_dialect::splice::BodyError;
use iop_dispatch::{CancelCause, Ended, Grant, Relay, Send};
use iop_net::link::{EdgeLink, EdgeStream, OpenError, RequestMessage, StreamError};
use iop_net::memory::OverBudget;
use iop_types::{
    CloseReason, ErrorCode, Event, EventKind, Failure, Form, Generation, RequestHead, Requeue,
    RunKind, RunRequest, TunnelFrame, TunnelId, TunnelRequest, UsageMode, WorkKey,
};
use iop_wire::v1;
use uuid::Uuid;

use super::answer::too_large;
use super::passage::{Estimate, UsageChunk};
use super::state::{Kept, Seat, State};
use super::translation::{Translation, Wanted};
use super::upload::{Stop, Upload};
use super::{Call, Request};
use crate::bridge::{self, Step};
use crate::surface::headers;

/// A stream on the link of the Node that was asked.
pub(super) struct Attempt {
    stream: EdgeStream,
    /// Whether the last part of the request body is queued.
    is_body_sent: bool,
    /// What is done about the usage chunk of its answer.
    usage: UsageChunk,
}

/// One answer of an attempt, or why there will be none.
pub(super) enum Heard {
    /// It got on.
    Step(Step),
    /// It was never sent.
    Unsent,
    /// The link ended.
    LinkEnded(CloseReason),
    /// What came makes no sense.
    Nonsense(String),
    /// An event was too long for the memory that is left.
    NoMemory,
}

impl Attempt {
    /// Yields the Node's next answer.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Heard> {
        Poll::Ready(match ready!(self.stream.poll_recv(cx)) {
            Ok(answer) => match bridge::read(answer) {
                Ok(step) => Heard::Step(step),
                Err(nonsense) => Heard::Nonsense(nonsense.to_string()),
            },
            Err(StreamError::Unsent) => Heard::Unsent,
            Err(StreamError::LinkClosed(reason)) => Heard::LinkEnded(reason),
            Err(StreamError::NoMemory) => Heard::NoMemory,
            // The last three concern commands, and the Node's end of a stream.
            Err(
                error @ (StreamError::Protocol
                | StreamError::TimedOut(_)
                | StreamError::Cancelled
                | StreamError::TooLarge { .. }),
            ) => Heard::Nonsense(error.to_string()),
        })
    }

    /// Passes an upload on while the stream has room; ready when that has come to a bad end.
    pub(super) fn pump(
        &mut self,
        upload: &mut Upload,
        now: Instant,
        cx: &mut Context<'_>,
    ) -> Poll<Stop> {
        while !self.is_body_sent {
            if self.stream.poll_body_sent(cx).is_pending() {
                upload.rest();
                return Poll::Pending;
            }
            match ready!(upload.poll_next(cx, now)) {
                Some(Ok(data)) => self.stream.queue_body(data, false),
                Some(Err(stop)) => return Poll::Ready(stop),
                None => {
                    self.stream.queue_body(Bytes::new(), true);
                    self.is_body_sent = true;
                }
            }
        }
        Poll::Pending
    }

    /// Asks the Node to stop; its last word is still to come.
    pub(super) fn cancel(&mut self, cause: CancelCause) {
        self.stream.cancel(match cause {
            CancelCause::ClientGone => v1::CancelReason::ClientGone,
            CancelCause::ClientStalled => v1::CancelReason::ClientStalled,
            CancelCause::Deadline => v1::CancelReason::Deadline,
            CancelCause::Operator => v1::CancelReason::Operator,
            CancelCause::ShuttingDown => v1::CancelReason::ShuttingDown,
        });
    }
}

/// Describes who was granted the request.
pub(super) fn grant(call: &Call, candidate: &Candidate) -> Grant {
    let instance = &candidate.instance;
    Grant {
        node: instance.node.clone(),
        provider: instance.provider.clone(),
        target: candidate.target.clone(),
        generation: instance.generation,
        form: candidate.form,
        why: candidate.why.as_str(),
        has_others: candidate.has_others,
        // A refusal can be blamed on our option only where the client sent none of its own.
        asks_usage: wants_injection(call, candidate) && !call.routing.has_stream_options(),
    }
}

/// Says whether the Edge wants a usage chunk that the client did not ask for.
fn wants_injection(call: &Call, candidate: &Candidate) -> bool {
    candidate.form == Form::Tunnel
        && candidate.usage == UsageMode::Exact
        && call.is_stream()
        && !call.routing.asks_usage()
}

/// Decides what is done about the usage chunk of a tunnelled stream.
fn usage_chunk(call: &Call, candidate: &Candidate, injected: bool) -> UsageChunk {
    let is_exact = candidate.form == Form::Tunnel && candidate.usage == UsageMode::Exact;
    match answer_head(call) {
        _ if injected => UsageChunk::TakeOut,
        Some(head) if is_exact && call.is_stream() && call.routing.asks_usage() => {
            UsageChunk::Supply(Box::new(Estimate { head, request_bytes: call.body_bytes as u64 }))
        }
        Some(_) | None => UsageChunk::Untouched,
    }
}

impl State {
    /// Sends an attempt under the permit that is held.
    pub(super) fn send(&mut self, request: &Request, now: Instant, send: &Send) {
        let (Seat::Held(held), Some(original)) = (&self.seat, &self.original) else {
            debug_assert!(false, "a send without a permit, or after its answer");
            return self.machine.handle_unsent(now, Requeue::Fenced);
        };
        let candidate = held.candidate();
        let instance = &candidate.instance;
        let Some(link) = request.core.group.link(&instance.node) else {
            return self.machine.handle_unsent(now, Requeue::Fenced);
        };
        let call = &request.call;
        let injected = wants_injection(call, candidate)
            && (send.asks_usage || call.routing.has_stream_options());
        let (body, length) = match &mut self.upload {
            Some(upload) if upload.can_begin_again() => {
                (None, upload.begin(candidate.target.as_str()))
            }
            Some(_) => return self.machine.handle_ended(now, Ended::Failed(gone_by())),
            None => {
                let body = body(request, original, candidate, injected);
                let length = body.len() as u64;
                (Some(body), Some(length))
            }
        };
        let message = match candidate.form {
            Form::Tunnel => {
                let asked = tunnel(call, &original.headers, candidate, send, length);
                bridge::tunnel(asked)
            }
            Form::Run => {
                match call.operation.need.run.map(|kind| (kind, wanted(call, &original.body))) {
                    Some((kind, Ok(wanted))) => {
                        self.answer.expect_run(Translation::new(wanted, &request.core.budget));
                        bridge::run(run(call, candidate, send, kind))
                    }
                    None => {
                        debug_assert!(false, "admission grants runs only where one was asked for");
                        return self.machine.handle_unsent(now, Requeue::Fenced);
                    }
                    Some((_, Err(error))) => {
                        let failure = Failure::new(ErrorCode::InvalidRequest, error.to_string());
                        return self.machine.handle_ended(now, Ended::Failed(failure));
                    }
                }
            }
        };
        match open(&link, instance.generation, message) {
            Ok(mut stream) => {
                let is_body_sent = body.is_some();
                if let Some(body) = body {
                    stream.queue_body(body, true);
                }
                let usage = usage_chunk(call, candidate, injected);
                self.attempt = Some(Attempt { stream, is_body_sent, usage });
            }
            Err(NotOpened::Requeue(cause)) => self.machine.handle_unsent(now, cause),
            Err(NotOpened::Fail(failure)) => {
                self.machine.handle_ended(now, Ended::Failed(failure));
            }
        }
    }

    /// Tells the machine what was heard; what is the client's goes into its answer.
    pub(super) fn handle_answer(&mut self, request: &Request, now: Instant, heard: Heard) {
        self.note_health(request, &heard);
        match heard {
            Heard::Step(Step::Frame(frame)) => self.handle_frame(now, frame),
            Heard::Step(Step::Event(event)) => self.handle_event(now, event),
            Heard::Step(Step::Refused(refused)) => {
                self.attempt = None;
                match refused.requeue() {
                    Some(cause) => self.machine.handle_unsent(now, cause),
                    None => self
                        .machine
                        .handle_ended(now, Ended::Failed(bridge::refused_failure(&refused))),
                }
            }
            Heard::Unsent => {
                self.attempt = None;
                self.machine.handle_unsent(now, Requeue::Fenced);
            }
            Heard::LinkEnded(reason) => {
                self.attempt = None;
                self.answer.break_off();
                self.machine.handle_node_lost(now, reason);
            }
            Heard::NoMemory => {
                self.attempt = None;
                let limit = request.core.budget.stats().limit;
                self.machine.handle_ended(now, Ended::Failed(too_large(OverBudget { limit })));
            }
            Heard::Nonsense(problem) => {
                // Dropping the stream tells the Node to stop.
                self.attempt = None;
                tracing::warn!(run_id = %request.call.receipt.run_id, %problem, "a node's answer makes no sense");
                let message = format!("the node's answer cannot be understood: {problem}");
                let failure = Failure::new(ErrorCode::ProviderError, message);
                self.machine.handle_ended(now, Ended::Failed(failure));
            }
        }
    }

    fn handle_frame(&mut self, now: Instant, frame: TunnelFrame) {
        let ended = match frame {
            TunnelFrame::Head(head) => {
                let relay = self.machine.handle_head(now, head.status);
                if relay != Relay::Discard {
                    let attempt = self.attempt.as_mut();
                    let usage = attempt.map(|attempt| std::mem::take(&mut attempt.usage));
                    self.answer.handle_head(&head, usage.unwrap_or_default());
                    self.keep_what_may_be_needed(relay);
                }
                return;
            }
            TunnelFrame::Body { data, progress } => {
                match self.machine.handle_body(now, progress) {
                    Relay::Forward => self.answer.handle_body(data),
                    Relay::Hold => {
                        self.answer.handle_body(data);
                        self.bound_what_is_held();
                    }
                    Relay::Discard => {}
                }
                return;
            }
            TunnelFrame::Trailers(trailers) => {
                if self.machine.handle_body(now, false) != Relay::Discard {
                    self.answer.handle_trailers(&trailers);
                }
                return;
            }
            TunnelFrame::End => Ended::Completed(self.answer.close()),
            TunnelFrame::Error(failure) => {
                self.answer.break_off();
                Ended::Failed(failure)
            }
            TunnelFrame::Cancelled => Ended::Cancelled,
        };
        self.attempt = None;
        self.machine.handle_ended(now, ended);
    }

    fn handle_event(&mut self, now: Instant, event: Event) {
        let ended = match event.kind {
            EventKind::Start => {
                self.answer.note_usage(&event);
                let relay = self.machine.handle_start(now);
                if relay != Relay::Discard {
                    self.answer.handle_start(now);
                    self.keep_what_may_be_needed(relay);
                }
                return;
            }
            EventKind::Delta { .. } | EventKind::ReasoningDelta { .. } => {
                if self.machine.handle_body(now, true) == Relay::Discard {
                    return;
                }
                self.answer.handle_start(now);
                match self.answer.handle_event(&event) {
                    Ok(()) => return,
                    Err(over) => Ended::Failed(too_large(over)),
                }
            }
            EventKind::Complete { .. } => Ended::Completed(self.answer.handle_complete(event)),
            EventKind::Error(failure) => Ended::Failed(failure),
            EventKind::Cancelled => Ended::Cancelled,
        };
        self.attempt = None;
        self.machine.handle_ended(now, ended);
    }
}

impl State {
    /// A head came: it is held back, or the request itself may be let go.
    fn keep_what_may_be_needed(&mut self, relay: Relay) {
        if relay == Relay::Hold {
            self.answer.hold();
        }
        if !self.machine.may_send_again() {
            self.original = None;
        }
    }

    /// What a provider sends behind a head that is held goes no further than this.
    fn bound_what_is_held(&mut self) {
        if self.answer.held_bytes() > MAX_HELD {
            self.machine.handle_full();
        }
    }
}

/// Bytes that are kept of an answer whose head is held: an error page, or keep-alives of 15 s, many
/// times over, and little enough for every stream of a link at once.
const MAX_HELD: usize = 16 * 1024;

/// The failure of an upload that would have to be sent anew and has passed already.
fn gone_by() -> Failure {
    let message = "the node refused the request after it had taken a part of its body";
    Failure::new(ErrorCode::NodeLost, message)
}

/// Why a stream could not be opened, by what follows.
enum NotOpened {
    Requeue(Requeue),
    Fail(Failure),
}

fn open(
    link: &EdgeLink,
    granted: Generation,
    message: RequestMessage,
) -> Result<EdgeStream, NotOpened> {
    link.open(granted, message).map_err(|error| match error {
        OpenError::Fenced(_) => NotOpened::Requeue(Requeue::Fenced),
        OpenError::Draining => NotOpened::Requeue(Requeue::Draining),
        OpenError::TooManyStreams { .. } => NotOpened::Requeue(Requeue::LinkFull),
        OpenError::HeadTooLarge { .. } => NotOpened::Fail(Failure::new(
            ErrorCode::InvalidRequest,
            format!("{error}: send fewer or shorter headers"),
        )),
    })
}

/// The body for this candidate: its name for the target, perhaps the option, the rest as it came.
fn body(request: &Request, original: &Kept, candidate: &Candidate, include_usage: bool) -> Bytes {
    let routing = &request.call.routing;
    let body = routing.rewrite(&original.body, Some(candidate.target.as_str()), include_usage);
    if body.as_ptr() == original.body.as_ptr() { body } else { request.core.budget.adopt(body) }
}

fn head(call: &Call, candidate: &Candidate, send: &Send) -> RequestHead {
    let instance = &candidate.instance;
    RequestHead {
        work: WorkKey { run_id: call.receipt.run_id, attempt: send.attempt },
        session_id: call.session_id.clone(),
        provider: instance.provider.clone(),
        target: candidate.target.clone(),
        revision: instance.revision,
        stall_timeout: instance.stall_timeout,
        first_progress_within: send.first_progress_within,
        ends_within: send.ends_within,
        lease: None,
    }
}

fn tunnel(
    call: &Call,
    client: &HeaderMap,
    candidate: &Candidate,
    send: &Send,
    content_length: Option<u64>,
) -> TunnelRequest {
    TunnelRequest {
        head: head(call, candidate, send),
        tunnel_id: TunnelId::from_uuid(Uuid::now_v7()),
        method: call.operation.need.method.to_owned(),
        path_and_query: call.path_and_query.clone(),
        headers: headers::for_provider(client, candidate.usage == UsageMode::Exact),
        content_length,
    }
}

fn run(call: &Call, candidate: &Candidate, send: &Send, kind: RunKind) -> RunRequest {
    RunRequest { head: head(call, candidate, send), kind }
}

/// Reads what kind of answer the Edge must write.
fn wanted(call: &Call, body: &[u8]) -> Result<Wanted, BodyError> {
    let Some(head) = answer_head(call) else {
        let model = call.routing.model().to_owned();
        return Ok(Wanted::Embeddings { model, request: EmbeddingsRequest::read(body)? });
    };
    Ok(match call.is_stream() {
        true => Wanted::Stream { head, usage: call.routing.asks_usage() },
        false => Wanted::Text(head),
    })
}

/// Identity of a text that the Edge writes, or writes a chunk of; `None` where no text is asked for.
fn answer_head(call: &Call) -> Option<Head> {
    Some(Head {
        kind: call.operation.text?,
        run_id: call.receipt.run_id,
        created: u64::try_from(call.receipt.received_at.as_second()).unwrap_or_default(),
        model: call.routing.model().to_owned(),
    })
}
