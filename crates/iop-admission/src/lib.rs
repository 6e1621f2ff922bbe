//! Who may be dispatched to now, who waits, and who is told that it will not work.
//!
//! One [`Admission`] per Edge holds three things: what every provider last reported, the routes that
//! clients name, and the requests that wait. It decides which candidate a request gets
//! ([`Policy`](iop_types::Policy)), counts permits per provider and generation, and explains every
//! refusal. It knows no socket, clock or task: the host passes `now`, keeps the value behind one
//! lock, and after each call drains [`Admission::poll_output`] into the tasks that wait.
//!
//! ```text
//! request ──┬─► Granted(Permit) ──┬─► release                       (the attempt has returned)
//!           │                     ├─► requeue ─► Granted | Waiting  (nothing was executed)
//!           │                     └─► retry ───► Granted | Waiting  (it failed: somewhere else)
//!           ├─► Waiting(Ticket) ──┬─► Output::Granted
//!           │                     ├─► Output::Refused               (queue timeout, nobody came back)
//!           │                     └─► cancel                        (the client left)
//!           └─► Refused           (queue full, no candidate, unknown name, stopping)
//! ```
//!
//! Two rules carry the rest. *Work conserving*: after every call no ticket waits that a free provider
//! could take, so that a newcomer that finds a free provider overtakes nobody; only a request that
//! failed at a provider leaves it alone while another one is ready. *Owned counts*: a
//! [`Permit`] is not `Clone` and is given back by value; it remembers its generation, and a permit of
//! a generation that ended no longer touches the counts of the one that followed.
//!
//! Not decided here: what becomes of a request after its permit was granted (`iop-dispatch`), and who
//! may ask at all (the surfaces). Fairness between principals will be a choice among the heads of the
//! lanes of `queue.rs`; today the oldest head wins.
//!
//! Read next: [`config`] for what an operator decides, [`Admission`] for the calls, then inside:
//! `provider.rs` for the table of providers, `route.rs` for names, `choice.rs` for how a candidate is
//! picked, `queue.rs` for who waits.

pub mod config;
pub mod permit;
pub mod refused;
pub mod request;
pub mod view;

mod admission;
mod choice;
mod provider;
mod queue;
mod route;

pub use admission::{Admission, Admitted, Entry, Output, StaleObservation};
pub use config::{
    CandidateConfig, Config, ConfigError, ProviderId, ProviderSettings, QueueLimits, RouteConfig,
    RouteSettings,
};
pub use permit::{Candidate, Instance, Permit, Ticket, Why};
pub use refused::{Held, Refused, Shortage};
pub use request::{AffinityKey, Need, Request};
pub use route::Route;
pub use view::{Gauges, Model, NotReady, ProviderView, RouteGauge, TargetHealth};
