//! How a history is doing, for metrics, status pages and logs.

use std::path::PathBuf;

use serde::Serialize;

/// A snapshot of one history's state.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Health {
    /// Why rows are not being written at the moment; absent when all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub degraded: Option<String>,
    /// Rows that wait to be written.
    pub waiting: usize,
    /// Rows that were written since the start.
    pub written: u64,
    /// Rows that were given up since the start, because too many waited or the process ended.
    pub dropped: u64,
    /// Where a file that could not be read any more was put.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_aside: Option<PathBuf>,
}
