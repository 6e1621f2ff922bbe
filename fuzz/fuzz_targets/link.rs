//! Both ends of a link under any order of calls, bytes and time.
//!
//! Nothing panics and nothing grows beyond its bounds. And as long as nobody puts foreign bytes on the
//! line, the two ends never accuse each other: whatever honest hosts do, an end is one that they or
//! the clock asked for.

#![no_main]

use std::time::{Duration, Instant};

use arbitrary::{Result, Unstructured};
use bytes::{Bytes, BytesMut};
use iop_link::edge::{self, Edge};
use iop_link::node::{self, Node};
use iop_link::{Answer, Link, RequestMessage, Role, StreamKey, StreamKind};
use iop_types::{
    CloseReason, Command, CommandFrame, CommandId, CommandKind, CommandRequest, EdgeBootId,
    Generation, Patience,
};
use iop_wire::answer::command_frame;
use iop_wire::v1::{self, CancelReason, provider_tunnel_frame, run_event};
use iop_wire::{Message, PROTOCOL_VERSION, frame};
use libfuzzer_sys::fuzz_target;

/// Small, so that every bound is reached.
const LIMITS: v1::Limits =
    v1::Limits { max_streams: 4, credit_budget: 96 * 1024, max_run_event: 64 * 1024 };

struct World {
    now: Instant,
    edge: Link<Edge>,
    node: Link<Node>,
    up: BytesMut,
    down: BytesMut,
    asked: Vec<Asked>,
    taken: Vec<Taken>,
    /// Whether somebody put foreign bytes on the line.
    is_foul: bool,
}

/// A stream at the Edge.
struct Asked {
    key: StreamKey,
    body_is_over: bool,
}

/// A stream at the Node.
struct Taken {
    key: StreamKey,
    kind: StreamKind,
    is_finished: bool,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        let boot_id = EdgeBootId::from_slice(&[3; 16]).expect("16 bytes");
        let commands = CommandKind::ALL.iter().map(|kind| v1::CommandKind::from(*kind).into());
        let registration = v1::RegisterRequest {
            protocol_version: PROTOCOL_VERSION,
            node_id: "n".into(),
            instance_id: Bytes::from_static(&[1; 16]),
            commands: commands.collect(),
            ..v1::RegisterRequest::default()
        };
        Self {
            now,
            edge: Link::accept(now, boot_id, LIMITS),
            node: Link::dial(now, registration),
            up: BytesMut::new(),
            down: BytesMut::new(),
            asked: Vec::new(),
            taken: Vec::new(),
            is_foul: false,
        }
    }

    fn step(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        match input.int_in_range(0..=15)? {
            0..=2 => self.pass(input)?,
            3 => self.open(input)?,
            4 => self.queue_body(input)?,
            5 => {
                if let Some(asked) = pick(&mut self.asked, input)? {
                    self.edge.cancel(asked.key, CancelReason::ClientGone);
                }
            }
            6 => {
                if !self.asked.is_empty() {
                    let asked = self.asked.swap_remove(input.choose_index(self.asked.len())?);
                    self.edge.release(asked.key);
                }
            }
            7 => {
                for asked in &self.asked {
                    let _ = self.edge.poll_answer(asked.key);
                    let _ = self.edge.poll_body_room(asked.key);
                }
            }
            8 => {
                for taken in &self.taken {
                    if !matches!(taken.kind, StreamKind::Command(_)) {
                        let _ = self.node.poll_body(taken.key);
                    }
                    let _ = self.node.poll_cancelled(taken.key);
                }
            }
            9 | 10 => self.answer(input)?,
            11 => {
                if !self.taken.is_empty() {
                    let taken = self.taken.swap_remove(input.choose_index(self.taken.len())?);
                    give_up(&mut self.node, &taken);
                }
            }
            12 => {
                self.now += Duration::from_secs(input.int_in_range(0..=20)?);
                judge(&mut self.edge, self.now);
                judge(&mut self.node, self.now);
            }
            13 => match input.int_in_range(0..=7)? {
                0 => self.edge.drain(self.now, Duration::from_secs(5)),
                1 => self.node.drain(self.now, Duration::from_secs(5)),
                2 => self.edge.fence(self.now, CloseReason::Superseded),
                3 => self.edge.handle_lost(self.now),
                4 => self.node.handle_eof(self.now),
                5 => self.edge.challenge(self.now),
                6 => self.node.send_status(v1::ProviderStatus::default()),
                _ => drop(self.node.send_observation(v1::HealthObservation::default())),
            },
            14 => {
                self.is_foul = true;
                let foreign = foreign(input)?;
                if input.arbitrary()? { &mut self.up } else { &mut self.down }.extend(foreign);
            }
            _ => {
                // As fast lines and willing hosts do.
                for _ in 0..4 {
                    self.pass_all();
                }
            }
        }
        self.listen();
        Ok(())
    }

    /// Writes and delivers a part of what is on the line.
    fn pass(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        write(&mut self.edge, &mut self.down);
        write(&mut self.node, &mut self.up);
        let (down, up) = (input.arbitrary::<u16>()?, input.arbitrary::<u16>()?);
        deliver(&mut self.node, self.now, &mut self.down, down.into());
        deliver(&mut self.edge, self.now, &mut self.up, up.into());
        Ok(())
    }

    fn pass_all(&mut self) {
        write(&mut self.edge, &mut self.down);
        write(&mut self.node, &mut self.up);
        deliver(&mut self.node, self.now, &mut self.down, usize::MAX);
        deliver(&mut self.edge, self.now, &mut self.up, usize::MAX);
        self.listen();
    }

    fn open(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let opened = match input.int_in_range(0..=2)? {
            0 => self.edge.open(RequestMessage::Run(v1::RunRequest::default())).ok(),
            1 => self.edge.open(RequestMessage::Tunnel(v1::ProviderTunnelRequest::default())).ok(),
            _ => {
                let id = CommandId::from_slice(&[input.arbitrary()?; 16]).expect("16 bytes");
                let command = Command::Capabilities;
                let request = CommandRequest { id, session_id: None, command };
                let patience = Patience::Whole(Duration::from_secs(10));
                self.edge.open_command(self.now, request, patience).ok()
            }
        };
        if let Some(key) = opened {
            self.asked.push(Asked { key, body_is_over: false });
        }
        Ok(())
    }

    fn queue_body(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let (length, last) = (input.arbitrary::<u16>()?, input.arbitrary()?);
        if let Some(asked) = pick(&mut self.asked, input)?
            && !asked.body_is_over
        {
            asked.body_is_over = last;
            self.edge.queue_body(asked.key, Bytes::from(vec![0; length.into()]), last);
        }
        Ok(())
    }

    fn answer(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let (length, last) = (input.arbitrary::<u16>()? % 20_000, input.arbitrary()?);
        let node = &mut self.node;
        let Some(taken) = pick(&mut self.taken, input)? else { return Ok(()) };
        if taken.is_finished {
            return Ok(());
        }
        let answer = answer(taken.kind, Bytes::from(vec![0; length.into()]), last);
        if last {
            taken.is_finished = true;
            let _ = node.finish(taken.key, answer);
        } else if node.poll_answer_room(taken.key).is_ready() {
            let _ = node.send(taken.key, answer);
        }
        Ok(())
    }

    /// Does what hosts do about what they are told.
    fn listen(&mut self) {
        while self.edge.poll_signal().is_some() || self.node.poll_signal().is_some() {}
        while let Some(told) = self.edge.poll_output() {
            if let edge::Output::Register(_) = told {
                self.edge.register(self.now, Generation(1), v1::NodeConfig::default(), 0);
            }
        }
        while let Some(told) = self.node.poll_output() {
            match told {
                node::Output::Registered(_) => {
                    self.node.ready(self.now, v1::NodeReadyRequest::default());
                }
                node::Output::Request(key, message) => {
                    let kind = match message {
                        RequestMessage::Run(_) => StreamKind::Run,
                        RequestMessage::Tunnel(_) => StreamKind::Tunnel,
                    };
                    self.taken.push(Taken { key, kind, is_finished: false });
                }
                node::Output::Command(key, request) => {
                    let id =
                        CommandId::from_slice(&request.command_id).expect("the link checked it");
                    let kind = StreamKind::Command(id);
                    self.taken.push(Taken { key, kind, is_finished: false });
                }
                _ => {}
            }
        }
        bounded(&self.edge);
        bounded(&self.node);
        if !self.is_foul {
            innocent(self.edge.close_reason());
            innocent(self.node.close_reason());
        }
    }

    fn end(mut self) {
        for asked in std::mem::take(&mut self.asked) {
            self.edge.release(asked.key);
        }
        for taken in std::mem::take(&mut self.taken) {
            give_up(&mut self.node, &taken);
        }
        for _ in 0..8 {
            self.pass_all();
            for taken in std::mem::take(&mut self.taken) {
                give_up(&mut self.node, &taken);
            }
        }
        if !self.is_foul && self.edge.close_reason().is_none() && self.node.close_reason().is_none()
        {
            let stats = (self.edge.stats(), self.node.stats());
            assert_eq!((stats.0.streams, stats.1.streams), (0, 0), "{stats:?}");
            assert_eq!((stats.0.reserved_bytes, stats.1.reserved_bytes), (0, 0), "{stats:?}");
        }
    }
}

/// Asserts what holds in every state.
fn bounded<R: Role>(link: &Link<R>) {
    let stats = link.stats();
    assert!(stats.streams <= LIMITS.max_streams + stats.commands, "{stats:?}");
    let floors = u64::from(stats.streams + 64) * u64::from(iop_link::credit::FLOOR);
    assert!(stats.reserved_bytes <= stats.credit_budget + floors, "{stats:?}");
    assert!(stats.buffered_bytes <= stats.credit_budget + floors, "{stats:?}");
}

/// Asserts that no end was accused of anything.
fn innocent(reason: Option<CloseReason>) {
    let asked_for = matches!(
        reason,
        None | Some(
            CloseReason::PeerClosed
                | CloseReason::ConnectionLost
                | CloseReason::HeartbeatTimeout
                | CloseReason::RegisterTimeout
                | CloseReason::Superseded
                | CloseReason::ShuttingDown
        )
    );
    assert!(asked_for, "two honest ends fell out: {reason:?}");
}

fn pick<'a, T>(all: &'a mut [T], input: &mut Unstructured<'_>) -> Result<Option<&'a mut T>> {
    if all.is_empty() {
        return Ok(None);
    }
    let index = input.choose_index(all.len())?;
    Ok(all.get_mut(index))
}

fn give_up(node: &mut Link<Node>, taken: &Taken) {
    if !matches!(taken.kind, StreamKind::Command(_)) {
        node.release_body(taken.key);
    }
    node.release_answers(taken.key);
    node.release_cancelled(taken.key);
}

fn judge<R: Role>(link: &mut Link<R>, now: Instant) {
    if link.poll_timeout().is_some_and(|due| due <= now) {
        link.handle_timeout(now);
    }
}

fn write<R: Role>(link: &mut Link<R>, line: &mut BytesMut) {
    let mut batch = Vec::new();
    link.transmit(&mut batch);
    assert!(batch.len() < (2 << 20));
    line.extend_from_slice(&batch);
}

fn deliver<R: Role>(link: &mut Link<R>, now: Instant, line: &mut BytesMut, at_most: usize) {
    // A frame that is not whole stays on the line: the driver's buffer.
    let mut read = line.split_to(at_most.min(line.len()));
    link.handle_read(now, &mut read);
    let rest = line.split();
    line.unsplit(read);
    line.unsplit(rest);
    if link.close_reason().is_some() {
        line.clear();
    }
}

fn answer(kind: StreamKind, data: Bytes, last: bool) -> Answer {
    match kind {
        StreamKind::Run => Answer::Event(v1::RunEvent {
            payload: if last { Bytes::new() } else { data },
            kind: Some(match last {
                true => run_event::Kind::Complete(v1::Complete::default()),
                false => run_event::Kind::Text(v1::TextDelta {}),
            }),
            ..v1::RunEvent::default()
        }),
        StreamKind::Tunnel => Answer::Frame(v1::ProviderTunnelFrame {
            session_id: String::new(),
            kind: Some(match last {
                true => provider_tunnel_frame::Kind::End(v1::TunnelEnd {}),
                false => provider_tunnel_frame::Kind::Body(v1::TunnelBody { data, progress: true }),
            }),
        }),
        StreamKind::Command(id) => {
            let step = if last { CommandFrame::End } else { CommandFrame::Part(data) };
            Answer::Command(command_frame(id, step, None))
        }
    }
}

/// Bytes as they come, or a frame that is well formed and out of place.
fn foreign(input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    if input.arbitrary()? {
        let length = input.int_in_range(0..=64)?;
        return Ok(input.bytes(length.min(input.len()))?.to_vec());
    }
    let number: u32 = input.arbitrary()?;
    let data = Bytes::from(vec![0; usize::from(input.arbitrary::<u16>()?) % 16_384]);
    let message = match input.int_in_range(0..=9)? {
        0 => Message::Credit(v1::Credit { bytes: number }),
        1 => Message::Cancel(v1::Cancel { reason: 1 }),
        2 => Message::RequestBody(v1::RequestBody { data, last: input.arbitrary()? }),
        3 => {
            Message::HeartbeatResponse(v1::HeartbeatResponse { id: number.into(), edge_time_ms: 0 })
        }
        4 => Message::HeartbeatRequest(v1::HeartbeatRequest { id: number.into() }),
        5 => Message::Drain(v1::Drain { deadline_ms: number }),
        6 => Message::RunRequest(v1::RunRequest::default()),
        7 => Message::ProviderTunnelRequest(v1::ProviderTunnelRequest::default()),
        8 => match answer(StreamKind::Tunnel, data, input.arbitrary()?) {
            Answer::Frame(frame) => Message::ProviderTunnelFrame(frame),
            Answer::Event(_) | Answer::Command(_) => unreachable!("a tunnel was asked for"),
        },
        _ => match answer(StreamKind::Run, data, input.arbitrary()?) {
            Answer::Event(event) => Message::RunEvent(event),
            Answer::Frame(_) | Answer::Command(_) => unreachable!("a run was asked for"),
        },
    };
    let mut bytes = Vec::new();
    let envelope = v1::Envelope {
        stream_id: input.int_in_range(0..=6)?,
        seq: input.int_in_range(0..=6)?,
        message: Some(message),
        ..v1::Envelope::default()
    };
    frame::encode(&envelope, &mut bytes).expect("it fits a frame");
    Ok(bytes)
}

fuzz_target!(|input: &[u8]| {
    let mut input = Unstructured::new(input);
    let mut world = World::new();
    if input.arbitrary().unwrap_or(true) {
        // Most of the machine lies behind its birth.
        for _ in 0..4 {
            world.pass_all();
        }
    }
    for _ in 0..400 {
        if input.is_empty() || world.step(&mut input).is_err() {
            break;
        }
    }
    world.end();
});
