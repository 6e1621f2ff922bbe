//! The life of one request at the Edge: which attempts are made, when it is over, what its client
//! still gets.
//!
//! One [`Dispatch`] per request. It knows no link, queue or client: its host tells it what happened
//! and carries out what [`Dispatch::poll_output`] says.
//!
//! ```text
//!            ┌── requeue, retry ◄────┬────────────────────────┐ (nothing executed; nothing released)
//!            ▼                       │                        │
//! ──► queued ── granted ─► sent ── head ─► head or refusal held ── progress, time, full ──┐
//!            ▲             │          └──► head known ◄───────────────────────────────────┤
//!            │             │                   └── progress ─► streaming ◄────────────────┘
//!            │             └── 400 to an option of ours ─► discarding ─ resend ─► sent
//!            └ every state leads to done: refusal, failure, deadline, client, operator, node, shutdown
//! ```
//!
//! A streamed success is *held* until its first progress, and a refusal of a provider until it is whole:
//! while the client has nothing, another attempt can take the place of this one.
//!
//! Three promises hold whatever order things happen in. *One terminal*: exactly one
//! [`Output::Finish`], and whatever comes later is counted and ignored. *One return per permit*: each
//! grant is answered by exactly one [`Output::Release`], [`Output::Requeue`] or [`Output::Retry`], and a
//! release waits until the attempt has returned (at most [`RETURN_WAIT`]), not merely until the client
//! was served. *One place for second tries*: [`recovery`] judges every attempt that ended.
//!
//! At one instant the order is: the client or the node is gone, a deadline, an operator, a terminal of
//! the provider.
//!
//! Not decided here: who may be dispatched to (`iop-admission`), how bytes are translated
//! (`iop-dialect`), how a stalled client is noticed by the surface that writes to it ([`ClientIdle`]
//! holds the rule).

pub mod attempt;
pub mod budget;
pub mod client_idle;
pub mod deadline;
pub mod outcome;
pub mod recovery;

mod dispatch;

pub use attempt::{AttemptEnd, AttemptRecord, Grant};
pub use budget::Budget;
pub use client_idle::{ClientIdle, IdleRule};
pub use deadline::Deadlines;
pub use dispatch::{CancelCause, Dispatch, Output, Phase, RETURN_WAIT, Relay, Retry, Send, Spec};
pub use outcome::{ClientEnd, Ended, Evidence, Finish, Outcome};
pub use recovery::{Policy, Reason};
