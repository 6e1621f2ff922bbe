//! An Edge and a Node joined by two simulated lines under one manual clock.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use iop_link::edge::{self, Edge};
use iop_link::node::{self, Node};
use iop_link::{Answer, Link, RequestMessage, Role, StreamKey};
use iop_testkit::{Line, ManualClock, SimPipe};
use iop_types::{CloseReason, CommandKind, EdgeBootId, Generation};
use iop_wire::v1::{self, envelope::Message};
use iop_wire::{PROTOCOL_VERSION, frame};

/// One end: its machine, what it has read, and what it was told.
#[derive(Debug)]
pub(crate) struct End<R: Role> {
    pub(crate) link: Link<R>,
    inbox: BytesMut,
    pub(crate) told: Vec<R::Output>,
    saw_end: bool,
}

impl<R: Role> End<R> {
    fn new(link: Link<R>) -> Self {
        Self { link, inbox: BytesMut::new(), told: Vec::new(), saw_end: false }
    }

    /// Writes while there is room; says whether anything was written.
    fn write(&mut self, now: Instant, line: &mut SimPipe) -> bool {
        let mut wrote = false;
        while line.has_room(now) {
            let mut batch = Vec::new();
            self.link.transmit(&mut batch);
            if batch.is_empty() {
                break;
            }
            line.write(now, &batch);
            wrote = true;
        }
        if self.link.close_reason().is_some() && !self.link.wants_write() {
            line.end();
        }
        wrote
    }

    fn read(&mut self, now: Instant, line: &mut SimPipe) -> bool {
        let mut read = line.read(now, &mut self.inbox);
        if read {
            self.link.handle_read(now, &mut self.inbox);
        } else if line.is_at_end() && !self.saw_end {
            self.saw_end = true;
            self.link.handle_eof(now);
            read = true;
        }
        self.listen();
        read
    }

    fn judge(&mut self, now: Instant) {
        if self.link.poll_timeout().is_some_and(|due| due <= now) {
            self.link.handle_timeout(now);
        }
        self.listen();
    }

    fn listen(&mut self) {
        while self.link.poll_signal().is_some() {}
        while let Some(output) = self.link.poll_output() {
            self.told.push(output);
        }
    }
}

/// Both ends.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) clock: ManualClock,
    pub(crate) edge: End<Edge>,
    pub(crate) node: End<Node>,
    /// From the Edge to the Node.
    pub(crate) down: SimPipe,
    /// From the Node to the Edge.
    pub(crate) up: SimPipe,
    hosts: bool,
}

pub(crate) const GENERATION: Generation = Generation(7);

impl Pair {
    /// Two ends that have just connected, whose hosts do not react.
    pub(crate) fn connected(line: Line) -> Self {
        Self::with_limits(line, v1::Limits::standard())
    }

    pub(crate) fn with_limits(line: Line, limits: v1::Limits) -> Self {
        let clock = ManualClock::new();
        let boot_id = EdgeBootId::from_slice(&[3; 16]).expect("16 bytes");
        Self {
            edge: End::new(Link::accept(clock.now(), boot_id, limits)),
            node: End::new(Link::dial(clock.now(), registration())),
            clock,
            down: SimPipe::new(line),
            up: SimPipe::new(line),
            hosts: false,
        }
    }

    /// Two ends of a link that is up.
    pub(crate) fn up(line: Line) -> Self {
        Self::connected(line).brought_up()
    }

    /// As before, with hosts that admit and start at once.
    pub(crate) fn with_hosts(mut self) -> Self {
        self.hosts = true;
        self
    }

    pub(crate) fn brought_up(self) -> Self {
        let mut this = self.with_hosts();
        this.run_until(|pair| pair.node.is_told(|told| matches!(told, node::Output::Up)));
        this
    }

    /// Runs for `time`.
    pub(crate) fn run(&mut self, time: Duration) {
        let until = self.clock.now() + time;
        while self.step(until) {}
    }

    /// Runs until `done`; gives up after an hour of its clock.
    pub(crate) fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        let limit = self.clock.now() + Duration::from_secs(3600);
        while !done(self) {
            assert!(self.step(limit), "an hour passed in vain: {:?}", self.clock.elapsed());
        }
    }

    /// Runs everything that is due, then moves the clock to the next event; says whether that is
    /// before `until`.
    pub(crate) fn step(&mut self, until: Instant) -> bool {
        self.settle();
        let now = self.clock.now();
        let next = [
            self.edge.link.poll_timeout(),
            self.node.link.poll_timeout(),
            self.down.next_event(now),
            self.up.next_event(now),
        ];
        match next.into_iter().flatten().min() {
            Some(next) if next <= until => {
                self.clock.advance_to(next.max(now));
                self.settle();
                next < until
            }
            Some(_) | None => {
                self.clock.advance_to(until);
                false
            }
        }
    }

    /// Does what can be done without time passing: reads first, then judges timers, then writes.
    pub(crate) fn settle(&mut self) {
        let now = self.clock.now();
        loop {
            let read = self.edge.read(now, &mut self.up) | self.node.read(now, &mut self.down);
            if read {
                self.answer_as_hosts();
            }
            if !read {
                self.edge.judge(now);
                self.node.judge(now);
            }
            let wrote = self.edge.write(now, &mut self.down) | self.node.write(now, &mut self.up);
            self.edge.listen();
            self.node.listen();
            if !read && !wrote {
                return;
            }
        }
    }

    /// Lets a body of this stream be read at the Node, and an answer at the Edge.
    pub(crate) fn drain_streams(&mut self, keys: &[StreamKey]) -> (u64, u64) {
        let (mut body, mut answers) = (0, 0);
        for key in keys {
            while let std::task::Poll::Ready(Some(Ok(part))) = self.node.link.poll_body(*key) {
                body += part.len() as u64;
            }
            while let std::task::Poll::Ready(Ok(answer)) = self.edge.link.poll_answer(*key) {
                answers += payload(&answer).len() as u64;
            }
        }
        (body, answers)
    }

    /// Opens a stream at the Edge and yields its key there.
    pub(crate) fn open(&mut self, head: RequestMessage) -> StreamKey {
        self.edge.link.open(head).expect("the link is up")
    }

    /// Waits for the request of a stream and yields its key at the Node.
    pub(crate) fn accepted(&mut self, id: u32) -> StreamKey {
        let request = |pair: &Self| {
            pair.node.told.iter().find_map(|told| match told {
                node::Output::Request(key, _) if key.id == id => Some(*key),
                _ => None,
            })
        };
        self.run_until(|pair| request(pair).is_some());
        request(self).expect("it was just seen")
    }

    pub(crate) fn reasons(&self) -> (Option<CloseReason>, Option<CloseReason>) {
        (self.edge.link.close_reason(), self.node.link.close_reason())
    }

    fn answer_as_hosts(&mut self) {
        if !self.hosts {
            return;
        }
        let now = self.clock.now();
        if self.edge.is_told(|told| matches!(told, edge::Output::Register(_))) {
            self.edge.link.register(now, GENERATION, v1::NodeConfig::default(), 0);
        }
        if self.node.is_told(|told| matches!(told, node::Output::Registered(_))) {
            self.node.link.ready(now, v1::NodeReadyRequest::default());
        }
    }
}

impl<R: Role> End<R> {
    pub(crate) fn is_told(&self, what: impl Fn(&R::Output) -> bool) -> bool {
        self.told.iter().any(what)
    }
}

pub(crate) fn registration() -> v1::RegisterRequest {
    v1::RegisterRequest {
        protocol_version: PROTOCOL_VERSION,
        node_id: "workstation".into(),
        instance_id: Bytes::from_static(&[1; 16]),
        commands: CommandKind::ALL.iter().map(|kind| v1::CommandKind::from(*kind).into()).collect(),
        ..v1::RegisterRequest::default()
    }
}

pub(crate) fn run() -> RequestMessage {
    RequestMessage::Run(v1::RunRequest::default())
}

pub(crate) fn tunnel() -> RequestMessage {
    RequestMessage::Tunnel(v1::ProviderTunnelRequest::default())
}

pub(crate) fn text(payload: impl Into<Bytes>) -> Answer {
    Answer::Event(v1::RunEvent {
        payload: payload.into(),
        kind: Some(v1::run_event::Kind::Text(v1::TextDelta {})),
        ..v1::RunEvent::default()
    })
}

pub(crate) fn complete() -> Answer {
    Answer::Event(v1::RunEvent {
        kind: Some(v1::run_event::Kind::Complete(v1::Complete::default())),
        ..v1::RunEvent::default()
    })
}

pub(crate) fn body(data: impl Into<Bytes>, last: bool) -> Message {
    Message::RequestBody(v1::RequestBody { data: data.into(), last })
}

pub(crate) fn payload(answer: &Answer) -> Bytes {
    match answer {
        Answer::Event(event) => event.payload.clone(),
        Answer::Frame(frame) => match &frame.kind {
            Some(v1::provider_tunnel_frame::Kind::Body(body)) => body.data.clone(),
            _ => Bytes::new(),
        },
        Answer::Command(response) => match &response.kind {
            Some(v1::node_command_response::Kind::Part(part)) => part.data.clone(),
            _ => Bytes::new(),
        },
    }
}

/// Encodes a frame as a peer would that does what it likes.
pub(crate) fn bytes(stream_id: u32, seq: u64, message: Message) -> Vec<u8> {
    let mut batch = Vec::new();
    let envelope =
        v1::Envelope { stream_id, seq, message: Some(message), ..v1::Envelope::default() };
    frame::encode(&envelope, &mut batch).expect("the test's frame fits");
    batch
}

/// Hands bytes to a machine as if they had been read.
pub(crate) fn feed<R: Role>(link: &mut Link<R>, now: Instant, bytes: &[u8]) {
    link.handle_read(now, &mut BytesMut::from(bytes));
}

/// Decodes everything that a machine has to say.
pub(crate) fn spoken<R: Role>(link: &mut Link<R>) -> Vec<frame::Frame> {
    let mut frames = Vec::new();
    loop {
        let mut batch = Vec::new();
        link.transmit(&mut batch);
        if batch.is_empty() {
            return frames;
        }
        let mut bytes = BytesMut::from(&batch[..]);
        while let Some(frame) = frame::decode(&mut bytes).expect("own frames are right") {
            frames.push(frame);
        }
        assert!(bytes.is_empty(), "a batch ends with a whole frame");
    }
}
