//! Every number that a file may leave out, in one table.
//!
//! The commented example prints it ([`table`]), the schema and the reference page take their
//! defaults from the types that use it. The concurrency of an adapter lies with
//! [`AdapterType::default_max_concurrency`], the stall timeout with [`StallTimeout::DEFAULT`],
//! because the wire needs both.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use iop_types::{AdapterType, StallTimeout};

use crate::{duration, size};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const DAY: u64 = 24 * 60 * 60;

/// Name of an execution group that was given none.
pub const GROUP: &str = "home";

/// Where clients are served.
pub const LISTEN_CLIENTS: SocketAddr = loopback(7400);
/// Where Nodes dial in.
pub const LISTEN_NODES: SocketAddr = loopback(7401);
/// Where the command line and metrics are served.
pub const LISTEN_ADMIN: SocketAddr = loopback(7402);

/// Until the first progress of a request. A large model loads from a slow disk and reads a long
/// prompt in minutes without a byte.
pub const FIRST_PROGRESS: Duration = Duration::from_secs(15 * 60);
/// Requests that wait per route before 429.
pub const QUEUE_MAX_WAITING: usize = 256;
/// How long a request waits for capacity before 503.
pub const QUEUE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a request waits for a Node that is only away for a moment: a reconnect takes at most a
/// few steps of its backoff.
pub const WAIT_FOR_NODE: Duration = Duration::from_secs(10);
/// How long a streaming head without progress is held back; proxies and clients give up on silent
/// heads not much later.
pub const HOLD_HEAD: Duration = Duration::from_secs(15);

/// Largest JSON body, buffered whole because the model may come last.
pub const JSON_BODY: u64 = 32 * MIB;
/// Largest body of another content type.
pub const OTHER_BODY: u64 = 64 * MIB;
/// All buffered bodies of the process together, then 503.
pub const BUFFERED_BODIES: u64 = 512 * MIB;
/// Longest event of a run.
pub const RUN_EVENT: u64 = 8 * MIB;
/// A client that accepts less than this in [`CLIENT_STALL_TIMEOUT`] while bytes wait has stalled.
pub const CLIENT_STALL_BYTES: u64 = 16 * KIB;
/// See [`CLIENT_STALL_BYTES`].
pub const CLIENT_STALL_TIMEOUT: Duration = Duration::from_secs(120);
/// How long running requests may go on after the order to stop.
pub const DRAIN: Duration = Duration::from_secs(30);
/// Streams open at once on one link.
pub const MAX_STREAMS: u32 = 4096;
/// Bytes that one link may have buffered for all its streams.
pub const LINK_MEMORY: u64 = 64 * MIB;
/// Client connections open at once: as many as one link has streams.
pub const CLIENT_CONNECTIONS: u32 = 4096;
/// The longest that a stream's head may be held back: clients and proxies give up on a response without
/// a head after minutes.
pub const MAX_HOLD_HEAD: Duration = Duration::from_secs(5 * 60);
/// The longest `first_response_timeout`, as of `response_stall_timeout`.
pub const MAX_FIRST_RESPONSE_TIMEOUT: Duration = Duration::from_secs(DAY);
/// A call that was cancelled and never seen to return gives its permit back after this.
pub use iop_types::stall::ZOMBIE_CEILING;

/// How long a Node's certificate is valid: a stolen one is of no use the next day, and a Node that
/// is away for a night still comes back.
pub const NODE_CERTIFICATE: Duration = Duration::from_secs(DAY);
/// The shortest [`NODE_CERTIFICATE`]; for trying renewal.
pub const MIN_NODE_CERTIFICATE: Duration = Duration::from_secs(10);
/// The longest [`NODE_CERTIFICATE`].
pub const MAX_NODE_CERTIFICATE: Duration = Duration::from_secs(7 * DAY);

/// How long an Edge keeps finished runs.
pub const EDGE_HISTORY: Duration = Duration::from_secs(30 * DAY);
/// How long a Node keeps its work.
pub const NODE_HISTORY: Duration = Duration::from_secs(7 * DAY);
/// How large a Node's history may grow.
pub const NODE_HISTORY_BYTES: u64 = 64 * MIB;

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// What the number bounds; the key where a file can set it.
    pub name: String,
    /// The number with its unit, as a file would say it.
    pub value: String,
}

/// Returns the whole table as text, for people.
pub fn table() -> Vec<Row> {
    let mut rows: Vec<_> = AdapterType::ALL
        .iter()
        .map(|adapter| {
            row(format!("max_concurrency of {adapter}"), adapter.default_max_concurrency())
        })
        .collect();
    let time = |name: &str, value| row(name, duration::format(value));
    let bytes = |name: &str, value| row(name, size::format(value));
    rows.extend([
        time("response_stall_timeout", StallTimeout::DEFAULT.duration()),
        time("limits.first_progress", FIRST_PROGRESS),
        row("queue.max_waiting", QUEUE_MAX_WAITING),
        time("queue.timeout", QUEUE_TIMEOUT),
        time("queue.wait_for_node", WAIT_FOR_NODE),
        time("hold_head", HOLD_HEAD),
        bytes("limits.json_body", JSON_BODY),
        bytes("limits.other_body", OTHER_BODY),
        bytes("limits.buffered_bodies", BUFFERED_BODIES),
        bytes("limits.run_event", RUN_EVENT),
        bytes("limits.client_stall_bytes", CLIENT_STALL_BYTES),
        time("limits.client_stall_timeout", CLIENT_STALL_TIMEOUT),
        time("limits.drain", DRAIN),
        row("limits.max_streams", MAX_STREAMS),
        bytes("limits.link_memory", LINK_MEMORY),
        row("limits.client_connections", CLIENT_CONNECTIONS),
        time("limits.history", EDGE_HISTORY),
        time("node_certificate", NODE_CERTIFICATE),
        time("zombie ceiling (fixed)", ZOMBIE_CEILING),
        row(
            "history of a Node (fixed)",
            format!("{} or {}", duration::format(NODE_HISTORY), size::format(NODE_HISTORY_BYTES)),
        ),
    ]);
    rows
}

fn row(name: impl Into<String>, value: impl ToString) -> Row {
    Row { name: name.into(), value: value.to_string() }
}

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}
