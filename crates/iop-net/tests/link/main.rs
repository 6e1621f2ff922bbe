//! Links over real loopback sockets: a whole server and a whole supervisor in one process.

mod birth;
mod network;
mod secured;
mod sockets;
mod streams;
mod support;
