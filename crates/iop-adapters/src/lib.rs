//! Adapters: one module per dialect of a model server.
//!
//! An adapter turns what a Node was asked (a normalized run, a tunnel, a question about targets or
//! health) into calls of one provider, and what the provider answers into events or frames. It
//! decides how the server is spoken to: paths, headers, credentials, which of its answers are
//! failures. It does not decide whom to call, how many calls run at once, how long silence is borne
//! or whether to try again; those are the registry's, the gate's, the watchdog's and the Edge's.
//!
//! [`build`] makes a [`Provider`](iop_execution::Provider) of [`ProviderSettings`]. Hosts hold
//! nothing but that trait: what differs between servers is declared in its capabilities.

mod build;
mod mock;
mod ollama;
mod openai_compat;
mod probe;
mod recognise;
mod server;
mod settings;
mod vllm;

pub use iop_dialect::ollama::Forced;

pub use self::build::{BuildError, Tools, build};
pub use self::mock::{ScriptError, check_script};
pub use self::recognise::recognise;
pub use self::server::MalformedHeader;
pub use self::settings::{MalformedSecret, ProviderSettings, Secret, Targets};
