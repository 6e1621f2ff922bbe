//! The group's own keys: its CA, the Edge's certificate, and who signs credential grants.

use iop_vault::{Place, Purpose, Sealed, Secret};
use jiff::Timestamp;
use rusqlite::{OptionalExtension, Row};
use serde::{Deserialize, Serialize};
use serde_json::json;
use zeroize::Zeroizing;

use super::error::{StoreError, from_sqlite};
use super::keeper::Change;
use super::vault::{self, random};
use super::{Act, ManagedStore};
use crate::sql::{read_time, to_word, word};

/// What a new group begins with.
#[derive(Debug)]
pub struct Founding {
    /// Name of the group: the trust domain of its identities.
    pub group: String,
    /// Id of the Edge.
    pub edge: String,
    /// Its first CA, Edge certificate and signer, as far as they exist already.
    pub authorities: Vec<Authority>,
}

/// What a key of the group is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthorityKind {
    /// Signs the certificates of identities.
    Ca,
    /// Is the Edge's own identity.
    Edge,
    /// Signs credential grants.
    LeaseSigner,
}

impl AuthorityKind {
    const fn purpose(self) -> Purpose {
        match self {
            Self::Ca => Purpose::CaKey,
            Self::Edge => Purpose::EdgeKey,
            Self::LeaseSigner => Purpose::LeaseSigner,
        }
    }
}

/// Where a key stands while it is replaced. One key of a kind is `current` at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthorityRole {
    /// Made known, but not in use.
    Next,
    /// In use.
    Current,
    /// Replaced; what it signed is still accepted.
    Previous,
}

/// A key of the group, open.
#[derive(Debug)]
pub struct Authority {
    /// What it is for.
    pub kind: AuthorityKind,
    /// Its name among those of its kind.
    pub name: String,
    /// Where it stands.
    pub role: AuthorityRole,
    /// The certificate (DER) or public key.
    pub public: Vec<u8>,
    /// The private key or seed.
    pub secret: Secret,
    /// From when it is valid.
    pub valid_from: Timestamp,
    /// Until when.
    pub valid_until: Timestamp,
}

/// A change to the group's keys was refused.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// No such key.
    #[error("the group has no {kind:?} key `{name}`")]
    Unknown {
        /// What it is for.
        kind: AuthorityKind,
        /// Its name.
        name: String,
    },
    /// The name is taken, or the kind has a current key.
    #[error(
        "the group has a {kind:?} key `{name}`, or a current one, already: add it as `next` and promote it"
    )]
    Exists {
        /// What it is for.
        kind: AuthorityKind,
        /// Its name.
        name: String,
    },
    /// The key in use cannot be removed.
    #[error("{kind:?} key `{name}` is in use: promote another one first")]
    InUse {
        /// What it is for.
        kind: AuthorityKind,
        /// Its name.
        name: String,
    },
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}
from_sqlite!(AuthorityError);

impl ManagedStore {
    /// Adds a key of the group.
    ///
    /// # Errors
    /// Fails when the name is taken, when a second key would be current, and when the store cannot.
    pub async fn add_authority(&self, act: &Act, new: Authority) -> Result<(), AuthorityError> {
        let act = act.clone();
        self.ask(move |keeper| {
            keeper.change(&act, |change| {
                let is_taken: bool = change.connection.query_one(
                    "SELECT EXISTS (SELECT 1 FROM authorities
                     WHERE kind = ?1 AND (name = ?2 OR (role = 'current' AND ?3 = 'current')))",
                    (word(&new.kind)?, &new.name, word(&new.role)?),
                    |row| row.get(0),
                )?;
                if is_taken {
                    return Err(AuthorityError::Exists { kind: new.kind, name: new.name });
                }
                Ok(insert(change, new)?)
            })
        })
        .await
    }

    /// Makes a key the current one of its kind; the one before becomes `previous`.
    ///
    /// # Errors
    /// Fails when there is no such key, and when the store cannot.
    pub async fn promote_authority(
        &self,
        act: &Act,
        kind: AuthorityKind,
        name: &str,
    ) -> Result<(), AuthorityError> {
        let (act, name) = (act.clone(), name.to_owned());
        self.ask(move |keeper| {
            keeper.change(&act, |change| {
                let kind_word = word(&kind)?;
                change.connection.execute(
                    "UPDATE authorities SET role = 'previous'
                     WHERE kind = ? AND role = 'current' AND name <> ?",
                    (&kind_word, &name),
                )?;
                let promoted = change.connection.execute(
                    "UPDATE authorities SET role = 'current' WHERE kind = ? AND name = ?",
                    (&kind_word, &name),
                )?;
                if promoted == 0 {
                    return Err(AuthorityError::Unknown { kind, name });
                }
                Ok(change.record("authority.promote", &name, &json!({ "kind": kind }))?)
            })
        })
        .await
    }

    /// Removes a key that is not in use, and erases its secret.
    ///
    /// # Errors
    /// Fails when there is no such key, when it is in use, and when the store cannot.
    pub async fn remove_authority(
        &self,
        act: &Act,
        kind: AuthorityKind,
        name: &str,
    ) -> Result<(), AuthorityError> {
        let (act, name) = (act.clone(), name.to_owned());
        self.ask(move |keeper| {
            keeper.change(&act, |change| {
                let role: Option<String> = change
                    .connection
                    .query_row(
                        "SELECT role FROM authorities WHERE kind = ? AND name = ?",
                        (word(&kind)?, &name),
                        |row| row.get(0),
                    )
                    .optional()?;
                match role.as_deref() {
                    None => return Err(AuthorityError::Unknown { kind, name }),
                    Some("current") => return Err(AuthorityError::InUse { kind, name }),
                    Some(_) => {}
                }
                change.connection.execute(
                    "DELETE FROM authorities WHERE kind = ? AND name = ?",
                    (word(&kind)?, &name),
                )?;
                Ok(change.record("authority.remove", &name, &json!({ "kind": kind }))?)
            })?;
            keeper.scrub();
            Ok(())
        })
        .await
    }

    /// Opens every key of a kind, the oldest first.
    ///
    /// # Errors
    /// Fails when one does not open, and when the store cannot be read.
    pub async fn authorities(&self, kind: AuthorityKind) -> Result<Vec<Authority>, StoreError> {
        self.ask(move |keeper| {
            let mut select = keeper.connection.prepare_cached(
                "SELECT name, role, public, row_id, sealed, valid_from, valid_until
                 FROM authorities WHERE kind = ? ORDER BY created, name",
            )?;
            let rows = select.query_map([word(&kind)?], |row| read(row, kind))?;
            rows.map(|row| {
                let (mut authority, row_id, sealed) = row?;
                let place =
                    Place::key(kind.purpose(), &keeper.vault.group, &authority.name, &row_id);
                authority.secret = Sealed::from_bytes(sealed)
                    .and_then(|sealed| sealed.open(&keeper.vault.wrapping, &place))
                    .map_err(|error| {
                        let name = vault::name(kind.purpose());
                        StoreError::damaged(format!("{name} key `{}`", authority.name), error)
                    })?;
                Ok(authority)
            })
            .collect()
        })
        .await
    }
}

pub(super) fn insert(change: &Change<'_>, new: Authority) -> Result<(), StoreError> {
    let row_id = random()?;
    let place = Place::key(new.kind.purpose(), &change.vault.group, &new.name, &row_id);
    let sealed = Sealed::seal(
        &change.vault.wrapping,
        &place,
        new.secret.expose(),
        &Zeroizing::new(random::<{ Sealed::RANDOM_BYTES }>()?),
    );
    change.connection.execute(
        "INSERT INTO authorities
         (kind, name, role, public, row_id, sealed, valid_from, valid_until, created)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            word(&new.kind)?,
            &new.name,
            word(&new.role)?,
            &new.public,
            row_id,
            sealed.as_bytes(),
            new.valid_from.as_millisecond(),
            new.valid_until.as_millisecond(),
            change.now(),
        ),
    )?;
    change.record("authority.add", &new.name, &json!({ "kind": new.kind, "role": new.role }))
}

/// Reads a row whose secret is still sealed.
fn read(row: &Row<'_>, kind: AuthorityKind) -> rusqlite::Result<(Authority, [u8; 16], Vec<u8>)> {
    let authority = Authority {
        kind,
        name: row.get(0)?,
        role: to_word(row, "role")?,
        public: row.get(2)?,
        secret: Secret::new(Vec::new()),
        valid_from: read_time(row, "valid_from")?,
        valid_until: read_time(row, "valid_until")?,
    };
    Ok((authority, row.get(3)?, row.get(4)?))
}
