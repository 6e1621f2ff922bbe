//! A Node's history: which calls it made, when, and how they ended.

mod read;
mod schema;
mod write;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::data_dir::DataDir;
use crate::handle::Handle;
use crate::health::Health;
use crate::query::{Query, ReadError};
use crate::work::{Work, WorkOutcome, WorkReceipt};

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
        let table = write::NodeWork::new(keep, keep_bytes, now);
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

    /// Returns work: what has not ended, then what has, each beginning with the latest to do so.
    ///
    /// # Errors
    /// Fails when the file cannot be read at the moment.
    pub async fn list(&self, limit: usize) -> Result<Vec<Work>, ReadError> {
        let limit = limit.min(Query::MAX_LIMIT);
        self.0.read(move |connection| read::list(connection, limit)).await
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
