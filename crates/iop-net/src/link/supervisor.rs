//! The Node's one owner of dialling, waiting, dialling again and stopping.

mod carrier;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use iop_link::Link;
use iop_link::backoff::{Backoff, UNSUPPORTED};
use iop_link::node::Output;
use iop_types::{CloseReason, CommandKind, InstanceId, NodeId};
use iop_wire::{PROTOCOL_VERSION, v1};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::carrier::{Carrier, DialError, Line};
use super::driver::Driver;
use super::shared::{Shared, now};
use super::transport::PlaintextRefused;
use super::{BoxFuture, NodeCommand, NodeHost, NodeLink, NodeRequest};
use crate::net::{Net, TokioNet};
use crate::tls::{HandshakeError, NodeTls};

/// Who a Node is when it dials.
#[derive(Debug, Clone)]
pub struct SupervisorConfig {
    /// Address of the Edge's link listener, `host:port`.
    pub edge: String,
    /// This Node.
    pub node: NodeId,
    /// This process.
    pub instance: InstanceId,
    /// Version of the software, for people.
    pub software_version: String,
    /// How long a graceful stop may take.
    pub drain: Duration,
}

/// Why a Node must not dial again.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FatalLink {
    /// The Node's identity was revoked.
    #[error("the edge revoked this node's identity: {0}")]
    IdentityRevoked(String),
    /// `edge` is not `host:port`.
    #[error("`edge` is `{0}`, which is not HOST:PORT")]
    BadAddress(String),
    /// The Edge is on another machine.
    #[error(transparent)]
    Plaintext(#[from] PlaintextRefused),
}

/// Dials, waits for the end, dials again: one owner, never two dials or two links.
///
/// Returns when `shutdown` was cancelled and the drain is over.
///
/// # Errors
/// Fails when another dial is pointless.
pub async fn supervise(
    config: SupervisorConfig,
    host: Arc<dyn NodeHost>,
    shutdown: CancellationToken,
) -> Result<(), FatalLink> {
    supervise_over(Arc::new(TokioNet), config, host, shutdown).await
}

/// As [`supervise`], over another network.
///
/// # Errors
/// As [`supervise`].
pub async fn supervise_over(
    net: Arc<dyn Net>,
    config: SupervisorConfig,
    host: Arc<dyn NodeHost>,
    shutdown: CancellationToken,
) -> Result<(), FatalLink> {
    supervise_as(Carrier::Plaintext, net, config, host, shutdown).await
}

/// As [`supervise`], for a Node that has an identity: over TLS, to wherever its Edge is, and never in
/// plaintext.
///
/// # Errors
/// As [`supervise`].
pub async fn supervise_secured(
    net: Arc<dyn Net>,
    tls: Arc<NodeTls>,
    config: SupervisorConfig,
    host: Arc<dyn NodeHost>,
    shutdown: CancellationToken,
) -> Result<(), FatalLink> {
    supervise_as(Carrier::Tls(tls), net, config, host, shutdown).await
}

async fn supervise_as(
    carrier: Carrier,
    net: Arc<dyn Net>,
    config: SupervisorConfig,
    host: Arc<dyn NodeHost>,
    shutdown: CancellationToken,
) -> Result<(), FatalLink> {
    let (name, port) = split_address(&config.edge)?;
    let mut backoff = Backoff::new(seed(&config.instance));
    loop {
        let line = tokio::select! {
            biased;
            () = shutdown.cancelled() => return Ok(()),
            line = carrier.dial(&*net, name, port) => line,
        };
        let ended = match line {
            Ok(line) => run(line, &config, &host, &shutdown).await,
            Err(DialError::Plaintext(refused)) => return Err(refused.into()),
            Err(DialError::Unreachable(message)) => Ended::before_up(message),
            Err(DialError::Handshake(error)) => Ended::by_handshake(&error),
        };
        if shutdown.is_cancelled() {
            return Ok(());
        }
        if ended.reason == CloseReason::IdentityRevoked {
            let message = ended.message;
            return Err(FatalLink::IdentityRevoked(if message.is_empty() {
                "invite it anew to let it in again (`iop nodes invite`)".to_owned()
            } else {
                message
            }));
        }
        let wait = backoff.wait(ended.reason, ended.up_for, ended.retry_after);
        ended.log(wait);
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// How a link or the attempt to get one ended.
struct Ended {
    reason: CloseReason,
    message: String,
    up_for: Option<Duration>,
    retry_after: Option<Duration>,
}

impl Ended {
    /// An Edge that stops in order is news; anything else may need a person if it repeats.
    fn log(&self, wait: Duration) {
        let Self { reason, message, .. } = self;
        let why = (!message.is_empty()).then_some(message.as_str());
        let again_in_ms = wait.as_millis();
        if *reason == CloseReason::ShuttingDown {
            info!(%reason, why, again_in_ms, "no link to the edge");
        } else {
            warn!(%reason, why, again_in_ms, "no link to the edge");
        }
    }

    fn before_up(message: String) -> Self {
        Self { reason: CloseReason::ConnectionLost, message, up_for: None, retry_after: None }
    }

    /// Between two that do not accept each other nothing changes by itself.
    fn by_handshake(error: &HandshakeError) -> Self {
        let reason = if error.is_revoked() {
            CloseReason::IdentityRevoked
        } else {
            CloseReason::ConnectionLost
        };
        Self {
            reason,
            message: error.to_string(),
            up_for: None,
            retry_after: error.is_verdict().then_some(UNSUPPORTED),
        }
    }
}

/// Runs one link from its registration to its end.
async fn run(
    line: Line,
    config: &SupervisorConfig,
    host: &Arc<dyn NodeHost>,
    shutdown: &CancellationToken,
) -> Ended {
    let request = v1::RegisterRequest {
        protocol_version: PROTOCOL_VERSION,
        node_id: config.node.as_str().to_owned(),
        instance_id: Bytes::copy_from_slice(config.instance.as_bytes()),
        software_version: config.software_version.clone(),
        platform: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        lane: 0,
        commands: CommandKind::ALL.iter().map(|kind| v1::CommandKind::from(*kind).into()).collect(),
    };
    let shared = Arc::new(Shared::new(Link::dial(now(), request)));
    let Line { socket, channel } = line;
    if let Some(channel) = &channel {
        host.secured(channel);
    }
    let mut driver = Driver::new(Arc::clone(&shared), socket);
    let mut configuring: Option<BoxFuture<'_, v1::NodeReadyRequest>> = None;
    let mut refused: Option<v1::RegisterRefused> = None;
    let mut up: Option<(NodeLink, Instant)> = None;
    let mut draining = false;
    let mut shutdown = std::pin::pin!(shutdown.cancelled());
    let reason = loop {
        tokio::select! {
            biased;
            () = &mut shutdown, if !draining => {
                draining = true;
                shared.with_driver(|link| link.drain(now(), config.drain));
            }
            ready = configured(&mut configuring) => {
                configuring = None;
                shared.with_driver(|link| link.ready(now(), ready));
            }
            output = driver.next() => match output {
                Output::Registered(registered) => configuring = Some(host.configure(registered)),
                Output::Refused(refusal) => refused = Some(refusal),
                Output::Up => {
                    let generation = shared.lock().link.generation().unwrap_or_default();
                    info!(%generation, "linked to the edge");
                    let link = NodeLink::new(Arc::clone(&shared), generation, channel.clone());
                    host.link_up(link.clone());
                    up = Some((link, now()));
                }
                Output::Request(key, message) => {
                    host.accept(NodeRequest::new(&shared, key, message));
                }
                Output::Command(key, request) => {
                    host.command(NodeCommand::new(&shared, key, request));
                }
                Output::Closed(reason) => break reason,
            },
        }
    };
    if let Some((link, _)) = &up {
        host.link_down(link.generation(), reason);
    }
    let failure = driver.failure().map(HandshakeError::from);
    driver.finish().await;
    // In TLS 1.3 an Edge that does not accept this end says so after our handshake is over.
    if let (None, Some(error @ HandshakeError::Refused(_))) = (&up, &failure) {
        return Ended::by_handshake(error);
    }
    let retry_after = refused.as_ref().map_or(0, |refused| refused.retry_after_ms);
    Ended {
        reason,
        message: refused.map(|refused| refused.message).unwrap_or_default(),
        up_for: up.map(|(_, since)| now().saturating_duration_since(since)),
        retry_after: (retry_after > 0).then(|| Duration::from_millis(retry_after.into())),
    }
}

async fn configured(
    configuring: &mut Option<BoxFuture<'_, v1::NodeReadyRequest>>,
) -> v1::NodeReadyRequest {
    match configuring {
        Some(configuring) => configuring.await,
        None => std::future::pending().await,
    }
}

fn split_address(edge: &str) -> Result<(&str, u16), FatalLink> {
    let bad = || FatalLink::BadAddress(edge.to_owned());
    let (name, port) = edge.rsplit_once(':').ok_or_else(bad)?;
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let port = port.parse().map_err(|_| bad())?;
    if name.is_empty() { Err(bad()) } else { Ok((name, port)) }
}

/// Two processes wait differently, one process the same in every replay.
fn seed(instance: &InstanceId) -> u64 {
    let (high, low) = instance.as_bytes().split_at(8);
    high.iter().zip(low).fold(0, |seed, (a, b)| (seed << 8) | u64::from(a ^ b))
}
