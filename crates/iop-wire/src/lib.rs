//! The Edge–Node wire: the schema's types, frames, and conversions to the words of IOP.
//!
//! Decides how messages look as bytes and what a received field means. Whether a message may come
//! *now* is the link's business (`iop-link`); this crate holds no state.
//!
//! Read next: [`frame`] for bytes to envelopes and back, [`request`] and [`answer`] for the two
//! directions of a stream, [`command`] for what a Node is asked beside requests, [`provider`] for what a Node reports,
//! [`lease`] for credentials and [`claims`] for what is said under a signature or a seal. `docs/wire.md` is the reference.

pub mod answer;
pub mod claims;
pub mod class;
mod close_reason;
pub mod command;
pub mod frame;
pub mod header;
pub mod lease;
pub mod provider;
pub mod request;
mod stall;

/// Types generated from `proto/iop/runtime/v1/runtime.proto`.
#[expect(missing_docs, clippy::all, reason = "generated; the schema carries the documentation")]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/iop.runtime.v1.rs"));
}

pub use answer::{CommandAnswer, EventJoiner, Refused, RunAnswer, TunnelAnswer};
pub use class::Class;
pub use v1::envelope::Message;

/// The one protocol version of this crate.
pub const PROTOCOL_VERSION: u32 = 1;

/// Longest payload of one data frame: the quantum of the fair round, so that an urgent frame waits
/// behind at most this much.
pub const MAX_PAYLOAD: usize = 16 * 1024;

impl From<v1::RequestBody> for Message {
    fn from(body: v1::RequestBody) -> Self {
        Self::RequestBody(body)
    }
}

impl v1::Limits {
    /// What an Edge tells its Nodes unless it is configured otherwise.
    pub const fn standard() -> Self {
        Self { max_streams: 4096, credit_budget: 64 * 1024 * 1024, max_run_event: 8 * 1024 * 1024 }
    }
}
