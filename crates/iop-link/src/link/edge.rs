//! The Edge's end: accepts a registration, opens streams, receives answers.

use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use iop_types::{CloseReason, CommandKind, CommandRequest, EdgeBootId, Generation, Patience};
use iop_wire::frame::{self, Frame};
use iop_wire::v1::{self, CancelReason, register_response};
use iop_wire::{Message, PROTOCOL_VERSION};

use super::behaviour::{Behaviour, Head};
use super::{Drain, Farewell, Late, Link, Phase, Role, Stream};
use crate::commands::{Commands, MAX_COMMANDS, NotSent};
use crate::credit::{
    ANSWER_WINDOW, ANSWER_WINDOW_MAX, Budget, BudgetStats, FLOOR, REQUEST_WINDOW, Window,
};
use crate::message::{Answer, MAX_HEAD, RequestMessage, StreamKind};
use crate::outbox::{Control, Urgent};
use crate::stream::{OpenError, Receiving, Sending, StreamError, StreamKey};

/// How long a new connection may take to say who it is.
pub const REGISTER_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a link whose stream ids are used up may take to end; its Node dials again.
const RENEWAL: Duration = Duration::from_secs(15 * 60);

/// The Edge's role.
#[derive(Debug)]
pub struct Edge {
    boot_id: EdgeBootId,
    /// What the Node may be sent, reserved here because the first credit of a body is claimed by its
    /// sender.
    claims: Budget,
    node_drains: bool,
    /// What the Node answers.
    known: Vec<CommandKind>,
    commands: Commands,
}

/// What the Edge is told.
#[derive(Debug)]
pub enum Output {
    /// A Node wants to register: answer with [`Link::register`] or [`Link::refuse`].
    Register(v1::RegisterRequest),
    /// The Node is ready; heads that are opened from now on follow the response.
    Ready(v1::NodeReadyRequest),
    /// A provider changed.
    Status(v1::ProviderStatus),
    /// The Node looked at a target's health.
    Observation(v1::HealthObservation),
    /// The Node drains.
    Draining,
    /// The challenge was answered, or not in time.
    Challenged {
        /// Whether it was.
        answered: bool,
    },
    /// The link ended.
    Closed(CloseReason),
}

/// Where a link stands before it is up.
#[derive(Debug)]
pub enum Birth {
    /// Nothing was said yet.
    Awaiting {
        /// When the connection is given up.
        until: Instant,
    },
    /// The host decides.
    Deciding,
    /// The Node starts its adapters.
    Registered,
}

/// What the Edge knows of a stream.
#[derive(Debug)]
pub struct Extra {
    head: Option<Message>,
    /// Reserved at the Node for the body.
    claim: u32,
    cancel: Cancel,
    /// What the reader is told once nothing waits any more.
    fate: Option<StreamError>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cancel {
    No,
    Queued,
    Sent,
}

impl Link<Edge> {
    /// Takes a connection that a Node dialled.
    pub fn accept(now: Instant, boot_id: EdgeBootId, limits: v1::Limits) -> Self {
        let birth = Birth::Awaiting { until: now + REGISTER_TIMEOUT };
        let claims = Budget::new(limits.credit_budget);
        let role = Edge {
            boot_id,
            claims,
            node_drains: false,
            known: Vec::new(),
            commands: Commands::default(),
        };
        Self::with_birth(now, birth, limits, role)
    }

    /// Accepts the registration under a generation. Does nothing when the link has ended meanwhile.
    pub fn register(
        &mut self,
        now: Instant,
        generation: Generation,
        config: v1::NodeConfig,
        edge_time_ms: i64,
    ) {
        self.now = now;
        if !matches!(self.phase, Phase::Birth(Birth::Deciding)) {
            return;
        }
        let registered = v1::Registered {
            generation: generation.0,
            edge_boot_id: Bytes::copy_from_slice(self.role.boot_id.as_bytes()),
            config: Some(config),
            limits: Some(self.limits),
            edge_time_ms,
            lease_signers: Vec::new(),
        };
        self.answer_registration(register_response::Outcome::Registered(registered));
        self.generation = Some(generation);
        self.phase = Phase::Birth(Birth::Registered);
        self.heartbeat = Some(crate::heartbeat::Heartbeat::new(now));
    }

    /// Refuses the registration and closes.
    pub fn refuse(&mut self, now: Instant, refused: v1::RegisterRefused) {
        self.now = now;
        let reason = match refused.reason() {
            v1::CloseReason::Unspecified => CloseReason::RegistrationRefused,
            reason => reason.into(),
        };
        if self.close_reason().is_none() {
            self.answer_registration(register_response::Outcome::Refused(refused));
        }
        self.end(reason, Farewell::AfterQueued);
    }

    /// Asks the Node for a sign of life at once; [`Output::Challenged`] tells what came of it.
    pub fn challenge(&mut self, now: Instant) {
        self.now = now;
        if let Some(heartbeat) = &mut self.heartbeat {
            let id = heartbeat.challenge(now);
            self.outbox.push_urgent(Urgent::Heartbeat(id));
        } else if self.close_reason().is_none() {
            // It has registered this very moment, which is sign enough.
            self.outputs.push_back(Output::Challenged { answered: true });
        }
    }

    /// Opens a stream and queues its head.
    ///
    /// # Errors
    /// Nothing was and nothing will be sent.
    pub fn open(&mut self, head: RequestMessage) -> Result<StreamKey, OpenError> {
        self.check_open()?;
        if self.open - self.role.commands.count() >= self.limits.max_streams {
            return Err(OpenError::TooManyStreams { limit: self.limits.max_streams });
        }
        let bytes = head.encoded_len();
        if bytes > MAX_HEAD {
            return Err(OpenError::HeadTooLarge { bytes });
        }
        let id = self.next_id()?;
        let claim = self.role.claims.reserve(REQUEST_WINDOW, FLOOR);
        Ok(self.enter(id, head.kind(), head.into(), Sending::new(claim), claim))
    }

    /// Opens the stream of a command and queues it. Its answers are waited for as long as `patience`
    /// says; then the Node is told to stop, and what it still answers is dropped.
    ///
    /// # Errors
    /// Nothing was and nothing will be sent.
    pub fn open_command(
        &mut self,
        now: Instant,
        request: CommandRequest,
        patience: Patience,
    ) -> Result<StreamKey, NotSent> {
        self.now = now;
        self.check_open()?;
        let (id, kind) = (request.id, request.command.kind());
        if !self.role.known.contains(&kind) {
            return Err(NotSent::UnknownKind { kind });
        }
        if self.role.commands.keys().any(|key| self.streams[key].kind == StreamKind::Command(id)) {
            return Err(NotSent::Duplicate { id });
        }
        if self.role.commands.is_full() {
            return Err(NotSent::TooMany { limit: MAX_COMMANDS });
        }
        let head = v1::NodeCommandRequest::from(request);
        let bytes = frame::encoded_len(&head);
        if bytes > MAX_HEAD {
            return Err(OpenError::HeadTooLarge { bytes }.into());
        }
        let stream_id = self.next_id()?;
        let mut whole = Sending::new(0);
        whole.end();
        let head = Message::NodeCommandRequest(head);
        let key = self.enter(stream_id, StreamKind::Command(id), head, whole, 0);
        self.role.commands.begin(now, key, patience);
        Ok(key)
    }

    fn check_open(&self) -> Result<(), OpenError> {
        match self.phase {
            Phase::Over(reason) => Err(OpenError::Fenced(reason)),
            Phase::Birth(_) => Err(OpenError::Draining),
            Phase::Up if self.role.node_drains || self.drain.is_some() => Err(OpenError::Draining),
            Phase::Up => Ok(()),
        }
    }

    fn next_id(&mut self) -> Result<u32, OpenError> {
        if let Some(id) = self.streams.highest().checked_add(1) {
            return Ok(id);
        }
        self.drain(self.now, RENEWAL);
        Err(OpenError::Draining)
    }

    fn enter(
        &mut self,
        id: u32,
        kind: StreamKind,
        head: Message,
        out: Sending<v1::RequestBody>,
        claim: u32,
    ) -> StreamKey {
        let granted = self.budget.reserve(ANSWER_WINDOW, FLOOR);
        let window = Window::new(granted, ANSWER_WINDOW, ANSWER_WINDOW_MAX, self.now);
        let stream = Stream {
            kind,
            out,
            inn: Receiving::new(window),
            handles: 1,
            extra: Extra { head: Some(head), claim, cancel: Cancel::No, fate: None },
        };
        let key = self.streams.insert(id, stream);
        self.open += 1;
        self.outbox.push_control(Control::Head(key));
        key
    }

    /// Queues the next part of the body.
    pub fn queue_body(&mut self, key: StreamKey, data: Bytes, last: bool) {
        if self.close_reason().is_some() || (data.is_empty() && !last) {
            return;
        }
        self.streams[key].out.push(v1::RequestBody { data, last });
        self.schedule(key);
    }

    /// Ready while less than a window of the body waits, and when it never will be sent.
    pub fn poll_body_room(&mut self, key: StreamKey) -> Poll<()> {
        let stream = &mut self.streams[key];
        if Edge::has_room(stream) {
            return Poll::Ready(());
        }
        stream.out.waiting = true;
        Poll::Pending
    }

    /// Yields the next answer and returns its credit.
    pub fn poll_answer(&mut self, key: StreamKey) -> Poll<Result<Answer, StreamError>> {
        if let Some(answer) = self.take(key) {
            return Poll::Ready(Ok(answer));
        }
        let stream = &mut self.streams[key];
        if let Some(fate) = stream.extra.fate {
            return Poll::Ready(Err(fate));
        }
        if let Phase::Over(reason) = self.phase {
            return Poll::Ready(Err(StreamError::LinkClosed(reason)));
        }
        if stream.inn.is_ended() {
            // Nothing follows the terminal, which was taken.
            return Poll::Ready(Err(StreamError::Protocol));
        }
        stream.inn.waiting = true;
        Poll::Pending
    }

    /// Stops a request. A head that is still queued is never sent; otherwise the Node is told, ahead
    /// of what waits of the body, which is dropped.
    pub fn cancel(&mut self, key: StreamKey, reason: CancelReason) {
        if self.close_reason().is_some() {
            return;
        }
        let stream = &mut self.streams[key];
        if stream.extra.head.take().is_some() {
            stream.extra.fate = Some(StreamError::Unsent);
            stream.out.end();
            stream.inn.end();
            self.answer_ended(key);
            self.signal_readable(key);
            self.signal_writable(key);
            self.check_drained();
        } else if !stream.inn.is_ended() && stream.extra.cancel == Cancel::No {
            stream.extra.cancel = Cancel::Queued;
            stream.out.end();
            self.signal_writable(key);
            self.push_cancel(key, reason);
        }
    }

    /// The answers make no sense to their reader: stops the request as after a frame out of place.
    pub fn reject(&mut self, key: StreamKey) {
        self.streams[key].inn.purge();
        Edge::break_off(self, key);
    }

    /// Gives the handle up. A request that has not ended is cancelled.
    pub fn release(&mut self, key: StreamKey) {
        self.cancel(key, CancelReason::ClientGone);
        let stream = &mut self.streams[key];
        stream.handles = 0;
        stream.inn.abandoned = true;
        stream.inn.purge();
        self.retire(key);
    }

    fn answer_registration(&mut self, outcome: register_response::Outcome) {
        let response = v1::RegisterResponse { outcome: Some(outcome) };
        self.outbox.push_control(Control::Link(Box::new(Message::RegisterResponse(response))));
    }

    fn handle_register(&mut self, request: v1::RegisterRequest) {
        let refused = if request.protocol_version != PROTOCOL_VERSION {
            Some(v1::RegisterRefused {
                reason: v1::CloseReason::VersionUnsupported.into(),
                message: format!(
                    "this edge speaks protocol version {PROTOCOL_VERSION}, the node {}",
                    request.protocol_version
                ),
                min_protocol_version: PROTOCOL_VERSION,
                max_protocol_version: PROTOCOL_VERSION,
                retry_after_ms: 0,
            })
        } else {
            malformed_field(&request).map(|field| v1::RegisterRefused {
                reason: v1::CloseReason::RegistrationRefused.into(),
                message: format!("field `{field}` of the registration is malformed"),
                ..v1::RegisterRefused::default()
            })
        };
        let known = request.commands().filter_map(|kind| CommandKind::try_from(kind).ok());
        self.role.known = known.collect();
        self.phase = Phase::Birth(Birth::Deciding);
        match refused {
            Some(refused) => self.refuse(self.now, refused),
            None => self.outputs.push_back(Output::Register(request)),
        }
    }

    fn handle_ready(&mut self, ready: v1::NodeReadyRequest) -> Result<(), CloseReason> {
        if Some(Generation(ready.generation)) != self.generation {
            return Err(CloseReason::ProtocolError);
        }
        let response = Message::NodeReadyResponse(v1::NodeReadyResponse {});
        self.outbox.push_control(Control::Link(Box::new(response)));
        self.phase = Phase::Up;
        self.outputs.push_back(Output::Ready(ready));
        Ok(())
    }

    fn handle_answer(&mut self, id: u32, seq: u64, answer: Answer) -> Result<(), CloseReason> {
        let Some(key) = self.streams.find(id) else { return self.missed(id, Late::Counted) };
        let in_place = self.count_frame(key, seq);
        let stream = &mut self.streams[key];
        if stream.inn.is_ended() {
            return self.missed(id, Late::Counted);
        }
        if in_place && !(answer.fits(stream.kind) && answer.is_known()) {
            Edge::break_off(self, key);
        }
        let was_broken = self.streams[key].inn.is_broken();
        let inn = &mut self.streams[key].inn;
        let kept = inn.push(answer).map_err(|_| CloseReason::FlowControlViolation)?;
        if inn.is_broken() && !was_broken {
            Edge::break_off(self, key);
        }
        if self.streams[key].inn.is_ended() {
            self.answer_ended(key);
            self.close_request(key);
        }
        if kept {
            self.signal_readable(key);
        }
        if self.streams[key].kind.is_command() {
            if kept {
                self.role.commands.heard(self.now, key);
            } else {
                // Its reader has given it up, which the Node may not know yet.
                self.late.note();
            }
        }
        self.retire(key);
        Ok(())
    }

    /// The answer has ended: the stream no longer counts.
    fn answer_ended(&mut self, key: StreamKey) {
        self.open -= 1;
        if self.streams[key].kind.is_command() {
            self.role.commands.end(key);
        }
        self.shut_window(key);
        self.release_claim(key, 0);
    }

    /// Ends a request half that the answer did not wait for.
    fn close_request(&mut self, key: StreamKey) {
        let out = &mut self.streams[key].out;
        if out.is_ended() {
            return;
        }
        out.purge();
        out.push(v1::RequestBody { data: Bytes::new(), last: true });
        self.schedule(key);
        self.signal_writable(key);
    }

    fn release_claim(&mut self, key: StreamKey, keep: u64) {
        let claim = &mut self.streams[key].extra.claim;
        let keep = u32::try_from(keep).unwrap_or(u32::MAX).min(*claim);
        self.role.claims.release(*claim - keep);
        *claim = keep;
    }
}

impl Role for Edge {
    type Output = Output;
}

impl Behaviour for Edge {
    type Sent = v1::RequestBody;
    type Received = Answer;
    type Birth = Birth;
    type Extra = Extra;

    fn birth_deadline(birth: &Birth) -> Option<Instant> {
        match birth {
            Birth::Awaiting { until } => Some(*until),
            Birth::Deciding | Birth::Registered => None,
        }
    }

    fn handle(link: &mut Link<Self>, frame: Frame, message: Message) -> Result<(), CloseReason> {
        match (&link.phase, message) {
            (Phase::Birth(Birth::Awaiting { .. }), Message::RegisterRequest(request)) => {
                link.handle_register(request);
                Ok(())
            }
            (Phase::Birth(Birth::Registered), Message::NodeReadyRequest(ready)) => {
                link.handle_ready(ready)
            }
            (Phase::Up, Message::ProviderStatus(status)) if frame.stream_id == 0 => {
                link.outputs.push_back(Output::Status(status));
                Ok(())
            }
            (Phase::Up, Message::HealthObservation(observation)) if frame.stream_id == 0 => {
                link.outputs.push_back(Output::Observation(observation));
                Ok(())
            }
            (Phase::Up, Message::RunEvent(event)) if frame.stream_id != 0 => {
                link.handle_answer(frame.stream_id, frame.seq, Answer::Event(event))
            }
            (Phase::Up, Message::ProviderTunnelFrame(answer)) if frame.stream_id != 0 => {
                link.handle_answer(frame.stream_id, frame.seq, Answer::Frame(answer))
            }
            (Phase::Up, Message::NodeCommandResponse(response)) if frame.stream_id != 0 => {
                link.handle_answer(frame.stream_id, frame.seq, Answer::Command(response))
            }
            (Phase::Birth(_) | Phase::Up | Phase::Over(_), _) => Err(CloseReason::ProtocolError),
        }
    }

    fn handle_challenge(link: &mut Link<Self>, answered: bool) {
        link.outputs.push_back(Output::Challenged { answered });
    }

    /// Acknowledges behind every head that is already queued: none follows.
    fn handle_drain(link: &mut Link<Self>) {
        if !std::mem::replace(&mut link.role.node_drains, true) {
            let drain = Message::Drain(v1::Drain { deadline_ms: 0 });
            link.outbox.push_control(Control::Link(Box::new(drain)));
            link.outputs.push_back(Output::Draining);
        }
    }

    fn announce_drain(link: &mut Link<Self>, drain: v1::Drain) {
        link.outbox.push_control(Control::Link(Box::new(Message::Drain(drain))));
    }

    fn is_drained(link: &Link<Self>, _: &Drain) -> bool {
        link.open == 0
    }

    fn break_off(link: &mut Link<Self>, key: StreamKey) {
        let stream = &mut link.streams[key];
        if stream.inn.is_ended() {
            return;
        }
        stream.inn.break_off();
        stream.extra.fate = Some(StreamError::Protocol);
        link.cancel(key, CancelReason::ProtocolError);
        link.signal_readable(key);
    }

    fn take_head(stream: &mut Stream<Self>) -> Option<Head> {
        let message = stream.extra.head.take()?;
        let answer_credit = u32::try_from(stream.inn.window.outstanding()).unwrap_or(u32::MAX);
        Some(Head { message, body_credit: stream.extra.claim, answer_credit })
    }

    fn is_head_sent(stream: &Stream<Self>) -> bool {
        stream.extra.head.is_none()
    }

    fn has_room(stream: &Stream<Self>) -> bool {
        stream.out.is_ended() || stream.out.queued() < u64::from(REQUEST_WINDOW)
    }

    fn sent_cancel(stream: &mut Stream<Self>) {
        stream.extra.cancel = Cancel::Sent;
    }

    fn sent_last(link: &mut Link<Self>, key: StreamKey) {
        // No more than what was sent can wait at the Node.
        let sent = link.streams[key].out.sent;
        link.release_claim(key, sent);
        link.signal_writable(key);
        link.retire(key);
    }

    fn is_finished(stream: &Stream<Self>) -> bool {
        stream.inn.is_ended() && stream.out.is_ended() && stream.extra.cancel != Cancel::Queued
    }

    fn stream_ended(link: &mut Link<Self>, key: StreamKey) {
        let stream = &mut link.streams[key];
        if stream.extra.head.take().is_some() {
            stream.extra.fate = Some(StreamError::Unsent);
        }
        link.role.commands.end(key);
    }

    fn commands(link: &Link<Self>) -> u32 {
        link.role.commands.count()
    }

    fn next_due(link: &Link<Self>) -> Option<Instant> {
        link.role.commands.next_due()
    }

    /// A reader that is behind is not the Node's silence: the wait begins anew.
    fn handle_overdue(link: &mut Link<Self>) {
        while let Some((key, patience)) = link.role.commands.poll_overdue(link.now) {
            let is_behind = link.streams[key].inn.window.buffered() > 0;
            if is_behind && matches!(patience, Patience::Idle(_)) {
                link.role.commands.wait_on(link.now, key);
                continue;
            }
            link.cancel(key, CancelReason::Deadline);
            let stream = &mut link.streams[key];
            stream.inn.break_off();
            stream.extra.fate = Some(StreamError::TimedOut(patience));
            link.signal_readable(key);
        }
    }

    fn claimed(&self) -> Option<BudgetStats> {
        Some(self.claims.stats())
    }

    fn closed(reason: CloseReason) -> Output {
        Output::Closed(reason)
    }
}

fn malformed_field(request: &v1::RegisterRequest) -> Option<&'static str> {
    if request.node_id.is_empty() || request.node_id.len() > MAX_NODE_ID {
        Some("node_id")
    } else if request.instance_id.len() != 16 {
        Some("instance_id")
    } else if request.lane != 0 {
        Some("lane")
    } else {
        None
    }
}

/// Longest name of a Node in bytes, as in the Edge's file.
const MAX_NODE_ID: usize = 128;
