//! An immutable set of providers and the rules of looking one up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use iop_types::{ConfigRevision, ProviderKey, ProviderRevision, Refusal};

use super::instance::Instance;
use crate::gate::Gate;

/// One provider in one snapshot.
pub(super) struct Entry {
    pub(super) key: ProviderKey,
    pub(super) revision: ProviderRevision,
    pub(super) first_response_timeout: Option<Duration>,
    pub(super) instance: Arc<Instance>,
    pub(super) gate: Gate,
}

/// The providers of one configuration, by instance key.
#[derive(Default)]
pub(super) struct Snapshot {
    /// `None` before the first configuration.
    pub(super) revision: Option<ConfigRevision>,
    pub(super) entries: BTreeMap<ProviderKey, Arc<Entry>>,
}

impl Snapshot {
    /// Finds a provider by its instance key, else by its type name while one instance has it.
    pub(super) fn resolve(&self, name: &ProviderKey) -> Result<&Arc<Entry>, Refusal> {
        if let Some(entry) = self.entries.get(name) {
            return Ok(entry);
        }
        let mut of_type = self
            .entries
            .values()
            .filter(|entry| entry.instance.provider.adapter().as_str() == name.as_str());
        match (of_type.next(), of_type.next()) {
            (Some(only), None) => Ok(only),
            (None, _) => Err(Refusal::UnknownProvider { provider: name.to_string() }),
            (Some(first), Some(second)) => Err(Refusal::AmbiguousProvider {
                type_name: name.to_string(),
                choices: [first, second]
                    .into_iter()
                    .chain(of_type)
                    .map(|entry| entry.key.to_string())
                    .collect(),
            }),
        }
    }

    /// Says whether revisions of providers in both snapshots can be compared.
    pub(super) fn is_of_same_boot(&self, other: &Self) -> bool {
        match (self.revision, other.revision) {
            (Some(own), Some(theirs)) => own.boot == theirs.boot,
            (None, _) | (_, None) => false,
        }
    }

    /// Says whether some entry is served by this very instance.
    pub(super) fn has_instance(&self, instance: &Arc<Instance>) -> bool {
        self.entries.values().any(|entry| Arc::ptr_eq(&entry.instance, instance))
    }
}
