//! Whole execution groups as real processes, seen from outside: by their clients, by a scripted
//! provider, by the kernel, and by what the Edge says of itself.
//!
//! What one crate can show alone is shown in that crate. Here is what only the whole can show: that
//! the parts count the same things, and that an end at one side is an end at the other.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod support;

mod bodies;
mod bytes;
mod cancel;
mod capacity;
mod cli;
mod commands;
mod counts;
mod cuts;
mod extremes;
mod faults;
mod health;
mod link;
mod nodes;
mod ollama;
mod recovery;
mod restart;
mod shutdown;
mod stalls;
mod stress;
mod up;
mod uploads;
mod vllm;
