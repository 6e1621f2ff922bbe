//! The Edge's history: every request with all its attempts.

mod attempts;
mod read;
mod schema;
mod write;

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
pub struct EdgeHistory(Arc<Handle<Row>>);

impl EdgeHistory {
    /// Opens the history of a data directory and starts its writer.
    ///
    /// Never fails: a file that cannot be opened is tried again, and [`health`](Self::health) says
    /// why. Runs that an earlier process left unfinished become `interrupted`. Runs that were
    /// received more than `keep` before the newest one, or before `now`, are let go.
    pub fn open(dir: &DataDir, keep: Duration, now: Timestamp) -> Self {
        Self(Arc::new(Handle::open(dir, "edge-history", write::Runs::new(keep, now))))
    }

    /// Makes a history that keeps nothing, for an Edge without a usable data directory.
    pub fn disabled(reason: impl Into<String>) -> Self {
        Self(Arc::new(Handle::disabled(reason.into())))
    }

    /// Records that a request was accepted. Never waits.
    pub fn received(&self, receipt: Receipt) {
        self.0.push(Row::Received(receipt));
    }

    /// Records how a request ended. Never waits.
    ///
    /// The receipt is the one that was recorded before: a row whose beginning was dropped is whole
    /// again.
    pub fn ended(&self, receipt: Receipt, outcome: Outcome) {
        self.0.push(Row::Ended(Box::new((receipt, outcome))));
    }

    /// Returns runs, newest first.
    ///
    /// # Errors
    /// Fails when the file cannot be read at the moment.
    pub async fn list(&self, query: Query) -> Result<Vec<Run>, ReadError> {
        self.0.read(move |connection| read::list(connection, &query)).await
    }

    /// Returns one run by its id or by a beginning of it that no other has.
    ///
    /// # Errors
    /// Fails when there is none, when there are several, and when the file cannot be read.
    pub async fn find(&self, id: &str) -> Result<Run, FindError> {
        let id = id.to_ascii_lowercase();
        let prefix = id.clone();
        let mut found = self.0.read(move |connection| read::find(connection, &prefix)).await?;
        match (found.pop(), found.is_empty()) {
            (Some(run), true) => Ok(run),
            (Some(_), false) => Err(FindError::Ambiguous { id }),
            (None, _) => Err(FindError::Unknown { id }),
        }
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
enum Row {
    Received(Receipt),
    Ended(Box<(Receipt, Outcome)>),
}
