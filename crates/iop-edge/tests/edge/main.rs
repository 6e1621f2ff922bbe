//! A whole Edge in this process, Nodes that say what a test wants, and raw HTTP clients.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod support;

mod admin;
mod commands;
mod gone;
mod health;
mod http;
mod limits;
mod models;
mod queue;
mod recovery;
mod run;
mod shutdown;
mod tunnel;
mod upload;
mod usage;
