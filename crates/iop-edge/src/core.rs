//! What every part of a running Edge shares.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use iop_config::EdgeConfig;
use iop_store::EdgeHistory;
use jiff::Timestamp;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::admit::Desk;
use crate::command::Commands;
use crate::group::Group;
use crate::live::Live;
use crate::metrics::Metrics;
use iop_net::memory::Budget;

/// The shared state of one Edge.
pub(crate) struct Core {
    pub(crate) file: Arc<EdgeConfig>,
    pub(crate) timing: Timing,
    pub(crate) addresses: Addresses,
    pub(crate) started_at: Timestamp,
    pub(crate) started: Instant,
    pub(crate) desk: Arc<Desk>,
    pub(crate) group: Arc<Group>,
    pub(crate) live: Live,
    /// Commands under way.
    pub(crate) commands: Commands,
    /// Attempts that outlive their clients.
    pub(crate) farewells: TaskTracker,
    /// Where farewells run: clients may leave outside of any task.
    pub(crate) runtime: Handle,
    pub(crate) budget: Budget,
    /// What further attempts are taken from.
    pub(crate) retries: iop_dispatch::Budget,
    pub(crate) history: EdgeHistory,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stopping: AtomicBool,
}

/// Times that are not configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Silence of a provider after which a stream that the Edge writes gets a comment.
    pub keep_alive: Duration,
    /// Longest pause within a request body.
    pub body_pause: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            // 15 s: proxies close connections that are silent for 30 s or 60 s.
            keep_alive: Duration::from_secs(15),
            // A client that sends nothing of its own body for a minute is not sending it.
            body_pause: Duration::from_secs(60),
        }
    }
}

/// Where an Edge listens, ports filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// For clients.
    pub clients: SocketAddr,
    /// For Nodes.
    pub nodes: SocketAddr,
    /// For the command line and metrics.
    pub admin: SocketAddr,
}

impl Core {
    /// Says whether the Edge takes nothing new any more.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Returns the start in seconds since 1970.
    pub(crate) fn started_unix(&self) -> u64 {
        u64::try_from(self.started_at.as_second()).unwrap_or_default()
    }
}
