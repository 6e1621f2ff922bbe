//! The hands of IOP: the only crate that touches sockets.

pub mod link;
