//! What a Node decides.

pub mod cancel;
pub mod provider;
