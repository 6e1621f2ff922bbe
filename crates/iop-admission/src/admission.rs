//! The machine: providers report, requests enter, permits come back, time passes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use iop_types::{Generation, NodeId, ProviderStatus, Requeue, RouteName, UsageMode};

use crate::choice::{self, Pick};
use crate::config::{Config, ConfigError, ProviderId, ProviderSettings};
use crate::permit::{Candidate, Permit, Place, Ticket};
use crate::provider::{Providers, SlotId};
use crate::refused::{Refused, Shortage, queue_retry_after};
use crate::request::Request;
use crate::route::{Match, Route, RouteEntry, RouteId, Routes};
use crate::view::{Gauges, Model, NotReady, ProviderView, RouteGauge};

/// The Edge's providers, routes and queue.
///
/// Call a `handle_*` method for what happened or a verb for what is wanted, then drain
/// [`poll_output`](Self::poll_output). Call [`handle_timeout`](Self::handle_timeout) when
/// [`poll_timeout`](Self::poll_timeout) is due. `now` never goes backwards.
#[derive(Debug)]
pub struct Admission {
    providers: Providers,
    routes: Routes,
    settings: BTreeMap<ProviderId, ProviderSettings>,
    /// Where each waiting ticket stands.
    waiting: BTreeMap<Ticket, RouteId>,
    deadlines: BTreeSet<(Instant, Ticket)>,
    /// Routes with somebody waiting: usually none, which is what keeps the hot path short.
    waiting_routes: BTreeSet<RouteId>,
    /// Providers that may still be refusing.
    refusing: BTreeSet<SlotId>,
    next_forget: Option<Instant>,
    outputs: VecDeque<Output>,
    next_ticket: u64,
    grants: u64,
    had_node: bool,
    stopping: bool,
}

/// What admission tells the tasks that wait.
#[derive(Debug)]
pub enum Output {
    /// The request has a permit. If its task is gone, the host releases the permit.
    Granted {
        /// Whose.
        ticket: Ticket,
        /// The capacity.
        permit: Permit,
    },
    /// The request will not get one.
    Refused {
        /// Whose.
        ticket: Ticket,
        /// Why.
        refused: Refused,
    },
}

/// A request that was let in.
#[derive(Debug)]
pub struct Admitted {
    /// The route that its name leads to.
    pub route: Arc<Route>,
    /// Whether it goes on now.
    pub entry: Entry,
}

/// Whether a request goes on now.
#[derive(Debug)]
pub enum Entry {
    /// It may be sent.
    Granted(Permit),
    /// It waits; an [`Output`] with this ticket follows.
    Waiting(Ticket),
}

impl Admission {
    /// Makes an Edge's admission; `now` is when the Edge started.
    ///
    /// Providers that a route names count as away since then, so that requests which come right
    /// after a restart wait for their Nodes.
    ///
    /// # Errors
    /// Fails when routes contradict each other.
    pub fn new(now: Instant, config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        let mut admission = Self {
            providers: Providers::default(),
            routes: Routes::new(config.discovered_routes.then_some(config.discovered)),
            settings: config.providers,
            waiting: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            waiting_routes: BTreeSet::new(),
            refusing: BTreeSet::new(),
            next_forget: None,
            outputs: VecDeque::new(),
            next_ticket: 0,
            grants: 0,
            had_node: false,
            stopping: false,
        };
        for route in &config.routes {
            let ids = route.candidates.iter().map(|candidate| &candidate.provider);
            let slots: Vec<_> = ids.map(|id| admission.slot(now, id)).collect();
            let route_id = admission.routes.configure(route, &slots);
            for slot in slots {
                let slot = admission.providers.slot_mut(slot);
                slot.configured = true;
                slot.routes.insert(route_id);
            }
        }
        Ok(admission)
    }

    // ---- Nodes ----

    /// A Node became ready on a new link, with these providers and no others.
    ///
    /// An older generation of the Node ends here, if it has not yet. A report on a generation that is
    /// not newer than the current one is ignored.
    pub fn handle_ready(
        &mut self,
        now: Instant,
        node: &NodeId,
        generation: Generation,
        providers: Vec<ProviderStatus>,
    ) {
        match self.providers.generation(node) {
            Some(current) if current >= generation => return,
            Some(_) => self.fence(now, node),
            None => {}
        }
        self.had_node = true;
        self.providers.connect(node, generation);
        let mut unlisted: BTreeSet<_> = self.providers.of_node(node).into_iter().collect();
        let mut listed = Vec::with_capacity(providers.len());
        for status in providers {
            let id = ProviderId { node: node.clone(), provider: status.provider.clone() };
            let slot = self.slot(now, &id);
            self.providers.slot_mut(slot).handle_report(now, generation, status);
            unlisted.remove(&slot);
            listed.push(slot);
        }
        for slot in unlisted {
            self.providers.slot_mut(slot).handle_unlisted(now);
            listed.push(slot);
        }
        for slot in &listed {
            self.routes.discover(&mut self.providers, *slot);
        }
        for slot in listed {
            self.serve(now, slot);
        }
        self.review(now);
    }

    /// A provider changed. A report on a generation that is not current is ignored.
    pub fn handle_status(
        &mut self,
        now: Instant,
        node: &NodeId,
        generation: Generation,
        status: ProviderStatus,
    ) {
        if self.providers.generation(node) != Some(generation) {
            return;
        }
        let id = ProviderId { node: node.clone(), provider: status.provider.clone() };
        let slot = self.slot(now, &id);
        self.providers.slot_mut(slot).handle_report(now, generation, status);
        self.routes.discover(&mut self.providers, slot);
        self.serve(now, slot);
        self.review(now);
    }

    /// The Node asked for nothing new on this link.
    pub fn handle_draining(&mut self, now: Instant, node: &NodeId, generation: Generation) {
        if self.providers.generation(node) != Some(generation) {
            return;
        }
        for slot in self.providers.of_node(node) {
            self.providers.slot_mut(slot).handle_node_drains(now);
        }
        self.review(now);
    }

    /// A link ended: its generation is fenced. Another generation is not touched.
    ///
    /// Permits of it stay with their owners, who give them back as ever.
    pub fn handle_away(&mut self, now: Instant, node: &NodeId, generation: Generation) {
        if self.providers.generation(node) != Some(generation) {
            return;
        }
        self.fence(now, node);
        self.review(now);
    }

    /// The permit's target refused `stream_options`: until the provider's entry or link changes, its
    /// candidates say `observed`.
    pub fn handle_usage_refused(&mut self, permit: &Permit) {
        let slot = self.providers.slot_mut(permit.slot);
        if slot.is_current(permit.candidate.instance.generation) {
            slot.handle_usage_refused(&permit.candidate.target);
        }
    }

    fn fence(&mut self, now: Instant, node: &NodeId) {
        self.providers.disconnect(node);
        for slot in self.providers.of_node(node) {
            self.providers.slot_mut(slot).handle_away(now);
        }
    }

    fn slot(&mut self, now: Instant, id: &ProviderId) -> SlotId {
        let settings = self.settings.get(id).copied().unwrap_or_default();
        self.providers.entry(now, id, settings)
    }

    // ---- requests ----

    /// Lets a request in, or says why not.
    ///
    /// # Errors
    /// Nothing is held for a request that was refused.
    pub fn request(&mut self, now: Instant, request: &Request<'_>) -> Result<Admitted, Refused> {
        if self.stopping {
            return Err(Refused::ShuttingDown);
        }
        if self.poll_timeout().is_some_and(|due| due <= now) {
            // Whoever waits for the passing of time comes before a newcomer.
            self.handle_timeout(now);
        }
        let found = self.find(request.model)?;
        let route = Arc::clone(&self.routes.entry(found.route).route);
        self.next_ticket += 1;
        let place = Place {
            ticket: Ticket(self.next_ticket),
            route: Arc::clone(&route),
            matched: found.matched,
            need: request.need,
            affinity: request.affinity,
            since: now,
            deadline: now + route.settings.queue.timeout,
        };
        let entry = self.enter(now, found.route, place, Arrival::New)?;
        Ok(Admitted { route, entry })
    }

    /// Gives a permit back because its attempt has returned.
    pub fn release(&mut self, now: Instant, permit: Permit) {
        let generation = permit.candidate.instance.generation;
        let slot = self.providers.slot_mut(permit.slot);
        slot.give_back(generation);
        if slot.is_current(generation) {
            slot.clear_full();
            self.serve(now, permit.slot);
        }
    }

    /// Gives a permit back because nothing was executed under it, and puts its request back to its
    /// old place with its old deadline. The provider is not asked again before it reports.
    ///
    /// # Errors
    /// The request ends: its time in the queue is over, or no candidate is left.
    pub fn requeue(
        &mut self,
        now: Instant,
        permit: Permit,
        cause: Requeue,
    ) -> Result<Entry, Refused> {
        let Permit { place, slot: slot_id, candidate } = permit;
        let instance = &candidate.instance;
        let slot = self.providers.slot_mut(slot_id);
        slot.give_back(instance.generation);
        match cause {
            Requeue::CapacityExceeded | Requeue::LinkFull | Requeue::StaleConfig => {
                if slot.is_unchanged(instance) {
                    slot.handle_refusal(now, cause);
                    self.refusing.insert(slot_id);
                }
            }
            Requeue::Draining => self.handle_draining(now, &instance.node, instance.generation),
            Requeue::Fenced => self.handle_away(now, &instance.node, instance.generation),
        }
        // Capacity that came back without a refusal belongs to whoever waits longest.
        let found = self.routes.find_again(&place.route, place.matched.as_ref());
        let Some(found) = found else {
            return Err(Refused::no_ready(&place.route, Shortage::default()));
        };
        self.enter(now, found.route, place, Arrival::Again)
    }

    /// Takes a request out of the queue because its client left. A grant that is on its way to it
    /// is released.
    ///
    /// Returns `false` when there is nothing left to cancel: the host holds the outcome already.
    pub fn cancel(&mut self, now: Instant, ticket: Ticket) -> bool {
        if self.unqueue(ticket).is_some() {
            return true;
        }
        let Some(index) = self.outputs.iter().position(|output| output.ticket() == ticket) else {
            return false;
        };
        match self.outputs.remove(index) {
            Some(Output::Granted { permit, .. }) => self.release(now, permit),
            Some(Output::Refused { .. }) | None => {}
        }
        true
    }

    /// Takes nothing new any more. Who waits goes on waiting, and permits may come back to the queue.
    pub const fn stop(&mut self) {
        self.stopping = true;
    }

    /// Refuses everybody who still waits; for the end of the Edge's drain.
    pub fn refuse_waiting(&mut self) {
        self.stopping = true;
        let tickets: Vec<_> = self.waiting.keys().copied().collect();
        for ticket in tickets {
            self.refuse(ticket, |_| Refused::ShuttingDown);
        }
    }

    fn find(&self, model: &str) -> Result<Match, Refused> {
        self.routes.find(model).ok_or_else(|| {
            let model = RouteName::from(model);
            match self.had_node {
                true => Refused::ModelNotFound { model },
                false => Refused::NoNodeYet { model },
            }
        })
    }

    fn enter(
        &mut self,
        now: Instant,
        route: RouteId,
        place: Place,
        arrival: Arrival,
    ) -> Result<Entry, Refused> {
        match self.pick(now, route, &place) {
            Ok(pick) => Ok(Entry::Granted(self.grant(route, place, pick))),
            Err(shortage) => self.wait(now, route, place, arrival, shortage).map(Entry::Waiting),
        }
    }

    fn pick(&self, now: Instant, route: RouteId, place: &Place) -> Result<Pick, Shortage> {
        let entry = self.routes.entry(route);
        choice::pick(
            now,
            &self.providers,
            entry,
            &place.need,
            place.matched.as_deref(),
            place.affinity,
        )
    }

    fn grant(&mut self, route: RouteId, place: Place, pick: Pick) -> Permit {
        self.grants += 1;
        choice::take_turn(self.routes.entry_mut(route), pick.member);
        let slot = self.providers.slot_mut(pick.slot);
        let may_ask = place.route.settings.usage == UsageMode::Exact
            && slot.usage() == UsageMode::Exact
            && !slot.refuses_usage(&pick.target);
        let candidate = Candidate {
            instance: slot.take(self.grants),
            target: pick.target,
            form: pick.form,
            usage: if may_ask { UsageMode::Exact } else { UsageMode::Observed },
            why: pick.why,
        };
        Permit { place, slot: pick.slot, candidate }
    }

    fn wait(
        &mut self,
        now: Instant,
        route: RouteId,
        place: Place,
        arrival: Arrival,
        shortage: Shortage,
    ) -> Result<Ticket, Refused> {
        let give_up = match Prospect::of(&shortage) {
            Prospect::Capacity => None,
            Prospect::Return { by } => Some(by),
            Prospect::Never => return Err(refusal(&place, shortage)),
        };
        let lanes = &mut self.routes.entry_mut(route).lanes;
        match arrival {
            Arrival::New => {
                let limit = place.route.settings.queue.max_waiting;
                if lanes.len() >= limit {
                    let oldest = lanes.oldest().map(|oldest| oldest.since);
                    let waited = oldest.map(|since| now.saturating_duration_since(since));
                    return Err(Refused::QueueFull {
                        route: place.route.name.clone(),
                        limit,
                        retry_after: queue_retry_after(waited.unwrap_or_default()),
                    });
                }
            }
            Arrival::Again if now >= place.deadline => return Err(timed_out(now, &place)),
            // It was let in before: going back to its place is not limited.
            Arrival::Again => {}
        }
        let ticket = place.ticket;
        self.waiting.insert(ticket, route);
        self.waiting_routes.insert(route);
        self.deadlines.insert((place.deadline, ticket));
        lanes.insert(place, give_up);
        Ok(ticket)
    }

    // ---- the queue ----

    /// Hands the capacity of one provider to those who wait for it, the longest wait first over all
    /// routes.
    fn serve(&mut self, now: Instant, slot: SlotId) {
        while let Some((ticket, route)) = self.next_for(now, slot) {
            let Some(place) = self.take_place(ticket) else { return };
            match self.pick(now, route, &place) {
                Ok(pick) => {
                    let permit = self.grant(route, place, pick);
                    self.outputs.push_back(Output::Granted { ticket, permit });
                    self.routes.drop_if_unused(route);
                }
                Err(shortage) => {
                    // `next_for` and `pick` ask the same questions; should they ever disagree, the
                    // request keeps its place and only this capacity stays unused.
                    debug_assert!(false, "a provider with capacity was not picked: {shortage}");
                    let entered = self.wait(now, route, place, Arrival::Again, shortage);
                    if let Err(refused) = entered {
                        self.outputs.push_back(Output::Refused { ticket, refused });
                    }
                    return;
                }
            }
        }
    }

    /// Finds who waits longest among those that this provider can take now.
    fn next_for(&self, now: Instant, slot_id: SlotId) -> Option<(Ticket, RouteId)> {
        if self.waiting_routes.is_empty() {
            return None;
        }
        let slot = self.providers.slot(slot_id);
        if !slot.is_ready() || !slot.has_capacity(now) {
            return None;
        }
        let capabilities = slot.capabilities()?;
        let routes = self.waiting_routes.iter().filter(|route| slot.routes.contains(route));
        let heads = routes.flat_map(|route| {
            let entry = self.routes.entry(*route);
            let lanes = entry.lanes.iter().filter(|lane| {
                lane.need.form(capabilities).is_some()
                    && entry.members.iter().any(|member| {
                        member.slot == slot_id
                            && member.resolve(slot, lane.matched.as_deref()).is_some()
                    })
            });
            lanes.filter_map(|lane| lane.head()).map(|place| (place.ticket, *route))
        });
        heads.min()
    }

    /// Looks again at everybody who waits after candidates came or went: tells how long a return is
    /// waited for, and refuses those who have nobody to wait for.
    fn review(&mut self, now: Instant) {
        let mut hopeless = Vec::new();
        for route in &self.waiting_routes {
            let shortages: Vec<_> = {
                let entry = self.routes.entry(*route);
                entry.lanes.iter().map(|lane| self.outlook(now, entry, lane)).collect()
            };
            let lanes = self.routes.entry_mut(*route).lanes.iter_mut();
            for (lane, shortage) in lanes.zip(shortages) {
                match Prospect::of(&shortage) {
                    Prospect::Capacity => lane.give_up = None,
                    Prospect::Return { by } => lane.give_up = Some(by),
                    Prospect::Never => {
                        hopeless.extend(lane.tickets().map(|ticket| (ticket, shortage)));
                    }
                }
            }
        }
        hopeless.sort_by_key(|(ticket, _)| *ticket);
        for (ticket, shortage) in hopeless {
            self.refuse(ticket, |place| refusal(place, shortage));
        }
        self.plan_forgetting();
    }

    /// Says what keeps a lane waiting.
    fn outlook(&self, now: Instant, entry: &RouteEntry, lane: &crate::queue::Lane) -> Shortage {
        let picked =
            choice::pick(now, &self.providers, entry, &lane.need, lane.matched.as_deref(), None);
        match picked {
            Err(shortage) => shortage,
            // Its turn comes with the `serve` of that provider.
            Ok(_) => Shortage { full: 1, ..Shortage::default() },
        }
    }

    fn refuse(&mut self, ticket: Ticket, why: impl FnOnce(&Place) -> Refused) {
        if let Some(place) = self.unqueue(ticket) {
            self.outputs.push_back(Output::Refused { ticket, refused: why(&place) });
        }
    }

    fn unqueue(&mut self, ticket: Ticket) -> Option<Place> {
        let route = self.waiting.get(&ticket).copied();
        let place = self.take_place(ticket);
        if let Some(route) = route {
            self.routes.drop_if_unused(route);
        }
        place
    }

    fn take_place(&mut self, ticket: Ticket) -> Option<Place> {
        let route = self.waiting.remove(&ticket)?;
        let lanes = &mut self.routes.entry_mut(route).lanes;
        let place = lanes.remove(ticket)?;
        if lanes.is_empty() {
            self.waiting_routes.remove(&route);
        }
        self.deadlines.remove(&(place.deadline, ticket));
        Some(place)
    }

    // ---- time ----

    /// Returns what happened to those who wait, in order.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns when [`handle_timeout`](Self::handle_timeout) wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let queue = self.deadlines.first().map(|(deadline, _)| *deadline);
        let waiting = self.waiting_routes.iter().flat_map(|route| {
            self.routes.entry(*route).lanes.iter().filter_map(|lane| lane.give_up)
        });
        let refusing = self
            .refusing
            .iter()
            .filter(|_| !self.waiting.is_empty())
            .filter_map(|slot| self.providers.slot(*slot).refusal_lapses_at());
        queue.into_iter().chain(waiting).chain(refusing).chain(self.next_forget).min()
    }

    /// Time has passed: queue timeouts, returns that did not come, refusals that lapse, and targets
    /// that are forgotten, in this order.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((deadline, ticket)) = self.deadlines.first().copied() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_first();
            self.refuse(ticket, |place| timed_out(now, place));
        }
        for slot in std::mem::take(&mut self.refusing) {
            let lapses_at = self.providers.slot(slot).refusal_lapses_at();
            if self.providers.slot(slot).is_refusing(now) {
                self.refusing.insert(slot);
            } else if lapses_at.is_some() {
                self.providers.slot_mut(slot).handle_lapse();
                self.serve(now, slot);
            }
        }
        self.forget(now);
        self.review(now);
    }

    /// Drops targets that nobody has served for [`KNOWN_FOR`](crate::provider::KNOWN_FOR), and
    /// providers of which nothing is left.
    fn forget(&mut self, now: Instant) {
        let due =
            self.providers.iter().filter(|(_, slot)| slot.forget_at().is_some_and(|at| at <= now));
        let due: Vec<_> = due.map(|(id, _)| id).collect();
        for id in due {
            let slot = self.providers.slot_mut(id);
            slot.forget_targets();
            slot.remember_again(now);
            let is_unused = !slot.configured && !slot.is_served() && slot.permits_out() == 0;
            self.routes.discover(&mut self.providers, id);
            if is_unused {
                self.refusing.remove(&id);
                self.providers.remove(id);
            }
        }
    }

    fn plan_forgetting(&mut self) {
        self.next_forget = self.providers.iter().filter_map(|(_, slot)| slot.forget_at()).min();
    }

    // ---- views ----

    /// Finds the route that a model name leads to.
    ///
    /// # Errors
    /// The same refusal that a request for the name would get.
    pub fn resolve(&self, model: &str) -> Result<Arc<Route>, Refused> {
        self.find(model).map(|found| Arc::clone(&self.routes.entry(found.route).route))
    }

    /// Lists the models that clients can ask for, ordered by name: configured routes, and targets
    /// that providers list or listed within the last hour. Patterns have no name to list.
    pub fn models(&self) -> Vec<Model> {
        let listed = self.routes.listed();
        listed
            .into_iter()
            .map(|entry| self.model_of(entry, None, entry.route.name.clone()))
            .collect()
    }

    /// Describes one model by any name that a request could use.
    ///
    /// # Errors
    /// The same refusal that a request for the name would get.
    pub fn model(&self, name: &str) -> Result<Model, Refused> {
        let found = self.find(name)?;
        let entry = self.routes.entry(found.route);
        Ok(self.model_of(entry, found.matched.as_deref(), name.into()))
    }

    fn model_of(&self, entry: &RouteEntry, matched: Option<&str>, name: RouteName) -> Model {
        let mut model = Model { name, available: false, loaded: false, providers: Vec::new() };
        for member in &entry.members {
            let slot = self.providers.slot(member.slot);
            let target = member.resolve(slot, matched);
            if let Some(target) = target.filter(|_| slot.is_ready()) {
                model.available = true;
                model.loaded |= slot.has_loaded(&target);
            }
            if !model.providers.contains(&slot.id) {
                model.providers.push(slot.id.clone());
            }
        }
        model
    }

    /// Lists every provider that is served, configured or remembered, by Node and key.
    pub fn providers(&self, now: Instant) -> Vec<ProviderView> {
        self.providers.iter().map(|(_, slot)| slot.view(now)).collect()
    }

    /// Returns the figures of the queue and of the permits that are out.
    pub fn gauges(&self, now: Instant) -> Gauges {
        let mut routes: Vec<_> = self
            .waiting_routes
            .iter()
            .filter_map(|id| {
                let entry = self.routes.entry(*id);
                let oldest = entry.lanes.oldest()?;
                Some(RouteGauge {
                    route: entry.route.name.clone(),
                    waiting: entry.lanes.len(),
                    oldest_wait: now.saturating_duration_since(oldest.since),
                })
            })
            .collect();
        routes.sort_by(|a, b| a.route.cmp(&b.route));
        Gauges {
            waiting: self.waiting.len(),
            oldest_wait: routes.iter().map(|route| route.oldest_wait).max(),
            in_flight: self.providers.iter().map(|(_, slot)| slot.permits_out()).sum(),
            routes,
        }
    }

    /// Says whether a request for some model could be dispatched, capacity left aside.
    ///
    /// # Errors
    /// Says why none could.
    pub fn readiness(&self) -> Result<(), NotReady> {
        if self.stopping {
            return Err(NotReady::ShuttingDown);
        }
        let can_serve = |entry: &RouteEntry| {
            entry.members.iter().any(|member| {
                let slot = self.providers.slot(member.slot);
                slot.is_ready() && member.may_resolve(slot)
            })
        };
        match self.routes.iter().any(can_serve) {
            true => Ok(()),
            false if self.had_node => Err(NotReady::NoReadyProvider),
            false => Err(NotReady::NoNodeYet),
        }
    }
}

impl Output {
    /// Returns whose outcome it is.
    pub const fn ticket(&self) -> Ticket {
        match self {
            Self::Granted { ticket, .. } | Self::Refused { ticket, .. } => *ticket,
        }
    }
}

/// Whether a request comes for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrival {
    New,
    Again,
}

/// What a request that found nobody can wait for.
enum Prospect {
    /// Capacity of a provider that is ready.
    Capacity,
    /// The return of one that was ready a moment ago.
    Return { by: Instant },
    /// Nothing.
    Never,
}

impl Prospect {
    fn of(shortage: &Shortage) -> Self {
        match shortage.returns_by {
            _ if shortage.full > 0 => Self::Capacity,
            Some(by) => Self::Return { by },
            None => Self::Never,
        }
    }
}

fn refusal(place: &Place, shortage: Shortage) -> Refused {
    match shortage.is_unsupported() {
        true => Refused::Unsupported {
            route: place.route.name.clone(),
            method: place.need.method,
            path: place.need.path,
        },
        false => Refused::no_ready(&place.route, shortage),
    }
}

fn timed_out(now: Instant, place: &Place) -> Refused {
    Refused::QueueTimeout {
        route: place.route.name.clone(),
        waited: now.saturating_duration_since(place.since),
    }
}
