//! What passes on one connection, noted and, on a link, held against the rules of the wire.
//!
//! The tap decodes the frames of a link as its receiver gets them and keeps its own account of every
//! stream: numbers without gaps, one terminal, nothing after it. It shares the codec with what it
//! watches and none of the state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use bytes::BytesMut;
use iop_wire::Message;
use iop_wire::frame::{self, Frame};
use iop_wire::v1::{
    RequestHead, provider_tunnel_frame, register_response, run_error, run_event, tunnel_error,
};

use crate::ledger::Ledger;
use crate::world::LINK_PORT;

/// Watches one end of a connection.
pub(crate) struct Wiretap {
    ledger: Ledger,
    host: &'static str,
    peer: SocketAddr,
    link: Option<Account>,
}

/// What came on a link so far.
#[derive(Default)]
struct Account {
    buffer: BytesMut,
    streams: BTreeMap<u32, Stream>,
    /// The number of this link, once its Node was told.
    generation: u64,
    /// Numbers of health observations.
    observations: BTreeSet<u64>,
}

#[derive(Default)]
struct Stream {
    seq: u64,
    is_over: bool,
}

impl Wiretap {
    /// Watches a new connection of `host` with the listener's `port`.
    pub(crate) fn new(ledger: &Ledger, host: &'static str, peer: SocketAddr, port: u16) -> Self {
        let link = (port == LINK_PORT).then(Account::default);
        Self { ledger: ledger.clone(), host, peer, link }
    }

    /// Bytes were written here.
    pub(crate) fn sent(&self, data: &[u8]) {
        self.ledger.hash(&(self.host, self.peer, true, data.len()));
    }

    /// Bytes arrived here.
    pub(crate) fn received(&mut self, data: &[u8]) {
        self.ledger.hash(&(self.host, self.peer, false, data.len()));
        let Some(link) = &mut self.link else { return };
        link.buffer.extend_from_slice(data);
        loop {
            match frame::decode(&mut link.buffer) {
                Ok(Some(frame)) => {
                    let breach = link.enter(&frame).err();
                    let breach = breach.or_else(|| link.repetition(&self.ledger, &frame));
                    if let Some(breach) = breach {
                        self.ledger.violation(self.host, breach);
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    self.ledger.violation(self.host, format!("a frame cannot be read: {error}"));
                    self.link = None;
                    return;
                }
            }
        }
    }
}

impl Account {
    fn enter(&mut self, frame: &Frame) -> Result<(), String> {
        let id = frame.stream_id;
        let stream = match id {
            0 => return Ok(()),
            id => self.streams.entry(id).or_default(),
        };
        let before = stream.seq;
        stream.seq = frame.seq;
        if frame.seq != before + 1 {
            return Err(format!("stream {id}: frame {} after {before}", frame.seq));
        }
        // Credit for what is still on its way may follow the end.
        if matches!(frame.message, Some(Message::Credit(_) | Message::Cancel(_))) {
            return Ok(());
        }
        if stream.is_over {
            return Err(format!("stream {id}: frame {} after its terminal", frame.seq));
        }
        stream.is_over = frame.message.as_ref().is_some_and(is_terminal);
        Ok(())
    }

    /// Finds what may come once and came again: an attempt anywhere, a generation of an Edge, an
    /// observation on its link.
    fn repetition(&mut self, ledger: &Ledger, frame: &Frame) -> Option<String> {
        let message = frame.message.as_ref()?;
        if let Some(seq) = observation(message)
            && !self.observations.insert(seq)
        {
            return Some(format!("health observation {seq} came twice"));
        }
        let told = match message {
            Message::RunRequest(request) => of_head(request.head.as_ref()?),
            Message::ProviderTunnelRequest(request) => of_head(request.head.as_ref()?),
            Message::RegisterResponse(response) => match response.outcome.as_ref()? {
                register_response::Outcome::Registered(registered) => {
                    self.generation = registered.generation;
                    let edge = &registered.edge_boot_id;
                    format!("generation {} of {edge:?}", registered.generation)
                }
                register_response::Outcome::Refused(_) => return None,
            },
            _ => return None,
        };
        // Ids differ from run to run of a seed: they are compared and never told.
        let is_new = ledger.is_new(told, self.generation);
        (!is_new)
            .then(|| format!("stream {}: an attempt or a generation came twice", frame.stream_id))
    }
}

fn of_head(head: &RequestHead) -> String {
    attempt(head.attempt, &head.run_id)
}

/// Returns what the ledger knows an attempt by.
pub(crate) fn attempt(number: u32, run_id: &[u8]) -> String {
    format!("attempt {number} of {run_id:?}")
}

/// Returns the number of the health observation that a message carries.
fn observation(message: &Message) -> Option<u64> {
    let failure = match message {
        Message::HealthObservation(observation) => return Some(observation.health_observation_seq),
        Message::RunEvent(event) => match event.kind.as_ref()? {
            run_event::Kind::Error(error) => match error.error.as_ref()? {
                run_error::Error::Failure(failure) => failure,
                run_error::Error::Refused(_) => return None,
            },
            _ => return None,
        },
        Message::ProviderTunnelFrame(frame) => match frame.kind.as_ref()? {
            provider_tunnel_frame::Kind::Error(error) => match error.error.as_ref()? {
                tunnel_error::Error::Failure(failure) => failure,
                tunnel_error::Error::Refused(_) => return None,
            },
            _ => return None,
        },
        _ => return None,
    };
    failure.stall.as_ref()?.health_observation_seq
}

/// Says whether an answer ends with this message.
fn is_terminal(message: &Message) -> bool {
    match message {
        Message::RunEvent(event) => matches!(
            event.kind,
            Some(
                run_event::Kind::Complete(_)
                    | run_event::Kind::Error(_)
                    | run_event::Kind::Cancelled(_)
            )
        ),
        Message::ProviderTunnelFrame(frame) => matches!(
            frame.kind,
            Some(
                provider_tunnel_frame::Kind::End(_)
                    | provider_tunnel_frame::Kind::Error(_)
                    | provider_tunnel_frame::Kind::Cancelled(_)
            )
        ),
        _ => false,
    }
}
