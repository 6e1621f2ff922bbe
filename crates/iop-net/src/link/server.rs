//! Accepts links, mints generations, settles takeovers.

mod desk;
mod entrance;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use iop_link::Link;
use iop_link::edge::Output;
use iop_types::{CloseReason, EdgeBootId, Generation, InstanceId, NodeId};
use iop_wire::v1;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::desk::{Claim, Desk, Verdict};
use self::entrance::Security;
use super::driver::Driver;
use super::shared::{Shared, now};
use super::transport::{PlaintextRefused, require_loopback};
use super::{EdgeHost, EdgeLink, Gate};
use crate::memory::Budget;
use crate::net::Listener;
use crate::socket::Socket;
use crate::tls::{Channel, EdgeTls};

/// Wait after an accept that failed for lack of resources.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a link server is told at start.
#[derive(Debug, Clone)]
pub struct LinkServerConfig {
    /// This Edge process.
    pub boot_id: EdgeBootId,
    /// Limits told to every Node.
    pub limits: v1::Limits,
    /// Pays for events that come in parts and are joined.
    pub memory: Budget,
}

/// Accepts links, mints generations, settles takeovers.
pub struct LinkServer {
    config: LinkServerConfig,
    host: Arc<dyn EdgeHost>,
    security: Option<Security>,
}

impl LinkServer {
    /// Makes a server that asks `host`.
    pub fn new(config: LinkServerConfig, host: Arc<dyn EdgeHost>) -> Self {
        Self { config, host, security: None }
    }

    /// Lets in only members of the group, over TLS, from wherever they come; `gate` hears of
    /// everybody else and serves those that want to join. Without this, links are in plaintext and on
    /// loopback only.
    #[must_use]
    pub fn secured(mut self, tls: Arc<EdgeTls>, gate: Arc<dyn Gate>) -> Self {
        self.security = Some(Security { tls, gate });
        self
    }

    /// Accepts links until `shutdown` is cancelled, then drains every link for `drain` at most.
    /// Dropping the future ends every link at once, without a word to the host.
    ///
    /// # Errors
    /// Fails at once when the listener can be reached from other machines and is not secured.
    pub async fn serve(
        self,
        mut listener: impl Listener,
        shutdown: CancellationToken,
        drain: Duration,
    ) -> Result<(), PlaintextRefused> {
        if self.security.is_none()
            && let Ok(address) = listener.local_addr()
        {
            require_loopback(address)?;
        }
        let server = Arc::new(Server {
            config: self.config,
            host: self.host,
            security: self.security,
            desk: Desk::default(),
            shutdown,
            drain,
        });
        let mut links = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = server.shutdown.cancelled() => break,
                Some(ended) = links.join_next() => log_panic(ended),
                accepted = std::future::poll_fn(|cx| listener.poll_accept(cx)) => match accepted {
                    Ok((socket, peer)) => {
                        if let Some(socket) = server.admissible(socket, peer, links.len()) {
                            links.spawn(Arc::clone(&server).serve(socket, peer));
                        }
                    }
                    Err(error) => {
                        warn!(%error, "cannot accept a link");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        while let Some(ended) = links.join_next().await {
            log_panic(ended);
        }
        Ok(())
    }
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "the task of a link panicked");
    }
}

struct Server {
    config: LinkServerConfig,
    host: Arc<dyn EdgeHost>,
    security: Option<Security>,
    desk: Desk,
    shutdown: CancellationToken,
    drain: Duration,
}

/// How far a connection has come.
enum Seat {
    None,
    Claimed { node: NodeId, claim: Claim, config: v1::NodeConfig },
    Held { node: NodeId, generation: Generation, link: Option<EdgeLink> },
}

impl Server {
    async fn run(self: Arc<Self>, socket: Socket, peer: SocketAddr, channel: Option<Arc<Channel>>) {
        let link = Link::accept(now(), self.config.boot_id, self.config.limits);
        let shared = Arc::new(Shared::new(link));
        let mut driver = Driver::new(Arc::clone(&shared), socket);
        let mut seat = Seat::None;
        let mut draining = false;
        let mut shutdown = std::pin::pin!(self.shutdown.cancelled());
        let reason = loop {
            tokio::select! {
                biased;
                () = &mut shutdown, if !draining => {
                    draining = true;
                    shared.with_driver(|link| link.drain(now(), self.drain));
                }
                verdict = verdict(&mut seat) => seat = self.seated(&shared, seat, verdict),
                output = driver.next() => match output {
                    Output::Register(request) => {
                        seat = self.register(&shared, peer, channel.as_deref(), &request);
                    }
                    Output::Ready(ready) => {
                        self.ready(&shared, &mut seat, channel.as_ref(), ready);
                    }
                    Output::Status(status) => {
                        if let Some(link) = up(&seat) {
                            self.host.status(link, status);
                        }
                    }
                    Output::Observation(observation) => {
                        if let Some(link) = up(&seat) {
                            self.host.observed(link, observation);
                        }
                    }
                    Output::Draining => {
                        if let Some(link) = up(&seat) {
                            self.host.draining(link);
                        }
                    }
                    Output::Challenged { answered } => {
                        if let Seat::Held { node, generation, .. } = &seat {
                            self.desk.challenged(node, *generation, answered);
                        }
                    }
                    Output::Closed(reason) => break reason,
                },
            }
        };
        self.left(seat, peer, reason);
        driver.finish().await;
    }

    fn register(
        &self,
        shared: &Arc<Shared<iop_link::edge::Edge>>,
        peer: SocketAddr,
        channel: Option<&Channel>,
        request: &v1::RegisterRequest,
    ) -> Seat {
        let node = NodeId::from(request.node_id.as_str());
        let admitted =
            self.identified(peer, channel, request).and_then(|()| self.host.admit(peer, request));
        match (admitted, InstanceId::from_slice(&request.instance_id)) {
            (Ok(config), Ok(instance)) => {
                let claim = self.desk.claim(node.clone(), instance, Arc::clone(shared));
                Seat::Claimed { node, claim, config }
            }
            (Err(refused), _) => {
                warn!(%node, %peer, message = refused.message, "refused a node");
                shared.with_driver(|link| link.refuse(now(), refused));
                Seat::None
            }
            (Ok(_), Err(error)) => {
                let refused = refusal(CloseReason::RegistrationRefused, error.to_string());
                shared.with_driver(|link| link.refuse(now(), refused));
                Seat::None
            }
        }
    }

    fn seated(
        &self,
        shared: &Arc<Shared<iop_link::edge::Edge>>,
        seat: Seat,
        verdict: Verdict,
    ) -> Seat {
        let Seat::Claimed { node, config, .. } = seat else { return seat };
        match verdict {
            Verdict::Seated(generation) => {
                shared.with_driver(|link| link.register(now(), generation, config, unix_ms()));
                Seat::Held { node, generation, link: None }
            }
            Verdict::Refused => {
                warn!(%node, "refused a second live instance of a node");
                let message = format!("another live process is registered as node `{node}`");
                let refused = v1::RegisterRefused {
                    retry_after_ms: DUPLICATE_RETRY_MS,
                    ..refusal(CloseReason::DuplicateNode, message)
                };
                shared.with_driver(|link| link.refuse(now(), refused));
                Seat::None
            }
            Verdict::Replaced => {
                let message = "the same process has dialled once more".to_owned();
                let refused = refusal(CloseReason::Superseded, message);
                shared.with_driver(|link| link.refuse(now(), refused));
                Seat::None
            }
        }
    }

    fn ready(
        &self,
        shared: &Arc<Shared<iop_link::edge::Edge>>,
        seat: &mut Seat,
        channel: Option<&Arc<Channel>>,
        ready: v1::NodeReadyRequest,
    ) {
        let Seat::Held { node, generation, link } = seat else { return };
        let shared = Arc::clone(shared);
        let handle =
            EdgeLink::new(shared, node.clone(), *generation, channel.cloned(), &self.config);
        *link = Some(handle.clone());
        self.host.ready(handle, ready);
    }

    /// Tells the host first, then gives the seat to whoever waits for it.
    fn left(&self, seat: Seat, peer: SocketAddr, reason: CloseReason) {
        match seat {
            Seat::None => info!(%peer, %reason, "connection ended before it was registered"),
            Seat::Claimed { node, claim, .. } => {
                info!(%node, %reason, "connection ended before it was registered");
                self.desk.withdraw(&node, claim);
            }
            Seat::Held { node, generation, link } => {
                debug!(%node, %generation, %reason, "link ended");
                if link.is_some() {
                    self.host.closed(&node, generation, reason);
                }
                self.desk.ended(&node, generation);
            }
        }
    }
}

/// Told to a Node whose id is taken.
const DUPLICATE_RETRY_MS: u32 = 30_000;

fn up(seat: &Seat) -> Option<&EdgeLink> {
    match seat {
        Seat::Held { link, .. } => link.as_ref(),
        Seat::None | Seat::Claimed { .. } => None,
    }
}

async fn verdict(seat: &mut Seat) -> Verdict {
    match seat {
        Seat::Claimed { claim, .. } => claim.verdict().await,
        Seat::None | Seat::Held { .. } => std::future::pending().await,
    }
}

fn refusal(reason: CloseReason, message: String) -> v1::RegisterRefused {
    v1::RegisterRefused {
        reason: v1::CloseReason::from(reason).into(),
        message,
        ..v1::RegisterRefused::default()
    }
}

/// For people who compare logs; nothing is decided by it.
fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
