//! The machine: providers report, requests enter, permits come back, time passes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use iop_types::{Generation, NodeId, ProviderStatus, Requeue, RouteName, UsageMode};

use self::waiting::{Prospect, timed_out};
use crate::choice::{self, Pick};
use crate::config::{Config, ConfigError, ProviderId, ProviderSettings};
use crate::permit::{Candidate, Instance, Permit, Place, Ticket};
use crate::provider::{Providers, SlotId};
use crate::refused::{Refused, Shortage, queue_retry_after};
use crate::request::{Ask, Failed, Request};
use crate::route::{Match, Route, RouteId, Routes};

mod health;
mod views;
mod waiting;

pub use health::StaleObservation;

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
    /// When somebody who was left out is fit again or on offer.
    next_turn: Option<Instant>,
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
            next_turn: None,
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
            ask: Ask {
                need: request.need,
                matched: found.matched,
                failed: Vec::new(),
                elsewhere: false,
            },
            affinity: request.affinity,
            since: now,
            deadline: now + route.settings.queue.timeout,
        };
        let entry = self.enter(now, found.route, place, Arrival::New)?;
        Ok(Admitted { route, entry })
    }

    /// Gives a permit back because its attempt has returned.
    pub fn release(&mut self, now: Instant, mut permit: Permit) {
        if permit.served {
            self.handle_served(now, &mut permit);
        }
        self.end_trial(&mut permit);
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
        mut permit: Permit,
        cause: Requeue,
    ) -> Result<Entry, Refused> {
        self.end_trial(&mut permit);
        let Permit { place, slot: slot_id, candidate, .. } = permit;
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
        while let Some((ticket, route)) = self.next_for(now, slot_id)
            && ticket < place.ticket
        {
            self.serve_next(now, ticket, route);
        }
        self.enter_again(now, place)
    }

    /// Gives a permit back because its attempt failed and has returned, and puts its request back to
    /// its old place with its old deadline, for another candidate.
    ///
    /// The one that failed is chosen again only where no other is ready, and not at all with
    /// `elsewhere`.
    ///
    /// # Errors
    /// The request ends: no candidate is left, or its time in the queue is over and nobody is free.
    pub fn retry(
        &mut self,
        now: Instant,
        mut permit: Permit,
        elsewhere: bool,
    ) -> Result<Entry, Refused> {
        self.end_trial(&mut permit);
        let Permit { mut place, slot: slot_id, candidate, .. } = permit;
        let Instance { node, provider, generation, .. } = &*candidate.instance;
        let slot = self.providers.slot_mut(slot_id);
        slot.give_back(*generation);
        let is_current = slot.is_current(*generation);
        if is_current {
            slot.clear_full();
        }
        let provider = ProviderId { node: node.clone(), provider: provider.clone() };
        if !place.ask.has_failed_at(&provider, &candidate.target) {
            place.ask.failed.push(Failed { provider, target: candidate.target });
        }
        place.ask.elsewhere = elsewhere;
        // As in `requeue`, and what is left after this request has chosen is for the others.
        while let Some((ticket, route)) = self.next_for(now, slot_id)
            && ticket < place.ticket
        {
            self.serve_next(now, ticket, route);
        }
        let entry = self.enter_again(now, place);
        if is_current {
            self.serve(now, slot_id);
        }
        entry
    }

    fn enter_again(&mut self, now: Instant, place: Place) -> Result<Entry, Refused> {
        let found = self.routes.find_again(&place.route, place.ask.matched.as_ref());
        let Some(found) = found else {
            return Err(Refused::no_ready(&place.route, Shortage::default(), None));
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
            Ok(pick) => Ok(Entry::Granted(self.grant(now, route, place, pick))),
            Err(shortage) => self.wait(now, route, place, arrival, shortage).map(Entry::Waiting),
        }
    }

    fn pick(&self, now: Instant, route: RouteId, place: &Place) -> Result<Pick, Shortage> {
        let entry = self.routes.entry(route);
        choice::pick(now, &self.providers, entry, &place.ask, place.affinity)
    }

    fn grant(&mut self, now: Instant, route: RouteId, place: Place, pick: Pick) -> Permit {
        self.grants += 1;
        choice::take_turn(self.routes.entry_mut(route), pick.member);
        let slot = self.providers.slot_mut(pick.slot);
        let may_ask = place.route.settings.usage == UsageMode::Exact
            && slot.usage() == UsageMode::Exact
            && !slot.refuses_usage(&pick.target);
        let trial = slot.overlay.begin(now, &pick.target, self.grants);
        let candidate = Candidate {
            instance: slot.take(self.grants),
            target: pick.target,
            form: pick.form,
            usage: if may_ask { UsageMode::Exact } else { UsageMode::Observed },
            why: pick.why,
            has_others: pick.has_others,
        };
        Permit { place, slot: pick.slot, candidate, trial, served: false }
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
            Prospect::Never => return Err(self.refusal(route, &place, shortage)),
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
            Arrival::Again if now >= place.deadline => {
                let held = self.held(now, route);
                return Err(timed_out(now, &place, held));
            }
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
