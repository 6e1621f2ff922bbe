//! What a link needs of its socket, and where plaintext may go.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use crate::socket::Socket;

/// How many unsent bytes the kernel takes. Measured on a link of 1 Mbit/s behind bulk data: without it
/// a heartbeat waits 22 s, with it about 1 s.
pub(super) const NOTSENT_LOWAT: u32 = 16 * 1024;

/// When the kernel itself gives a silent peer up; it helps where the process does not run.
const KERNEL_PATIENCE: Duration = Duration::from_secs(45);
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

/// Prepares a socket to carry a link. `TCP_NODELAY` is set on every [`Socket`] already.
pub(super) fn prepare(socket: &Socket) -> io::Result<()> {
    socket.set_notsent_lowat(NOTSENT_LOWAT)?;
    if let Some(stream) = socket.as_tcp() {
        let tcp = SockRef::from(stream);
        tcp.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_IDLE))?;
        #[cfg(any(target_os = "linux", target_os = "android"))]
        tcp.set_tcp_user_timeout(Some(KERNEL_PATIENCE))?;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let _ = KERNEL_PATIENCE;
    }
    Ok(())
}

/// Lets plaintext pass on loopback only.
///
/// # Errors
/// The address belongs to another machine, or can be reached from one.
pub fn require_loopback(address: SocketAddr) -> Result<(), PlaintextRefused> {
    if address.ip().to_canonical().is_loopback() {
        Ok(())
    } else {
        Err(PlaintextRefused { address })
    }
}

/// A link in plaintext beyond loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "local mode links only on loopback and {address} is not: \
     nodes on other machines need managed mode"
)]
pub struct PlaintextRefused {
    /// The address that was refused.
    pub address: SocketAddr,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_carries_plaintext() {
        for allowed in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(require_loopback(allowed.parse().unwrap()), Ok(()), "{allowed}");
        }
        for refused in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[fe80::1]:1", "[::ffff:10.0.0.1]:1"] {
            let error = require_loopback(refused.parse().unwrap()).unwrap_err();
            assert!(error.to_string().contains("managed mode"), "{error}");
        }
    }
}
