//! The audit log: who changed what, chained so that nobody can rewrite it unnoticed.

use iop_vault::audit::{Broken, Entry, Head, Tag, Walk};
use jiff::Timestamp;
use rusqlite::{Connection, Row};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::{StoreError, from_sqlite};
use super::keeper::Change;
use super::vault::Vault;
use super::{Act, ManagedStore};
use crate::sql::{read_number, read_time, whole};
use crate::timestamp;

/// The most entries of one page.
const PAGE: usize = 1000;
/// The longest text of an entry, in bytes: what peers cause must not fill the disk at once.
const TEXT: usize = 4096;

/// Something that happened beside the store's own changes: a peer that was refused, a lease that was
/// replayed.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditNote {
    /// What happened, as `noun.verb`.
    pub action: String,
    /// What it happened to.
    pub object: String,
    /// Particulars; never a secret.
    pub detail: Value,
}

/// One entry as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Its number; the first has 1 and none is missing.
    pub number: u64,
    /// When.
    #[serde(with = "timestamp")]
    pub at: Timestamp,
    /// Who did it.
    pub who: String,
    /// What was done.
    pub action: String,
    /// What it was done to.
    pub object: String,
    /// Particulars, as JSON.
    pub detail: String,
}

/// The log is not whole, or cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// It is not what was written.
    #[error("the audit log was tampered with: compare it with a backup")]
    Broken(#[from] Broken),
    /// It cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}
from_sqlite!(VerifyError);

impl ManagedStore {
    /// Appends to the log what is no change of the store. The caller bounds how often peers can cause it.
    ///
    /// # Errors
    /// Fails when it cannot be written.
    pub async fn append_audit(&self, act: &Act, note: AuditNote) -> Result<(), StoreError> {
        let act = act.clone();
        self.ask(move |keeper| {
            keeper.change(&act, |change| change.record(&note.action, &note.object, &note.detail))
        })
        .await
    }

    /// Reads entries, newest first, before the one numbered `before`; at most 1000.
    ///
    /// # Errors
    /// Fails when the log cannot be read.
    pub async fn audit_page(
        &self,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<AuditEntry>, StoreError> {
        self.ask(move |keeper| {
            let mut select = keeper.connection.prepare_cached(
                "SELECT number, at, who, action, object, detail, tag FROM audit
                 WHERE number < ? ORDER BY number DESC LIMIT ?",
            )?;
            let before = before.map_or(i64::MAX, whole);
            let rows = select.query_map((before, whole(limit.min(PAGE))), read_entry)?;
            Ok(rows.map(|row| row.map(|(entry, _)| entry)).collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Walks the whole log and returns how many entries it has.
    ///
    /// # Errors
    /// Fails at the first entry that is not what was written, when entries are missing at the end, and
    /// when the log cannot be read.
    pub async fn verify_audit(&self) -> Result<u64, VerifyError> {
        self.ask(move |keeper| {
            let head = read_head(&keeper.connection, &keeper.vault, &keeper.head)?;
            let mut select = keeper.connection.prepare(
                "SELECT number, at, who, action, object, detail, tag FROM audit ORDER BY number",
            )?;
            let mut walk = Walk::new(&keeper.vault.audit);
            for row in select.query_map([], read_entry)? {
                let (entry, tag) = row?;
                walk.step(&chained(&entry), &tag)?;
            }
            Ok(walk.finish(&head)?)
        })
        .await
    }
}

impl Change<'_> {
    /// Appends an entry to the log, in the transaction of the change.
    pub(super) fn record(
        &self,
        action: &str,
        object: &str,
        detail: &Value,
    ) -> Result<(), StoreError> {
        let before = self.head.get();
        let entry = AuditEntry {
            number: before.number + 1,
            at: Timestamp::from_millisecond(self.now())
                .map_err(|error| StoreError::damaged("a time", error))?,
            who: short(&self.act.who),
            action: short(action),
            object: short(object),
            detail: short(&detail.to_string()),
        };
        let tag = self.vault.audit.tag(&before.tag, &chained(&entry));
        self.connection.execute(
            "INSERT INTO audit (number, at, who, action, object, detail, tag)
             VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                whole(entry.number),
                self.now(),
                &entry.who,
                &entry.action,
                &entry.object,
                &entry.detail,
                tag.as_bytes(),
            ),
        )?;
        let head = Head { number: entry.number, tag };
        write_head(self.connection, self.vault, &head)?;
        self.head.set(head);
        Ok(())
    }
}

/// Reads the head, which must be proved and not behind what this process has seen.
pub(super) fn read_head(
    connection: &Connection,
    vault: &Vault,
    seen: &Head,
) -> Result<Head, StoreError> {
    let (number, tag, proof): (i64, [u8; 32], [u8; 32]) =
        connection.query_one("SELECT number, tag, proof FROM audit_head", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
    let damaged = || StoreError::damaged("the head of the audit log", Broken::Head);
    let number = u64::try_from(number).map_err(|_| damaged())?;
    let head = Head { number, tag: Tag::from_bytes(tag) };
    let is_behind = number < seen.number || (number == seen.number && head != *seen);
    if is_behind || !vault.audit.is_proved(&head, &Tag::from_bytes(proof)) {
        return Err(damaged());
    }
    Ok(head)
}

pub(super) fn write_head(
    connection: &Connection,
    vault: &Vault,
    head: &Head,
) -> Result<(), StoreError> {
    connection.execute(
        "INSERT OR REPLACE INTO audit_head (only_row, number, tag, proof) VALUES (1, ?, ?, ?)",
        (whole(head.number), head.tag.as_bytes(), vault.audit.prove(head).as_bytes()),
    )?;
    Ok(())
}

fn read_entry(row: &Row<'_>) -> rusqlite::Result<(AuditEntry, Tag)> {
    let entry = AuditEntry {
        number: read_number(row, "number")?,
        at: read_time(row, "at")?,
        who: row.get(2)?,
        action: row.get(3)?,
        object: row.get(4)?,
        detail: row.get(5)?,
    };
    Ok((entry, Tag::from_bytes(row.get(6)?)))
}

fn chained(entry: &AuditEntry) -> Entry<'_> {
    Entry {
        number: entry.number,
        at_ms: entry.at.as_millisecond(),
        who: &entry.who,
        action: &entry.action,
        object: &entry.object,
        detail: &entry.detail,
    }
}

fn short(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT)].to_owned()
}
