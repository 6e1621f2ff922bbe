//! The hands of IOP: the only crate that touches sockets.
//!
//! Decides how bytes move: [`net`] dials and listens behind a trait that a simulation can replace,
//! [`socket`] is one connection that knows when its peer left, [`accept`] serves HTTP to clients,
//! [`http`] calls providers over pooled connections, [`egress`] says which addresses may be dialled,
//! [`link`] drives the Edge–Node connection, [`tls`] secures any of them, and [`memory`] bounds the bodies that are held whole.
//!
//! Does not decide what is said: routing, admission, dialects and the protocol of the link live in
//! crates below or beside this one. Start with [`socket`]; everything else is made of it.

pub mod accept;
pub mod egress;
pub mod http;
pub mod link;
pub mod memory;
pub mod net;
pub mod socket;
mod sync;
pub mod tls;
