//! A Node's history: which calls it made, when, and how they ended.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use iop_types::{Attempt, ErrorCode, ProviderKey, RunId, Target, WorkKey};
use jiff::Timestamp;
use rusqlite::{Transaction, params};

use crate::data_dir::DataDir;
use crate::database::Schema;
use crate::handle::Handle;
use crate::health::Health;
use crate::query::{Query, ReadError};
use crate::sql::{optional, read_count, read_text, read_time, read_word, whole, word};
use crate::work::{Work, WorkOutcome, WorkReceipt};
use crate::writer::Table;

/// A cheap handle on a Node's history.
#[derive(Debug, Clone)]
pub struct NodeHistory(Arc<Handle<Row>>);

impl NodeHistory {
    /// Opens the history of a data directory and starts its writer.
    ///
    /// Never fails: a file that cannot be opened is tried again, and [`health`](Self::health) says
    /// why. Work that an earlier process left unfinished becomes `interrupted`. Rows older than
    /// `keep`, and the oldest ones while there are more than `keep_bytes` of them, are let go.
    pub fn open(dir: &DataDir, keep: Duration, keep_bytes: u64, now: Timestamp) -> Self {
        let table = NodeWork {
            keep_ms: whole(keep.as_millis()),
            keep_bytes: whole(keep_bytes),
            newest: now.as_millisecond(),
        };
        Self(Arc::new(Handle::open(dir, "node-history", table)))
    }

    /// Makes a history that keeps nothing, for a Node without a usable data directory.
    pub fn disabled(reason: impl Into<String>) -> Self {
        Self(Arc::new(Handle::disabled(reason.into())))
    }

    /// Records that a dispatch was taken. Never waits.
    pub fn received(&self, receipt: WorkReceipt) {
        self.0.push(Row { receipt, outcome: None });
    }

    /// Records how a dispatch ended. Never waits. The receipt is the one recorded before.
    pub fn ended(&self, receipt: WorkReceipt, outcome: WorkOutcome) {
        self.0.push(Row { receipt, outcome: Some(outcome) });
    }

    /// Returns work, newest first.
    ///
    /// # Errors
    /// Fails when the file cannot be read at the moment.
    pub async fn list(&self, limit: usize) -> Result<Vec<Work>, ReadError> {
        let limit = whole(limit.min(Query::MAX_LIMIT));
        self.0
            .read(move |connection| {
                let mut statement = connection.prepare(
                    "SELECT * FROM node_work ORDER BY received_at DESC, run_id DESC, attempt DESC
                    LIMIT ?",
                )?;
                statement.query_map([limit], work)?.collect()
            })
            .await
    }

    /// Returns how the history is doing.
    pub fn health(&self) -> Health {
        self.0.health()
    }

    /// Waits until every row so far is written or dropped; false when that takes too long.
    pub async fn flush(&self, within: Duration) -> bool {
        self.0.flush(within).await
    }

    /// Writes what waits, as long as `within` allows, and ends the writer. False when rows were
    /// given up. Rows that come later are dropped.
    pub async fn close(&self, within: Duration) -> bool {
        self.0.close(within).await
    }
}

/// One thing to write.
#[derive(Debug)]
struct Row {
    receipt: WorkReceipt,
    outcome: Option<WorkOutcome>,
}

/// The table `node_work`.
#[derive(Debug)]
struct NodeWork {
    keep_ms: i64,
    keep_bytes: i64,
    /// The latest time that was seen, in Unix milliseconds.
    newest: i64,
}

impl Schema for NodeWork {
    const STEPS: &[&str] = &["
        CREATE TABLE node_work (
            run_id TEXT NOT NULL,
            attempt INTEGER NOT NULL,
            provider TEXT NOT NULL,
            target TEXT NOT NULL,
            received_at INTEGER NOT NULL,
            head_ms INTEGER,
            ended_ms INTEGER,
            kind TEXT,
            code TEXT,
            PRIMARY KEY (run_id, attempt)
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX node_work_by_time ON node_work (received_at, run_id, attempt);
        CREATE INDEX node_work_at_work ON node_work (run_id) WHERE kind IS NULL;
    "];
    const INTERRUPT: &str =
        "UPDATE node_work SET kind = 'failed', code = 'interrupted' WHERE kind IS NULL";
}

/// Rows that are let go in one transaction at most: more than one batch brings.
const PRUNED_AT_ONCE: i64 = 500;

impl Table for NodeWork {
    type Row = Row;

    fn write(&mut self, to: &Transaction<'_>, rows: &[Row]) -> rusqlite::Result<()> {
        // What begins and ends within one batch is written once, as it ended.
        let last: HashMap<WorkKey, usize> =
            rows.iter().enumerate().map(|(at, row)| (row.receipt.key, at)).collect();
        let mut insert = to.prepare_cached(
            "INSERT OR REPLACE INTO node_work (run_id, attempt, provider, target, received_at,
                head_ms, ended_ms, kind, code)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?;
        for (at, Row { receipt, outcome }) in rows.iter().enumerate() {
            if last.get(&receipt.key) != Some(&at) {
                continue;
            }
            let received_at = receipt.received_at.as_millisecond();
            self.newest = self.newest.max(received_at);
            insert.execute(params![
                receipt.key.run_id.to_string(),
                receipt.key.attempt.0,
                receipt.provider.as_str(),
                receipt.target.as_str(),
                received_at,
                optional(outcome.and_then(|outcome| outcome.head_ms)),
                optional(outcome.map(|outcome| outcome.ended_ms)),
                word(outcome.map(|outcome| outcome.kind)),
                outcome.and_then(|outcome| outcome.code).map(ErrorCode::as_str),
            ])?;
        }
        Ok(())
    }

    fn prune(&mut self, from: &Transaction<'_>) -> rusqlite::Result<bool> {
        let page = |name| from.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let used = (page("page_count")? - page("freelist_count")?) * page("page_size")?;
        let oldest = if used > self.keep_bytes {
            i64::MAX
        } else {
            self.newest.saturating_sub(self.keep_ms)
        };
        let mut delete = from.prepare_cached(
            "DELETE FROM node_work WHERE (run_id, attempt) IN (
                SELECT run_id, attempt FROM node_work WHERE received_at < ?
                ORDER BY received_at LIMIT ?
            )",
        )?;
        let deleted = delete.execute([oldest, PRUNED_AT_ONCE])?;
        if deleted > 0 {
            from.execute_batch("PRAGMA incremental_vacuum(100)")?;
        }
        Ok(whole(deleted) == PRUNED_AT_ONCE)
    }
}

fn work(row: &rusqlite::Row<'_>) -> rusqlite::Result<Work> {
    let code: Option<String> = row.get("code")?;
    Ok(Work {
        run_id: read_text(row, "run_id", RunId::parse)?,
        attempt: Attempt(row.get("attempt")?),
        provider: ProviderKey::from(row.get::<_, String>("provider")?),
        target: Target::from(row.get::<_, String>("target")?),
        received_at: read_time(row, "received_at")?,
        head_ms: read_count(row, "head_ms")?,
        ended_ms: read_count(row, "ended_ms")?,
        kind: read_word(row, "kind")?,
        code: code.and_then(|code| ErrorCode::parse(&code)),
    })
}
