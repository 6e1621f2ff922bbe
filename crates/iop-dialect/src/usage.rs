//! What a response says about usage, learnt while its bytes are relayed.
//!
//! Observing never changes, delays or fails the relay: what cannot be read is unknown. Chunks of
//! content are searched, not parsed; only the few that can matter are.

mod body_observer;
mod chunk_filter;
mod estimate;
mod figures;
mod likeness;
mod search;
mod stream_observer;
mod supplement;

pub use body_observer::BodyObserver;
pub use chunk_filter::ChunkFilter;
pub use estimate::{estimate, settle};
pub use stream_observer::StreamObserver;
pub use supplement::{Supplement, estimated_chunk};

pub(crate) use figures::read_figures;
