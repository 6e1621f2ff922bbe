//! A Node's history: which calls it made, when, and how they ended.

mod read;
mod schema;
mod write;

use std::fmt;
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
pub struct NodeHistory(Keep);

/// Keeps a history elsewhere than in a file: in memory, for a simulation, which may neither start a
/// thread nor wait for a disk.
pub trait Sink: fmt::Debug + Send + Sync {
    /// A dispatch was taken.
    fn received(&self, receipt: &WorkReceipt);

    /// A dispatch ended; the receipt is the one of before.
    fn ended(&self, receipt: &WorkReceipt, outcome: &WorkOutcome);
}

#[derive(Debug, Clone)]
enum Keep {
    File(Arc<Handle<Row>>),
    Sink(Arc<dyn Sink>),
}

impl NodeHistory {
    /// Opens the history of a data directory and starts its writer.
    ///
    /// Never fails: a file that cannot be opened is tried again, and [`health`](Self::health) says
    /// why. Work that an earlier process left unfinished becomes `interrupted`. Rows older than
    /// `keep`, and the oldest ones while there are more than `keep_bytes` of them, are let go.
    pub fn open(dir: &DataDir, keep: Duration, keep_bytes: u64, now: Timestamp) -> Self {
        let table = write::NodeWork::new(keep, keep_bytes, now);
        Self(Keep::File(Arc::new(Handle::open(dir, "node-history", table))))
    }

    /// Makes a history that keeps nothing, for a Node without a usable data directory.
    pub fn disabled(reason: impl Into<String>) -> Self {
        Self(Keep::File(Arc::new(Handle::disabled(reason.into()))))
    }

    /// Makes a history that is kept by `sink`, which is told everything at once. It is read there: here
    /// reading fails.
    pub fn kept_by(sink: Arc<dyn Sink>) -> Self {
        Self(Keep::Sink(sink))
    }

    /// Records that a dispatch was taken. Never waits.
    pub fn received(&self, receipt: WorkReceipt) {
        match &self.0 {
            Keep::File(file) => file.push(Row { receipt, outcome: None }),
            Keep::Sink(sink) => sink.received(&receipt),
        }
    }

    /// Records how a dispatch ended. Never waits. The receipt is the one recorded before.
    pub fn ended(&self, receipt: WorkReceipt, outcome: WorkOutcome) {
        match &self.0 {
            Keep::File(file) => file.push(Row { receipt, outcome: Some(outcome) }),
            Keep::Sink(sink) => sink.ended(&receipt, &outcome),
        }
    }

    /// Returns work: what has not ended, then what has, each beginning with the latest to do so.
    ///
    /// # Errors
    /// Fails when the file cannot be read at the moment.
    pub async fn list(&self, limit: usize) -> Result<Vec<Work>, ReadError> {
        let limit = limit.min(Query::MAX_LIMIT);
        match &self.0 {
            Keep::File(file) => file.read(move |connection| read::list(connection, limit)).await,
            Keep::Sink(_) => Err(ReadError {
                reason: "it is not kept in a file, and is read where it is".into(),
            }),
        }
    }

    /// Returns how the history is doing.
    pub fn health(&self) -> Health {
        match &self.0 {
            Keep::File(file) => file.health(),
            Keep::Sink(_) => Health::default(),
        }
    }

    /// Waits until every row so far is written or dropped; false when that takes too long.
    pub async fn flush(&self, within: Duration) -> bool {
        match &self.0 {
            Keep::File(file) => file.flush(within).await,
            Keep::Sink(_) => true,
        }
    }

    /// Writes what waits, as long as `within` allows, and ends the writer. False when rows were
    /// given up. Rows that come later are dropped.
    pub async fn close(&self, within: Duration) -> bool {
        match &self.0 {
            Keep::File(file) => file.close(within).await,
            Keep::Sink(_) => true,
        }
    }
}

/// One thing to write.
#[derive(Debug)]
struct Row {
    receipt: WorkReceipt,
    outcome: Option<WorkOutcome>,
}
