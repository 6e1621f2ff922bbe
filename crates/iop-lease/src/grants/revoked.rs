//! What is void on this link.
//!
//! A revocation overtakes what it hits: it is urgent, a grant is not. So it is kept as a rule, until
//! every grant that could have been made before it is over. A slot, profile or caller may be allowed
//! again: such a rule hits what was made until it came, not what is made later.

use std::collections::BTreeMap;

use iop_types::{Principal, Revocation, Slot};

use crate::claims::{GrantClaims, LeaseClaims};
use crate::time::{GRANT_LIFE, LEASE_LIFE_MAX, millis};

/// Rules that are kept at once. Beyond it all of them become one: everything made until now is void.
const MAX_RULES: usize = 4096;

/// Each rule with the Edge's time at which it came.
#[derive(Debug, Default)]
pub(super) struct Revoked {
    leases: BTreeMap<[u8; 16], i64>,
    grants: BTreeMap<[u8; 16], i64>,
    slots: BTreeMap<Slot, i64>,
    profiles: BTreeMap<String, i64>,
    principals: BTreeMap<Principal, i64>,
    below: BTreeMap<Slot, (u64, i64)>,
    everything: Option<i64>,
}

impl Revoked {
    pub(super) fn insert(&mut self, revocation: Revocation, now_ms: i64) {
        self.forget(now_ms);
        if self.len() >= MAX_RULES {
            *self = Self { everything: Some(now_ms), ..Self::default() };
            return;
        }
        match revocation {
            Revocation::Lease(id) => drop(self.leases.insert(id, now_ms)),
            Revocation::Grant(id) => drop(self.grants.insert(id, now_ms)),
            Revocation::Slot(slot) => drop(self.slots.insert(slot, now_ms)),
            Revocation::Profile(name) => drop(self.profiles.insert(name, now_ms)),
            Revocation::Principal(principal) => drop(self.principals.insert(principal, now_ms)),
            Revocation::Below { slot, revision } => {
                let rule = self.below.entry(slot).or_insert((revision, now_ms));
                *rule = (rule.0.max(revision), now_ms);
            }
        }
    }

    pub(super) fn hits_grant(&self, claims: &GrantClaims) -> bool {
        let made_ms = claims.validity.made_ms();
        let binding = &claims.scope.binding;
        let until = |came: Option<&i64>| came.is_some_and(|came_ms| made_ms <= *came_ms);
        self.grants.contains_key(&claims.id.0)
            || until(self.everything.as_ref())
            || until(self.slots.get(&binding.slot))
            || until(self.profiles.get(&binding.profile.name))
            || self
                .below
                .get(&binding.slot)
                .is_some_and(|(revision, _)| claims.scope.credential_revision < *revision)
    }

    pub(super) fn hits_lease(&self, claims: &LeaseClaims) -> bool {
        let made_ms = claims.validity.made_ms();
        let until = |came: Option<&i64>| came.is_some_and(|came_ms| made_ms <= *came_ms);
        self.leases.contains_key(&claims.id.0)
            || until(self.everything.as_ref())
            || until(self.principals.get(&claims.subject.principal))
    }

    /// Forgets rules that can hit nothing any more.
    pub(super) fn forget(&mut self, now_ms: i64) {
        let life = millis(GRANT_LIFE + LEASE_LIFE_MAX);
        let is_kept = |came_ms: i64| came_ms.saturating_add(life) > now_ms;
        self.leases.retain(|_, came_ms| is_kept(*came_ms));
        self.grants.retain(|_, came_ms| is_kept(*came_ms));
        self.slots.retain(|_, came_ms| is_kept(*came_ms));
        self.profiles.retain(|_, came_ms| is_kept(*came_ms));
        self.principals.retain(|_, came_ms| is_kept(*came_ms));
        self.below.retain(|_, (_, came_ms)| is_kept(*came_ms));
        self.everything.take_if(|came_ms| !is_kept(*came_ms));
    }

    fn len(&self) -> usize {
        self.leases.len()
            + self.grants.len()
            + self.slots.len()
            + self.profiles.len()
            + self.principals.len()
            + self.below.len()
    }
}
