//! The table of providers, and the generation under which each Node is connected.

use std::collections::BTreeMap;
use std::time::Instant;

use iop_types::{Generation, NodeId};

use crate::config::{ProviderId, ProviderSettings};

mod overlay;
mod slot;

pub(crate) use overlay::{Fitness, Trial};
pub(crate) use slot::Slot;

/// Position of a provider in the table; stays its own while any permit of it is out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotId(u32);

/// All providers that are connected, configured or remembered.
#[derive(Debug, Default)]
pub(crate) struct Providers {
    slots: Vec<Option<Slot>>,
    by_id: BTreeMap<ProviderId, SlotId>,
    nodes: BTreeMap<NodeId, Generation>,
}

impl Providers {
    pub(crate) fn slot(&self, id: SlotId) -> &Slot {
        self.slots[id.0 as usize].as_ref().expect("a slot outlives its permits and candidates")
    }

    pub(crate) fn slot_mut(&mut self, id: SlotId) -> &mut Slot {
        self.slots[id.0 as usize].as_mut().expect("a slot outlives its permits and candidates")
    }

    pub(crate) fn find(&self, id: &ProviderId) -> Option<SlotId> {
        self.by_id.get(id).copied()
    }

    /// Returns the provider's slot, made on first sight.
    pub(crate) fn entry(
        &mut self,
        now: Instant,
        id: &ProviderId,
        settings: ProviderSettings,
    ) -> SlotId {
        if let Some(slot) = self.find(id) {
            return slot;
        }
        let slot = Some(Slot::new(now, id.clone(), settings));
        let index = match self.slots.iter().position(Option::is_none) {
            Some(free) => {
                self.slots[free] = slot;
                free
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        let index = SlotId(u32::try_from(index).expect("fewer than 2^32 providers"));
        self.by_id.insert(id.clone(), index);
        index
    }

    /// Removes a provider that no candidate and no permit refers to.
    pub(crate) fn remove(&mut self, id: SlotId) {
        if let Some(slot) = self.slots[id.0 as usize].take() {
            self.by_id.remove(&slot.id);
        }
    }

    /// Returns every provider in the order of Node and key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SlotId, &Slot)> {
        self.by_id.values().map(|id| (*id, self.slot(*id)))
    }

    /// Returns the providers of one Node.
    pub(crate) fn of_node(&self, node: &NodeId) -> Vec<SlotId> {
        self.iter().filter(|(_, slot)| slot.id.node == *node).map(|(id, _)| id).collect()
    }

    /// Returns when a target of some provider is fit again, or on offer, by the passing of time.
    pub(crate) fn next_turn(&mut self, now: Instant) -> Option<Instant> {
        let slots = self.slots.iter_mut().flatten();
        slots.filter_map(|slot| slot.overlay.next_turn(now)).min()
    }

    /// Returns the generation under which a Node is connected.
    pub(crate) fn generation(&self, node: &NodeId) -> Option<Generation> {
        self.nodes.get(node).copied()
    }

    pub(crate) fn connect(&mut self, node: &NodeId, generation: Generation) {
        self.nodes.insert(node.clone(), generation);
    }

    pub(crate) fn disconnect(&mut self, node: &NodeId) {
        self.nodes.remove(node);
    }
}
