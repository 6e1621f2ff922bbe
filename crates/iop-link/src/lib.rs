//! One Edge–Node link as a state machine, for both roles.
//!
//! Decides when a message may be sent and what a received one does: the order of birth, heartbeats,
//! which frame leaves next, how much a peer may send, how a link drains and closes, which of two links
//! of one Node survives, and how long a Node waits before it dials again. Touches no socket, reads no
//! clock and spawns nothing: bytes and `now` come in, bytes and outputs come out.
//!
//! Does not decide who may join, what a request means or where it goes; that is the hosts' business.
//! `iop-net` drives a [`Link`] over a socket; `docs/wire.md` is the reference of the protocol.
//!
//! ```text
//!             Edge                                                   Node
//!   Awaiting ── RegisterRequest ─▶ Deciding              AwaitingAnswer ── Registered ─▶ Configuring
//!   Deciding ── register() ──────▶ Registered            Configuring ── ready() ─▶ AwaitingReadyAnswer
//!   Registered ── NodeReadyRequest ─▶ Up                 AwaitingReadyAnswer ── NodeReadyResponse ─▶ Up
//!   any ── close, timeout, violation ─▶ Over             any ─▶ Over
//! ```
//!
//! Read next: [`link`] for the machine, then its parts: [`heartbeat`], [`stream`], [`credit`],
//! [`outbox`], [`commands`]. [`seats`] settles takeovers, [`backoff`] spaces dials.

pub mod backoff;
pub mod commands;
pub mod credit;
pub mod heartbeat;
mod late;
pub mod link;
pub mod message;
pub mod outbox;
pub mod seats;
pub mod stream;

pub use commands::NotSent;
pub use credit::BudgetStats;
pub use link::{Link, LinkStats, Role, Signal};
pub use link::{edge, node};
pub use message::{Answer, RequestMessage, StreamKind};
pub use stream::{OpenError, StreamError, StreamKey};
