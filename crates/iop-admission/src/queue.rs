//! The requests that wait for one route.
//!
//! They stand in lanes: a lane holds those that the same providers can take, so that only its head
//! ever needs to be looked at. Within a lane the order is that of arrival. When requests of different
//! principals get lanes of their own, fairness is a choice among heads and touches nothing else.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::permit::{Place, Ticket};
use crate::request::Ask;

/// The queue of one route.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    waiting: usize,
}

/// Requests that the same providers can take.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) ask: Ask,
    /// When its requests are refused because no candidate came back; `None` while one is ready.
    pub(crate) give_up: Option<Instant>,
    places: BTreeMap<Ticket, Place>,
}

impl Lanes {
    pub(crate) const fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    pub(crate) const fn len(&self) -> usize {
        self.waiting
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.lanes.iter_mut()
    }

    /// Puts a request where its ticket belongs.
    pub(crate) fn insert(&mut self, place: Place, give_up: Option<Instant>) {
        let found = self.lanes.iter().position(|lane| lane.ask == place.ask);
        let lane = match found {
            Some(index) => &mut self.lanes[index],
            None => {
                self.lanes.push(Lane {
                    ask: place.ask.clone(),
                    give_up: None,
                    places: BTreeMap::new(),
                });
                self.lanes.last_mut().expect("a lane was pushed")
            }
        };
        lane.give_up = give_up;
        lane.places.insert(place.ticket, place);
        self.waiting += 1;
    }

    /// Takes a request out of the queue.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Place> {
        let index = self.lanes.iter().position(|lane| lane.places.contains_key(&ticket))?;
        let place = self.lanes[index].places.remove(&ticket);
        if self.lanes[index].places.is_empty() {
            self.lanes.swap_remove(index);
        }
        self.waiting -= 1;
        place
    }

    /// Returns the place with the longest wait.
    pub(crate) fn oldest(&self) -> Option<&Place> {
        self.lanes.iter().filter_map(Lane::head).min_by_key(|place| place.ticket)
    }
}

impl Lane {
    /// Returns who is next.
    pub(crate) fn head(&self) -> Option<&Place> {
        self.places.first_key_value().map(|(_, place)| place)
    }

    /// Lists who waits, by age.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = Ticket> {
        self.places.keys().copied()
    }
}
