//! What hosts keep on disk: run history, batched off the hot path, and what managed mode must not lose.
//!
//! A host owns one [`DataDir`] and in it one history: [`EdgeHistory`] keeps every request with its
//! attempts, [`NodeHistory`] the work of a Node. Writing is a push into a bounded queue that never
//! waits; one thread per history writes a transaction for what came within 50 ms. History never stops
//! inference: a locked, full, read-only, broken or missing file only makes the history *degraded*,
//! visible in [`Health`] with the reason; what waits is bounded, written once the file works again
//! or counted as dropped. Prompts, completions, headers and secrets have no column.
//!
//! What is received is written before it has ended, so that a killed process leaves no gap: what it
//! had at work is turned into `interrupted` when the file is next opened. A run that begins and ends
//! within one batch is one write, and no row of an ended run is ever changed.
//!
//! What it costs is told by `examples/history_cost.rs`.
//!
//! [`ManagedStore`] is the opposite of a history: keys, identities and credentials in a file of their
//! own, every change durable before it is answered, and refused when it cannot be written.
//!
//! This crate does not decide what is recorded; hosts do. Times come from the caller.
//!
//! Read next: [`record`] for what is kept, `queue.rs` and `writer.rs` for how it is written,
//! `database.rs` for how a file is opened, mended and set aside, [`edge`] and [`node`] for the two
//! histories, [`managed`] and [`master_key`] for the other file.

pub mod data_dir;
pub mod edge;
pub mod health;
pub mod managed;
pub mod master_key;
pub mod node;
pub mod query;
pub mod record;
pub mod work;

mod database;
mod handle;
mod queue;
mod sql;
mod timestamp;
mod writer;

pub use iop_types::{Form, HealthEvidence, Ownership, StallPhase};

pub use data_dir::{DataDir, DataDirError};
pub use edge::EdgeHistory;
pub use health::Health;
pub use managed::ManagedStore;
pub use node::NodeHistory;
pub use query::{FindError, Query, ReadError};
pub use record::{
    AttemptRecord, Outcome, Receipt, Run, Stall, TerminalKind, TerminalRecord, UsageRecord,
};
pub use work::{Work, WorkOutcome, WorkReceipt};
