//! Whole Edges and Nodes in a deterministic simulation: one Edge, three Nodes, their providers and fifty
//! calls, on a network that fails.
//!
//! What is simulated is the network, the clock and the providers; hosts, link, adapters and HTTP are the
//! real ones. A seed decides everything: `plan` says what it means, `world` runs it. The rules are
//! kept by `wiretap` (each frame of a link), `quiet` (permits return, fresh calls succeed, nothing is
//! left behind) and `check` (what the whole story tells).
//!
//! `docs/simulation.md` says what a seed covers and how to reproduce one.

mod check;
mod client;
mod faults;
mod hosts;
mod ledger;
mod logging;
mod network;
mod pipe;
mod plan;
mod provider;
mod question;
mod quiet;
mod record;
mod report;
mod wiretap;
mod world;

pub use report::Report;
pub use world::run;
