//! How this Node sees its link and its connections to providers.

use std::net::SocketAddr;
use std::time::Instant;

use iop_net::link::LinkStats;
use iop_types::{EdgeBootId, Generation, ProviderKey};
use serde::Serialize;

use crate::call::now;
use crate::node::Shared;

#[derive(Serialize)]
struct TransportStatus {
    edge: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    edge_boot_id: Option<EdgeBootId>,
    generation: Generation,
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<Link>,
    /// Calls at work, and commands, this one included.
    calls: usize,
    commands: usize,
    providers: Vec<Connections>,
}

#[derive(Serialize)]
struct Link {
    streams: u32,
    granted_bytes: u64,
    reserved_bytes: u64,
    credit_budget: u64,
    buffered_bytes: u64,
    queued_bytes: u64,
    sent_bytes: u64,
    received_bytes: u64,
    late_frames: u64,
    heartbeat: Heartbeat,
}

/// What is not known yet is absent.
#[derive(Serialize)]
struct Heartbeat {
    #[serde(skip_serializing_if = "Option::is_none")]
    rtt_ms: Option<f64>,
    /// Since the Edge last answered one of ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    answered_ms_ago: Option<u64>,
    /// Since the Edge last sent one of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    asked_ms_ago: Option<u64>,
}

/// Connections to one provider.
#[derive(Serialize)]
struct Connections {
    provider: ProviderKey,
    open: usize,
    idle: usize,
}

/// Writes the answer.
pub(super) fn answer(node: &Shared) -> Vec<u8> {
    let stats = node.link().as_ref().map(iop_net::link::NodeLink::stats);
    let providers = node.checks.registry.providers().into_iter().filter_map(|bound| {
        let connections = bound.connections()?;
        let (open, idle) = (connections.open, connections.idle);
        Some(Connections { provider: bound.key().clone(), open, idle })
    });
    let whole = TransportStatus {
        edge: node.settings.edge,
        edge_boot_id: node.checks.registry.revision().map(|revision| revision.boot),
        generation: node.generation(),
        link: stats.map(|stats| link(&stats, now())),
        calls: node.checks.work.len(),
        commands: node.commands.len(),
        providers: providers.collect(),
    };
    serde_json::to_vec(&whole).expect("keys are text and round trips are finite")
}

fn link(stats: &LinkStats, now: Instant) -> Link {
    let ago = |at: Option<Instant>| {
        let since = now.saturating_duration_since(at?);
        u64::try_from(since.as_millis()).ok()
    };
    Link {
        streams: stats.streams,
        granted_bytes: stats.granted_bytes,
        reserved_bytes: stats.reserved_bytes,
        credit_budget: stats.credit_budget,
        buffered_bytes: stats.buffered_bytes,
        queued_bytes: stats.queued_bytes,
        sent_bytes: stats.sent_bytes,
        received_bytes: stats.received_bytes,
        late_frames: stats.late_frames,
        heartbeat: Heartbeat {
            rtt_ms: stats.heartbeat_rtt.map(|rtt| rtt.as_secs_f64() * 1000.0),
            answered_ms_ago: ago(stats.heartbeat_answered),
            asked_ms_ago: ago(stats.heartbeat_asked),
        },
    }
}
