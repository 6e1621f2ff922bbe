//! How a Node gets a connection to its Edge: in plaintext on its own machine, or over TLS to any.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::super::transport::{PlaintextRefused, prepare, require_loopback};
use crate::net::Net;
use crate::socket::Socket;
use crate::tls::{Channel, HandshakeError, NodeTls, Secured};

/// How long one address may take to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// What links run over.
pub(super) enum Carrier {
    /// On loopback only.
    Plaintext,
    Tls(Arc<NodeTls>),
}

/// A connection to the Edge.
pub(super) struct Line {
    pub(super) socket: Socket,
    pub(super) channel: Option<Arc<Channel>>,
}

impl Carrier {
    pub(super) async fn dial(
        &self,
        net: &dyn Net,
        name: &str,
        port: u16,
    ) -> Result<Line, DialError> {
        match self {
            Self::Plaintext => {
                let socket = dial(net, name, port, require_loopback).await?;
                Ok(Line { socket, channel: None })
            }
            Self::Tls(tls) => {
                let socket = dial(net, name, port, |_| Ok(())).await?;
                let Secured { socket, channel } = tls.connect(socket).await?;
                Ok(Line { socket, channel: Some(channel) })
            }
        }
    }
}

/// Why there is no connection.
pub(super) enum DialError {
    /// Trying again may help.
    Unreachable(String),
    /// The Edge is on another machine, or may be.
    Plaintext(PlaintextRefused),
    /// Whoever answered and this Node do not accept each other.
    Handshake(HandshakeError),
}

impl From<HandshakeError> for DialError {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

/// Connects to the first address that answers. Each of them has to be allowed: in plaintext, a name
/// that also leads to another machine is not meant for this one.
async fn dial(
    net: &dyn Net,
    name: &str,
    port: u16,
    allowed: impl Fn(SocketAddr) -> Result<(), PlaintextRefused>,
) -> Result<Socket, DialError> {
    let resolved = net.resolve(name, port).await;
    let addresses =
        resolved.map_err(|error| DialError::Unreachable(format!("cannot resolve: {error}")))?;
    let mut problem = "the name of the edge has no address".to_owned();
    for address in addresses {
        allowed(address).map_err(DialError::Plaintext)?;
        match tokio::time::timeout(CONNECT_TIMEOUT, net.connect(address)).await {
            Ok(Ok(socket)) => match prepare(&socket) {
                Ok(()) => return Ok(socket),
                Err(error) => problem = error.to_string(),
            },
            Ok(Err(error)) => problem = format!("cannot connect to {address}: {error}"),
            Err(_) => problem = format!("cannot connect to {address}: no answer"),
        }
    }
    Err(DialError::Unreachable(problem))
}
