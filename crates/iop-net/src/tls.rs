//! TLS: who is at the other end of a connection, before a byte of it is read.
//!
//! Decides how connections are secured; what an identity is, is decided by `iop-identity`. A secured
//! connection is a [`Socket`](crate::socket::Socket) like any other.
//!
//! One port serves the Nodes of a group and those that want to join it; what a client offers (ALPN)
//! tells them apart:
//!
//! ```text
//!              ALPN iop/1         certificate required ──▶ PeerIdentity ──▶ Arrival::Link
//! connection ──┤
//!              ALPN iop-enroll/1  none                 ──────────────────▶ Arrival::Enrolment
//! ```
//!
//! Links use TLS 1.3 only, without tickets, stored sessions or early data: every connection is a whole
//! handshake with a whole look at the certificate. What is renewed ([`EdgeTls::replace`],
//! [`NodeTls::replace`]) counts for the next handshake and touches no connection.
//!
//! Beside links, [`Trust`] verifies providers and [`WebTls`] serves clients, both as the web does.
//!
//! ```text
//! Edge:  let tls = Arc::new(EdgeTls::new(&member)?);
//!        LinkServer::new(config, host).secured(tls, gate).serve(listener, shutdown, drain)
//! Node:  let tls = Arc::new(NodeTls::new(&member, edge_id)?);
//!        supervise_secured(net, tls, config, host, shutdown)
//! Join:  let edge = enrol(socket, token.pin).await?;   // then speak over edge.socket
//! ```

mod enrol;
mod error;
mod member;
mod stream;
#[cfg(test)]
mod tests;
mod trust;
mod web;

use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;

pub use enrol::{Introduced, enrol};
pub use error::HandshakeError;
pub use member::{Arrival, Channel, EdgeTls, Member, NodeTls, Secured, TlsSetupError};
pub use trust::Trust;
pub use web::{CertificateError, CertificateFiles, WebTls};

/// How long a handshake may take: 5 s are many round trips of any line.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// What links speak inside TLS.
pub const LINK_PROTOCOL: &[u8] = b"iop/1";

/// What those speak who want to join.
pub const ENROL_PROTOCOL: &[u8] = b"iop-enroll/1";

/// What both ends of a link derive from its TLS session, and nobody else can.
const EXPORTER_LABEL: &[u8] = b"EXPORTER-IOP-Link";

/// The one provider of cryptography, named so that no default of the process is needed.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
