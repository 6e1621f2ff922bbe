//! The Node's end: registers, accepts streams, sends answers.

use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use iop_types::{
    CloseReason, CommandFrame, CommandId, ErrorCode, Failure, Generation, Refusal, SessionId,
};
use iop_wire::frame::Frame;
use iop_wire::v1::{self, CancelReason, register_response};
use iop_wire::{Message, answer};

use super::behaviour::{Behaviour, Head};
use super::{Drain, Farewell, Late, Link, Phase, Role, Signal, Stream};
use crate::commands::MAX_COMMANDS;
use crate::credit::{ANSWER_WINDOW, BudgetStats, FLOOR, MAX_CREDIT, REQUEST_WINDOW, Window};
use crate::message::{Answer, MAX_OVERHEAD, MIN_CHARGE, RequestMessage, StreamKind};
use crate::outbox::{Control, Urgent};
use crate::stream::{Receiving, Sending, StreamError, StreamKey};

/// How long the Edge may take to answer a registration: it may have to challenge an incumbent for
/// 8 s first.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// The Node's role.
#[derive(Debug)]
pub struct Node {
    /// Commands whose answer has not ended.
    commands: u32,
    /// Health observations that were numbered.
    observations: u64,
}

/// What the Node is told.
#[derive(Debug)]
pub enum Output {
    /// The Edge accepted the registration: start the adapters, then call [`Link::ready`].
    Registered(v1::Registered),
    /// The Edge refused the registration; the end follows.
    Refused(v1::RegisterRefused),
    /// The Edge may dispatch.
    Up,
    /// A request arrived.
    Request(StreamKey, RequestMessage),
    /// A command arrived; it has no body.
    Command(StreamKey, v1::NodeCommandRequest),
    /// The link ended.
    Closed(CloseReason),
}

/// Where a link stands before it is up.
#[derive(Debug)]
pub enum Birth {
    /// The registration is on its way.
    AwaitingAnswer {
        /// When the Edge is given up.
        until: Instant,
    },
    /// Adapters start.
    Configuring,
    /// The report is on its way.
    AwaitingReadyAnswer,
}

/// What the Node knows of a stream.
#[derive(Debug)]
pub struct Extra {
    /// Echoed when the link itself has to end the stream.
    session: Option<SessionId>,
    cancelled: Option<CancelReason>,
    /// Whether somebody waits for the cancellation.
    waiting: bool,
}

impl Link<Node> {
    /// Starts on a connection to the Edge.
    pub fn dial(now: Instant, request: v1::RegisterRequest) -> Self {
        let birth = Birth::AwaitingAnswer { until: now + ANSWER_TIMEOUT };
        let mut link = Self::with_birth(
            now,
            birth,
            v1::Limits::standard(),
            Node { commands: 0, observations: 0 },
        );
        link.push(Message::RegisterRequest(request));
        link
    }

    /// Reports that the adapters were started. Does nothing when the link has ended meanwhile.
    pub fn ready(&mut self, now: Instant, mut ready: v1::NodeReadyRequest) {
        self.now = now;
        if let (Phase::Birth(Birth::Configuring), Some(generation)) = (&self.phase, self.generation)
        {
            ready.generation = generation.0;
            self.push(Message::NodeReadyRequest(ready));
            self.phase = Phase::Birth(Birth::AwaitingReadyAnswer);
        }
    }

    /// Reports that a provider changed. Before the link is up the report of readiness says it all.
    pub fn send_status(&mut self, status: v1::ProviderStatus) {
        if matches!(self.phase, Phase::Up) {
            self.outbox.push_status(status);
        }
    }

    /// Numbers a health observation that is final: the first of a link is 1, whatever carries it.
    /// `None` where no link is up, and so nobody to tell.
    pub fn number_observation(&mut self) -> Option<u64> {
        if !matches!(self.phase, Phase::Up) {
            return None;
        }
        self.role.observations += 1;
        Some(self.role.observations)
    }

    /// Numbers a health observation that no terminal carries, and reports it. Returns its number.
    pub fn send_observation(&mut self, mut observation: v1::HealthObservation) -> Option<u64> {
        let seq = self.number_observation()?;
        observation.health_observation_seq = seq;
        self.outbox.push_observation(observation);
        Some(seq)
    }

    /// Yields the next part of a request body, `None` after the last, and returns its credit.
    pub fn poll_body(&mut self, key: StreamKey) -> Poll<Option<Result<Bytes, StreamError>>> {
        while let Some(part) = self.take(key) {
            if !part.data.is_empty() {
                return Poll::Ready(Some(Ok(part.data)));
            }
        }
        let over = self.close_reason();
        let stream = &mut self.streams[key];
        let error = if stream.inn.is_whole() {
            return Poll::Ready(None);
        } else if let Some(reason) = over {
            StreamError::LinkClosed(reason)
        } else if stream.extra.cancelled == Some(CancelReason::ProtocolError) {
            StreamError::Protocol
        } else if stream.extra.cancelled.is_some() {
            StreamError::Cancelled
        } else if stream.inn.is_ended() {
            StreamError::Protocol
        } else {
            stream.inn.waiting = true;
            return Poll::Pending;
        };
        Poll::Ready(Some(Err(error)))
    }

    /// Ready while the stream has credit for more than what waits.
    ///
    /// # Errors
    /// The link ended.
    pub fn poll_answer_room(&mut self, key: StreamKey) -> Poll<Result<(), StreamError>> {
        if let Phase::Over(reason) = self.phase {
            return Poll::Ready(Err(StreamError::LinkClosed(reason)));
        }
        let stream = &mut self.streams[key];
        if Node::has_room(stream) {
            return Poll::Ready(Ok(()));
        }
        stream.out.waiting = true;
        Poll::Pending
    }

    /// Queues an answer. After a cancel only the terminal is sent, the rest is dropped.
    ///
    /// # Errors
    /// The link ended, or the answer does not fit a frame.
    pub fn send(&mut self, key: StreamKey, answer: Answer) -> Result<(), StreamError> {
        if let Phase::Over(reason) = self.phase {
            return Err(StreamError::LinkClosed(reason));
        }
        let bytes = answer.overhead();
        if bytes > MAX_OVERHEAD {
            return Err(StreamError::TooLarge { bytes });
        }
        let stream = &mut self.streams[key];
        if stream.extra.cancelled.is_none() || answer.is_terminal() {
            stream.out.push(answer);
            self.schedule(key);
        }
        Ok(())
    }

    /// Queues the terminal behind everything that was sent. One that does not fit a frame, or is no
    /// terminal, becomes an error.
    ///
    /// # Errors
    /// The link ended.
    pub fn finish(&mut self, key: StreamKey, terminal: Answer) -> Result<(), StreamError> {
        if !terminal.is_terminal() {
            self.fail(key, "the answer ended without a terminal");
            return Ok(());
        }
        match self.send(key, terminal) {
            Err(StreamError::TooLarge { .. }) => {
                self.fail(key, "the terminal does not fit a frame");
                Ok(())
            }
            sent => sent,
        }
    }

    /// Says why the request should stop; `None` while it should not.
    pub fn poll_cancelled(&mut self, key: StreamKey) -> Poll<Result<CancelReason, CloseReason>> {
        let over = self.close_reason();
        let extra = &mut self.streams[key].extra;
        if let Some(reason) = extra.cancelled {
            return Poll::Ready(Ok(reason));
        }
        if let Some(reason) = over {
            return Poll::Ready(Err(reason));
        }
        extra.waiting = true;
        Poll::Pending
    }

    /// Gives the handle of the body up: what comes of it is dropped.
    pub fn release_body(&mut self, key: StreamKey) {
        let inn = &mut self.streams[key].inn;
        inn.abandoned = true;
        inn.purge();
        self.grant(key);
        self.release(key);
    }

    /// Gives the handle of the answers up. An answer without a terminal gets one that says so.
    pub fn release_answers(&mut self, key: StreamKey) {
        if self.streams[key].out.is_open() {
            self.fail(key, "the node gave the request up");
        }
        self.release(key);
    }

    /// Gives the handle of the cancellation up.
    pub fn release_cancelled(&mut self, key: StreamKey) {
        self.release(key);
    }

    fn release(&mut self, key: StreamKey) {
        self.streams[key].handles -= 1;
        self.retire(key);
    }

    /// Ends the answer with an error of the link's own.
    fn fail(&mut self, key: StreamKey, message: &'static str) {
        let failure = Failure::new(ErrorCode::ProviderError, message);
        let stream = &mut self.streams[key];
        let session = stream.extra.session.as_ref();
        let terminal = match stream.kind {
            StreamKind::Run => {
                let event = iop_types::EventKind::Error(failure).into();
                Answer::Event(answer::run_event(event, session))
            }
            StreamKind::Tunnel => {
                let frame = iop_types::TunnelFrame::Error(failure);
                Answer::Frame(answer::tunnel_frame(frame, session))
            }
            StreamKind::Command(id) => {
                let frame = CommandFrame::Error(failure);
                Answer::Command(answer::command_frame(id, frame, session))
            }
        };
        stream.out.push(terminal);
        self.schedule(key);
    }

    fn push(&mut self, message: Message) {
        self.outbox.push_control(Control::Link(Box::new(message)));
    }

    fn handle_registration(&mut self, response: v1::RegisterResponse) -> Result<(), CloseReason> {
        match response.outcome {
            Some(register_response::Outcome::Registered(registered)) => {
                self.generation = Some(Generation(registered.generation));
                self.limits = sane(registered.limits);
                self.budget = crate::credit::Budget::new(self.limits.credit_budget);
                self.heartbeat = Some(crate::heartbeat::Heartbeat::new(self.now));
                self.phase = Phase::Birth(Birth::Configuring);
                self.outputs.push_back(Output::Registered(registered));
                Ok(())
            }
            Some(register_response::Outcome::Refused(refused)) => {
                let reason = match refused.reason() {
                    v1::CloseReason::Unspecified => CloseReason::RegistrationRefused,
                    reason => reason.into(),
                };
                self.outputs.push_back(Output::Refused(refused));
                self.end(reason, Farewell::Silent);
                Ok(())
            }
            None => Err(CloseReason::ProtocolError),
        }
    }

    fn handle_request(&mut self, frame: &Frame, head: RequestMessage) -> Result<(), CloseReason> {
        let is_full = self.open - self.role.commands >= self.limits.max_streams;
        if let Some(key) = self.handle_head(frame, head.kind(), head.session_id(), is_full)? {
            self.outputs.push_back(Output::Request(key, head));
        }
        Ok(())
    }

    fn handle_command(
        &mut self,
        frame: &Frame,
        command: v1::NodeCommandRequest,
    ) -> Result<(), CloseReason> {
        let id =
            CommandId::from_slice(&command.command_id).map_err(|_| CloseReason::ProtocolError)?;
        let is_full = usize::try_from(self.role.commands).is_ok_and(|open| open >= MAX_COMMANDS);
        let kind = StreamKind::Command(id);
        if let Some(key) = self.handle_head(frame, kind, &command.session_id, is_full)? {
            self.outputs.push_back(Output::Command(key, command));
        }
        Ok(())
    }

    /// Opens the stream of a head; `None` when the host need not hear of it.
    fn handle_head(
        &mut self,
        frame: &Frame,
        kind: StreamKind,
        session_id: &str,
        is_full: bool,
    ) -> Result<Option<StreamKey>, CloseReason> {
        if let Some(key) = self.streams.find(frame.stream_id) {
            // A second head is out of place whatever its number.
            Node::break_off(self, key);
            return Ok(None);
        }
        if frame.stream_id <= self.streams.highest() {
            return self.missed(frame.stream_id, Late::Counted).map(|()| None);
        }
        if frame.seq != 1 || is_full {
            return Err(CloseReason::ProtocolError);
        }
        if frame.body_credit > REQUEST_WINDOW || u64::from(frame.answer_credit) > MAX_CREDIT {
            return Err(CloseReason::FlowControlViolation);
        }
        let granted = if kind.is_command() { 0 } else { or_floor(frame.body_credit) };
        let granted = self.budget.reserve(granted, granted);
        let window = Window::new(granted, REQUEST_WINDOW, REQUEST_WINDOW, self.now);
        let mut inn = Receiving::new(window);
        inn.accept_seq(frame.seq);
        let handles = if kind.is_command() {
            inn.end();
            self.role.commands += 1;
            COMMAND_HANDLES
        } else {
            HANDLES
        };
        let drains = self.drain.is_some();
        let stream = Stream {
            kind,
            out: Sending::new(or_floor(frame.answer_credit)),
            inn,
            handles: if drains { 0 } else { handles },
            extra: Extra {
                session: SessionId::new(session_id).ok(),
                cancelled: None,
                waiting: false,
            },
        };
        let key = self.streams.insert(frame.stream_id, stream);
        self.open += 1;
        if drains {
            self.refuse_head(key);
            return Ok(None);
        }
        Ok(Some(key))
    }

    /// A head that crossed our Drain: the Edge sends it elsewhere.
    fn refuse_head(&mut self, key: StreamKey) {
        let stream = &mut self.streams[key];
        stream.inn.abandoned = true;
        let session = stream.extra.session.as_ref();
        let refusal = &Refusal::Draining;
        stream.out.push(match stream.kind {
            StreamKind::Run => Answer::Event(answer::run_refusal(refusal, session)),
            StreamKind::Tunnel => Answer::Frame(answer::tunnel_refusal(refusal, session)),
            StreamKind::Command(id) => {
                Answer::Command(answer::command_refusal(id, refusal, session))
            }
        });
        self.schedule(key);
    }

    fn handle_body(&mut self, frame: &Frame, body: v1::RequestBody) -> Result<(), CloseReason> {
        let id = frame.stream_id;
        let Some(key) = self.streams.find(id) else { return self.missed(id, Late::Counted) };
        self.count_frame(key, frame.seq);
        let inn = &mut self.streams[key].inn;
        if inn.is_ended() {
            return self.missed(id, Late::Counted);
        }
        let kept = inn.push(body).map_err(|_| CloseReason::FlowControlViolation)?;
        if inn.is_ended() {
            self.shut_window(key);
        }
        if kept {
            self.signal_readable(key);
        } else {
            // Nobody reads it, but the Edge must come to its end.
            self.grant(key);
        }
        self.retire(key);
        Ok(())
    }

    fn handle_cancel(&mut self, frame: &Frame, reason: CancelReason) -> Result<(), CloseReason> {
        let id = frame.stream_id;
        let Some(key) = self.streams.find(id) else { return self.missed(id, Late::Expected) };
        self.count_frame(key, frame.seq);
        self.streams[key].inn.end();
        self.shut_window(key);
        self.cancel(key, reason);
        self.retire(key);
        Ok(())
    }

    /// Tells the request to stop. Answers that wait would only delay the terminal.
    fn cancel(&mut self, key: StreamKey, reason: CancelReason) {
        let stream = &mut self.streams[key];
        if stream.extra.cancelled.is_none() {
            stream.extra.cancelled = Some(reason);
            stream.out.purge();
            self.schedule(key);
            self.signal_cancelled(key);
            self.signal_readable(key);
            self.signal_writable(key);
        }
    }

    fn signal_cancelled(&mut self, key: StreamKey) {
        if std::mem::take(&mut self.streams[key].extra.waiting) {
            self.signals.push_back(Signal::Cancelled(key.slot));
        }
    }
}

/// Body, answers, cancellation.
const HANDLES: u8 = 3;
/// Answers, cancellation.
const COMMAND_HANDLES: u8 = 2;

/// What waits at most of one stream's answers before the sender is asked to pause.
const ANSWER_QUEUE: u64 = ANSWER_WINDOW as u64;

impl Role for Node {
    type Output = Output;
}

impl Behaviour for Node {
    type Sent = Answer;
    type Received = v1::RequestBody;
    type Birth = Birth;
    type Extra = Extra;

    fn birth_deadline(birth: &Birth) -> Option<Instant> {
        match birth {
            Birth::AwaitingAnswer { until } => Some(*until),
            Birth::Configuring | Birth::AwaitingReadyAnswer => None,
        }
    }

    fn handle(link: &mut Link<Self>, frame: Frame, message: Message) -> Result<(), CloseReason> {
        let of_stream = frame.stream_id != 0;
        match (&link.phase, message) {
            (Phase::Birth(Birth::AwaitingAnswer { .. }), Message::RegisterResponse(response)) => {
                link.handle_registration(response)
            }
            (Phase::Birth(Birth::AwaitingReadyAnswer), Message::NodeReadyResponse(_)) => {
                link.phase = Phase::Up;
                link.outputs.push_back(Output::Up);
                Ok(())
            }
            (Phase::Up, Message::RunRequest(request)) if of_stream => {
                link.handle_request(&frame, RequestMessage::Run(request))
            }
            (Phase::Up, Message::ProviderTunnelRequest(request)) if of_stream => {
                link.handle_request(&frame, RequestMessage::Tunnel(request))
            }
            (Phase::Up, Message::NodeCommandRequest(command)) if of_stream => {
                link.handle_command(&frame, command)
            }
            (Phase::Up, Message::RequestBody(body)) if of_stream => link.handle_body(&frame, body),
            (Phase::Up, Message::Cancel(cancel)) if of_stream => {
                link.handle_cancel(&frame, cancel.reason())
            }
            (Phase::Birth(_) | Phase::Up | Phase::Over(_), _) => Err(CloseReason::ProtocolError),
        }
    }

    /// Only an Edge challenges.
    fn handle_challenge(_: &mut Link<Self>, _: bool) {}

    /// The Edge drains, or acknowledges that we do: either way no further head follows.
    fn handle_drain(link: &mut Link<Self>) {
        if let Some(drain) = &mut link.drain {
            drain.acknowledged = true;
        }
    }

    fn announce_drain(link: &mut Link<Self>, drain: v1::Drain) {
        link.outbox.push_urgent(Urgent::Drain(drain));
    }

    fn is_drained(link: &Link<Self>, drain: &Drain) -> bool {
        drain.acknowledged && link.open == 0
    }

    /// The request cannot be trusted to be whole.
    fn break_off(link: &mut Link<Self>, key: StreamKey) {
        if !link.streams[key].inn.is_ended() {
            link.streams[key].inn.break_off();
        }
        link.cancel(key, CancelReason::ProtocolError);
    }

    fn take_head(_: &mut Stream<Self>) -> Option<Head> {
        None
    }

    fn is_head_sent(_: &Stream<Self>) -> bool {
        true
    }

    fn has_room(stream: &Stream<Self>) -> bool {
        let queued = stream.out.queued();
        stream.extra.cancelled.is_some()
            || !stream.out.is_open()
            || (queued + MIN_CHARGE <= stream.out.credit() && queued < ANSWER_QUEUE)
    }

    fn sent_cancel(_: &mut Stream<Self>) {}

    fn sent_last(link: &mut Link<Self>, key: StreamKey) {
        link.open = link.open.saturating_sub(1);
        if link.streams[key].kind.is_command() {
            link.role.commands = link.role.commands.saturating_sub(1);
        }
        link.retire(key);
    }

    fn is_finished(stream: &Stream<Self>) -> bool {
        stream.inn.is_ended() && stream.out.is_ended()
    }

    fn stream_ended(link: &mut Link<Self>, key: StreamKey) {
        link.signal_cancelled(key);
    }

    fn commands(link: &Link<Self>) -> u32 {
        link.role.commands
    }

    /// The Edge is who waits for a command.
    fn next_due(_: &Link<Self>) -> Option<Instant> {
        None
    }

    fn handle_overdue(_: &mut Link<Self>) {}

    fn claimed(&self) -> Option<BudgetStats> {
        None
    }

    fn closed(reason: CloseReason) -> Output {
        Output::Closed(reason)
    }
}

const fn or_floor(credit: u32) -> u32 {
    if credit == 0 { FLOOR } else { credit }
}

/// Reads the Edge's limits; what it leaves out is standard.
fn sane(limits: Option<v1::Limits>) -> v1::Limits {
    let standard = v1::Limits::standard();
    let Some(mut limits) = limits else { return standard };
    if limits.max_streams == 0 {
        limits.max_streams = standard.max_streams;
    }
    if limits.credit_budget == 0 {
        limits.credit_budget = standard.credit_budget;
    }
    if limits.max_run_event == 0 {
        limits.max_run_event = standard.max_run_event;
    }
    limits
}
