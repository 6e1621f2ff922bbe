//! Invitations: what lets one machine in, once.

use std::fmt;

use jiff::Timestamp;
use rusqlite::{OptionalExtension, Row};
use serde::Serialize;
use serde_json::json;
use subtle::ConstantTimeEq;

use iop_types::NodeId;

use super::error::{StoreError, from_sqlite};
use super::{Act, ManagedStore};
use crate::sql::{read_time, to_json, unwritable};

/// Names an invitation. Part of its token, and not secret alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InvitationId(pub [u8; 16]);

impl fmt::Display for InvitationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for InvitationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for InvitationId {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// An invitation to keep.
#[derive(Debug, Clone)]
pub struct NewInvitation {
    /// Its name.
    pub id: InvitationId,
    /// Hash of the token's secret.
    pub secret_hash: [u8; 32],
    /// The Node that it lets in.
    pub node: NodeId,
    /// What the Node's adapters may dial.
    pub egress: Vec<String>,
    /// Until when it may be used.
    pub expires: Timestamp,
    /// How many wrong secrets end it; at least 1.
    pub attempts: u32,
}

/// An invitation, without what would let somebody in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Invitation {
    /// Its name.
    pub id: InvitationId,
    /// The Node that it lets in.
    pub node: NodeId,
    /// What the Node's adapters may dial.
    pub egress: Vec<String>,
    /// Until when it may be used.
    #[serde(with = "crate::timestamp")]
    pub expires: Timestamp,
}

/// An invitation cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum InvitationError {
    /// There is one of that name.
    #[error("an invitation `{id}` exists: make another token")]
    Exists {
        /// The name.
        id: InvitationId,
    },
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}
from_sqlite!(InvitationError);

/// An invitation does not let in. Whoever presented it is told the same in every case.
#[derive(Debug, thiserror::Error)]
pub enum BurnError {
    /// None of that name: never made, used, withdrawn, or ended by wrong secrets.
    #[error("no such invitation, or it was used: make another one with `iop nodes invite`")]
    Unknown,
    /// The secret is wrong. The last permitted time, the invitation is gone.
    #[error("wrong secret for the invitation of node `{node}`: {attempts_left} more end it")]
    WrongSecret {
        /// The Node that was invited.
        node: NodeId,
        /// How many more wrong secrets it bears.
        attempts_left: u32,
    },
    /// Its time is over; it is gone.
    #[error(
        "the invitation of node `{node}` has expired: make another one with `iop nodes invite`"
    )]
    Expired {
        /// The Node that was invited.
        node: NodeId,
    },
    /// The store could not tell. Nobody is let in.
    #[error(transparent)]
    Store(#[from] StoreError),
}
from_sqlite!(BurnError);

impl ManagedStore {
    /// Keeps an invitation.
    ///
    /// # Errors
    /// Fails when there is one of that name, and when the store cannot.
    pub async fn invite(&self, act: &Act, new: NewInvitation) -> Result<(), InvitationError> {
        let act = act.clone();
        self.ask(move |keeper| {
            keeper.change(&act, |change| {
                let added = change.connection.execute(
                    "INSERT OR IGNORE INTO invitations
                     (id, secret_hash, node, egress, expires, attempts_left, created)
                     VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        new.id.0,
                        new.secret_hash,
                        new.node.as_str(),
                        serde_json::to_string(&new.egress).map_err(unwritable)?,
                        new.expires.as_millisecond(),
                        new.attempts.max(1),
                        change.now(),
                    ),
                )?;
                if added == 0 {
                    return Err(InvitationError::Exists { id: new.id });
                }
                let detail = json!({ "invitation": new.id, "egress": new.egress });
                Ok(change.record("node.invite", new.node.as_str(), &detail)?)
            })
        })
        .await
    }

    /// Uses an invitation up and returns what it grants. Of all who try, one process or several, one
    /// gets it. It is gone before anything else is looked at, so that whatever is refused afterwards
    /// needs a new one.
    ///
    /// # Errors
    /// Fails when there is none, when the secret is wrong, when its time is over, and when the store
    /// cannot.
    pub async fn burn_invitation(
        &self,
        act: &Act,
        id: InvitationId,
        secret_hash: [u8; 32],
    ) -> Result<Invitation, BurnError> {
        let act = act.clone();
        // What ends an invitation must stay done: the verdict is part of what is committed.
        self.ask(move |keeper| {
            keeper.change(&act, |change| {
                let connection = change.connection;
                let kept: Option<([u8; 32], u32, String)> = connection
                    .query_row(
                        "SELECT secret_hash, attempts_left, node FROM invitations WHERE id = ?",
                        [id.0],
                        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
                    )
                    .optional()?;
                let Some((kept, attempts_left, node)) = kept else {
                    return Ok::<_, BurnError>(Err(BurnError::Unknown));
                };
                if !bool::from(kept.ct_eq(&secret_hash)) {
                    let attempts_left = attempts_left.saturating_sub(1);
                    if attempts_left == 0 {
                        connection.execute("DELETE FROM invitations WHERE id = ?", [id.0])?;
                    } else {
                        connection.execute(
                            "UPDATE invitations SET attempts_left = ? WHERE id = ?",
                            (attempts_left, id.0),
                        )?;
                    }
                    let detail = json!({ "invitation": id, "attempts_left": attempts_left });
                    change.record("node.invitation_wrong", &node, &detail)?;
                    return Ok(Err(BurnError::WrongSecret { node: node.into(), attempts_left }));
                }
                let burnt = connection
                    .query_row(
                        "DELETE FROM invitations WHERE id = ? RETURNING id, node, egress, expires",
                        [id.0],
                        read,
                    )
                    .optional()?;
                let Some(burnt) = burnt else {
                    return Ok(Err(BurnError::Unknown));
                };
                let is_expired = burnt.expires <= change.act.at;
                let detail = json!({ "invitation": id, "expired": is_expired });
                change.record("node.invitation_burn", burnt.node.as_str(), &detail)?;
                if is_expired {
                    return Ok(Err(BurnError::Expired { node: burnt.node }));
                }
                Ok(Ok(burnt))
            })
        })
        .await?
    }

    /// Withdraws every invitation of a Node, and says how many there were.
    ///
    /// # Errors
    /// Fails when the store cannot.
    pub async fn withdraw_invitations(&self, act: &Act, node: &NodeId) -> Result<u64, StoreError> {
        let (act, node) = (act.clone(), node.clone());
        self.ask(move |keeper| {
            keeper.change(&act, |change| {
                let gone = change
                    .connection
                    .execute("DELETE FROM invitations WHERE node = ?", [node.as_str()])?;
                if gone > 0 {
                    let detail = json!({ "invitations": gone });
                    change.record("node.invitation_withdraw", node.as_str(), &detail)?;
                }
                Ok(gone as u64)
            })
        })
        .await
    }

    /// Lists the invitations that may still be used at `now`.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub async fn invitations(&self, now: Timestamp) -> Result<Vec<Invitation>, StoreError> {
        self.ask(move |keeper| {
            let mut select = keeper.connection.prepare_cached(
                "SELECT id, node, egress, expires FROM invitations WHERE expires > ? ORDER BY node, id",
            )?;
            let rows = select.query_map([now.as_millisecond()], read)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<Invitation> {
    Ok(Invitation {
        id: InvitationId(row.get("id")?),
        node: row.get::<_, String>("node")?.into(),
        egress: to_json(row, "egress")?,
        expires: read_time(row, "expires")?,
    })
}
