//! The Node host: executes what its Edge sends, on the machine where the model servers run.
//!
//! A Node dials out and accepts nothing from outside. What it serves is told by its Edge, or found
//! on its own loopback; how a request is executed lies in the adapters, and what is decided about it
//! in `iop-execution`. This crate composes them: it owns the tasks, the clock and the link.
//!
//! It holds no conversation, starts no program and chooses no provider.
//!
//! Read [`node`] for start and stop, `host.rs` for what the link asks, `call.rs` for one request
//! from its checks to its terminal, `command.rs` for what is asked beside requests,
//! `providers.rs` for how providers come and go, [`board`] for what
//! is known of them.

pub mod board;
pub mod local;
pub mod node;
pub mod settings;

mod bridge;
mod call;
mod command;
mod health;
mod host;
mod journal;
mod outlet;
mod permission;
mod providers;
mod watch;

pub use local::LocalServer;
pub use node::Node;
pub use settings::{ManageModels, Secrets, Settings};
