//! From the name that a client sends to the candidates that may serve it.
//!
//! A name leads to the first of: the configured route of exactly that name, the targets that
//! providers list under it, the configured pattern with the longest text before its `*`.

use std::collections::BTreeMap;
use std::sync::Arc;

use iop_types::{RouteName, Target};

use crate::config::{CandidateConfig, RouteConfig, RouteSettings};
use crate::provider::{Providers, Slot, SlotId};
use crate::queue::Lanes;
use crate::request::fnv1a;

/// A route as requests see it: its name and what the operator decided about it.
#[derive(Debug, PartialEq, Eq)]
pub struct Route {
    /// The configured name or pattern, or the discovered target's name.
    pub name: RouteName,
    /// Limits and policy.
    pub settings: RouteSettings,
}

/// Position of a route in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RouteId(u32);

/// Where a name leads.
#[derive(Debug, Clone)]
pub(crate) struct Match {
    pub(crate) route: RouteId,
    /// What the `*` of a pattern stood for.
    pub(crate) matched: Option<Arc<str>>,
}

/// All routes, by each way to reach them.
#[derive(Debug)]
pub(crate) struct Routes {
    entries: Vec<Option<RouteEntry>>,
    aliases: BTreeMap<RouteName, RouteId>,
    natives: BTreeMap<RouteName, RouteId>,
    /// Longest prefix first.
    patterns: Vec<(Box<str>, RouteId)>,
    discovered: Option<RouteSettings>,
}

/// One route with its candidates and its queue.
#[derive(Debug)]
pub(crate) struct RouteEntry {
    pub(crate) route: Arc<Route>,
    pub(crate) members: Vec<Member>,
    pub(crate) lanes: Lanes,
    /// Virtual time of the turns by weight.
    pub(crate) turn: u128,
}

/// One candidate of a route.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) slot: SlotId,
    pub(crate) target: TargetRule,
    pub(crate) priority: u32,
    pub(crate) weight: u32,
    /// Virtual time at which its next turn by weight is due.
    pub(crate) due: u128,
    /// Stable over restarts, for rendezvous hashing.
    pub(crate) hash: u64,
}

/// What a candidate is asked for.
#[derive(Debug)]
pub(crate) enum TargetRule {
    /// A configured name, and the target that the provider lists for it.
    Named {
        /// As the operator or the provider wrote it.
        name: Target,
        /// As the provider lists it; `None` while it does not.
        listed: Option<Target>,
    },
    /// What the pattern's `*` matched, behind this text.
    Starred(Box<str>),
}

impl Member {
    fn configured(config: &CandidateConfig, slot: SlotId) -> Self {
        let target = match config.target.as_str().strip_suffix('*') {
            Some(prefix) => TargetRule::Starred(prefix.into()),
            None => TargetRule::Named { name: config.target.clone(), listed: None },
        };
        let id = &config.provider;
        Self {
            slot,
            target,
            priority: config.priority,
            weight: config.weight,
            due: 0,
            hash: candidate_hash(id.node.as_str(), id.provider.as_str(), config.target.as_str()),
        }
    }

    fn discovered(slot: SlotId, provider: &Slot, target: &Target) -> Self {
        let id = &provider.id;
        Self {
            slot,
            target: TargetRule::Named { name: target.clone(), listed: Some(target.clone()) },
            priority: 0,
            weight: 1,
            due: 0,
            hash: candidate_hash(id.node.as_str(), id.provider.as_str(), target.as_str()),
        }
    }

    /// Says whether some name leads to a target of this candidate.
    pub(crate) fn may_resolve(&self, slot: &Slot) -> bool {
        match &self.target {
            TargetRule::Named { listed, .. } => listed.is_some(),
            TargetRule::Starred(prefix) => slot.has_target_under(prefix),
        }
    }

    /// Returns the target to ask this candidate for, `None` while its provider does not list it.
    pub(crate) fn resolve(&self, slot: &Slot, matched: Option<&str>) -> Option<Target> {
        match &self.target {
            TargetRule::Named { listed, .. } => listed.clone(),
            TargetRule::Starred(prefix) => {
                slot.find_target(&format!("{prefix}{}", matched.unwrap_or_default()))
            }
        }
    }
}

/// Separated by a byte that no UTF-8 text holds, so that no two candidates run together.
fn candidate_hash(node: &str, provider: &str, target: &str) -> u64 {
    fnv1a(&[node.as_bytes(), provider.as_bytes(), target.as_bytes()].join(&[0xff][..]))
}

impl Routes {
    pub(crate) fn new(discovered: Option<RouteSettings>) -> Self {
        Self {
            entries: Vec::new(),
            aliases: BTreeMap::new(),
            natives: BTreeMap::new(),
            patterns: Vec::new(),
            discovered,
        }
    }

    pub(crate) fn entry(&self, id: RouteId) -> &RouteEntry {
        self.entries[id.0 as usize].as_ref().expect("a route outlives its waiting requests")
    }

    pub(crate) fn entry_mut(&mut self, id: RouteId) -> &mut RouteEntry {
        self.entries[id.0 as usize].as_mut().expect("a route outlives its waiting requests")
    }

    /// Adds a route of the file; `slots` are its candidates' providers in the same order.
    pub(crate) fn configure(&mut self, config: &RouteConfig, slots: &[SlotId]) -> RouteId {
        let members =
            config.candidates.iter().zip(slots).map(|(c, slot)| Member::configured(c, *slot));
        let id = self.insert(config.name.clone(), config.settings, members.collect());
        match config.prefix() {
            Some(prefix) => {
                self.patterns.push((prefix.into(), id));
                self.patterns.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
            }
            None => {
                self.aliases.insert(config.name.clone(), id);
            }
        }
        id
    }

    /// Brings the native names of one provider up to date with the targets that it lists.
    pub(crate) fn discover(&mut self, providers: &mut Providers, slot_id: SlotId) {
        self.refresh_configured(providers, slot_id);
        let Some(settings) = self.discovered else { return };
        let slot = providers.slot(slot_id);
        let names = slot.discovered_names();
        if names == slot.names {
            return;
        }
        let gone = slot.names.iter().filter(|(name, target)| names.get(*name) != Some(target));
        let gone: Vec<_> = gone.map(|(name, _)| name.clone()).collect();
        for name in gone {
            self.withdraw(providers, slot_id, &name);
        }
        for (name, target) in &names {
            if providers.slot(slot_id).names.contains_key(name) {
                continue;
            }
            let id = match self.natives.get(name) {
                Some(id) => *id,
                None => {
                    let id = self.insert(name.clone(), settings, Vec::new());
                    self.natives.insert(name.clone(), id);
                    id
                }
            };
            let member = Member::discovered(slot_id, providers.slot(slot_id), target);
            let members = &mut self.entry_mut(id).members;
            // By provider, not by arrival: choices must not depend on who came first.
            let at = members.partition_point(|other| {
                providers.slot(other.slot).id < providers.slot(slot_id).id
            });
            members.insert(at, member);
            providers.slot_mut(slot_id).routes.insert(id);
        }
        providers.slot_mut(slot_id).names = names;
    }

    fn withdraw(&mut self, providers: &mut Providers, slot_id: SlotId, name: &RouteName) {
        providers.slot_mut(slot_id).names.remove(name);
        if let Some(id) = self.natives.get(name).copied() {
            self.entry_mut(id).members.retain(|member| member.slot != slot_id);
            providers.slot_mut(slot_id).routes.remove(&id);
            self.drop_if_unused(id);
        }
    }

    /// Removes a discovered route that nobody serves and nobody waits for.
    pub(crate) fn drop_if_unused(&mut self, id: RouteId) {
        let entry = self.entry(id);
        let is_native = self.natives.get(&entry.route.name) == Some(&id);
        if is_native && entry.members.is_empty() && entry.lanes.is_empty() {
            let name = entry.route.name.clone();
            self.natives.remove(&name);
            self.entries[id.0 as usize] = None;
        }
    }

    /// Looks up again what the configured candidates of one provider are asked for.
    fn refresh_configured(&mut self, providers: &Providers, slot_id: SlotId) {
        let slot = providers.slot(slot_id);
        for id in &slot.routes {
            let entry = self.entries[id.0 as usize].as_mut().expect("candidates have a route");
            for member in entry.members.iter_mut().filter(|member| member.slot == slot_id) {
                if let TargetRule::Named { name, listed } = &mut member.target {
                    *listed = slot.find_target(name.as_str());
                }
            }
        }
    }

    fn insert(
        &mut self,
        name: RouteName,
        settings: RouteSettings,
        members: Vec<Member>,
    ) -> RouteId {
        let route = Arc::new(Route { name, settings });
        let entry = Some(RouteEntry { route, members, lanes: Lanes::default(), turn: 0 });
        let index = match self.entries.iter().position(Option::is_none) {
            Some(free) => {
                self.entries[free] = entry;
                free
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        };
        RouteId(u32::try_from(index).expect("fewer than 2^32 routes"))
    }

    /// Finds where a client's name leads.
    pub(crate) fn find(&self, model: &str) -> Option<Match> {
        if let Some(id) = self.aliases.get(model).or_else(|| self.natives.get(model)) {
            return Some(Match { route: *id, matched: None });
        }
        self.patterns.iter().find_map(|(prefix, id)| {
            let matched = model.strip_prefix(&**prefix)?;
            Some(Match { route: *id, matched: Some(matched.into()) })
        })
    }

    /// Finds a route again by its own name, after it may have gone and come back.
    pub(crate) fn find_again(&self, route: &Route, matched: Option<&Arc<str>>) -> Option<Match> {
        let name = &route.name;
        let id = match matched {
            None => self.aliases.get(name).or_else(|| self.natives.get(name)).copied(),
            Some(_) => {
                let prefix = name.as_str().strip_suffix('*')?;
                self.patterns.iter().find(|(p, _)| **p == *prefix).map(|(_, id)| *id)
            }
        };
        id.map(|route| Match { route, matched: matched.cloned() })
    }

    /// Lists every route that can be asked for by a fixed name, by name: aliases, and the targets
    /// that some provider lists in exactly this spelling.
    pub(crate) fn listed(&self) -> Vec<&RouteEntry> {
        let mut listed = BTreeMap::new();
        for (name, id) in &self.natives {
            let entry = self.entry(*id);
            let is_spelled = entry.members.iter().any(|member| match &member.target {
                TargetRule::Named { name: target, .. } => target.as_str() == name.as_str(),
                TargetRule::Starred(_) => false,
            });
            if is_spelled {
                listed.insert(name, entry);
            }
        }
        listed.extend(self.aliases.iter().map(|(name, id)| (name, self.entry(*id))));
        listed.into_values().collect()
    }

    /// Lists every route.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &RouteEntry> {
        self.entries.iter().flatten()
    }
}
