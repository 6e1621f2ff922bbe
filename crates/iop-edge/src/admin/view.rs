//! The Edge's state as JSON. What is unknown is absent.

use std::net::SocketAddr;
use std::time::Duration;

use iop_admission::ProviderId;
use iop_config::Mode;
use iop_store::Health;
use iop_types::{
    Generation, HealthEvidence, InstanceId, NodeId, ProviderKey, ProviderState, RouteName, Target,
};
use jiff::Timestamp;
use serde::Serialize;

use crate::core::Core;
use crate::edge::VERSION;
use crate::relay::Progress;

/// The whole Edge at a glance.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    version: &'static str,
    group: String,
    mode: Mode,
    started_at: String,
    uptime_s: u64,
    /// `serving` or `draining`.
    state: &'static str,
    ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_ready_because: Option<String>,
    listen: Listen,
    in_flight: usize,
    waiting: usize,
    nodes_linked: usize,
    models: usize,
    buffered_bodies: Buffered,
    history: Health,
}

/// The memory of bodies that are held whole.
#[derive(Debug, Serialize)]
struct Buffered {
    limit_bytes: usize,
    used_bytes: usize,
    peak_bytes: usize,
    refused: u64,
}

impl From<iop_net::memory::BudgetStats> for Buffered {
    fn from(stats: iop_net::memory::BudgetStats) -> Self {
        Self {
            limit_bytes: stats.limit,
            used_bytes: stats.used,
            peak_bytes: stats.peak,
            refused: stats.refused,
        }
    }
}

#[derive(Debug, Serialize)]
struct Listen {
    clients: SocketAddr,
    nodes: SocketAddr,
    admin: SocketAddr,
}

pub(super) fn status(core: &Core) -> Status {
    let now = crate::now();
    let (readiness, gauges, models) = core.desk.tell(|admission, now| {
        (admission.readiness(), admission.gauges(now), admission.models().len())
    });
    let addresses = core.addresses;
    Status {
        version: VERSION,
        group: core.file.group.clone(),
        mode: core.file.mode,
        started_at: time(core.started_at),
        uptime_s: now.saturating_duration_since(core.started).as_secs(),
        state: if core.is_stopping() { "draining" } else { "serving" },
        ready: readiness.is_ok(),
        not_ready_because: readiness.err().map(|reason| reason.to_string()),
        listen: Listen {
            clients: addresses.clients,
            nodes: addresses.nodes,
            admin: addresses.admin,
        },
        in_flight: core.live.len(),
        waiting: gauges.waiting,
        nodes_linked: core.group.view().iter().filter(|node| node.linked.is_some()).count(),
        models,
        buffered_bodies: Buffered::from(core.budget.stats()),
        history: core.history.health(),
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Nodes {
    nodes: Vec<Node>,
}

impl Nodes {
    /// Finds one.
    pub(super) fn find(&self, name: &NodeId) -> Option<&Node> {
        self.nodes.iter().find(|node| node.node == *name)
    }

    /// Names all.
    pub(super) fn names(&self) -> String {
        match self.nodes.as_slice() {
            [] => "none".to_owned(),
            nodes => nodes.iter().map(|node| node.node.as_str()).collect::<Vec<_>>().join(", "),
        }
    }
}

/// One Node, linked or only named in the file.
#[derive(Debug, Serialize)]
pub(super) struct Node {
    node: NodeId,
    linked: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<Link>,
}

#[derive(Debug, Serialize)]
struct Link {
    generation: Generation,
    address: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<InstanceId>,
    version: String,
    platform: String,
    since: String,
    draining: bool,
    streams: u32,
    commands: u32,
    granted_bytes: u64,
    buffered_bytes: u64,
    queued_bytes: u64,
    sent_bytes: u64,
    received_bytes: u64,
    /// For answers, which this Edge may have to hold.
    answer_credit: Credit,
    /// For request bodies, which the Node may have to hold.
    body_credit: Credit,
    late_frames: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    heartbeat_rtt_ms: Option<f64>,
}

/// The budget of one direction of a link.
#[derive(Debug, Serialize)]
struct Credit {
    limit_bytes: u64,
    reserved_bytes: u64,
    peak_bytes: u64,
}

impl From<iop_net::link::BudgetStats> for Credit {
    fn from(stats: iop_net::link::BudgetStats) -> Self {
        Self { limit_bytes: stats.limit, reserved_bytes: stats.reserved, peak_bytes: stats.peak }
    }
}

pub(super) fn nodes(core: &Core) -> Nodes {
    let nodes = core.group.view().into_iter().map(|node| Node {
        node: node.node,
        linked: node.linked.is_some(),
        link: node.linked.map(|linked| Link {
            generation: linked.generation,
            address: linked.who.address,
            instance: linked.who.instance,
            version: linked.who.version,
            platform: linked.who.platform,
            since: time(linked.since),
            draining: linked.is_draining,
            streams: linked.stats.streams,
            commands: linked.stats.commands,
            granted_bytes: linked.stats.granted_bytes,
            buffered_bytes: linked.stats.buffered_bytes,
            queued_bytes: linked.stats.queued_bytes,
            sent_bytes: linked.stats.sent_bytes,
            received_bytes: linked.stats.received_bytes,
            answer_credit: Credit::from(linked.stats.receiving),
            body_credit: Credit::from(linked.stats.claimed.unwrap_or_default()),
            late_frames: linked.stats.late_frames,
            heartbeat_rtt_ms: linked.stats.heartbeat_rtt.map(|rtt| rtt.as_secs_f64() * 1000.0),
        }),
    });
    Nodes { nodes: nodes.collect() }
}

#[derive(Debug, Serialize)]
pub(super) struct Providers {
    providers: Vec<Provider>,
}

/// One provider as its Node last reported it, with what the Edge counts itself.
#[derive(Debug, Serialize)]
struct Provider {
    node: NodeId,
    provider: ProviderKey,
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter: Option<&'static str>,
    state: ProviderState,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<Generation>,
    targets: Vec<Target>,
    loaded: Vec<Target>,
    capacity: u32,
    /// Zombies included.
    in_use: u32,
    /// Permits of links that ended, whose requests have not noticed yet: they take no capacity.
    fenced_in_use: u32,
    zombies: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    queued: Option<u32>,
    /// Targets of whose health something is known on this link.
    health: Vec<TargetHealth>,
}

/// What is known of the health of one target.
#[derive(Debug, Serialize)]
struct TargetHealth {
    target: Target,
    /// `available`, `unavailable` or `unknown`.
    #[serde(skip_serializing_if = "Option::is_none")]
    health: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    health_observation_seq: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    observed_ms_ago: Option<u64>,
    left_out: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_trial_in_ms: Option<u64>,
    on_trial: bool,
    failed_trials: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    cooling_ms: Option<u64>,
}

impl From<iop_admission::TargetHealth> for TargetHealth {
    fn from(of: iop_admission::TargetHealth) -> Self {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            target: of.target,
            health: of.health.map(HealthEvidence::provider_health),
            health_observation_seq: of.seq,
            observed_ms_ago: of.seen_ago.map(ms),
            left_out: of.left_out_for.is_some(),
            left_out_ms: of.left_out_for.map(ms),
            next_trial_in_ms: of.trial_in.map(ms),
            on_trial: of.on_trial,
            failed_trials: of.failed_trials,
            cooling_ms: of.cooling_for.map(ms),
        }
    }
}

pub(super) fn providers(core: &Core) -> Providers {
    let views = core.desk.tell(|admission, now| admission.providers(now));
    let providers = views.into_iter().map(|view| Provider {
        node: view.id.node,
        provider: view.id.provider,
        adapter: view.adapter.map(iop_types::AdapterType::as_str),
        state: view.state,
        reason: view.reason,
        ready: view.ready,
        generation: view.generation,
        targets: view.targets,
        loaded: view.loaded,
        capacity: view.capacity,
        in_use: view.in_use,
        fenced_in_use: view.fenced_in_use,
        zombies: view.zombies,
        queued: view.queued,
        health: view.health.into_iter().map(TargetHealth::from).collect(),
    });
    Providers { providers: providers.collect() }
}

#[derive(Debug, Serialize)]
pub(super) struct Models {
    models: Vec<Model>,
}

/// One name that clients can ask for.
#[derive(Debug, Serialize)]
struct Model {
    model: RouteName,
    available: bool,
    /// Whether all that are ready for it are left out as unavailable.
    left_out: bool,
    loaded: bool,
    /// Whether the file declares it; otherwise a provider lists it.
    configured: bool,
    providers: Vec<Server>,
}

#[derive(Debug, Serialize)]
struct Server {
    node: NodeId,
    provider: ProviderKey,
}

pub(super) fn models(core: &Core) -> Models {
    let models = core.desk.tell(|admission, _| admission.models());
    let models = models.into_iter().map(|model| Model {
        available: model.available,
        left_out: model.left_out,
        loaded: model.loaded,
        configured: core.file.routes.contains_key(&model.name),
        providers: model.providers.into_iter().map(Server::from).collect(),
        model: model.name,
    });
    Models { models: models.collect() }
}

impl From<ProviderId> for Server {
    fn from(id: ProviderId) -> Self {
        Self { node: id.node, provider: id.provider }
    }
}

/// Requests, newest first.
#[derive(Debug, Serialize)]
pub(super) struct Runs {
    runs: Vec<Run>,
}

/// A request as history has it and, while it is under way, as it stands.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    #[serde(flatten)]
    run: iop_store::Run,
    /// `queued`, `sent`, `streaming`, or `ended` while only its provider is waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    age_ms: Option<u64>,
}

impl Run {
    /// Adds what is known of a run that has not ended.
    pub(super) fn of(core: &Core, run: iop_store::Run) -> Self {
        if run.terminal.is_none()
            && let Some(request) = core.live.of(run.receipt.run_id)
        {
            return Self::from(request.progress());
        }
        Self { run, state: None, age_ms: None }
    }
}

impl From<Progress> for Run {
    fn from(progress: Progress) -> Self {
        let run = iop_store::Run {
            receipt: progress.receipt,
            queued_ms: None,
            attempts: progress.attempts,
            terminal: None,
            usage: None,
        };
        let age_ms = u64::try_from(progress.age.as_millis()).unwrap_or(u64::MAX);
        Self { run, state: Some(progress.phase.as_str()), age_ms: Some(age_ms) }
    }
}

pub(super) fn runs(core: &Core, runs: Vec<iop_store::Run>) -> Runs {
    Runs { runs: runs.into_iter().map(|run| Run::of(core, run)).collect() }
}

/// RFC 3339 in UTC with milliseconds, as history has it.
fn time(at: Timestamp) -> String {
    format!("{at:.3}")
}
