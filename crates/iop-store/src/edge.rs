//! The Edge's history: every request with all its attempts.

mod attempts;
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
use crate::query::{FindError, Query, ReadError};
use crate::record::{Outcome, Receipt, Run};

/// A cheap handle on the Edge's history.
#[derive(Debug, Clone)]
pub struct EdgeHistory(Keep);

/// Keeps a history elsewhere than in a file: in memory, for a simulation, which may neither start a
/// thread nor wait for a disk.
pub trait Sink: fmt::Debug + Send + Sync {
    /// A request was accepted.
    fn received(&self, receipt: &Receipt);

    /// A request ended; the receipt is the one of before.
    fn ended(&self, receipt: &Receipt, outcome: &Outcome);
}

#[derive(Debug, Clone)]
enum Keep {
    File(Arc<Handle<Row>>),
    Sink(Arc<dyn Sink>),
}

impl EdgeHistory {
    /// Opens the history of a data directory and starts its writer.
    ///
    /// Never fails: a file that cannot be opened is tried again, and [`health`](Self::health) says
    /// why. Runs that an earlier process left unfinished become `interrupted`. Runs that were
    /// received more than `keep` before the newest one, or before `now`, are let go.
    pub fn open(dir: &DataDir, keep: Duration, now: Timestamp) -> Self {
        let table = write::Runs::new(keep, now);
        Self(Keep::File(Arc::new(Handle::open(dir, "edge-history", table))))
    }

    /// Makes a history that keeps nothing, for an Edge without a usable data directory.
    pub fn disabled(reason: impl Into<String>) -> Self {
        Self(Keep::File(Arc::new(Handle::disabled(reason.into()))))
    }

    /// Makes a history that is kept by `sink`, which is told everything at once. It is read there: here
    /// reading fails.
    pub fn kept_by(sink: Arc<dyn Sink>) -> Self {
        Self(Keep::Sink(sink))
    }

    /// Records that a request was accepted. Never waits.
    pub fn received(&self, receipt: Receipt) {
        match &self.0 {
            Keep::File(file) => file.push(Row::Received(receipt)),
            Keep::Sink(sink) => sink.received(&receipt),
        }
    }

    /// Records how a request ended. Never waits.
    ///
    /// The receipt is the one that was recorded before: a row whose beginning was dropped is whole
    /// again.
    pub fn ended(&self, receipt: Receipt, outcome: Outcome) {
        match &self.0 {
            Keep::File(file) => file.push(Row::Ended(Box::new((receipt, outcome)))),
            Keep::Sink(sink) => sink.ended(&receipt, &outcome),
        }
    }

    /// Returns runs, newest first.
    ///
    /// # Errors
    /// Fails when the file cannot be read at the moment.
    pub async fn list(&self, query: Query) -> Result<Vec<Run>, ReadError> {
        self.file()?.read(move |connection| read::list(connection, &query)).await
    }

    /// Returns one run by its id, by a beginning of it that no other has, or by its whole request id.
    ///
    /// # Errors
    /// Fails when there is none, when there are several, and when the file cannot be read.
    pub async fn find(&self, id: &str) -> Result<Run, FindError> {
        let id = id.to_owned();
        let asked = id.clone();
        let mut found = self.file()?.read(move |connection| read::find(connection, &asked)).await?;
        match (found.pop(), found.is_empty()) {
            (Some(run), true) => Ok(run),
            (Some(_), false) => Err(FindError::Ambiguous { id }),
            (None, _) => Err(FindError::Unknown { id }),
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

    fn file(&self) -> Result<&Handle<Row>, ReadError> {
        match &self.0 {
            Keep::File(file) => Ok(file),
            Keep::Sink(_) => Err(ReadError {
                reason: "it is not kept in a file, and is read where it is".into(),
            }),
        }
    }
}

/// One thing to write.
#[derive(Debug)]
enum Row {
    Received(Receipt),
    Ended(Box<(Receipt, Outcome)>),
}
