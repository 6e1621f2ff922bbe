//! Whole Edges and Nodes in a deterministic simulation: one Edge, three Nodes, their providers and fifty
//! calls, on a network that fails.
//!
//! What is simulated is the network, the clock and the providers; hosts, link, adapters and HTTP are the
//! real ones. A seed decides everything: `plan` says what it means, `world` runs it, and
//! the rules are kept by `wiretap` (each frame of a link), `world` (permits, tasks and connections
//! return, fresh calls succeed) and `check` (what the whole story tells).
//!
//! `docs/simulation.md` says what a seed covers and how to reproduce one.

mod check;
mod client;
mod ledger;
mod logging;
mod network;
mod pipe;
mod plan;
mod provider;
mod record;
mod wiretap;
mod world;

pub use world::{Report, run};
