//! Which provider executes a request.
//!
//! Providers are registered under an instance key; their adapter's type is a second name that works
//! while exactly one instance has it. The registry is an immutable snapshot behind a pointer.
//! [`Bootstrap`] alone builds the next snapshot, starts what is new in it, swaps it in and stops
//! what is left over; everyone else holds a [`Registry`], which cannot start or stop anything.
//!
//! ```text
//! Bootstrap::draft ─► Draft ─start─► Started ─swap──► current ─(next swap)─► Draining ─► stopped
//!                                          └─discard─► stopped               after the last call
//! ```
//!
//! A request binds on receipt to the snapshot, current or draining, that has its provider at its
//! revision, and keeps that instance until it returns. A provider that a swap keeps has the same
//! instance and the same gate before and after; a changed one has a new instance and its old gate.

mod bootstrap;
mod instance;
mod snapshot;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use iop_types::{
    AdapterType, Capabilities, ConfigRevision, Event, ProviderKey, ProviderRevision, Refusal,
    RunRequest,
};

pub use self::bootstrap::{Bootstrap, Draft, Draining, DuplicateKey, StartFailure, Started};
use self::instance::Hold;
use self::snapshot::{Entry, Snapshot};
use crate::cancel::Cancelled;
use crate::gate::Gate;
use crate::probe::Probe;
use crate::provider::{
    BoxFuture, CallError, Commands, Completion, Connections, DiscoverError, Discovery, Outlet,
    Tunnel,
};

/// Makes an empty registry and the one handle that may fill it.
pub fn registry() -> (Bootstrap, Registry) {
    let registry = Registry(Arc::new(Shared {
        state: ArcSwap::from_pointee(State::default()),
        lookups: AtomicU64::new(0),
    }));
    (Bootstrap::new(registry.clone()), registry)
}

/// Finds providers. Clones are handles of the same registry.
#[derive(Clone)]
pub struct Registry(Arc<Shared>);

struct Shared {
    state: ArcSwap<State>,
    lookups: AtomicU64,
}

#[derive(Default, Clone)]
struct State {
    current: Arc<Snapshot>,
    /// Snapshots with calls to finish, newest first.
    draining: Vec<Arc<Snapshot>>,
    /// Keys that were registered once and are no more: a request for one is late, not wrong.
    removed: BTreeSet<ProviderKey>,
}

impl Registry {
    /// Binds a request to the provider it names, at the revision that the Edge decided on.
    ///
    /// # Errors
    /// Refuses a name that nothing ever had or that several providers share, and a revision that is
    /// neither current nor draining.
    pub fn bind(&self, name: &ProviderKey, revision: ProviderRevision) -> Result<Bound, Refusal> {
        self.0.lookups.fetch_add(1, Ordering::Relaxed);
        let state = self.0.state.load();
        let draining =
            state.draining.iter().filter(|snapshot| snapshot.is_of_same_boot(&state.current));
        let bound = std::iter::once(&state.current)
            .chain(draining.clone())
            .filter_map(|snapshot| snapshot.resolve(name).ok())
            .filter(|entry| entry.revision == revision)
            .find_map(Bound::to);
        if let Some(bound) = bound {
            return Ok(bound);
        }
        match state.current.resolve(name) {
            Err(Refusal::UnknownProvider { .. })
                if state.removed.contains(name)
                    || draining.clone().any(|old| old.resolve(name).is_ok()) =>
            {
                Err(Refusal::StaleConfig { revision: revision.0 })
            }
            Err(refusal) => Err(refusal),
            Ok(_) => Err(Refusal::StaleConfig { revision: revision.0 }),
        }
    }

    /// Finds a provider of the current snapshot, whatever its revision.
    ///
    /// # Errors
    /// Refuses a name that nothing has or that several providers share.
    pub fn find(&self, name: &ProviderKey) -> Result<Bound, Refusal> {
        self.0.lookups.fetch_add(1, Ordering::Relaxed);
        let state = self.0.state.load();
        let entry = state.current.resolve(name)?;
        Bound::to(entry).ok_or_else(|| Refusal::UnknownProvider { provider: name.to_string() })
    }

    /// Returns the providers of the current snapshot in the order of their keys.
    ///
    /// A [`Bound`] keeps its instance from being stopped: hold it for one call, not for good.
    pub fn providers(&self) -> Vec<Bound> {
        self.0.state.load().current.entries.values().filter_map(Bound::to).collect()
    }

    /// Returns the revision of the current snapshot; `None` before the first.
    pub fn revision(&self) -> Option<ConfigRevision> {
        self.0.state.load().current.revision
    }

    /// Returns how often a provider was looked up.
    pub fn lookups(&self) -> u64 {
        self.0.lookups.load(Ordering::Relaxed)
    }
}

/// A provider bound for the length of one call. Its instance is not stopped meanwhile; each clone
/// binds it once more.
#[derive(Clone)]
pub struct Bound {
    entry: Arc<Entry>,
    hold: Hold,
}

impl Bound {
    fn to(entry: &Arc<Entry>) -> Option<Self> {
        Some(Self { entry: Arc::clone(entry), hold: entry.instance.hold()? })
    }

    /// Returns the provider's instance key.
    pub fn key(&self) -> &ProviderKey {
        &self.entry.key
    }

    /// Returns the revision of the provider's entry in this snapshot.
    pub fn revision(&self) -> ProviderRevision {
        self.entry.revision
    }

    /// Returns how long the provider may take to its head; `None` for no bound of its own.
    pub fn first_response_timeout(&self) -> Option<Duration> {
        self.entry.first_response_timeout
    }

    /// Returns the provider's gate.
    pub fn gate(&self) -> &Gate {
        &self.entry.gate
    }

    /// Names the dialect.
    pub fn adapter(&self) -> AdapterType {
        self.hold.provider().adapter()
    }

    /// Says what the provider can do.
    pub fn capabilities(&self) -> &Capabilities {
        self.hold.provider().capabilities()
    }

    /// Asks the server what it serves.
    ///
    /// # Errors
    /// Fails when the server does not answer or answers something else than a list.
    pub fn discover(&self) -> BoxFuture<'_, Result<Discovery, DiscoverError>> {
        self.hold.provider().discover()
    }

    /// Executes a normalized run.
    pub fn run<'a>(
        &'a self,
        request: RunRequest,
        input: Bytes,
        outlet: &'a mut dyn Outlet<Event>,
        cancelled: &'a mut Cancelled,
    ) -> BoxFuture<'a, Result<Completion, CallError>> {
        self.hold.provider().run(request, input, outlet, cancelled)
    }

    /// Returns the tunnel, where the adapter has one.
    pub fn tunnel(&self) -> Option<&dyn Tunnel> {
        self.hold.provider().tunnel()
    }

    /// Returns the health probe, where the adapter has one.
    pub fn probe(&self) -> Option<&dyn Probe> {
        self.hold.provider().probe()
    }

    /// Returns the closed commands, where the adapter has any.
    pub fn commands(&self) -> Option<&dyn Commands> {
        self.hold.provider().commands()
    }

    /// Counts the connections to the server, where the adapter has any.
    pub fn connections(&self) -> Option<Connections> {
        self.hold.provider().connections()
    }
}
