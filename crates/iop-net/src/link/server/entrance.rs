//! Who gets as far as a link: anybody on this machine, or members of the group only.

use std::net::SocketAddr;
use std::sync::Arc;

use iop_link::Link;
use iop_types::CloseReason;
use iop_wire::v1;
use tracing::warn;

use super::super::Gate;
use super::super::driver::Driver;
use super::super::shared::{Shared, now};
use super::super::transport::{prepare, require_loopback};
use super::{Server, refusal};
use crate::socket::Socket;
use crate::tls::{Arrival, Channel, EdgeTls, Secured};

/// Connections at once, registered or not; more are closed unread.
const MAX_CONNECTIONS: usize = 4096;

/// What stands before a link in managed mode.
pub(super) struct Security {
    pub(super) tls: Arc<EdgeTls>,
    pub(super) gate: Arc<dyn Gate>,
}

impl Server {
    pub(super) fn admissible(
        &self,
        socket: Socket,
        peer: SocketAddr,
        connections: usize,
    ) -> Option<Socket> {
        let loopback = match self.security {
            Some(_) => Ok(()),
            None => require_loopback(peer),
        };
        let problem = if let Err(refused) = loopback {
            refused.to_string()
        } else if connections >= MAX_CONNECTIONS {
            format!("{MAX_CONNECTIONS} connections are open already")
        } else if let Err(error) = prepare(&socket) {
            error.to_string()
        } else {
            return Some(socket);
        };
        warn!(%peer, problem, "refused a connection to the link listener");
        None
    }

    /// Finds out who came, and drives the link if it is one.
    pub(super) async fn serve(self: Arc<Self>, socket: Socket, peer: SocketAddr) {
        let Some(security) = &self.security else {
            return self.run(socket, peer, None).await;
        };
        let arrival = tokio::select! {
            biased;
            () = self.shutdown.cancelled() => return,
            arrival = security.tls.accept(socket, peer) => arrival,
        };
        match arrival {
            Ok(Arrival::Link(Secured { socket, channel })) => {
                match security.gate.admit(peer, &channel.peer) {
                    Ok(()) => self.run(socket, peer, Some(channel)).await,
                    Err(refused) => self.turn_away(socket, refused).await,
                }
            }
            Ok(Arrival::Enrolment(socket)) => {
                tokio::select! {
                    biased;
                    () = self.shutdown.cancelled() => {}
                    () = security.gate.enrol(peer, socket) => {}
                }
            }
            Err(error) => {
                warn!(%peer, code = error.as_str(), %error, "refused a connection of no member");
                security.gate.refused(peer, &error);
            }
        }
    }

    /// Tells a member that is not let in why, before anything of it is read.
    async fn turn_away(&self, socket: Socket, refused: v1::RegisterRefused) {
        let link = Link::accept(now(), self.config.boot_id, self.config.limits);
        let shared = Arc::new(Shared::new(link));
        let reason = CloseReason::from(refused.reason());
        shared.with_driver(|link| link.fence(now(), reason));
        Driver::new(shared, socket).finish().await;
    }

    /// A member registers as nobody but itself, and may have lost its standing since it came.
    pub(super) fn identified(
        &self,
        address: SocketAddr,
        channel: Option<&Channel>,
        request: &v1::RegisterRequest,
    ) -> Result<(), v1::RegisterRefused> {
        let (Some(channel), Some(security)) = (channel, &self.security) else { return Ok(()) };
        let own = channel.peer.id.id();
        if own != request.node_id {
            let message = format!(
                "the certificate names node `{own}`, and it registers as `{}`",
                request.node_id
            );
            return Err(refusal(CloseReason::RegistrationRefused, message));
        }
        security.gate.admit(address, &channel.peer)
    }
}
