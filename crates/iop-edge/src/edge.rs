//! Starting and stopping an Edge.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use iop_admission::{Admission, ConfigError};
use iop_config::{EdgeConfig, Mode};
use iop_dispatch::RETURN_WAIT;
use iop_net::accept;
use iop_net::link::{LinkServer, LinkServerConfig};
use iop_net::net::{Listener, Net};
use iop_store::EdgeHistory;
use iop_types::EdgeBootId;
use iop_wire::v1;
use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::{info, warn};
use uuid::Uuid;

use crate::admin;
use crate::admit::Desk;
use crate::command::Commands;
use crate::core::{Addresses, Core, Timing};
use crate::group::Group;
use crate::live::{self, Live};
use crate::metrics::Metrics;
use crate::settings::{self, NodeTooLarge, NotLoopback};
use crate::surface;
use crate::surface::guard::Guard;
use iop_net::memory::Budget;

/// What an Edge works with beside its file.
pub struct Tools {
    /// The network of its listeners.
    pub net: Arc<dyn Net>,
    /// Where requests are recorded; the Edge closes it when it stops.
    pub history: EdgeHistory,
}

/// Why an Edge did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Local mode does not open this address.
    #[error(transparent)]
    NotLoopback(#[from] NotLoopback),
    /// The file is for managed mode.
    #[error("`mode`: this version checks files for managed mode and serves local mode only")]
    Managed,
    /// A Node could not be told its configuration.
    #[error(transparent)]
    NodeTooLarge(#[from] NodeTooLarge),
    /// Routes contradict each other.
    #[error(transparent)]
    Routes(#[from] ConfigError),
    /// An address cannot be listened on.
    #[error(
        "cannot listen on {address}: stop the process that holds it, or set another address by `{flag}` \
         or `listen.{key}`"
    )]
    Listen {
        /// Key under `listen`.
        key: &'static str,
        /// The flag of the command line for the same.
        flag: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the operating system says.
        #[source]
        source: io::Error,
    },
}

/// A running Edge.
///
/// Its owner calls [`stop`](Self::stop) and awaits [`stopped`](Self::stopped). Dropping it begins the
/// same graceful stop, for which nobody waits then.
pub struct Edge {
    core: Arc<Core>,
    stopping: DropGuard,
    conductor: JoinHandle<()>,
}

/// Everything that runs, and in which order it ends.
struct Parts {
    core: Arc<Core>,
    clients: Part,
    admin: Part,
    links: Part,
    upkeep: Part,
}

/// A task and what ends it.
struct Part {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// Version of the software, for people.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How long connections may take to end when nothing runs on them any more: the last bytes of an
/// answer may still be on their way to a slow client.
const CLOSING: Duration = Duration::from_secs(5);
/// How long the last rows of history may take.
const FLUSH: Duration = Duration::from_secs(5);
/// Connections to the admin listener at once: a handful of people and one scraper.
const ADMIN_CONNECTIONS: usize = 256;

impl Edge {
    /// Opens the listeners and begins to serve.
    ///
    /// # Errors
    /// Nothing is left behind: see [`StartError`].
    pub async fn start(file: EdgeConfig, tools: Tools) -> Result<Self, StartError> {
        Self::start_timed(file, tools, Timing::default()).await
    }

    /// As [`Self::start`], with other times than the usual ones.
    ///
    /// # Errors
    /// Nothing is left behind: see [`StartError`].
    pub async fn start_timed(
        file: EdgeConfig,
        tools: Tools,
        timing: Timing,
    ) -> Result<Self, StartError> {
        if file.mode == Mode::Managed {
            return Err(StartError::Managed);
        }
        settings::check_loopback(&file)?;
        settings::check_node_sizes(&file)?;
        let admission = Admission::new(crate::now(), settings::admission(&file))?;
        let listen = file.listen;
        let (clients, clients_at) = bind(&*tools.net, "clients", listen.clients).await?;
        let (admin, admin_at) = bind(&*tools.net, "admin", listen.admin).await?;
        let (nodes, nodes_at) = bind(&*tools.net, "nodes", listen.nodes).await?;
        let addresses = Addresses { clients: clients_at, nodes: nodes_at, admin: admin_at };
        let core = Arc::new(core(file, tools, timing, admission, addresses));
        let parts = Parts {
            clients: clients_part(&core, clients),
            admin: admin_part(&core, admin),
            links: links_part(&core, nodes),
            upkeep: upkeep_part(&core),
            core: Arc::clone(&core),
        };
        let stop = CancellationToken::new();
        let stopping = stop.clone().drop_guard();
        let conductor = tokio::spawn(async move {
            stop.cancelled().await;
            parts.end().await;
        });
        info!(clients = %clients_at, nodes = %nodes_at, admin = %admin_at, "edge serves");
        Ok(Self { core, stopping, conductor })
    }

    /// Returns where it listens, ports filled in.
    pub fn addresses(&self) -> Addresses {
        self.core.addresses
    }

    /// Begins to stop: takes nothing new, lets what runs finish within the drain time, ends the
    /// rest.
    ///
    /// New requests are answered with 503 while the last ones run. Then each one that is left gets
    /// its one terminal, Nodes are told to come back later, and history is written.
    pub fn stop(&self) {
        self.stopping.token().cancel();
    }

    /// Completes when a stop that was begun is over.
    pub async fn stopped(&mut self) {
        if let Err(error) = (&mut self.conductor).await {
            warn!(%error, "the edge ended badly");
        }
    }
}

impl Parts {
    async fn end(self) {
        let Self { core, clients, admin, links, upkeep } = self;
        info!(running = core.live.len(), "edge drains");
        core.stopping.store(true, Ordering::Relaxed);
        core.desk.tell(|admission, _| admission.stop());
        if tokio::time::timeout(core.file.limits.drain, core.live.none_left()).await.is_err() {
            warn!(running = core.live.len(), "drain time is over, ending what is left");
            core.live.for_each(crate::relay::Request::shut_down);
            // Each attempt gives its permit back by itself within this time.
            let _ = tokio::time::timeout(RETURN_WAIT, core.live.none_left()).await;
        }
        core.commands.cancel_all();
        core.farewells.close();
        core.farewells.wait().await;
        tokio::join!(clients.end(), links.end());
        tokio::join!(admin.end(), upkeep.end());
        if !core.history.close(FLUSH).await {
            warn!("the last rows of history could not be written");
        }
        info!("edge stopped");
    }
}

fn clients_part(core: &Arc<Core>, listener: Box<dyn Listener>) -> Part {
    let limits = accept::Limits {
        max_connections: usize::try_from(core.file.limits.client_connections).unwrap_or(usize::MAX),
        ..accept::Limits::default()
    };
    let guard = Arc::new(Guard::new(&core.file.hosts, &core.file.cors.origins));
    let core = Arc::clone(core);
    let answer =
        move |request, peer| surface::serve(Arc::clone(&core), Arc::clone(&guard), request, peer);
    Part::spawn(|stop| accept::serve(listener, None, limits, answer, stop, CLOSING))
}

fn admin_part(core: &Arc<Core>, listener: Box<dyn Listener>) -> Part {
    let limits = accept::Limits { max_connections: ADMIN_CONNECTIONS, ..accept::Limits::default() };
    // No page of another origin has business here.
    let guard = Arc::new(Guard::new(&core.file.hosts, &[]));
    let core = Arc::clone(core);
    let answer = move |request, _| admin::serve(Arc::clone(&core), Arc::clone(&guard), request);
    Part::spawn(|stop| accept::serve(listener, None, limits, answer, stop, CLOSING))
}

fn links_part(core: &Arc<Core>, listener: Box<dyn Listener>) -> Part {
    let limits = &core.file.limits;
    let config = LinkServerConfig {
        boot_id: EdgeBootId::from_uuid(Uuid::new_v4()),
        limits: v1::Limits {
            max_streams: limits.max_streams,
            credit_budget: limits.link_memory,
            max_run_event: limits.run_event,
        },
        memory: core.budget.clone(),
    };
    let group: Arc<Group> = Arc::clone(&core.group);
    let server = LinkServer::new(config, group);
    Part::spawn(|stop| async move {
        if let Err(error) = server.serve(listener, stop, CLOSING).await {
            warn!(%error, "nodes are not served");
        }
    })
}

fn upkeep_part(core: &Arc<Core>) -> Part {
    let core = Arc::clone(core);
    let period = live::sweep_period(core.file.limits.client_stall_timeout);
    Part::spawn(|stop| async move {
        let upkeep = async { tokio::join!(core.desk.keep_time(), core.live.sweep(period)) };
        stop.run_until_cancelled(upkeep).await;
    })
}

impl Part {
    fn spawn<F>(run: impl FnOnce(CancellationToken) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = CancellationToken::new();
        Self { task: tokio::spawn(run(stop.clone())), stop }
    }

    async fn end(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            warn!(%error, "a part of the edge ended badly");
        }
    }
}

fn core(
    file: EdgeConfig,
    tools: Tools,
    timing: Timing,
    admission: Admission,
    addresses: Addresses,
) -> Core {
    let file = Arc::new(file);
    let metrics = Arc::new(Metrics::new(VERSION));
    let desk = Desk::new(admission);
    let group = Group::new(Arc::clone(&file), Arc::clone(&desk), Arc::clone(&metrics));
    let budget = usize::try_from(file.limits.buffered_bodies).unwrap_or(usize::MAX);
    Core {
        timing,
        addresses,
        started_at: Timestamp::now(),
        started: crate::now(),
        desk,
        group: Arc::new(group),
        live: Live::default(),
        commands: Commands::default(),
        farewells: TaskTracker::new(),
        runtime: tokio::runtime::Handle::current(),
        budget: Budget::new(budget),
        retries: iop_dispatch::Budget::new(crate::now()),
        history: tools.history,
        metrics,
        stopping: AtomicBool::new(false),
        file,
    }
}

async fn bind(
    net: &dyn Net,
    key: &'static str,
    address: SocketAddr,
) -> Result<(Box<dyn Listener>, SocketAddr), StartError> {
    let flag = match key {
        "clients" => "--listen",
        "nodes" => "--node-listen",
        _ => "--admin-listen",
    };
    let failed = |source| StartError::Listen { key, flag, address, source };
    let listener = net.listen(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}
