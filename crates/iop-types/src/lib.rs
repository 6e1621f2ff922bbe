//! The words of IOP as passive data.
//!
//! Every other crate stands on this one. Nothing here decides, parses a foreign format, touches a
//! socket or reads a clock: a type earns its place by being named in `docs/glossary.md` and by being
//! needed on more than one floor. Values that can be wrong are checked once, where they are made
//! ([`SessionId::new`], [`StallTimeout::from_wire`]), so that holding one is proof enough.
//!
//! Read next: [`id`] for what identifies work, [`event`] and [`tunnel`] for what a provider call
//! yields, [`command`] for what a Node is asked beside requests, [`code`] for the one table of errors,
//! [`host`] for what an endpoint may name, [`header`] for
//! what passes on, [`terminal`] for how a run ends, [`stall`] for what is known of a provider that fell silent,
//! [`lease`] for how a credential comes with a request.

pub mod close_reason;
pub mod code;
pub mod command;
pub mod event;
pub mod header;
pub mod host;
pub mod id;
pub mod lease;
pub mod provider;
pub mod request;
pub mod route;
pub mod stall;
pub mod stall_timeout;
pub mod terminal;
pub mod tunnel;
pub mod usage;

pub use close_reason::CloseReason;
pub use code::ErrorCode;
pub use command::{
    ApiCall, Command, CommandFrame, CommandKind, CommandRequest, MAX_COMMAND_BODY, OllamaOperation,
    Patience,
};
pub use event::{Event, EventKind, Finish, Part};
pub use host::{Host, HostError};
pub use id::{
    Attempt, CommandId, ConfigRevision, EdgeBootId, Generation, InstanceId, NodeId, Principal,
    ProviderKey, ProviderRevision, RequestId, RouteName, RunId, SessionId, Slot, Target, TunnelId,
};
pub use lease::{
    LeaseFault, LeaseSigner, Profile, RecipientKey, Revocation, SealedGrant, SealedLease,
};
pub use provider::{AdapterType, Capabilities, Operation, ProviderState, ProviderStatus};
pub use request::{Form, RequestHead, RunKind, RunRequest, TunnelRequest, WorkKey};
pub use route::{Policy, Recovery};
pub use stall::{HealthEvidence, HealthObservation, Ownership, Stall, StallPhase};
pub use stall_timeout::StallTimeout;
pub use terminal::{Failure, Refusal, Requeue, Terminal};
pub use tunnel::{Header, ResponseHead, TunnelFrame};
pub use usage::{Usage, UsageMode, UsageSource};
