//! Those who wait: served when capacity comes back, reviewed when candidates come or go, refused when
//! time is up.

use std::collections::BTreeSet;
use std::time::Instant;

use super::{Admission, Output};
use crate::choice;
use crate::config::ProviderId;
use crate::permit::{Place, Ticket};
use crate::provider::SlotId;
use crate::queue::Lane;
use crate::refused::{Held, Refused, Shortage};
use crate::route::{RouteEntry, RouteId};

impl Admission {
    /// Hands the capacity of one provider to those who wait for it, the longest wait first over all
    /// routes.
    pub(super) fn serve(&mut self, now: Instant, slot: SlotId) {
        while let Some((ticket, route)) = self.next_for(now, slot) {
            self.serve_next(now, ticket, route);
        }
    }

    /// Grants a ticket that [`next_for`](Self::next_for) found.
    pub(super) fn serve_next(&mut self, now: Instant, ticket: Ticket, route: RouteId) {
        let Some(place) = self.take_place(ticket) else { return };
        let output = match self.pick(now, route, &place) {
            Ok(pick) => Output::Granted { ticket, permit: self.grant(now, route, place, pick) },
            // `next_for` and `pick` ask the same questions, so that this is not met; if it ever is,
            // the request hears why instead of waiting for nobody.
            Err(shortage) => {
                debug_assert!(false, "a provider with capacity was not picked: {shortage}");
                Output::Refused { ticket, refused: self.refusal(route, &place, shortage) }
            }
        };
        self.outputs.push_back(output);
        self.routes.drop_if_unused(route);
    }

    /// Finds who waits longest among those that this provider can take now.
    pub(super) fn next_for(&self, now: Instant, slot_id: SlotId) -> Option<(Ticket, RouteId)> {
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
                lane.ask.need.form(capabilities).is_some()
                    && entry.members.iter().any(|member| {
                        member.slot == slot_id
                            && member.resolve(slot, lane.ask.matched.as_deref()).is_some()
                    })
                    // Who failed here before, or where this one is left out, may have to wait for
                    // another.
                    && ((lane.ask.failed.is_empty() && slot.overlay.is_clear())
                        || choice::pick(now, &self.providers, entry, &lane.ask, None).is_ok())
            });
            lanes.filter_map(|lane| lane.head()).map(|place| (place.ticket, *route))
        });
        heads.min()
    }

    /// Looks again at everybody who waits after candidates came or went: tells how long a return is
    /// waited for, and refuses those who have nobody to wait for.
    pub(super) fn review(&mut self, now: Instant) {
        let mut hopeless = Vec::new();
        let mut takers = BTreeSet::new();
        for route in &self.waiting_routes {
            let entry = self.routes.entry(*route);
            let outlooks = entry.lanes.iter().map(|lane| self.outlook(now, entry, lane));
            let shortages: Vec<_> = outlooks
                .map(|outlook| {
                    outlook.unwrap_or_else(|taker| {
                        takers.insert(taker);
                        Shortage { full: 1, ..Shortage::default() }
                    })
                })
                .collect();
            let lanes = self.routes.entry_mut(*route).lanes.iter_mut();
            for (lane, shortage) in lanes.zip(shortages) {
                match Prospect::of(&shortage) {
                    Prospect::Capacity => lane.give_up = None,
                    Prospect::Return { by } => lane.give_up = Some(by),
                    Prospect::Never => {
                        hopeless.extend(lane.tickets().map(|ticket| (ticket, *route, shortage)));
                    }
                }
            }
        }
        hopeless.sort_by_key(|(ticket, ..)| *ticket);
        for (ticket, route, shortage) in hopeless {
            let why = self.unready_reason(route);
            self.refuse(ticket, |place| refusal(place, shortage, why));
        }
        for taker in takers {
            self.serve(now, taker);
        }
        self.plan_forgetting();
        self.plan_turns(now);
    }

    /// Says what keeps a lane waiting.
    ///
    /// # Errors
    /// Nothing does: this provider can take its head, since the one that it waited for is gone.
    fn outlook(&self, now: Instant, entry: &RouteEntry, lane: &Lane) -> Result<Shortage, SlotId> {
        match choice::pick(now, &self.providers, entry, &lane.ask, None) {
            Err(shortage) => Ok(shortage),
            Ok(pick) => Err(pick.slot),
        }
    }

    pub(super) fn refusal(&self, route: RouteId, place: &Place, shortage: Shortage) -> Refused {
        refusal(place, shortage, self.unready_reason(route))
    }

    /// Returns why the first candidate that has a reason is not ready.
    fn unready_reason(&self, route: RouteId) -> Option<String> {
        self.routes.entry(route).members.iter().find_map(|member| {
            let slot = self.providers.slot(member.slot);
            let ProviderId { node, provider } = &slot.id;
            slot.unready_reason().map(|reason| format!("{node}/{provider}: {reason}"))
        })
    }

    /// Counts the permits of a route that are held by calls that were not seen to return.
    pub(super) fn held(&self, now: Instant, route: RouteId) -> Option<Held> {
        let slots: BTreeSet<_> =
            self.routes.entry(route).members.iter().map(|member| member.slot).collect();
        let held = slots.into_iter().filter_map(|slot| self.providers.slot(slot).zombies());
        let all = held.reduce(|(count, until), (more, later)| (count + more, until.max(later)));
        all.map(|(permits, until)| Held {
            permits,
            free_within: until.saturating_duration_since(now),
        })
    }

    pub(super) fn refuse(&mut self, ticket: Ticket, why: impl FnOnce(&Place) -> Refused) {
        if let Some(place) = self.unqueue(ticket) {
            self.outputs.push_back(Output::Refused { ticket, refused: why(&place) });
        }
    }

    pub(super) fn unqueue(&mut self, ticket: Ticket) -> Option<Place> {
        let route = self.waiting.get(&ticket).copied();
        let place = self.take_place(ticket);
        if let Some(route) = route {
            self.routes.drop_if_unused(route);
        }
        place
    }

    pub(super) fn take_place(&mut self, ticket: Ticket) -> Option<Place> {
        let route = self.waiting.remove(&ticket)?;
        let lanes = &mut self.routes.entry_mut(route).lanes;
        let place = lanes.remove(ticket)?;
        if lanes.is_empty() {
            self.waiting_routes.remove(&route);
        }
        self.deadlines.remove(&(place.deadline, ticket));
        Some(place)
    }

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
        queue
            .into_iter()
            .chain(waiting)
            .chain(refusing)
            .chain(self.next_forget)
            .chain(self.next_turn)
            .min()
    }

    /// Time has passed: queue timeouts, returns that did not come, refusals that lapse, and targets
    /// that are forgotten, in this order.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((deadline, ticket)) = self.deadlines.first().copied() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_first();
            let held = self.waiting.get(&ticket).and_then(|route| self.held(now, *route));
            self.refuse(ticket, |place| timed_out(now, place, held));
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

    /// Drops targets that nobody has served for an hour, and
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
}

/// What a request that found nobody can wait for.
pub(super) enum Prospect {
    /// Capacity of a provider that is ready.
    Capacity,
    /// The return of one that was ready a moment ago.
    Return { by: Instant },
    /// Nothing.
    Never,
}

impl Prospect {
    pub(super) fn of(shortage: &Shortage) -> Self {
        match shortage.returns_by {
            _ if shortage.full > 0 => Self::Capacity,
            Some(by) => Self::Return { by },
            None => Self::Never,
        }
    }
}

fn refusal(place: &Place, shortage: Shortage, why: Option<String>) -> Refused {
    match shortage.is_unsupported() {
        true => Refused::Unsupported {
            route: place.route.name.clone(),
            method: place.ask.need.method,
            path: place.ask.need.path,
        },
        false => Refused::no_ready(&place.route, shortage, why),
    }
}

pub(super) fn timed_out(now: Instant, place: &Place, held: Option<Held>) -> Refused {
    Refused::QueueTimeout {
        route: place.route.name.clone(),
        waited: now.saturating_duration_since(place.since),
        held,
    }
}
