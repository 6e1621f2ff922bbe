//! What admission shows of itself: the model list, providers, gauges, readiness.

use std::time::Duration;

use iop_types::{
    AdapterType, Capabilities, Generation, HealthEvidence, ProviderState, RouteName, Target,
};

use crate::config::ProviderId;

/// One entry of the model list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// The name that clients use.
    pub name: RouteName,
    /// Whether a ready provider serves it, busy or not.
    pub available: bool,
    /// Whether every ready provider of it is left out, so that it is only asked as a last resort.
    pub left_out: bool,
    /// Whether a ready provider holds it in memory, where providers tell.
    pub loaded: bool,
    /// Who may serve it, in the order of the candidates.
    pub providers: Vec<ProviderId>,
}

/// One provider, for `iop status` and the admin listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderView {
    /// Which one.
    pub id: ProviderId,
    /// The link it is served on; `None` while its Node is away.
    pub generation: Option<Generation>,
    /// Dialect of the server; `None` while it has never been reported.
    pub adapter: Option<AdapterType>,
    /// What its Node last said.
    pub state: ProviderState,
    /// Why it is not ready, for people.
    pub reason: String,
    /// Whether it takes new requests now, capacity left aside.
    pub ready: bool,
    /// How long it has not been ready.
    pub unready_for: Option<Duration>,
    /// Targets that it serves, in its order.
    pub targets: Vec<Target>,
    /// Targets that it holds in memory, where it tells.
    pub loaded: Vec<Target>,
    /// Calls it takes at once.
    pub capacity: u32,
    /// Permits of the current generation, zombies included.
    pub in_use: u32,
    /// Permits of generations that ended and whose owners have not given them back yet.
    pub fenced_in_use: u32,
    /// Cancelled calls that have not been seen to return.
    pub zombies: u32,
    /// Requests that wait inside the provider, where it tells.
    pub queued: Option<u32>,
    /// Targets of whose health something is known, by name.
    pub health: Vec<TargetHealth>,
    /// What it can do.
    pub capabilities: Capabilities,
}

/// What is known of the health of one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetHealth {
    /// The target.
    pub target: Target,
    /// The last observation; `None` where there was none on this link.
    pub health: Option<HealthEvidence>,
    /// Its number.
    pub seq: Option<u64>,
    /// How old it is.
    pub seen_ago: Option<Duration>,
    /// How long the target has been left out of choices; `None` where it is not.
    pub left_out_for: Option<Duration>,
    /// When one request may try it; zero from then on.
    pub trial_in: Option<Duration>,
    /// Whether one is trying it.
    pub on_trial: bool,
    /// Trials that failed in a row.
    pub failed_trials: u32,
    /// How much longer the provider asked to be left alone.
    pub cooling_for: Option<Duration>,
}

/// Figures for metrics and `iop status`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gauges {
    /// Requests that wait, over all routes.
    pub waiting: usize,
    /// How long the oldest of them has waited.
    pub oldest_wait: Option<Duration>,
    /// Permits out, over all providers and generations.
    pub in_flight: u32,
    /// Routes with somebody waiting, by name.
    pub routes: Vec<RouteGauge>,
}

/// Figures of one route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteGauge {
    /// The route.
    pub route: RouteName,
    /// Requests that wait.
    pub waiting: usize,
    /// How long the oldest of them has waited.
    pub oldest_wait: Duration,
}

/// Why no request can be dispatched at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// No Node has become ready since the Edge started.
    #[error("no node has joined yet")]
    NoNodeYet,
    /// Nodes are known and no provider of theirs takes requests for any route.
    #[error("no provider is ready")]
    NoReadyProvider,
    /// The Edge takes nothing new.
    #[error("the edge is shutting down")]
    ShuttingDown,
}
