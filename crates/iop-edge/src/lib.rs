//! The Edge host: client surfaces, admission, dispatch, relay, history.
//!
//! [`Edge::start`] composes the decisions of `iop-admission` and `iop-dispatch` with the hands of
//! `iop-net` and `iop-store`; nothing is decided here that a pure crate could decide. The way of one
//! request is `surface` → `body` → `admit` → `relay` → `history`.
//!
//! Not here: reading files and environment, signals, printing (the binary does), and anything that
//! dials a provider (only Nodes do).

mod admin;
mod admit;
mod body;
mod bridge;
mod command;
mod core;
mod edge;
mod group;
mod history;
mod live;
mod metrics;
mod relay;
mod settings;
mod surface;
mod timer;

pub use self::core::{Addresses, Timing};
pub use self::edge::{Edge, StartError, Tools};
pub use self::settings::{NodeTooLarge, NotLoopback};

/// The monotonic clock; tests move it.
fn now() -> std::time::Instant {
    tokio::time::Instant::now().into_std()
}
