//! What admission shows of itself, from its own state only.

use std::sync::Arc;
use std::time::Instant;

use iop_types::RouteName;

use super::Admission;
use crate::refused::Refused;
use crate::request::Need;
use crate::route::{Route, RouteEntry};
use crate::view::{Gauges, Model, NotReady, ProviderView, RouteGauge};

impl Admission {
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

    /// Lists the models, by name, that some ready provider would take this call for.
    pub fn models_for(&self, need: &Need) -> Vec<RouteName> {
        let takes = |entry: &&RouteEntry| {
            entry.members.iter().any(|member| {
                let slot = self.providers.slot(member.slot);
                let form = slot.capabilities().and_then(|capabilities| need.form(capabilities));
                slot.is_ready() && form.is_some() && member.resolve(slot, None).is_some()
            })
        };
        let listed = self.routes.listed().into_iter();
        listed.filter(takes).map(|entry| entry.route.name.clone()).collect()
    }

    fn model_of(&self, entry: &RouteEntry, matched: Option<&str>, name: RouteName) -> Model {
        let mut model =
            Model { name, available: false, left_out: false, loaded: false, providers: Vec::new() };
        let mut is_any_fit = false;
        for member in &entry.members {
            let slot = self.providers.slot(member.slot);
            let target = member.resolve(slot, matched);
            if let Some(target) = target.filter(|_| slot.is_ready()) {
                model.available = true;
                is_any_fit |= !slot.overlay.is_left_out(&target);
                model.loaded |= slot.has_loaded(&target);
            }
            if !model.providers.contains(&slot.id) {
                model.providers.push(slot.id.clone());
            }
        }
        model.left_out = model.available && !is_any_fit;
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
