//! Client keys: who may call the Edge, for what, and how much.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use iop_types::RouteName;
use iop_vault::{ClientKey, KeyHash, KeyId};
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row};
use serde::{Deserialize, Serialize};
use serde_json::json;
use zeroize::Zeroizing;

use super::error::{StoreError, from_sqlite};
use super::vault::random;
use super::{Act, ManagedStore};
use crate::sql::{read_optional_time, read_time, to_json, unwritable};

/// What a client may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum KeyOperation {
    /// Chats and completions, in any dialect.
    #[serde(rename = "infer")]
    Infer,
    /// Embeddings and reranking.
    #[serde(rename = "embed")]
    Embed,
    /// Lists of models.
    #[serde(rename = "models.read")]
    ModelsRead,
    /// What a model is made of (`/api/show`).
    #[serde(rename = "ollama.show")]
    OllamaShow,
    /// Pulling, copying and deleting models.
    #[serde(rename = "ollama.manage")]
    OllamaManage,
}

impl KeyOperation {
    /// What a key may do where nothing else was said: everything that changes nothing.
    pub const DEFAULT: [Self; 3] = [Self::Infer, Self::Embed, Self::ModelsRead];
}

/// What a key is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyScope {
    /// The routes that it may use; absent means all, those to come too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routes: Option<BTreeSet<RouteName>>,
    /// What it may ask for.
    pub operations: BTreeSet<KeyOperation>,
}

impl KeyScope {
    /// Says whether the key may use a route.
    pub fn allows_route(&self, route: &RouteName) -> bool {
        self.routes.as_ref().is_none_or(|routes| routes.contains(route))
    }

    /// Says whether the key may ask for this.
    pub fn allows(&self, operation: KeyOperation) -> bool {
        self.operations.contains(&operation)
    }
}

impl Default for KeyScope {
    fn default() -> Self {
        Self { routes: None, operations: KeyOperation::DEFAULT.into() }
    }
}

/// How much a key may use; absent means without bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyLimits {
    /// Requests at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrency: Option<u32>,
    /// Requests in a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Tokens, in and out, in a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_day: Option<u64>,
}

/// A key to make.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// What people call it.
    pub name: String,
    /// What it is for.
    pub scope: KeyScope,
    /// How much it may use.
    pub limits: KeyLimits,
    /// Until when it may be used; absent means until it is revoked.
    pub expires: Option<Timestamp>,
}

/// A key as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClientKeyInfo {
    /// Its id; the principal of its requests.
    pub id: KeyId,
    /// What people call it.
    pub name: String,
    /// What it is for.
    pub scope: KeyScope,
    /// How much it may use.
    pub limits: KeyLimits,
    /// When it was made.
    #[serde(with = "crate::timestamp")]
    pub created: Timestamp,
    /// Until when it may be used.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "crate::timestamp::optional"
    )]
    pub expires: Option<Timestamp>,
    /// When it was revoked.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "crate::timestamp::optional"
    )]
    pub revoked: Option<Timestamp>,
    /// When it was last used, coarsely.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "crate::timestamp::optional"
    )]
    pub last_used: Option<Timestamp>,
}

/// A key that was just made: the only time that it is whole.
#[derive(Debug)]
pub struct CreatedKey {
    /// The key, for whoever asked for it.
    pub key: ClientKey,
    /// What is kept of it.
    pub info: ClientKeyInfo,
}

/// A key cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// No such key.
    #[error("no client key `{id}` is known: see `iop keys list`")]
    Unknown {
        /// The id.
        id: KeyId,
    },
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}
from_sqlite!(KeyError);

/// Why a presented key does not let in. For history and the audit log; clients are told one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyRefusal {
    /// No such key, or another secret.
    #[error("the client key is unknown")]
    Unknown,
    /// It was revoked.
    #[error("the client key was revoked")]
    Revoked,
    /// Its time is over.
    #[error("the client key has expired")]
    Expired,
}

impl ManagedStore {
    /// Makes a client key. It is returned whole this once.
    ///
    /// # Errors
    /// Fails when the store cannot.
    pub async fn create_key(&self, act: &Act, new: NewKey) -> Result<CreatedKey, StoreError> {
        let act = act.clone();
        self.ask(move |keeper| {
            let key = ClientKey::new(&Zeroizing::new(random::<{ ClientKey::RANDOM_BYTES }>()?));
            let info = keeper.change(&act, |change| {
                let hash = change.vault.pepper.hash(key.presented());
                change.connection.execute(
                    "INSERT INTO client_keys (id, hash, name, scope, limits, created, expires)
                     VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        key.id().as_str(),
                        hash.as_bytes(),
                        &new.name,
                        serde_json::to_string(&new.scope).map_err(unwritable)?,
                        serde_json::to_string(&new.limits).map_err(unwritable)?,
                        change.now(),
                        new.expires.map(Timestamp::as_millisecond),
                    ),
                )?;
                let detail = json!({
                    "name": new.name, "scope": new.scope, "limits": new.limits,
                    "expires": new.expires.map(|expires| expires.to_string()),
                });
                change.record("key.create", key.id().as_str(), &detail)?;
                require(change.connection, key.id())
            });
            match info {
                Ok(info) => Ok(CreatedKey { key, info }),
                Err(KeyError::Store(error)) => Err(error),
                Err(error @ KeyError::Unknown { .. }) => {
                    Err(StoreError::damaged("a client key that was just made", error))
                }
            }
        })
        .await
    }

    /// Revokes a key: it lets in nobody from before this returns on. Twice is as good as once.
    ///
    /// # Errors
    /// Fails when there is no such key, and when the store cannot.
    pub async fn revoke_key(&self, act: &Act, id: &KeyId) -> Result<ClientKeyInfo, KeyError> {
        let (act, id) = (act.clone(), id.clone());
        self.ask(move |keeper| {
            keeper.change(&act, |change| {
                let revoked = change.connection.execute(
                    "UPDATE client_keys SET revoked = ? WHERE id = ? AND revoked IS NULL",
                    (change.now(), id.as_str()),
                )?;
                let info = require(change.connection, &id)?;
                if revoked > 0 {
                    change.record("key.revoke", id.as_str(), &json!({ "name": info.name }))?;
                }
                Ok(info)
            })
        })
        .await
    }

    /// Notes when keys were last used. Coarse: call it once a minute, not per request.
    ///
    /// # Errors
    /// Fails when the store cannot.
    pub async fn note_used(
        &self,
        act: &Act,
        used: Vec<(KeyId, Timestamp)>,
    ) -> Result<(), StoreError> {
        let act = act.clone();
        self.ask(move |keeper| {
            keeper.change(&act, |change| {
                let mut update = change.connection.prepare_cached(
                    "UPDATE client_keys SET last_used = max(coalesce(last_used, 0), ?) WHERE id = ?",
                )?;
                for (id, at) in &used {
                    update.execute((at.as_millisecond(), id.as_str()))?;
                }
                Ok(())
            })
        })
        .await
    }
}

pub(super) fn read_all(
    connection: &Connection,
) -> Result<BTreeMap<KeyId, (KeyHash, Arc<ClientKeyInfo>)>, StoreError> {
    let mut select = connection.prepare_cached(SELECT)?;
    let rows = select.query_map([], |row| {
        let info = read(row)?;
        let hash = KeyHash::from_bytes(row.get("hash")?);
        Ok((info.id.clone(), (hash, Arc::new(info))))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

const SELECT: &str = "SELECT id, hash, name, scope, limits, created, expires, revoked, last_used
    FROM client_keys";

fn require(connection: &Connection, id: &KeyId) -> Result<ClientKeyInfo, KeyError> {
    connection
        .query_row(&format!("{SELECT} WHERE id = ?"), [id.as_str()], read)
        .optional()?
        .ok_or_else(|| KeyError::Unknown { id: id.clone() })
}

fn read(row: &Row<'_>) -> rusqlite::Result<ClientKeyInfo> {
    let id: String = row.get("id")?;
    let id = id.parse().map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error))
    })?;
    Ok(ClientKeyInfo {
        id,
        name: row.get("name")?,
        scope: to_json(row, "scope")?,
        limits: to_json(row, "limits")?,
        created: read_time(row, "created")?,
        expires: read_optional_time(row, "expires")?,
        revoked: read_optional_time(row, "revoked")?,
        last_used: read_optional_time(row, "last_used")?,
    })
}
