//! What a Node decides about the calls it takes: whom they go to, whether there is room, how they
//! are cancelled and that each has exactly one end.
//!
//! Everything here is pure: no socket, no clock, no spawned task. Time comes in as an argument, and
//! the provider calls themselves are futures that the host drives. What is *not* decided here:
//! which provider a request goes to (the Edge's admission), how bytes travel (the link) and how a
//! server is spoken to (the adapters behind [`provider::Provider`]).
//!
//! One request passes through the modules in this order: [`admit`] asks [`work`] whether it is
//! already here, the [registry](mod@registry) who executes it and the [`gate`] whether there is room; then the
//! adapter's call from [`provider`] puts its output through the fence of [`emission`], until it
//! returns or [`cancel`] asked it to. Meanwhile [`vitals`] keeps when it last got on, and [`watchdog`]
//! settles how it ends.

pub mod admit;
pub mod cancel;
pub mod emission;
pub mod gate;
pub mod neighbours;
pub mod probe;
pub mod provider;
pub mod registry;
mod sync;
pub mod vitals;
pub mod watchdog;
pub mod work;

pub use admit::{Admitted, Asked, Checks, Need, Passed};
pub use cancel::{Cancelled, Canceller, cancellation};
pub use emission::{Emission, Ender, Fence, Terminus};
pub use gate::{Gate, Permit};
pub use neighbours::{Company, Neighbours, Seat};
pub use probe::{Look, Probe, ProbeOutcome};
pub use provider::{
    Body, BodyLost, BodySource, BoxFuture, CallError, Command, Commands, Completion, Connections,
    DiscoverError, Discovery, Fenced, Outlet, Provider, StartError, Tunnel,
};
pub use registry::{Bootstrap, Bound, Draining, Registry, registry};
pub use vitals::{Sent, Vitals};
pub use watchdog::Watchdog;
pub use work::Work;
