//! The account that a tap keeps of one end of a link.
//!
//! | of what this end writes | |
//! |---|---|
//! | on a stream | numbers without gaps; nothing behind its end but credit and a cancel; one end |
//! | against credit | never more payload than the peer granted |
//! | once | an attempt anywhere, a generation of an Edge, an observation on its link |
//! | in time | a heartbeat of its own every 30 s, and its answer soon, whatever else is on its way |
//! | at the end | nothing behind Close |

mod heartbeats;
mod message;

use std::collections::{BTreeMap, BTreeSet};

use iop_wire::Message;
use iop_wire::frame::Frame;
use iop_wire::v1::{RequestHead, register_response};

use self::heartbeats::Heartbeats;
use self::message::{charge, is_last, observation};
use crate::ledger::{Ledger, Seat};
use crate::world::NODES;

/// What passed at one end of a link so far.
pub(super) struct Account {
    ledger: Ledger,
    /// Where it is counted who still owes an end.
    seat: Seat,
    is_node: bool,
    streams: BTreeMap<u32, Stream>,
    /// The Edge's process, once this end has registered a Node for it.
    edge: Vec<u8>,
    /// The Node of this link, where this end is the Edge's.
    node: String,
    /// The number of this link, once it was told.
    generation: u64,
    /// The attempts on this link's streams, where this end is the Edge's.
    attempts: BTreeMap<u32, String>,
    /// Numbers of health observations.
    observations: BTreeSet<u64>,
    heartbeats: Heartbeats,
    is_closed: bool,
}

/// What this end wrote on a stream.
#[derive(Default)]
struct Stream {
    seq: u64,
    is_over: bool,
    /// What it may still write of its payload.
    credit: u64,
}

/// What a head grants that names no credit, as the protocol has it.
const FLOOR: u64 = 16 * 1024;

impl Account {
    pub(super) fn new(ledger: &Ledger, host: &'static str, is_undisturbed: bool) -> Self {
        Self {
            ledger: ledger.clone(),
            seat: ledger.take_seat(host),
            is_node: NODES.contains(&host),
            streams: BTreeMap::new(),
            edge: Vec::new(),
            node: String::new(),
            generation: 0,
            attempts: BTreeMap::new(),
            observations: BTreeSet::new(),
            heartbeats: Heartbeats::new(is_undisturbed),
            is_closed: false,
        }
    }

    /// Judges a frame that this end wrote.
    pub(super) fn written(&mut self, frame: &Frame) -> Result<(), String> {
        if self.is_closed {
            return Err(format!("stream {}: a frame behind Close", frame.stream_id));
        }
        let Some(message) = &frame.message else { return Ok(()) };
        if frame.stream_id == 0 {
            return self.written_on_link(message);
        }
        self.written_on_stream(frame, message)?;
        self.heartbeats.look()?;
        self.check_observation(message)?;
        let Some(head) = head(message) else { return Ok(()) };
        self.attempts.insert(frame.stream_id, of_head(head));
        self.check_new(of_head(head))
    }

    fn written_on_link(&mut self, message: &Message) -> Result<(), String> {
        match message {
            Message::Close(_) => {
                self.is_closed = true;
                self.seat.leave();
                Ok(())
            }
            Message::HeartbeatRequest(request) => self.heartbeats.asked(request.id),
            Message::RegisterResponse(response) => {
                let Some(register_response::Outcome::Registered(registered)) = &response.outcome
                else {
                    return Ok(());
                };
                self.generation = registered.generation;
                self.heartbeats.begin();
                let edge = &registered.edge_boot_id;
                self.ledger.set_newest(&self.node, (edge.to_vec(), self.generation));
                self.edge = edge.to_vec();
                self.check_new(format!("generation {} of {edge:?}", registered.generation))
            }
            _ => self.check_observation(message),
        }
    }

    fn written_on_stream(&mut self, frame: &Frame, message: &Message) -> Result<(), String> {
        let id = frame.stream_id;
        let stream = self.streams.entry(id).or_default();
        let before = stream.seq;
        stream.seq = frame.seq;
        if frame.seq != before + 1 {
            return Err(format!("stream {id}: frame {} after {before}", frame.seq));
        }
        if head(message).is_some() {
            stream.credit = or_floor(frame.body_credit);
        }
        // Credit for what is still on its way may follow the end, and so may a word that nobody waits
        // for it.
        if let Message::Credit(_) = message {
            return Ok(());
        }
        if stream.is_over && !matches!(message, Message::Cancel(_)) {
            return Err(format!("stream {id}: frame {} after its terminal", frame.seq));
        }
        let charge = charge(message);
        let Some(left) = stream.credit.checked_sub(charge) else {
            let credit = stream.credit;
            return Err(format!("stream {id}: {charge} bytes against a credit of {credit}"));
        };
        stream.credit = left;
        if is_last(message) && !std::mem::replace(&mut stream.is_over, true) && self.is_node {
            self.seat.ended();
        }
        Ok(())
    }

    /// Takes in a frame that reached this end.
    pub(super) fn read(&mut self, frame: &Frame) -> Result<(), String> {
        let Some(message) = &frame.message else { return Ok(()) };
        match message {
            Message::HeartbeatResponse(response) => return self.heartbeats.answered(response.id),
            Message::RegisterResponse(response) => {
                if let Some(register_response::Outcome::Registered(registered)) = &response.outcome
                {
                    self.generation = registered.generation;
                    self.heartbeats.begin();
                }
            }
            Message::RegisterRequest(request) => self.node.clone_from(&request.node_id),
            Message::Credit(credit) => {
                let stream = self.streams.entry(frame.stream_id).or_default();
                stream.credit += u64::from(credit.bytes);
            }
            message if self.is_node && head(message).is_some() => {
                let credit = or_floor(frame.answer_credit);
                self.streams.insert(frame.stream_id, Stream { credit, ..Stream::default() });
                self.seat.began();
            }
            message if !self.is_node && is_last(message) => {
                let link = (self.edge.clone(), self.generation);
                if let Some(attempt) = self.attempts.get(&frame.stream_id)
                    && !self.ledger.is_newest(&self.node, &link)
                {
                    self.ledger.note_late(attempt.clone());
                }
            }
            _ => {}
        }
        self.heartbeats.look()
    }

    fn check_observation(&mut self, message: &Message) -> Result<(), String> {
        match observation(message) {
            Some(0) => Err("a health observation is numbered 0".to_owned()),
            Some(seq) if !self.observations.insert(seq) => {
                Err(format!("health observation {seq} came twice"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Ids differ from run to run of a seed: they are compared and never told.
    fn check_new(&self, told: String) -> Result<(), String> {
        match self.ledger.is_new(told, self.generation) {
            true => Ok(()),
            false => Err("an attempt or a generation came twice".to_owned()),
        }
    }
}

/// Returns what the ledger knows an attempt by.
pub(crate) fn attempt(number: u32, run_id: &[u8]) -> String {
    format!("attempt {number} of {run_id:?}")
}

fn of_head(head: &RequestHead) -> String {
    attempt(head.attempt, &head.run_id)
}

fn head(message: &Message) -> Option<&RequestHead> {
    match message {
        Message::RunRequest(request) => request.head.as_ref(),
        Message::ProviderTunnelRequest(request) => request.head.as_ref(),
        _ => None,
    }
}

fn or_floor(credit: u32) -> u64 {
    if credit == 0 { FLOOR } else { u64::from(credit) }
}
