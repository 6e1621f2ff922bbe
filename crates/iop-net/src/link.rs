//! Links as hosts see them: the tokio form of [`iop_link`].
//!
//! Decides when bytes are read and written and who is woken; what they mean is decided by the machine in
//! `iop-link`. One task drives a link: it never stops reading the socket, never waits for the writer,
//! and writes whatever was queued since it ran last in one batch. Everybody else holds handles that call
//! the machine under a lock which is never held across an await.
//!
//! ```text
//!   handles ── lock ──▶ Link ◀── lock ── Driver ◀──▶ socket
//!      ▲                                    │
//!      └───────────── wake ─────────────────┘
//! ```
//!
//! A link is secured by TLS ([`LinkServer::secured`], [`supervise_secured`]) or it lives on loopback:
//! [`LinkServer::serve`] and [`supervise`] refuse every other address. The choice is the host's and is
//! not negotiated. What came over TLS is read only once the peer is known to be a member whom the
//! [`Gate`] lets in.
//!
//! Read next: [`server`] for the Edge's side, [`supervisor`] for the Node's, then `driver` beneath both.

mod driver;
mod edge;
mod node;
pub mod server;
mod shared;
pub mod supervisor;
mod transport;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use iop_identity::PeerIdentity;
use iop_types::{CloseReason, Generation, NodeId};
use iop_wire::v1;

use crate::socket::Socket;
use crate::tls::{Channel, HandshakeError};

pub use edge::{EdgeCommand, EdgeLink, EdgeStream};
pub use iop_link::credit::REQUEST_WINDOW;
pub use iop_link::{
    Answer, BudgetStats, LinkStats, NotSent, OpenError, RequestMessage, StreamError,
};
pub use node::{AnswerSender, BodyReceiver, Cancelled, NodeCommand, NodeLink, NodeRequest};
pub use server::{LinkServer, LinkServerConfig};
pub use supervisor::{FatalLink, SupervisorConfig, supervise, supervise_over, supervise_secured};
pub use transport::{PlaintextRefused, require_loopback};

/// A future in a box, for traits that hosts implement.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a link asks of the Edge that owns it. No method may block.
pub trait EdgeHost: Send + Sync + 'static {
    /// Decides whether this Node may join and what it is configured to do.
    ///
    /// # Errors
    /// The refusal is sent to the Node and the link closes.
    fn admit(
        &self,
        peer: SocketAddr,
        request: &v1::RegisterRequest,
    ) -> Result<v1::NodeConfig, v1::RegisterRefused>;

    /// The Node is ready and may be dispatched to: every head opened on `link` from now on follows
    /// the NodeReadyResponse. Where it takes over from an older link, that one's [`Self::closed`] was
    /// called before.
    fn ready(&self, link: EdgeLink, ready: v1::NodeReadyRequest);

    /// A provider of the Node changed.
    fn status(&self, link: &EdgeLink, status: v1::ProviderStatus);

    /// The Node looked at the health of one of its targets.
    fn observed(&self, link: &EdgeLink, observation: v1::HealthObservation);

    /// The Node asked to drain: dispatch nothing new to this generation.
    fn draining(&self, link: &EdgeLink);

    /// This generation ended; called exactly once for every link that was `ready`, after its streams
    /// were ended with the same reason.
    fn closed(&self, node: &NodeId, generation: Generation, reason: CloseReason);
}

/// What a secured link server asks of the Edge that owns it. No method but `enrol` may wait.
pub trait Gate: Send + Sync + 'static {
    /// Decides whether this member, whose certificate is in order, may still come in: called before
    /// anything of it is read, and again when it registers.
    ///
    /// # Errors
    /// It is told the reason and the connection ends. `IdentityRevoked` makes its process stop.
    fn admit(&self, address: SocketAddr, peer: &PeerIdentity) -> Result<(), v1::RegisterRefused>;

    /// Serves somebody who wants to join and of whom nothing is known. The future is dropped when the
    /// server stops; it has to bound its own time.
    fn enrol(&self, address: SocketAddr, socket: Socket) -> BoxFuture<'_, ()>;

    /// Hears of a connection that was closed because its peer is no member, for the audit log.
    fn refused(&self, address: SocketAddr, error: &HandshakeError);
}

/// What a link asks of the Node that owns it.
pub trait NodeHost: Send + Sync + 'static {
    /// The Edge proved who it is; called before anything is sent over a secured link, so that what
    /// [`Self::configure`] prepares can be bound to this link.
    fn secured(&self, channel: &Arc<Channel>) {
        let _ = channel;
    }

    /// Builds and starts the adapters of this configuration; says what is served. The future is
    /// dropped when the link ends first; its `generation` is filled in by the link.
    fn configure(&self, registered: v1::Registered) -> BoxFuture<'_, v1::NodeReadyRequest>;

    /// The Edge answered NodeReadyRequest; statuses may be sent from now on.
    fn link_up(&self, link: NodeLink);

    /// A request arrived. Must not block: the host spawns the work.
    fn accept(&self, request: NodeRequest);

    /// A command arrived. Must not block: the host spawns the work.
    fn command(&self, command: NodeCommand);

    /// The link ended; every request of it was told so ([`Cancelled`]). Called exactly once for
    /// every link that was up.
    fn link_down(&self, generation: Generation, reason: CloseReason);
}
