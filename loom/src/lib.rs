//! The few places where threads of IOP meet, under every interleaving of those threads.
//!
//! Three values are called from several threads and decide something: the fence of a call's output
//! (`iop_execution::emission`), the machine of a link behind its lock (`iop-net`'s `link::shared`),
//! which is where a generation is fenced and where credit is given and used, and the count of
//! buffered bodies (`iop-net`'s `memory`). Their very source files are compiled here once more. Each takes
//! its locks and counters from a module `crate::sync`, which is the standard library there and
//! [loom](https://docs.rs/loom) here, so nothing that is checked is a copy, and no flag rebuilds the
//! workspace.
//!
//! The models are in `tests/`. Not checked here: what a single thread decides. That is shown by the
//! tests of the crates themselves.

// The files bring unit tests of their own, which belong to their crates.
#![cfg(not(test))]

#[path = "../../crates/iop-execution/src/emission.rs"]
pub mod emission;
pub mod link;
#[path = "../../crates/iop-net/src/memory.rs"]
pub mod memory;

/// What the files above find under this name in their own crates.
mod provider {
    pub(crate) use iop_execution::provider::{Completion, Fenced, Outlet};
}

mod vitals {
    pub(crate) use iop_execution::vitals::{Sent, Vitals};
}

/// The primitives under examination.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
}
