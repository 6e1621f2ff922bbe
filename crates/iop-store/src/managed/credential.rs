//! Slots, profiles and the credentials of providers.
//!
//! ```text
//!            set                disable
//! (none) ──────────► active ◄───────────► disabled
//!                    │  ▲ set   enable       │
//!                    └──┴── revoke ──► revoked: the secret is erased, the slot and its revision stay
//! ```
//!
//! `set` and `rotate` make the next revision; a slot's revision never falls, so that a row that was put
//! back from an older copy of the file is refused while the process that wrote the newer one runs.

use std::collections::BTreeMap;

use iop_types::{Profile, Slot};
use iop_vault::{Fingerprint, Place, Sealed, Secret};
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row};
use serde::{Deserialize, Serialize};
use serde_json::json;
use zeroize::Zeroizing;

use super::error::{StoreError, from_sqlite};
use super::keeper::Change;
use super::vault::random;
use super::{Act, ManagedStore};
use crate::sql::{read_number, read_time, to_word, whole, word};

/// The longest secret, in bytes: what providers hand out is far shorter, and a lease must hold it.
const LONGEST: usize = 4096;
/// The shortest secret of which the end is shown: four characters are then a small part of it.
const SHOWS_ITS_END: usize = 20;

/// Whether a credential may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CredentialState {
    /// It may.
    Active,
    /// Not until it is enabled again.
    Disabled,
    /// Never again: the secret is erased.
    Revoked,
}

/// A slot without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Credential {
    /// The slot.
    pub slot: Slot,
    /// How the secret is written into a request.
    pub profile: Profile,
    /// Grows with every secret.
    pub revision: u64,
    /// Whether it may be used.
    pub state: CredentialState,
    /// The end of the secret; absent where that would tell too much of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last4: Option<String>,
    /// Equal for equal secrets.
    pub fingerprint: Fingerprint,
    /// When the slot was first filled.
    #[serde(with = "crate::timestamp")]
    pub created: Timestamp,
    /// When it last changed.
    #[serde(with = "crate::timestamp")]
    pub changed: Timestamp,
}

/// A credential, open, for one grant or lease.
#[derive(Debug)]
pub struct OpenedCredential {
    /// The slot.
    pub slot: Slot,
    /// How the secret is written into a request.
    pub profile: Profile,
    /// Which secret it is.
    pub revision: u64,
    /// The secret.
    pub secret: Secret,
}

/// A credential cannot be changed or opened.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// No such slot.
    #[error("slot `{slot}` is empty: fill it with `iop credentials set {slot}`")]
    Unknown {
        /// The slot.
        slot: Slot,
    },
    /// It may not be used.
    #[error("slot `{slot}` is {state:?}: enable it, or set another secret")]
    NotActive {
        /// The slot.
        slot: Slot,
        /// Its state.
        state: CredentialState,
    },
    /// The secret cannot stand in a header.
    #[error(
        "the secret for slot `{slot}` must be 1 to {LONGEST} visible ASCII characters without spaces"
    )]
    Malformed {
        /// The slot.
        slot: Slot,
    },
    /// The profile cannot be a header.
    #[error(
        "profile `{profile}`: `header` and `scheme` must be words of HTTP, `header` in lower case"
    )]
    MalformedProfile {
        /// The profile.
        profile: String,
    },
    /// The file holds an older revision than this process wrote.
    #[error(
        "slot `{slot}` was put back to revision {found}, after {known}: restore `managed.db`, or set the secret again"
    )]
    PutBack {
        /// The slot.
        slot: Slot,
        /// What the file has.
        found: u64,
        /// What it had.
        known: u64,
    },
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}
from_sqlite!(CredentialError);

impl ManagedStore {
    /// Fills a slot, new or not, under a profile: the next revision, active.
    ///
    /// A profile of the same name changes for every slot that uses it.
    ///
    /// # Errors
    /// Fails when secret or profile cannot stand in a header, and when the store cannot.
    pub async fn set_credential(
        &self,
        act: &Act,
        slot: &Slot,
        profile: Profile,
        secret: Secret,
    ) -> Result<Credential, CredentialError> {
        check(slot, &secret)?;
        check_profile(&profile)?;
        let (act, slot) = (act.clone(), slot.clone());
        let set = self
            .ask(move |keeper| {
                let set = keeper.change(&act, |change| {
                    put_profile(change, &profile)?;
                    let kept = find(change.connection, &slot)?;
                    let revision = kept.as_ref().map_or(0, |kept| kept.revision) + 1;
                    put(change, &slot, profile, revision, &secret, "credential.set")
                })?;
                keeper.scrub();
                Ok::<_, CredentialError>(set)
            })
            .await?;
        Ok(set)
    }

    /// Replaces the secret of a slot: the next revision, in the state the slot is in. Leases of before
    /// live out their seconds.
    ///
    /// # Errors
    /// Fails when the slot is empty or revoked, when the secret cannot stand in a header, and when the
    /// store cannot.
    pub async fn rotate_credential(
        &self,
        act: &Act,
        slot: &Slot,
        secret: Secret,
    ) -> Result<Credential, CredentialError> {
        check(slot, &secret)?;
        let (act, slot) = (act.clone(), slot.clone());
        self.ask(move |keeper| {
            let rotated = keeper.change(&act, |change| {
                let kept = require(change.connection, &slot)?;
                if kept.state == CredentialState::Revoked {
                    return Err(CredentialError::NotActive { slot, state: kept.state });
                }
                let mut rotated = put(
                    change,
                    &slot,
                    kept.profile,
                    kept.revision + 1,
                    &secret,
                    "credential.rotate",
                )?;
                if kept.state == CredentialState::Disabled {
                    set_state(change.connection, &slot, kept.state)?;
                    rotated.state = kept.state;
                }
                Ok(rotated)
            })?;
            keeper.scrub();
            Ok(rotated)
        })
        .await
    }

    /// Stops the use of a slot until it is enabled: grants and leases of it must be revoked.
    ///
    /// # Errors
    /// Fails when the slot is empty or revoked, and when the store cannot.
    pub async fn disable_credential(&self, act: &Act, slot: &Slot) -> Result<(), CredentialError> {
        self.set_credential_state(act, slot, CredentialState::Disabled, "credential.disable").await
    }

    /// Lets a disabled slot be used again.
    ///
    /// # Errors
    /// Fails when the slot is empty or revoked, and when the store cannot.
    pub async fn enable_credential(&self, act: &Act, slot: &Slot) -> Result<(), CredentialError> {
        self.set_credential_state(act, slot, CredentialState::Active, "credential.enable").await
    }

    /// Erases a slot's secret: grants and leases of it must be revoked.
    ///
    /// # Errors
    /// Fails when the slot is empty, and when the store cannot.
    pub async fn revoke_credential(&self, act: &Act, slot: &Slot) -> Result<(), CredentialError> {
        self.set_credential_state(act, slot, CredentialState::Revoked, "credential.revoke").await
    }

    async fn set_credential_state(
        &self,
        act: &Act,
        slot: &Slot,
        to: CredentialState,
        action: &'static str,
    ) -> Result<(), CredentialError> {
        let (act, slot) = (act.clone(), slot.clone());
        self.ask(move |keeper| {
            keeper.change(&act, |change| {
                let kept = require(change.connection, &slot)?;
                if kept.state == CredentialState::Revoked && to != CredentialState::Revoked {
                    return Err(CredentialError::NotActive { slot, state: kept.state });
                }
                set_state(change.connection, &slot, to)?;
                change.connection.execute(
                    "UPDATE credentials SET changed = ? WHERE slot = ?",
                    (change.now(), slot.as_str()),
                )?;
                let detail = json!({ "from": kept.state, "revision": kept.revision });
                Ok(change.record(action, slot.as_str(), &detail)?)
            })?;
            if to == CredentialState::Revoked {
                keeper.scrub();
            }
            Ok(())
        })
        .await
    }

    /// Opens the secret of an active slot.
    ///
    /// # Errors
    /// Fails when the slot is empty, disabled or revoked, when its row is not what was written, and when
    /// the store cannot be read.
    pub async fn open_credential(&self, slot: &Slot) -> Result<OpenedCredential, CredentialError> {
        let slot = slot.clone();
        self.ask(move |keeper| {
            let kept = require(&keeper.connection, &slot)?;
            if let Some(known) = keeper.snapshot().credentials.get(&slot)
                && known.revision > kept.revision
            {
                let (found, known) = (kept.revision, known.revision);
                return Err(CredentialError::PutBack { slot, found, known });
            }
            let (row_id, sealed): ([u8; 16], Option<Vec<u8>>) = keeper.connection.query_one(
                "SELECT row_id, sealed FROM credentials WHERE slot = ?",
                [slot.as_str()],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )?;
            let sealed = match (kept.state, sealed) {
                (CredentialState::Active, Some(sealed)) => sealed,
                (state, _) => return Err(CredentialError::NotActive { slot, state }),
            };
            let place = Place::credential(
                &keeper.vault.group,
                &slot,
                &kept.profile.name,
                kept.revision,
                &row_id,
            );
            let secret = Sealed::from_bytes(sealed)
                .and_then(|sealed| sealed.open(&keeper.vault.wrapping, &place))
                .map_err(|error| StoreError::damaged(format!("slot `{slot}`"), error))?;
            Ok(OpenedCredential { slot, profile: kept.profile, revision: kept.revision, secret })
        })
        .await
    }
}

pub(super) fn read_all(connection: &Connection) -> Result<BTreeMap<Slot, Credential>, StoreError> {
    let mut select = connection.prepare_cached(&format!("{SELECT} ORDER BY slot"))?;
    let rows = select.query_map([], |row| {
        let credential = read(row)?;
        Ok((credential.slot.clone(), credential))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

const SELECT: &str = "SELECT slot, profile, header, scheme, revision, state, last4, fingerprint,
    created, changed FROM credentials JOIN profiles ON profiles.name = credentials.profile";

fn read(row: &Row<'_>) -> rusqlite::Result<Credential> {
    Ok(Credential {
        slot: row.get::<_, String>("slot")?.into(),
        profile: Profile {
            name: row.get("profile")?,
            header: row.get("header")?,
            scheme: row.get("scheme")?,
        },
        revision: read_number(row, "revision")?,
        state: to_word(row, "state")?,
        last4: row.get("last4")?,
        fingerprint: Fingerprint::from_text(row.get("fingerprint")?),
        created: read_time(row, "created")?,
        changed: read_time(row, "changed")?,
    })
}

fn find(connection: &Connection, slot: &Slot) -> rusqlite::Result<Option<Credential>> {
    connection.query_row(&format!("{SELECT} WHERE slot = ?"), [slot.as_str()], read).optional()
}

fn require(connection: &Connection, slot: &Slot) -> Result<Credential, CredentialError> {
    find(connection, slot)?.ok_or_else(|| CredentialError::Unknown { slot: slot.clone() })
}

fn put(
    change: &Change<'_>,
    slot: &Slot,
    profile: Profile,
    revision: u64,
    secret: &Secret,
    action: &str,
) -> Result<Credential, CredentialError> {
    let row_id = random()?;
    let place = Place::credential(&change.vault.group, slot, &profile.name, revision, &row_id);
    let sealed = Sealed::seal(
        &change.vault.wrapping,
        &place,
        secret.expose(),
        &Zeroizing::new(random::<{ Sealed::RANDOM_BYTES }>()?),
    );
    let fingerprint = change.vault.fingerprints.mark(secret.expose());
    change.connection.execute(
        "INSERT INTO credentials
         (slot, profile, revision, state, row_id, sealed, last4, fingerprint, created, changed)
         VALUES (?1, ?2, ?3, 'active', ?4, ?5, ?6, ?7, ?8, ?8)
         ON CONFLICT (slot) DO UPDATE SET profile = ?2, revision = ?3, state = 'active',
         row_id = ?4, sealed = ?5, last4 = ?6, fingerprint = ?7, changed = ?8",
        (
            slot.as_str(),
            &profile.name,
            whole(revision),
            row_id,
            sealed.as_bytes(),
            end_of(secret),
            fingerprint.as_str(),
            change.now(),
        ),
    )?;
    let detail =
        json!({ "profile": profile.name, "revision": revision, "fingerprint": fingerprint });
    change.record(action, slot.as_str(), &detail)?;
    require(change.connection, slot)
}

fn set_state(connection: &Connection, slot: &Slot, state: CredentialState) -> rusqlite::Result<()> {
    connection.execute(
        "UPDATE credentials SET state = ?1,
         sealed = CASE WHEN ?1 = 'revoked' THEN NULL ELSE sealed END,
         last4 = CASE WHEN ?1 = 'revoked' THEN NULL ELSE last4 END
         WHERE slot = ?2",
        (word(&state)?, slot.as_str()),
    )?;
    Ok(())
}

fn put_profile(change: &Change<'_>, profile: &Profile) -> Result<(), StoreError> {
    let changed = change.connection.execute(
        "INSERT INTO profiles (name, header, scheme) VALUES (?1, ?2, ?3)
         ON CONFLICT (name) DO UPDATE SET header = ?2, scheme = ?3
         WHERE header <> ?2 OR scheme <> ?3",
        (&profile.name, &profile.header, &profile.scheme),
    )?;
    if changed > 0 {
        let detail = json!({ "header": profile.header, "scheme": profile.scheme });
        change.record("profile.set", &profile.name, &detail)?;
    }
    Ok(())
}

/// What a secret must be to stand in a header and to be no second one.
fn check(slot: &Slot, secret: &Secret) -> Result<(), CredentialError> {
    let bytes = secret.expose();
    if (1..=LONGEST).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic) {
        return Ok(());
    }
    Err(CredentialError::Malformed { slot: slot.clone() })
}

fn check_profile(profile: &Profile) -> Result<(), CredentialError> {
    let is_token = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
    };
    let is_header = !profile.header.is_empty()
        && is_token(&profile.header)
        && !profile.header.bytes().any(|byte| byte.is_ascii_uppercase());
    if !profile.name.is_empty() && is_header && is_token(&profile.scheme) {
        return Ok(());
    }
    Err(CredentialError::MalformedProfile { profile: profile.name.clone() })
}

fn end_of(secret: &Secret) -> Option<String> {
    let bytes = secret.expose();
    let end = bytes.get(bytes.len().checked_sub(4)?..)?;
    (bytes.len() >= SHOWS_ITS_END).then(|| String::from_utf8_lossy(end).into_owned())
}
