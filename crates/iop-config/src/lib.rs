//! Configuration files as typed, validated values.
//!
//! [`EdgeConfig::parse`] and [`NodeConfig::parse`] turn text into a value once, at the door: every
//! key is known, every reference resolved, every number in range, and nothing downstream checks
//! again. An error names the file, line, column and field, and says what to write instead. Keys
//! whose feature is still to come are refused by name; nothing is accepted without effect.
//!
//! This crate decides what a file means. It reads no file, no environment and no clock: text,
//! variables and paths are arguments. Turning a value into a message for the link is the host's
//! work, for which [`EdgeConfig::node_view`] gives the parts.
//!
//! Read next: [`edge`] and [`node`] for the two files, [`defaults`] for every number, [`read`] for
//! how a mistake becomes a message with a position, [`reference`](mod@reference) for the page that is generated
//! from all this.

pub mod defaults;
pub mod duration;
pub mod edge;
pub mod endpoint;
pub mod environment;
pub mod error;
pub mod example;
pub mod flag;
pub mod host_port;
pub mod limits;
pub mod node;
pub mod overlay;
pub mod path;
pub mod provider;
pub mod read;
pub mod reference;
pub mod route;
pub mod schema;
pub mod size;
pub mod view;

mod address;
mod check;
mod headers;
mod tree;

pub use edge::{Cors, EdgeConfig, Listen, Mode, NodeEntry, Tls};
pub use endpoint::Endpoint;
pub use environment::{Environment, Os, Side};
pub use error::{ConfigError, Position, Problem};
pub use flag::{ProviderFlag, SecretFlag};
pub use host_port::HostPort;
pub use limits::Limits;
pub use node::{EgressRule, NodeConfig, SecretSource};
pub use overlay::{EdgeOverlay, NodeOverlay};
pub use provider::{ApiKey, KeepAlive, Profile, Provider};
pub use route::{Candidate, Queue, Route};
pub use view::{NodeView, ProviderView};
