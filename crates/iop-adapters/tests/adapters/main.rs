//! Adapters as a Node calls them, against a provider that is watched from outside.

mod cancel;
mod commands;
mod discovery;
mod mock;
mod ollama;
mod probe;
mod run;
mod support;
mod surroundings;
mod tunnel;
mod vllm;
