//! What tests of IOP stand on: a clock that is moved by hand, a provider that does what a script
//! says or what Ollama would do ([`ollama`]), a proxy that breaks links ([`proxy`]), the real `iop`
//! process, the kernel's own figures and a raw HTTP/1.1 client.
//!
//! The parts observe from outside. A count that IOP reports is only believed when the scripted
//! provider ([`provider`]) or the kernel ([`kernel`]) agrees, and nothing here shares code with what
//! it checks: both HTTP ends write and read bytes themselves, so that a malformed answer can be
//! sent and a malformed request can be noticed. The one exception is that the proxy names frames by
//! the schema's types.
//!
//! No helper sleeps to wait for a state. Each waits for the state itself, for at most
//! [`PATIENCE`], and panics with what it saw instead.
//!
//! Not here: expectations. What is right is said in the tests.

pub mod answer;
pub mod clock;
mod framing;
pub mod http;
pub mod kernel;
pub mod ollama;
pub mod process;
pub mod provider;
pub mod proxy;
pub mod script;
pub mod sim_link;
pub mod vllm;

use std::time::Duration;

pub use clock::ManualClock;
pub use ollama::ScriptedOllama;
pub use process::IopProcess;
pub use provider::ScriptedProvider;
pub use proxy::FaultProxy;
pub use script::Script;
pub use sim_link::{Line, SimPipe};
pub use vllm::ScriptedVllm;

/// How long a helper waits for a state that a test expects before it gives up.
///
/// 20 s: a debug build on two busy cores may need seconds to start a process; a state that takes
/// longer than this is not coming.
pub const PATIENCE: Duration = Duration::from_secs(20);
