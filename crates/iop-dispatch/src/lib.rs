//! The life of one request at the Edge: which attempts are made, when it is over, what its client
//! still gets.
//!
//! One [`Dispatch`] per request. It knows no link, queue or client: its host tells it what happened
//! and carries out what [`Dispatch::poll_output`] says.
//!
//! ```text
//!            ┌── requeue ◄─┬───────────────┐ (nothing was executed)
//!            ▼             │               │
//! ──► queued ── granted ─► sent ── head ─► head known ── progress ─► streaming ──► done
//!            ▲             │                                                      ▲
//!            │             └── 400 to an option of ours ─► discarding ─ resend ─► sent
//!            └ every state leads to done: refusal, failure, deadline, client, node, shutdown
//! ```
//!
//! Three promises hold whatever order things happen in. *One terminal*: exactly one
//! [`Output::Finish`], and whatever comes later is counted and ignored. *One return per permit*: each
//! grant is answered by exactly one [`Output::Release`] or [`Output::Requeue`], and a release waits
//! until the attempt has returned (at most [`RETURN_WAIT`]), not merely until the client was served.
//! *One place for second tries*: [`recovery`] judges every attempt that ended.
//!
//! At one instant the order is: the client or the node is gone, a deadline, a terminal of the provider.
//!
//! Not decided here: who may be dispatched to (`iop-admission`), how bytes are translated
//! (`iop-dialect`), how a stalled client is noticed by the surface that writes to it ([`ClientIdle`]
//! holds the rule).

pub mod attempt;
pub mod client_idle;
pub mod deadline;
pub mod outcome;
pub mod recovery;

mod dispatch;

pub use attempt::{AttemptEnd, AttemptRecord, Grant};
pub use client_idle::{ClientIdle, IdleRule};
pub use deadline::Deadlines;
pub use dispatch::{CancelCause, Dispatch, Output, RETURN_WAIT, Relay, Send, Spec};
pub use outcome::{ClientEnd, Ended, Evidence, Finish, Outcome};
