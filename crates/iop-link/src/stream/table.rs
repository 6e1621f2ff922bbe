//! The streams of a link: found by id when a frame arrives, by slot when a handle calls.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use slab::Slab;

/// Names one stream of one link; a handle's key stays valid until the handle is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey {
    /// Place in the table, used again by later streams.
    pub slot: usize,
    /// Id on the wire, never used again.
    pub id: u32,
}

#[derive(Debug)]
pub(crate) struct Streams<S> {
    slots: Slab<Slot<S>>,
    by_id: BTreeMap<u32, usize>,
    highest: u32,
}

#[derive(Debug)]
struct Slot<S> {
    id: u32,
    stream: S,
}

impl<S> Streams<S> {
    pub(crate) const fn new() -> Self {
        Self { slots: Slab::new(), by_id: BTreeMap::new(), highest: 0 }
    }

    /// Returns the id of the youngest stream.
    pub(crate) const fn highest(&self) -> u32 {
        self.highest
    }

    /// Enters a stream whose id is above all others.
    pub(crate) fn insert(&mut self, id: u32, stream: S) -> StreamKey {
        debug_assert!(id > self.highest, "ids grow");
        self.highest = id;
        let slot = self.slots.insert(Slot { id, stream });
        self.by_id.insert(id, slot);
        StreamKey { slot, id }
    }

    pub(crate) fn find(&self, id: u32) -> Option<StreamKey> {
        self.by_id.get(&id).map(|slot| StreamKey { slot: *slot, id })
    }

    pub(crate) fn get(&self, key: StreamKey) -> Option<&S> {
        self.slots.get(key.slot).filter(|slot| slot.id == key.id).map(|slot| &slot.stream)
    }

    pub(crate) fn get_mut(&mut self, key: StreamKey) -> Option<&mut S> {
        self.slots.get_mut(key.slot).filter(|slot| slot.id == key.id).map(|slot| &mut slot.stream)
    }

    pub(crate) fn remove(&mut self, key: StreamKey) -> Option<S> {
        self.get_mut(key)?;
        self.by_id.remove(&key.id);
        Some(self.slots.remove(key.slot).stream)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &S> {
        self.slots.iter().map(|(_, slot)| &slot.stream)
    }

    pub(crate) fn keys(&self) -> Vec<StreamKey> {
        self.by_id.iter().map(|(id, slot)| StreamKey { slot: *slot, id: *id }).collect()
    }
}

/// Only for keys whose handle is held or that were just found.
impl<S> Index<StreamKey> for Streams<S> {
    type Output = S;

    fn index(&self, key: StreamKey) -> &S {
        &self.slots[key.slot].stream
    }
}

impl<S> IndexMut<StreamKey> for Streams<S> {
    fn index_mut(&mut self, key: StreamKey) -> &mut S {
        &mut self.slots[key.slot].stream
    }
}
