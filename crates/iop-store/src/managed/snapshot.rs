//! What is asked per request, in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use iop_types::{NodeId, Slot};
use iop_vault::{KeyHash, KeyId, Pepper, PresentedKey};
use jiff::Timestamp;
use rusqlite::Connection;

use super::client_key::{self, ClientKeyInfo, KeyRefusal};
use super::credential::{self, Credential};
use super::error::StoreError;
use super::identity::{self, Identity, IdentityStatus};

/// Keys, identities and slots as they were after one change. Never changes itself.
#[derive(Debug)]
pub struct Snapshot {
    /// Counts the changes of this process; larger is newer.
    pub number: u64,
    /// Every identity that was ever enrolled.
    pub identities: BTreeMap<NodeId, Identity>,
    /// Every slot, without its secret.
    pub credentials: BTreeMap<Slot, Credential>,
    pub(super) keys: BTreeMap<KeyId, (KeyHash, Arc<ClientKeyInfo>)>,
    pub(super) void_serials: BTreeSet<Vec<u8>>,
}

impl Snapshot {
    pub(super) fn read(connection: &Connection, number: u64) -> Result<Self, StoreError> {
        Ok(Self {
            number,
            identities: identity::read_all(connection)?,
            credentials: credential::read_all(connection)?,
            keys: client_key::read_all(connection)?,
            void_serials: identity::read_void_serials(connection)?,
        })
    }

    /// Recognises the key that a client presented. The same work is done for a key that nobody knows.
    ///
    /// # Errors
    /// Fails when the key is unknown, revoked or expired; clients are told the same in each case.
    pub fn recognise(
        &self,
        pepper: &Pepper,
        key: &PresentedKey,
        now: Timestamp,
    ) -> Result<Arc<ClientKeyInfo>, KeyRefusal> {
        let kept = self.keys.get(key.id());
        if !pepper.recognises(key, kept.map(|(hash, _)| hash)) {
            return Err(KeyRefusal::Unknown);
        }
        let (_, info) = kept.ok_or(KeyRefusal::Unknown)?;
        if info.revoked.is_some() {
            return Err(KeyRefusal::Revoked);
        }
        if info.expires.is_some_and(|expires| expires <= now) {
            return Err(KeyRefusal::Expired);
        }
        Ok(Arc::clone(info))
    }

    /// Every client key, without its hash; those that were revoked too.
    pub fn client_keys(&self) -> impl Iterator<Item = &Arc<ClientKeyInfo>> {
        self.keys.values().map(|(_, info)| info)
    }

    /// Says whether an identity may hold a link: known, neither locked nor revoked. For each dispatch.
    pub fn is_active(&self, node: &NodeId) -> bool {
        self.identities.get(node).is_some_and(|identity| identity.status == IdentityStatus::Active)
    }

    /// Says whether a certificate was revoked or replaced by another enrolment, by its serial number.
    pub fn is_void(&self, serial: &[u8]) -> bool {
        self.void_serials.contains(serial)
    }
}
