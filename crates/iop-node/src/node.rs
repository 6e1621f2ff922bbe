//! A Node from start to stop.
//!
//! Start makes the shared state and three tasks: the supervisor, which owns the link; the watch,
//! which looks at providers; and one task per call. Stop refuses new work, lets the calls finish
//! within the drain time, cancels what is left, and stops the providers last.

use std::sync::{Arc, Mutex, MutexGuard};

use iop_adapters::Tools;
use iop_execution::Work;
use iop_execution::admit::Checks;
use iop_execution::registry::Draining;
use iop_net::link::{FatalLink, NodeLink, SupervisorConfig, supervise_over};
use iop_net::memory::Budget;
use iop_net::net::Net;
use iop_types::CommandId;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::health::Health;
use crate::host::Host;
use crate::journal::Journal;
use crate::providers::Providers;
use crate::settings::Settings;
use crate::watch::watch;

/// A running Node.
pub struct Node {
    stop: CancellationToken,
    main: JoinHandle<Result<(), FatalLink>>,
}

impl Node {
    /// Starts a Node on the current runtime. Its Edge need not be there yet.
    pub fn start(
        settings: Settings,
        net: Arc<dyn Net>,
        history: Option<iop_store::NodeHistory>,
    ) -> Self {
        let stop = CancellationToken::new();
        let main = tokio::spawn(serve(settings, net, history, stop.clone()));
        Self { stop, main }
    }

    /// Begins a graceful stop; [`Self::stopped`] tells when it is over.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits until the Node has stopped, after [`Self::stop`] or because it cannot go on.
    ///
    /// Cancel safe: it can be waited for again.
    ///
    /// # Errors
    /// The Edge's answer makes another dial pointless.
    pub async fn stopped(&mut self) -> Result<(), FatalLink> {
        (&mut self.main).await.expect("the node's main task does not panic")
    }
}

/// What the parts of a Node share.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) providers: Providers,
    /// Pays for inputs of runs, and for what adapters hold whole.
    pub(crate) memory: Budget,
    pub(crate) checks: Checks,
    /// Commands under way.
    pub(crate) commands: Work<CommandId>,
    pub(crate) journal: Journal,
    pub(crate) health: Health,
    /// Calls, and the stopping of providers that were replaced.
    pub(crate) tasks: TaskTracker,
    /// Asks for a look before the usual pause is over; see [`Self::look_again`].
    pub(crate) look_now: Notify,
    link: Mutex<Option<NodeLink>>,
}

impl Shared {
    pub(crate) fn link(&self) -> MutexGuard<'_, Option<NodeLink>> {
        self.link.lock().expect("no code panics while it holds the link")
    }

    /// Asks for a look at every provider now, because something may have changed: a request failed,
    /// a model was pulled. Returns at once; what the look shows is told to the Edge. A look that is
    /// under way when this is called does not count, since it may have asked before the change:
    /// another follows it. Any number of calls meanwhile are one.
    pub(crate) fn look_again(&self) {
        self.look_now.notify_one();
    }

    /// Stops what a configuration left over, once its last call returned.
    pub(crate) fn finish(&self, draining: Option<Draining>) {
        if let Some(draining) = draining {
            self.tasks.spawn(draining.finish());
        }
    }
}

/// What a Node may hold of whole bodies: as much as an Edge does unless its file says otherwise.
#[expect(clippy::cast_possible_truncation, reason = "512 MiB fit any address space that runs this")]
const BUFFERED_BODIES: usize = iop_config::defaults::BUFFERED_BODIES as usize;

async fn serve(
    settings: Settings,
    net: Arc<dyn Net>,
    history: Option<iop_store::NodeHistory>,
    stop: CancellationToken,
) -> Result<(), FatalLink> {
    let memory = Budget::new(BUFFERED_BODIES);
    let tools =
        Tools { net: Arc::clone(&net), egress: settings.egress.clone(), memory: memory.clone() };
    let providers = Providers::new(tools, settings.secrets.clone(), settings.manage_models);
    let checks = Checks { work: Work::new(), registry: providers.registry().clone() };
    let supervisor = SupervisorConfig {
        edge: settings.edge.to_string(),
        node: settings.node.clone(),
        instance: settings.instance,
        software_version: env!("CARGO_PKG_VERSION").to_owned(),
        drain: settings.drain,
    };
    let node = Arc::new(Shared {
        settings,
        providers,
        memory,
        checks,
        commands: Work::new(),
        journal: Journal::new(history),
        health: Health::default(),
        tasks: TaskTracker::new(),
        look_now: Notify::new(),
        link: Mutex::new(None),
    });
    let watching = tokio::spawn(watch(Arc::clone(&node), stop.clone()));
    let host = Arc::new(Host(Arc::clone(&node)));
    let outcome = supervise_over(net, supervisor, host, stop.clone()).await;
    stop.cancel();
    watching.await.expect("the watch does not panic");
    node.checks.work.drain();
    node.checks.work.cancel_all();
    node.commands.drain();
    node.commands.cancel_all();
    node.finish(node.providers.shutdown().await);
    node.tasks.close();
    node.tasks.wait().await;
    node.journal.close().await;
    outcome
}
