//! The one owner of starting and stopping.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use iop_types::{ConfigRevision, ProviderKey, ProviderRevision};

use super::instance::Instance;
use super::snapshot::{Entry, Snapshot};
use super::{Registry, State};
use crate::gate::Gate;
use crate::provider::{Provider, StartError};

/// Builds snapshots, starts and stops their providers. There is one, and drafts borrow it, so that
/// refreshes come one after the other.
pub struct Bootstrap {
    registry: Registry,
    /// Gates outlive instances and snapshots; an unused one goes with the next swap.
    gates: BTreeMap<ProviderKey, Gate>,
}

impl Bootstrap {
    pub(super) const fn new(registry: Registry) -> Self {
        Self { registry, gates: BTreeMap::new() }
    }

    /// Begins the snapshot of a configuration.
    pub const fn draft(&mut self, revision: ConfigRevision) -> Draft<'_> {
        Draft { bootstrap: self, revision, seats: BTreeMap::new() }
    }

    /// Takes every provider out of the registry; they stop after their last calls.
    pub fn shutdown(mut self) -> Draining {
        self.publish(Snapshot::default())
    }

    fn publish(&mut self, next: Snapshot) -> Draining {
        let next = Arc::new(next);
        let state = self.registry.0.state.rcu(|state| {
            let mut changed = State::clone(state);
            changed.removed.extend(state.current.entries.keys().cloned());
            changed.removed.retain(|key| !next.entries.contains_key(key));
            changed.draining.insert(0, Arc::clone(&state.current));
            changed.current = Arc::clone(&next);
            changed
        });
        self.gates.retain(|key, gate| next.entries.contains_key(key) || gate.in_use() > 0);
        let old = Arc::clone(&state.current);
        let retired = old
            .entries
            .values()
            .map(|entry| &entry.instance)
            .filter(|instance| !next.has_instance(instance))
            .map(Arc::clone)
            .collect();
        Draining { registry: self.registry.clone(), old, retired }
    }
}

/// A snapshot in the making.
#[must_use = "a draft serves nothing until it is started and swapped in"]
pub struct Draft<'a> {
    bootstrap: &'a mut Bootstrap,
    revision: ConfigRevision,
    seats: BTreeMap<ProviderKey, Seat>,
}

struct Seat {
    revision: ProviderRevision,
    capacity: u32,
    first_response_timeout: Option<Duration>,
    instance: Arc<Instance>,
    is_fresh: bool,
}

impl Draft<'_> {
    /// Adds a provider that was not there or has changed.
    ///
    /// # Errors
    /// The key is already in this draft.
    pub fn add(
        &mut self,
        key: ProviderKey,
        revision: ProviderRevision,
        capacity: u32,
        provider: Arc<dyn Provider>,
    ) -> Result<(), DuplicateKey> {
        let instance = Instance::new(provider);
        let first_response_timeout = None;
        self.seat(
            key,
            Seat { revision, capacity, first_response_timeout, instance, is_fresh: true },
        )
    }

    /// Keeps the current instance of a provider; says whether there is one.
    ///
    /// # Errors
    /// The key is already in this draft.
    pub fn keep(
        &mut self,
        key: &ProviderKey,
        revision: ProviderRevision,
        capacity: u32,
    ) -> Result<bool, DuplicateKey> {
        let state = self.bootstrap.registry.0.state.load();
        let Some(entry) = state.current.entries.get(key) else { return Ok(false) };
        let instance = Arc::clone(&entry.instance);
        let first_response_timeout = None;
        let seat = Seat { revision, capacity, first_response_timeout, instance, is_fresh: false };
        self.seat(key.clone(), seat)?;
        Ok(true)
    }

    /// Bounds the time to the head of a provider that was added or kept; unbounded otherwise.
    pub fn limit_first_response(&mut self, key: &ProviderKey, timeout: Option<Duration>) {
        if let Some(seat) = self.seats.get_mut(key) {
            seat.first_response_timeout = timeout;
        }
    }

    fn seat(&mut self, key: ProviderKey, seat: Seat) -> Result<(), DuplicateKey> {
        if self.seats.contains_key(&key) {
            return Err(DuplicateKey(key));
        }
        self.seats.insert(key, seat);
        Ok(())
    }
}

impl<'a> Draft<'a> {
    /// Starts what is new. What does not start is left out and listed with its reason.
    pub async fn start(self) -> Started<'a> {
        let Self { bootstrap, revision, mut seats } = self;
        let mut failures = Vec::new();
        for (key, seat) in &seats {
            if seat.is_fresh
                && let Err(error) = seat.instance.provider.start().await
            {
                failures.push(StartFailure { provider: key.clone(), error });
            }
        }
        for failure in &failures {
            seats.remove(&failure.provider);
        }
        Started { bootstrap, revision, seats, failures }
    }
}

/// A snapshot that is ready to serve.
#[must_use = "a started snapshot is swapped in or discarded"]
pub struct Started<'a> {
    bootstrap: &'a mut Bootstrap,
    revision: ConfigRevision,
    seats: BTreeMap<ProviderKey, Seat>,
    failures: Vec<StartFailure>,
}

impl Started<'_> {
    /// Returns the providers that did not start.
    pub fn failures(&self) -> &[StartFailure] {
        &self.failures
    }

    /// Serves this snapshot from now on. The one before finishes what it has.
    pub fn swap(self) -> Draining {
        let Self { bootstrap, revision, seats, failures: _ } = self;
        let mut entries = BTreeMap::new();
        for (key, seat) in seats {
            let gate =
                bootstrap.gates.entry(key.clone()).or_insert_with(|| Gate::new(seat.capacity));
            gate.set_capacity(seat.capacity);
            let gate = gate.clone();
            let Seat { revision, first_response_timeout, instance, .. } = seat;
            let entry =
                Entry { key: key.clone(), revision, first_response_timeout, instance, gate };
            entries.insert(key, Arc::new(entry));
        }
        bootstrap.publish(Snapshot { revision: Some(revision), entries })
    }

    /// Stops what was started for this snapshot; the current one goes on serving.
    pub async fn discard(self) {
        for seat in self.seats.values().filter(|seat| seat.is_fresh) {
            seat.instance.provider.stop().await;
        }
    }
}

/// What a swap left over. [`Self::finish`] it on a task of its own.
#[must_use = "providers that were replaced stop only when this is finished"]
pub struct Draining {
    registry: Registry,
    old: Arc<Snapshot>,
    retired: Vec<Arc<Instance>>,
}

impl Draining {
    /// Waits for the last call of every provider that was removed or replaced, and stops it.
    pub async fn finish(self) {
        for instance in &self.retired {
            std::future::poll_fn(|cx| instance.poll_closed(cx)).await;
            instance.provider.stop().await;
        }
        self.registry.0.state.rcu(|state| {
            let mut changed = State::clone(state);
            changed.draining.retain(|snapshot| !Arc::ptr_eq(snapshot, &self.old));
            changed
        });
    }
}

/// A provider that did not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFailure {
    /// Which provider.
    pub provider: ProviderKey,
    /// Why.
    pub error: StartError,
}

/// Two providers of one configuration with the same key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("provider key `{0}` is used twice: give each provider of a node its own key")]
pub struct DuplicateKey(pub ProviderKey);
