//! Another master key: every data key is wrapped anew, in one transaction.

use iop_types::Slot;
use iop_vault::{MasterKey, MasterKeyId, Place, Purpose, Sealed};
use rusqlite::Connection;
use serde_json::json;

use super::error::StoreError;
use super::keeper::Change;
use super::vault::{self, Vault, random};
use super::{Act, ManagedStore};
use crate::master_key::{Found, KeyFileError};
use crate::sql::read_number;

/// The master key was not replaced, or not everywhere.
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    /// The new key could not be put beside the old one. Nothing was changed.
    #[error("the next master key cannot be written: nothing was changed")]
    Stage(#[source] KeyFileError),
    /// The store has the new key, but the key file still holds the old one beside it.
    #[error(
        "the store has its new master key, but the key file could not be replaced: it is finished at the next start"
    )]
    Settle(#[source] KeyFileError),
    /// The key comes from elsewhere: it must be given.
    #[error("the master key comes from {origin}: give the next one, and put it there afterwards")]
    NotAFile {
        /// From where.
        origin: String,
    },
    /// The store could not do it. Nothing was changed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ManagedStore {
    /// Puts everything under another master key. The old one opens nothing any more; copies of the
    /// file from before still need it.
    ///
    /// Whoever keeps the key replaces it at its source before the Edge is started again.
    ///
    /// # Errors
    /// Fails, with nothing changed, when a record does not open and when the store cannot.
    pub async fn rotate_master_key(
        &self,
        act: &Act,
        next: MasterKey,
    ) -> Result<MasterKeyId, StoreError> {
        let act = act.clone();
        self.ask(move |keeper| {
            let (id, vault) = keeper.change(&act, |change| rewrap(change, &next))?;
            keeper.vault = vault;
            keeper.found = Found::given(next);
            keeper.scrub();
            Ok(id)
        })
        .await
    }

    /// Draws another master key, puts everything under it and replaces the key file.
    ///
    /// The next key lies beside the old one from before the first change until after the last, so that a
    /// process that is killed in between finds whichever it needs.
    ///
    /// # Errors
    /// Fails when the key is not kept in a file, when the file cannot be written, and when the store
    /// cannot.
    pub async fn rotate_key_file(&self, act: &Act) -> Result<MasterKeyId, RotateError> {
        let act = act.clone();
        self.ask(move |keeper| {
            let Some(file) = keeper.found.key_file() else {
                return Err(RotateError::NotAFile { origin: keeper.found.source().to_string() });
            };
            let next = MasterKey::from_bytes(random()?);
            file.stage(keeper.found.key(), &next).map_err(RotateError::Stage)?;
            let (id, vault) = keeper.change(&act, |change| rewrap(change, &next))?;
            keeper.vault = vault;
            keeper.found.replace(next);
            keeper.scrub();
            file.settle().map_err(RotateError::Settle)?;
            Ok(id)
        })
        .await
    }
}

fn rewrap(change: &Change<'_>, next: &MasterKey) -> Result<(MasterKeyId, Vault), StoreError> {
    let Change { connection, vault, .. } = *change;
    let group = &vault.group;
    for purpose in vault::STANDING {
        let name = vault::name(purpose);
        let select = "SELECT row_id, sealed FROM standing_keys WHERE name = ?";
        let (row_id, sealed) =
            connection.query_one(select, [name], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let place = Place::key(purpose, group, name, &row_id);
        let sealed = moved(vault, next, &place, sealed, name)?;
        connection.execute(
            "UPDATE standing_keys SET sealed = ? WHERE name = ?",
            (sealed.as_bytes(), name),
        )?;
    }
    for purpose in [Purpose::CaKey, Purpose::EdgeKey, Purpose::LeaseSigner] {
        let kind = vault::name(purpose);
        for (name, row_id, sealed) in authorities(connection, kind)? {
            let place = Place::key(purpose, group, &name, &row_id);
            let sealed = moved(vault, next, &place, sealed, &format!("{kind} key `{name}`"))?;
            connection.execute(
                "UPDATE authorities SET sealed = ? WHERE kind = ? AND name = ?",
                (sealed.as_bytes(), kind, &name),
            )?;
        }
    }
    for (slot, profile, revision, row_id, sealed) in credentials(connection)? {
        let slot = Slot::from(slot);
        let place = Place::credential(group, &slot, &profile, revision, &row_id);
        let sealed = moved(vault, next, &place, sealed, &format!("slot `{slot}`"))?;
        connection.execute(
            "UPDATE credentials SET sealed = ? WHERE slot = ?",
            (sealed.as_bytes(), slot.as_str()),
        )?;
    }
    connection.execute(
        "UPDATE vault SET master_key_id = ?, master_key_check = ?",
        (next.id().as_bytes(), next.check().as_bytes()),
    )?;
    let detail = json!({ "from": vault.wrapping.id().to_string(), "to": next.id().to_string() });
    change.record("master_key.rotate", group, &detail)?;
    // Read back under the new key alone: what could not be opened is found before it is committed.
    Ok((next.id(), Vault::read(connection, next)?))
}

fn moved(
    vault: &Vault,
    next: &MasterKey,
    place: &Place<'_>,
    sealed: Vec<u8>,
    what: &str,
) -> Result<Sealed, StoreError> {
    let nonce = random()?;
    Sealed::from_bytes(sealed)
        .and_then(|sealed| sealed.rewrap(&vault.wrapping, &next.wrapping_keys(), place, &nonce))
        .map_err(|error| StoreError::damaged(what, error))
}

type AuthorityRow = (String, [u8; 16], Vec<u8>);

fn authorities(connection: &Connection, kind: &str) -> rusqlite::Result<Vec<AuthorityRow>> {
    connection
        .prepare("SELECT name, row_id, sealed FROM authorities WHERE kind = ?")?
        .query_map([kind], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect()
}

type CredentialRow = (String, String, u64, [u8; 16], Vec<u8>);

fn credentials(connection: &Connection) -> rusqlite::Result<Vec<CredentialRow>> {
    connection
        .prepare(
            "SELECT slot, profile, revision, row_id, sealed FROM credentials
             WHERE sealed IS NOT NULL",
        )?
        .query_map([], |row| {
            Ok((row.get(0)?, row.get(1)?, read_number(row, "revision")?, row.get(3)?, row.get(4)?))
        })?
        .collect()
}
