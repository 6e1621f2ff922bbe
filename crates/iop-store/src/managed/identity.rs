//! Identities: who belongs to the group, with which certificates, and whether it still may.
//!
//! ```text
//!          enrol                     mismatch of `renewal_seq`, or `lock`
//! (none) ───────► active ──────────────────────────────────────────────► locked
//!                   │  ▲──────────────── unlock ─────────────────────────── │
//!                   └───────────── revoke ──► revoked ◄──── revoke ─────────┘
//! ```
//!
//! Each renewal is made against the number of the last one. Two machines with one key cannot both
//! be right about it: the second one locks the identity. A Node whose answer was lost asks again with
//! the same key and gets the same certificate, so that a bad line locks nobody. Another invitation for
//! the name takes it over: the certificates of before are void.

use std::collections::{BTreeMap, BTreeSet};

use iop_types::NodeId;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::error::{StoreError, from_sqlite};
use super::keeper::Change;
use super::{Act, ManagedStore};
use crate::sql::{
    read_number, read_optional_time, read_time, to_json, to_word, unwritable, whole, word,
};

/// What an identity is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdentityKind {
    /// An Edge.
    Edge,
    /// A Node.
    Node,
}

/// Whether an identity may do anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdentityStatus {
    /// It may hold links and renew.
    Active,
    /// Its key may have been copied: it may do nothing until somebody unlocks it.
    Locked,
    /// It may do nothing until it is invited again.
    Revoked,
}

/// An identity as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// Its name.
    pub name: NodeId,
    /// What it is.
    pub kind: IdentityKind,
    /// Whether it may do anything.
    pub status: IdentityStatus,
    /// The number of its last certificate.
    pub renewal_seq: u64,
    /// What its adapters may dial, as invited.
    pub egress: Vec<String>,
    /// When its last certificate ends.
    #[serde(with = "crate::timestamp")]
    pub expires: Timestamp,
    /// When it was first enrolled.
    #[serde(with = "crate::timestamp")]
    pub created: Timestamp,
    /// When it was last seen, coarsely.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "crate::timestamp::optional"
    )]
    pub last_seen: Option<Timestamp>,
}

/// A certificate that was issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// Its serial number.
    pub serial: Vec<u8>,
    /// SHA-256 of the public key (SPKI).
    pub key_hash: [u8; 32],
    /// The certificate (DER).
    pub der: Vec<u8>,
    /// From when it is valid.
    pub not_before: Timestamp,
    /// Until when.
    pub not_after: Timestamp,
}

/// An identity to enrol.
#[derive(Debug, Clone)]
pub struct NewIdentity {
    /// Its name.
    pub name: NodeId,
    /// What it is.
    pub kind: IdentityKind,
    /// What its adapters may dial.
    pub egress: Vec<String>,
    /// Its first certificate.
    pub certificate: Certificate,
}

/// What an enrolment came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enrolled {
    /// The number of the certificate.
    pub renewal_seq: u64,
    /// Whether the name was taken over from an earlier enrolment: links of that one must end.
    pub replaced: bool,
}

/// A renewal that was asked for.
#[derive(Debug, Clone)]
pub struct Renewal {
    /// Who asks.
    pub name: NodeId,
    /// The number of the last certificate, as the identity knows it.
    pub renewal_seq: u64,
    /// What would be issued.
    pub certificate: Certificate,
}

/// What a renewal came to. It is kept in each case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewed {
    /// The certificate is the identity's; hand it out.
    Issued {
        /// Its number.
        renewal_seq: u64,
    },
    /// This key has the last certificate already: hand out that one, whose answer was lost.
    Repeated {
        /// Its number.
        renewal_seq: u64,
        /// The certificate (DER).
        der: Vec<u8>,
    },
    /// Somebody else renewed with this identity. It is locked: its links must end.
    Locked,
}

/// A change to an identity was refused.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// No such identity.
    #[error("no identity `{name}` is known: invite it with `iop nodes invite {name}`")]
    Unknown {
        /// The name.
        name: NodeId,
    },
    /// The public key is another one's.
    #[error(
        "`{name}` brought a public key that belongs to `{owner}`: have it make a key of its own"
    )]
    KeyOfAnother {
        /// Who brought it.
        name: NodeId,
        /// Whose it is.
        owner: NodeId,
    },
    /// The public key had a certificate before.
    #[error("`{name}` brought a public key that it had before: have it make a fresh one")]
    KeyUsedBefore {
        /// Who brought it.
        name: NodeId,
    },
    /// The serial number is taken.
    #[error("the serial number for `{name}` is taken: draw another one")]
    SerialTaken {
        /// For whom it was drawn.
        name: NodeId,
    },
    /// It is locked or revoked.
    #[error("identity `{name}` is {status:?}: unlock it, or invite it again")]
    NotActive {
        /// The name.
        name: NodeId,
        /// Whether it may do anything.
        status: IdentityStatus,
    },
    /// What was revoked stays so.
    #[error("identity `{name}` is revoked: invite it again with `iop nodes invite {name}`")]
    Revoked {
        /// The name.
        name: NodeId,
    },
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}
from_sqlite!(IdentityError);

impl ManagedStore {
    /// Takes an identity into the group, after its invitation was burnt. A name that is known is taken
    /// over, whatever its status: somebody invited it anew.
    ///
    /// # Errors
    /// Fails when the public key had a certificate before, of this or another identity, and when the
    /// store cannot.
    pub async fn enrol(&self, act: &Act, new: NewIdentity) -> Result<Enrolled, IdentityError> {
        let act = act.clone();
        self.ask(move |keeper| {
            keeper.change(&act, |change| {
                refuse_known_key(change.connection, &new.name, &new.certificate)?;
                let known = find(change.connection, &new.name)?;
                let renewal_seq = known.map_or(0, |(_, seq)| seq) + 1;
                let egress = serde_json::to_string(&new.egress).map_err(unwritable)?;
                change.connection.execute(
                    "INSERT INTO identities (name, kind, status, renewal_seq, egress, created)
                     VALUES (?1, ?2, 'active', ?3, ?4, ?5)
                     ON CONFLICT (name) DO UPDATE SET kind = ?2, status = 'active',
                     renewal_seq = ?3, egress = ?4",
                    (new.name.as_str(), word(&new.kind)?, whole(renewal_seq), egress, change.now()),
                )?;
                change.connection.execute(
                    "UPDATE certificates SET is_void = 1 WHERE identity = ?",
                    [new.name.as_str()],
                )?;
                keep_certificate(change, &new.name, renewal_seq, &new.certificate)?;
                let replaced = known.is_some();
                let detail = json!({ "kind": new.kind, "replaced": replaced, "seq": renewal_seq });
                change.record("identity.enrol", new.name.as_str(), &detail)?;
                Ok(Enrolled { renewal_seq, replaced })
            })
        })
        .await
    }

    /// Renews an identity's certificate, if it knows the number of the last one; else locks it.
    ///
    /// # Errors
    /// Fails when the identity is unknown or not active, when the public key is used already, and when
    /// the store cannot. Nothing is changed then.
    pub async fn renew(&self, act: &Act, renewal: Renewal) -> Result<Renewed, IdentityError> {
        let act = act.clone();
        self.ask(move |keeper| {
            keeper.change(&act, |change| {
                let name = &renewal.name;
                let (status, kept) = find(change.connection, name)?
                    .ok_or_else(|| IdentityError::Unknown { name: name.clone() })?;
                if status != IdentityStatus::Active {
                    return Err(IdentityError::NotActive { name: name.clone(), status });
                }
                if kept != renewal.renewal_seq {
                    if kept == renewal.renewal_seq.saturating_add(1) {
                        let key_hash = renewal.certificate.key_hash;
                        if let Some(der) = last(change.connection, name, kept, &key_hash)? {
                            return Ok(Renewed::Repeated { renewal_seq: kept, der });
                        }
                    }
                    set_status(change, name, IdentityStatus::Locked)?;
                    let detail = json!({ "seq": kept, "presented": renewal.renewal_seq });
                    change.record("identity.lock", name.as_str(), &detail)?;
                    return Ok(Renewed::Locked);
                }
                refuse_known_key(change.connection, name, &renewal.certificate)?;
                let renewal_seq = kept + 1;
                change.connection.execute(
                    "UPDATE identities SET renewal_seq = ? WHERE name = ?",
                    (whole(renewal_seq), name.as_str()),
                )?;
                keep_certificate(change, name, renewal_seq, &renewal.certificate)?;
                forget_ended(change, name)?;
                change.record("identity.renew", name.as_str(), &json!({ "seq": renewal_seq }))?;
                Ok(Renewed::Issued { renewal_seq })
            })
        })
        .await
    }

    /// Takes an identity's rights for good: its certificates are void, its links must end.
    ///
    /// # Errors
    /// Fails when it is unknown, and when the store cannot.
    pub async fn revoke_identity(&self, act: &Act, name: &NodeId) -> Result<(), IdentityError> {
        self.set_identity(act, name, IdentityStatus::Revoked, "identity.revoke").await
    }

    /// Stops an identity until somebody unlocks it: its links must end.
    ///
    /// # Errors
    /// Fails when it is unknown or revoked, and when the store cannot.
    pub async fn lock_identity(&self, act: &Act, name: &NodeId) -> Result<(), IdentityError> {
        self.set_identity(act, name, IdentityStatus::Locked, "identity.lock").await
    }

    /// Lets a locked identity go on.
    ///
    /// # Errors
    /// Fails when it is unknown or revoked, and when the store cannot.
    pub async fn unlock_identity(&self, act: &Act, name: &NodeId) -> Result<(), IdentityError> {
        self.set_identity(act, name, IdentityStatus::Active, "identity.unlock").await
    }

    async fn set_identity(
        &self,
        act: &Act,
        name: &NodeId,
        to: IdentityStatus,
        action: &'static str,
    ) -> Result<(), IdentityError> {
        let (act, name) = (act.clone(), name.clone());
        self.ask(move |keeper| {
            keeper.change(&act, |change| {
                let (from, _) = find(change.connection, &name)?
                    .ok_or_else(|| IdentityError::Unknown { name: name.clone() })?;
                if from == IdentityStatus::Revoked && to != IdentityStatus::Revoked {
                    return Err(IdentityError::Revoked { name });
                }
                set_status(change, &name, to)?;
                if to == IdentityStatus::Revoked {
                    change.connection.execute(
                        "UPDATE certificates SET is_void = 1 WHERE identity = ?",
                        [name.as_str()],
                    )?;
                }
                Ok(change.record(action, name.as_str(), &json!({ "from": from }))?)
            })
        })
        .await
    }

    /// Notes when identities were last seen. Coarse: call it once a minute, not per heartbeat.
    ///
    /// # Errors
    /// Fails when the store cannot.
    pub async fn note_seen(
        &self,
        act: &Act,
        seen: Vec<(NodeId, Timestamp)>,
    ) -> Result<(), StoreError> {
        let act = act.clone();
        self.ask(move |keeper| {
            keeper.change(&act, |change| {
                let mut update = change.connection.prepare_cached(
                    "UPDATE identities SET last_seen = max(coalesce(last_seen, 0), ?) WHERE name = ?",
                )?;
                for (name, at) in &seen {
                    update.execute((at.as_millisecond(), name.as_str()))?;
                }
                Ok(())
            })
        })
        .await
    }
}

pub(super) fn read_all(connection: &Connection) -> Result<BTreeMap<NodeId, Identity>, StoreError> {
    let mut select = connection.prepare_cached(
        "SELECT name, kind, status, i.renewal_seq AS renewal_seq, egress, created, last_seen,
             coalesce((SELECT max(not_after) FROM certificates c
                 WHERE c.identity = i.name AND c.renewal_seq = i.renewal_seq), created) AS expires
         FROM identities i",
    )?;
    let rows = select.query_map([], |row| {
        let identity = read(row)?;
        Ok((identity.name.clone(), identity))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn read_void_serials(connection: &Connection) -> Result<BTreeSet<Vec<u8>>, StoreError> {
    let mut select =
        connection.prepare_cached("SELECT serial FROM certificates WHERE is_void = 1")?;
    let rows = select.query_map([], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn read(row: &Row<'_>) -> rusqlite::Result<Identity> {
    Ok(Identity {
        name: row.get::<_, String>("name")?.into(),
        kind: to_word(row, "kind")?,
        status: to_word(row, "status")?,
        renewal_seq: read_number(row, "renewal_seq")?,
        egress: to_json(row, "egress")?,
        expires: read_time(row, "expires")?,
        created: read_time(row, "created")?,
        last_seen: read_optional_time(row, "last_seen")?,
    })
}

fn find(connection: &Connection, name: &NodeId) -> rusqlite::Result<Option<(IdentityStatus, u64)>> {
    connection
        .query_row(
            "SELECT status, renewal_seq FROM identities WHERE name = ?",
            [name.as_str()],
            |row| Ok((to_word(row, "status")?, read_number(row, "renewal_seq")?)),
        )
        .optional()
}

/// Finds the last certificate, if it is this key's and not void.
fn last(
    connection: &Connection,
    name: &NodeId,
    renewal_seq: u64,
    key_hash: &[u8; 32],
) -> rusqlite::Result<Option<Vec<u8>>> {
    connection
        .query_row(
            "SELECT certificate FROM certificates
             WHERE identity = ? AND renewal_seq = ? AND key_hash = ? AND is_void = 0",
            (name.as_str(), whole(renewal_seq), key_hash),
            |row| row.get(0),
        )
        .optional()
}

fn refuse_known_key(
    connection: &Connection,
    name: &NodeId,
    certificate: &Certificate,
) -> Result<(), IdentityError> {
    let owner: Option<String> = connection
        .query_row(
            "SELECT identity FROM certificates WHERE key_hash = ? ORDER BY identity = ? LIMIT 1",
            (certificate.key_hash, name.as_str()),
            |row| row.get(0),
        )
        .optional()?;
    match owner.map(NodeId::from) {
        None => Ok(()),
        Some(owner) if owner == *name => Err(IdentityError::KeyUsedBefore { name: owner }),
        Some(owner) => Err(IdentityError::KeyOfAnother { name: name.clone(), owner }),
    }
}

fn keep_certificate(
    change: &Change<'_>,
    name: &NodeId,
    renewal_seq: u64,
    certificate: &Certificate,
) -> Result<(), IdentityError> {
    let added = change.connection.execute(
        "INSERT OR IGNORE INTO certificates
         (serial, identity, key_hash, certificate, not_before, not_after, renewal_seq, is_void)
         VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
        (
            &certificate.serial,
            name.as_str(),
            certificate.key_hash,
            &certificate.der,
            certificate.not_before.as_millisecond(),
            certificate.not_after.as_millisecond(),
            whole(renewal_seq),
        ),
    )?;
    if added == 0 {
        return Err(IdentityError::SerialTaken { name: name.clone() });
    }
    Ok(())
}

/// Lets go of the text of certificates that have ended. Their keys stay known, and the void ones void:
/// a clock that is set back revives none.
fn forget_ended(change: &Change<'_>, name: &NodeId) -> Result<(), StoreError> {
    change.connection.execute(
        "UPDATE certificates SET certificate = x''
         WHERE identity = ? AND not_after < ? AND length(certificate) > 0",
        (name.as_str(), change.now()),
    )?;
    Ok(())
}

fn set_status(
    change: &Change<'_>,
    name: &NodeId,
    status: IdentityStatus,
) -> Result<(), StoreError> {
    change.connection.execute(
        "UPDATE identities SET status = ? WHERE name = ?",
        (word(&status)?, name.as_str()),
    )?;
    Ok(())
}
