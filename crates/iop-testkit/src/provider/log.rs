//! What the scripted provider saw, with the time of each thing.

use super::Request;
use std::net::SocketAddr;
use std::time::Instant;

/// All requests and connections of a scripted provider, in the order of their arrival.
///
/// Requests for lists of models (`/v1/models`, `/api/tags`, `/api/ps`) are kept apart
/// ([`model_lists`](Self::model_lists)): IOP asks for them whenever it likes, and a test that counts
/// its own requests should not have to care.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Requests other than for lists of models.
    pub exchanges: Vec<Exchange>,
    /// How many times a list of models was asked for.
    pub model_lists: usize,
    /// Connections, the closed ones too; [`Exchange::connection`] is an index into these.
    pub connections: Vec<Connection>,
    /// What could not be read as an HTTP/1.1 request.
    pub malformed: Vec<String>,
}

/// One request and its answer.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The request; its body is empty until it was read.
    pub request: Request,
    /// The index of its connection.
    pub connection: usize,
    /// When the head was there.
    pub head_at: Instant,
    /// When the whole body was there.
    pub body_at: Option<Instant>,
    /// When the first byte of the answer was written.
    pub first_byte_at: Option<Instant>,
    /// Bytes of the answer that the kernel took, head and framing included.
    pub sent: u64,
    /// When and how the answer ended.
    pub ended: Option<(Instant, Ended)>,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The script was played to its end.
    Played,
    /// The peer left and the script stopped for that.
    PeerLeft,
    /// A write failed because the peer was gone.
    WriteFailed,
    /// The provider itself was stopped.
    Stopped,
}

/// One accepted TCP connection.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The other end.
    pub peer: SocketAddr,
    /// When it was accepted.
    pub opened_at: Instant,
    /// When the peer's FIN was noticed.
    pub fin_at: Option<Instant>,
    /// When the peer's reset was noticed.
    pub reset_at: Option<Instant>,
    /// When this side closed it.
    pub closed_at: Option<Instant>,
}

impl Log {
    /// How many connections this side has not closed.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.connections.iter().filter(|connection| connection.closed_at.is_none()).count()
    }

    /// The connection that carried the request with this index.
    ///
    /// # Panics
    /// Panics when there is no such request.
    #[must_use]
    pub fn connection_of(&self, exchange: usize) -> &Connection {
        &self.connections[self.exchanges[exchange].connection]
    }

    /// How many answers are still going on.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.exchanges.iter().filter(|exchange| exchange.ended.is_none()).count()
    }

    pub(super) fn open(&mut self, peer: SocketAddr, now: Instant) -> usize {
        self.connections.push(Connection {
            peer,
            opened_at: now,
            fin_at: None,
            reset_at: None,
            closed_at: None,
        });
        self.connections.len() - 1
    }

    /// Notes a request and returns its index, or nothing for a model list.
    pub(super) fn begin(
        &mut self,
        request: &Request,
        connection: usize,
        now: Instant,
    ) -> Option<usize> {
        if request.is_model_list() {
            self.model_lists += 1;
            return None;
        }
        self.exchanges.push(Exchange {
            request: request.clone(),
            connection,
            head_at: now,
            body_at: None,
            first_byte_at: None,
            sent: 0,
            ended: None,
        });
        Some(self.exchanges.len() - 1)
    }
}

impl Connection {
    /// When the peer's departure was noticed, by FIN or by reset.
    #[must_use]
    pub fn left_at(&self) -> Option<Instant> {
        match (self.fin_at, self.reset_at) {
            (Some(fin), Some(reset)) => Some(fin.min(reset)),
            (fin, reset) => fin.or(reset),
        }
    }
}
