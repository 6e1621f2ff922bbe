//! What passes on one connection, noted and, on a link, held against the rules of the wire.
//!
//! What a host *writes* is judged, at the moment at which it writes it: neither the network, which may
//! lose it, nor the machine at the other end, which may swallow it, can hide a broken rule. What it
//! *reads* only tells what it may write: credit, heads, numbers of generations. The tap shares the codec
//! with what it watches and none of the state ([`account`]).

mod account;

use std::net::SocketAddr;

use bytes::BytesMut;
use iop_wire::frame;

use self::account::Account;
pub(crate) use self::account::attempt;
use crate::ledger::Ledger;
use crate::world::LINK_PORT;

/// Watches one end of a connection.
pub(crate) struct Wiretap {
    ledger: Ledger,
    host: &'static str,
    peer: SocketAddr,
    link: Option<Link>,
}

/// Both directions of a link, as frames.
struct Link {
    written: BytesMut,
    read: BytesMut,
    account: Account,
}

/// Who moved a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Written,
    Read,
}

impl Wiretap {
    /// Watches a new connection of `host` with the listener's `port`. Where no network fails, links keep
    /// time as well.
    pub(crate) fn new(
        ledger: &Ledger,
        host: &'static str,
        peer: SocketAddr,
        port: u16,
        is_undisturbed: bool,
    ) -> Self {
        let link = (port == LINK_PORT).then(|| Link {
            written: BytesMut::new(),
            read: BytesMut::new(),
            account: Account::new(ledger, host, is_undisturbed),
        });
        Self { ledger: ledger.clone(), host, peer, link }
    }

    /// Says whether this is a link.
    pub(crate) const fn is_link(&self) -> bool {
        self.link.is_some()
    }

    /// Bytes were written here.
    pub(crate) fn sent(&mut self, data: &[u8]) {
        self.ledger.hash(&(self.host, self.peer, true, data.len()));
        self.enter(Way::Written, data);
    }

    /// Bytes arrived here.
    pub(crate) fn received(&mut self, data: &[u8]) {
        self.ledger.hash(&(self.host, self.peer, false, data.len()));
        self.enter(Way::Read, data);
    }

    fn enter(&mut self, way: Way, data: &[u8]) {
        let Some(Link { written, read, account }) = &mut self.link else { return };
        let buffer = match way {
            Way::Written => written,
            Way::Read => read,
        };
        buffer.extend_from_slice(data);
        loop {
            match frame::decode(buffer) {
                Ok(Some(frame)) => {
                    let entered = match way {
                        Way::Written => account.written(&frame),
                        Way::Read => account.read(&frame),
                    };
                    if let Err(breach) = entered {
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
