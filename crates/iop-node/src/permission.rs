//! Where commands may change which models a server holds.
//!
//! Two have to say so: the Edge's entry of the provider, and this machine's owner. A server that the
//! Node found by itself has no entry; there the owner decides alone. A refusal names the key that is
//! missing, and in whose file.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use iop_types::ProviderKey;

use crate::settings::ManageModels;

/// What the Edge's entries say, beside what this Node was started with.
pub(crate) struct Permissions {
    own: ManageModels,
    entries: Mutex<BTreeMap<ProviderKey, bool>>,
}

impl Permissions {
    pub(crate) const fn new(own: ManageModels) -> Self {
        Self { own, entries: Mutex::new(BTreeMap::new()) }
    }

    /// Takes over what a whole configuration says.
    pub(crate) fn replace(&self, entries: impl Iterator<Item = (ProviderKey, bool)>) {
        *self.entries.lock().unwrap_or_else(PoisonError::into_inner) = entries.collect();
    }

    /// Says whether models of this provider may be managed.
    ///
    /// # Errors
    /// Says what to set where.
    pub(crate) fn check(&self, provider: &ProviderKey) -> Result<(), String> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        match (entries.get(provider), self.own) {
            (Some(false), ManageModels::WhereConfigured) => Err(format!(
                "start `iop up` with --manage-models, or set `manage_models: true` at provider \
                 `{provider}` in the edge's file"
            )),
            (Some(false), ManageModels::AlsoWhereFound) => Err(format!(
                "set `manage_models: true` at provider `{provider}` in the edge's file and start the \
                 edge again"
            )),
            (Some(false), ManageModels::Nowhere) => Err(format!(
                "set `manage_models: true` at provider `{provider}` in the edge's file and in the \
                 file of this node, and start both again"
            )),
            (Some(true) | None, ManageModels::Nowhere) => Err(
                "set `manage_models: true` in the file of this node, which its owner keeps, and \
                 start the node again"
                    .to_owned(),
            ),
            (None, ManageModels::WhereConfigured) => Err(format!(
                "no file names `{provider}`, it was found: start with `iop up --manage-models`, or \
                 list it in the edge's file with `manage_models: true`"
            )),
            (Some(true), ManageModels::WhereConfigured | ManageModels::AlsoWhereFound)
            | (None, ManageModels::AlsoWhereFound) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(own: ManageModels, entry: Option<bool>) -> Result<(), String> {
        let permissions = Permissions::new(own);
        permissions.replace(entry.map(|entry| ("ollama".into(), entry)).into_iter());
        permissions.check(&"ollama".into())
    }

    #[test]
    fn the_edge_alone_cannot_allow_it() {
        let refused = check(ManageModels::Nowhere, Some(true)).unwrap_err();
        assert!(refused.contains("`manage_models: true` in the file of this node"), "{refused}");
        assert!(check(ManageModels::Nowhere, None).is_err());
    }

    #[test]
    fn the_owner_alone_cannot_allow_it_where_the_edge_has_an_entry() {
        for own in [ManageModels::WhereConfigured, ManageModels::AlsoWhereFound] {
            let refused = check(own, Some(false)).unwrap_err();
            assert!(refused.contains("at provider `ollama` in the edge's file"), "{refused}");
            assert_eq!(check(own, Some(true)), Ok(()));
        }
    }

    #[test]
    fn a_refusal_names_every_word_that_is_missing() {
        let refused = check(ManageModels::Nowhere, Some(false)).unwrap_err();
        let both = "in the edge's file and in the file of this node";
        assert!(refused.contains(both), "{refused}");
        let refused = check(ManageModels::AlsoWhereFound, Some(false)).unwrap_err();
        assert!(!refused.contains("this node"), "{refused}");
    }

    #[test]
    fn a_server_that_was_found_needs_its_owner_s_word() {
        let refused = check(ManageModels::WhereConfigured, None).unwrap_err();
        assert!(refused.contains("--manage-models"), "{refused}");
        assert_eq!(check(ManageModels::AlsoWhereFound, None), Ok(()));
    }
}
