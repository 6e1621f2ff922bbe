//! What threads share: one place, so that the models under `loom/` can put loom's in here.

pub(crate) use std::sync::{Mutex, MutexGuard};
