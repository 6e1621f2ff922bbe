//! One provider: what it last reported, and how much of it is in use.
//!
//! ```text
//!            reported                      reported, drains
//! away ───────────────────► served ◄──────────────────────┐
//!  ▲ │                        │ └─────────────────────────┘
//!  │ │ its Node is here       │ link ended: permits that are out are fenced
//!  │ ▼ without it             ▼
//!  │ unlisted                away ───► served (next generation)
//!  │                          │
//!  └── forgotten ◄────────────┘ after an hour
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use iop_types::stall::ZOMBIE_CEILING;
use iop_types::{
    Capabilities, Form, Generation, ProviderState, ProviderStatus, Requeue, RouteName, Target,
    UsageMode,
};

use super::overlay::Overlay;
use crate::config::{ProviderId, ProviderSettings};
use crate::permit::Instance;
use crate::refused::Shortage;
use crate::request::Need;
use crate::route::RouteId;
use crate::view::ProviderView;

/// How long the targets of a provider that is not ready stay known, so that clients read 503 and not
/// 404: longer than a reboot, an upgrade or a lunch, shorter than a laptop's night in a bag.
const KNOWN_FOR: Duration = Duration::from_secs(60 * 60);

/// A status and a refusal may cross on the link, so that neither a status nor a terminal is left to
/// come. A provider without any permit out is tried again after this long.
const REFUSAL_LAPSE: Duration = Duration::from_secs(5);

/// Streams of other providers on a full link end unseen by this one, so it is simply tried again.
const LINK_FULL_LAPSE: Duration = Duration::from_secs(1);

/// One provider.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) id: ProviderId,
    /// Named by a configured route: never forgotten.
    pub(crate) configured: bool,
    /// Routes of which it is a candidate.
    pub(crate) routes: BTreeSet<RouteId>,
    /// The names under which its targets are discovered, each with the target it stands for.
    pub(crate) names: BTreeMap<RouteName, Target>,
    /// Number of the last grant, to take turns among equals.
    pub(crate) last_grant: u64,
    /// Who of its targets is left out.
    pub(crate) overlay: Overlay,
    settings: ProviderSettings,
    /// As last reported; outlives the link so that what it can do stays known.
    instance: Option<Arc<Instance>>,
    presence: Presence,
    /// Whether the Node asked for nothing new on this link.
    node_drains: bool,
    state: ProviderState,
    reason: String,
    targets: Vec<Target>,
    target_set: BTreeSet<Target>,
    loaded: BTreeSet<Target>,
    capacity: u32,
    zombies: u32,
    /// When all of them are free at the latest.
    haunted_until: Option<Instant>,
    queued: Option<u32>,
    in_use: u32,
    fenced_in_use: u32,
    refusal: Option<Refusal>,
    unready_since: Option<Instant>,
    refuses_usage: BTreeSet<Target>,
}

/// Whether its Node's link is up and serves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// The Node has no link, or none was ready yet.
    Away,
    /// The Node reported it on the current link.
    Served,
    /// The Node is here and does not serve it.
    Unlisted,
}

/// The Node refused a request that by the Edge's count it had room for.
#[derive(Debug, Clone, Copy)]
struct Refusal {
    cause: Requeue,
    at: Instant,
}

impl Slot {
    pub(super) fn new(now: Instant, id: ProviderId, settings: ProviderSettings) -> Self {
        Self {
            id,
            configured: false,
            routes: BTreeSet::new(),
            names: BTreeMap::new(),
            last_grant: 0,
            overlay: Overlay::default(),
            settings,
            instance: None,
            presence: Presence::Away,
            node_drains: false,
            state: ProviderState::Absent,
            reason: String::new(),
            targets: Vec::new(),
            target_set: BTreeSet::new(),
            loaded: BTreeSet::new(),
            capacity: 0,
            zombies: 0,
            haunted_until: None,
            queued: None,
            in_use: 0,
            fenced_in_use: 0,
            refusal: None,
            unready_since: Some(now),
            refuses_usage: BTreeSet::new(),
        }
    }

    // ---- what happened ----

    /// Takes over what the Node reports under `generation`.
    pub(crate) fn handle_report(
        &mut self,
        now: Instant,
        generation: Generation,
        status: ProviderStatus,
    ) {
        let instance = Instance {
            node: self.id.node.clone(),
            provider: self.id.provider.clone(),
            generation,
            revision: status.revision,
            adapter: status.adapter,
            stall_timeout: self.settings.stall_timeout,
            capabilities: status.capabilities,
        };
        let current = self.instance.as_deref();
        if current
            .is_none_or(|old| old.generation != generation || old.revision != instance.revision)
        {
            self.refuses_usage.clear();
        }
        if current != Some(&instance) {
            self.instance = Some(Arc::new(instance));
        }
        self.presence = Presence::Served;
        self.state = status.state;
        self.reason = status.reason;
        // A provider that cannot be asked reports no targets; what it served stays known.
        if status.state == ProviderState::Ready || !status.targets.is_empty() {
            self.target_set = status.targets.iter().cloned().collect();
            self.targets = status.targets;
            self.overlay.retain(|target| self.target_set.contains(target));
        }
        self.loaded = status.loaded.into_iter().collect();
        self.capacity = status.capacity;
        if status.zombies > self.zombies {
            // They are told as soon as they are some.
            self.haunted_until = Some(now + ZOMBIE_CEILING);
        }
        self.zombies = status.zombies;
        self.queued = status.queued;
        self.refusal = None;
        self.note_readiness(now);
    }

    /// The Node's link ended: permits of it no longer count here.
    pub(crate) fn handle_away(&mut self, now: Instant) {
        if std::mem::replace(&mut self.presence, Presence::Away) != Presence::Served {
            return;
        }
        self.fenced_in_use += std::mem::take(&mut self.in_use);
        if std::mem::take(&mut self.node_drains) && self.state == ProviderState::Ready {
            // A Node that drained on purpose is away from now on, not since it began to drain.
            self.unready_since = Some(now);
        }
        self.overlay.handle_away();
        self.refusal = None;
        self.loaded.clear();
        self.zombies = 0;
        self.queued = None;
        self.note_readiness(now);
    }

    /// The Node's link is up and does not serve this provider.
    pub(crate) fn handle_unlisted(&mut self, now: Instant) {
        self.handle_away(now);
        self.presence = Presence::Unlisted;
        self.state = ProviderState::Absent;
        self.reason = "its node does not serve it".into();
        self.forget_targets();
    }

    pub(crate) fn handle_node_drains(&mut self, now: Instant) {
        self.node_drains = self.is_served();
        self.note_readiness(now);
    }

    pub(crate) fn handle_refusal(&mut self, now: Instant, cause: Requeue) {
        self.refusal = Some(Refusal { cause, at: now });
    }

    /// Nothing was heard for long enough: it may be asked again.
    pub(crate) fn handle_lapse(&mut self) {
        self.refusal = None;
    }

    pub(crate) fn handle_usage_refused(&mut self, target: &Target) {
        self.refuses_usage.insert(target.clone());
    }

    pub(crate) fn forget_targets(&mut self) {
        self.targets.clear();
        self.target_set.clear();
        self.loaded.clear();
    }

    fn note_readiness(&mut self, now: Instant) {
        self.unready_since = match self.is_ready() {
            true => None,
            false => self.unready_since.or(Some(now)),
        };
    }

    // ---- counting ----

    /// Counts one permit of the current generation.
    pub(crate) fn take(&mut self, grant: u64) -> Arc<Instance> {
        self.in_use += 1;
        self.last_grant = grant;
        Arc::clone(self.instance.as_ref().expect("only a reported provider is picked"))
    }

    /// Counts one permit as given back to the generation that it was taken from.
    pub(crate) fn give_back(&mut self, generation: Generation) {
        let count = match self.is_current(generation) {
            true => &mut self.in_use,
            false => &mut self.fenced_in_use,
        };
        *count = count.checked_sub(1).expect("a permit is counted where it was taken");
    }

    /// An attempt returned: a provider that was full has room again.
    pub(crate) fn clear_full(&mut self) {
        let kept = matches!(self.refusal, Some(Refusal { cause: Requeue::StaleConfig, .. }));
        if !kept {
            self.refusal = None;
        }
    }

    pub(crate) fn is_current(&self, generation: Generation) -> bool {
        self.is_served() && self.instance.as_ref().is_some_and(|i| i.generation == generation)
    }

    /// Says whether nothing has changed since a permit was granted for `instance`.
    pub(crate) fn is_unchanged(&self, instance: &Instance) -> bool {
        self.is_current(instance.generation)
            && self.instance.as_ref().is_some_and(|current| current.revision == instance.revision)
    }

    pub(crate) const fn permits_out(&self) -> u32 {
        self.in_use + self.fenced_in_use
    }

    pub(crate) const fn in_use(&self) -> u32 {
        self.in_use
    }

    /// Calls that the Node has room for; a call that was cancelled and did not return still takes one.
    pub(crate) const fn room(&self) -> u32 {
        self.capacity.saturating_sub(self.zombies)
    }

    // ---- questions ----

    /// Says whether it takes new requests, capacity left aside.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_served() && !self.node_drains && self.state == ProviderState::Ready
    }

    /// Returns how many permits are held by calls that were not seen to return, and when all of them
    /// are free at the latest.
    pub(crate) fn zombies(&self) -> Option<(u32, Instant)> {
        self.haunted_until.filter(|_| self.zombies > 0).map(|until| (self.zombies, until))
    }

    /// Returns why it is not ready, in its Node's words; `None` where there are none.
    pub(crate) fn unready_reason(&self) -> Option<&str> {
        let has_reason = self.is_served() && !self.is_ready() && !self.reason.is_empty();
        has_reason.then_some(self.reason.as_str())
    }

    pub(crate) fn has_capacity(&self, now: Instant) -> bool {
        self.in_use < self.room() && !self.is_refusing(now)
    }

    pub(crate) fn is_refusing(&self, now: Instant) -> bool {
        self.refusal.is_some() && self.refusal_lapses_at().is_none_or(|at| now < at)
    }

    /// Returns when a refusal is tried again although nothing was heard.
    pub(crate) fn refusal_lapses_at(&self) -> Option<Instant> {
        let Refusal { cause, at } = self.refusal?;
        match cause {
            Requeue::LinkFull => Some(at + LINK_FULL_LAPSE),
            Requeue::StaleConfig => Some(at + REFUSAL_LAPSE),
            Requeue::CapacityExceeded | Requeue::Draining | Requeue::Fenced => {
                (self.in_use == 0).then(|| at + REFUSAL_LAPSE)
            }
        }
    }

    /// Says whether its Node's link is up and serves it, ready or not.
    pub(crate) fn is_served(&self) -> bool {
        self.presence == Presence::Served
    }

    pub(crate) fn capabilities(&self) -> Option<&Capabilities> {
        self.instance.as_deref().map(|instance| &instance.capabilities)
    }

    pub(crate) const fn usage(&self) -> UsageMode {
        self.settings.usage
    }

    pub(crate) fn refuses_usage(&self, target: &Target) -> bool {
        self.refuses_usage.contains(target)
    }

    /// Finds a target by the name that somebody wrote down.
    ///
    /// Where the server means `:latest` by a name without a tag, so does this.
    pub(crate) fn find_target(&self, name: &str) -> Option<Target> {
        if let Some(target) = self.target_set.get(name) {
            return Some(target.clone());
        }
        let implicit = self.capabilities().is_some_and(|c| c.implicit_latest);
        if !implicit || is_tagged(name) {
            return None;
        }
        self.target_set.get(format!("{name}{LATEST}").as_str()).cloned()
    }

    /// Says whether exactly this target is listed.
    pub(crate) fn serves(&self, target: &Target) -> bool {
        self.target_set.contains(target)
    }

    pub(crate) fn has_target_under(&self, prefix: &str) -> bool {
        self.targets.iter().any(|target| target.as_str().starts_with(prefix))
    }

    /// Lists every name under which this provider's targets are discovered.
    pub(crate) fn discovered_names(&self) -> BTreeMap<RouteName, Target> {
        let implicit = self.capabilities().is_some_and(|c| c.implicit_latest);
        let mut names = BTreeMap::new();
        if implicit {
            for target in &self.targets {
                if let Some(short) = target.as_str().strip_suffix(LATEST) {
                    names.insert(short.into(), target.clone());
                }
            }
        }
        for target in &self.targets {
            names.insert(target.as_str().into(), target.clone());
        }
        names
    }

    pub(crate) fn has_loaded(&self, target: &Target) -> bool {
        self.loaded.contains(target)
    }

    /// Returns how many requests wait inside the server, as far as it tells.
    pub(crate) fn queued(&self) -> u32 {
        self.queued.unwrap_or_default()
    }

    /// Returns when its targets are forgotten.
    pub(crate) fn forget_at(&self) -> Option<Instant> {
        if self.targets.is_empty() && (self.configured || self.is_served()) {
            return None;
        }
        self.unready_since.map(|since| since + KNOWN_FOR)
    }

    /// Starts another period of being remembered.
    pub(crate) fn remember_again(&mut self, now: Instant) {
        self.unready_since = self.unready_since.map(|_| now);
    }

    /// Returns the form in which it takes a request now, or counts in `shortage` why it cannot.
    pub(crate) fn qualify(
        &self,
        now: Instant,
        need: &Need,
        target: Option<&Target>,
        wait_for_node: Duration,
        shortage: &mut Shortage,
    ) -> Option<Form> {
        // One that could not even be set up says nothing of what it could do: it is not ready,
        // rather than unable.
        let says = |known: &&Capabilities| self.is_ready() || **known != Capabilities::default();
        let form = self.capabilities().filter(says).map(|capabilities| need.form(capabilities));
        if form == Some(None) {
            shortage.unsuited += 1;
            return None;
        }
        if !self.is_ready() {
            *self.unready_count(shortage) += 1;
            let returns_by = self.unready_since.map(|since| since + wait_for_node);
            if self.may_return() && returns_by.is_some_and(|by| now < by) {
                shortage.returns_by = shortage.returns_by.max(returns_by);
            }
            return None;
        }
        if target.is_none() {
            shortage.without_target += 1;
            return None;
        }
        if !self.has_capacity(now) {
            shortage.full += 1;
            return None;
        }
        form.flatten()
    }

    /// Says whether it can become ready without somebody changing something.
    const fn may_return(&self) -> bool {
        match (self.presence, self.state) {
            (Presence::Unlisted, _) | (Presence::Served, ProviderState::Failed) => false,
            (Presence::Away, _)
            | (
                Presence::Served,
                ProviderState::Starting
                | ProviderState::Ready
                | ProviderState::Absent
                | ProviderState::Draining,
            ) => true,
        }
    }

    const fn unready_count<'a>(&self, shortage: &'a mut Shortage) -> &'a mut u32 {
        match self.presence {
            Presence::Away => return &mut shortage.away,
            Presence::Unlisted => return &mut shortage.unlisted,
            Presence::Served => {}
        }
        match self.state {
            ProviderState::Starting => &mut shortage.starting,
            ProviderState::Absent => &mut shortage.absent,
            ProviderState::Failed => &mut shortage.failed,
            // A ready provider that takes nothing new sits on a Node that drains.
            ProviderState::Draining | ProviderState::Ready => &mut shortage.draining,
        }
    }

    pub(crate) fn view(&self, now: Instant) -> ProviderView {
        ProviderView {
            id: self.id.clone(),
            generation: self.instance.as_ref().filter(|_| self.is_served()).map(|i| i.generation),
            adapter: self.instance.as_ref().map(|instance| instance.adapter),
            state: self.state,
            reason: self.reason.clone(),
            ready: self.is_ready(),
            unready_for: self.unready_since.map(|since| now.saturating_duration_since(since)),
            targets: self.targets.clone(),
            loaded: self.loaded.iter().cloned().collect(),
            capacity: self.capacity,
            // Until the Edge hears of its end, a call may be counted as both.
            in_use: (self.in_use + self.zombies).min(self.capacity.max(self.in_use)),
            fenced_in_use: self.fenced_in_use,
            zombies: self.zombies,
            queued: self.queued,
            health: self.overlay.view(now),
            capabilities: self.capabilities().cloned().unwrap_or_default(),
        }
    }
}

const LATEST: &str = ":latest";

/// Says whether a name carries a tag: a colon after the last slash, so that a registry's port is none.
fn is_tagged(name: &str) -> bool {
    name.rsplit('/').next().is_some_and(|last| last.contains(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_before_the_last_slash_is_no_tag() {
        assert!(is_tagged("llama3.2:3b"));
        assert!(is_tagged("hf.co/org/m:Q4_K_M"));
        assert!(!is_tagged("localhost:5000/org/m"));
        assert!(!is_tagged("m"));
    }
}
