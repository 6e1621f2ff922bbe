//! Work into rows.

use std::collections::HashSet;
use std::time::Duration;

use iop_types::ErrorCode;
use jiff::Timestamp;
use rusqlite::{Transaction, params};

use crate::database::{self, Schema};
use crate::sql::{optional, whole};
use crate::writer::Table;

use super::{Row, schema};

/// Rows that are let go in one transaction at most: more than a busy batch brings.
const PRUNED_AT_ONCE: i64 = 8192;

/// The tables `node_work` and `at_work`.
#[derive(Debug)]
pub(super) struct NodeWork {
    keep_ms: i64,
    keep_bytes: i64,
    /// The latest time that was seen, in Unix milliseconds.
    newest: i64,
}

impl NodeWork {
    pub(super) fn new(keep: Duration, keep_bytes: u64, now: Timestamp) -> Self {
        Self {
            keep_ms: whole(keep.as_millis()),
            keep_bytes: whole(keep_bytes),
            newest: now.as_millisecond(),
        }
    }
}

impl Schema for NodeWork {
    const STEPS: &[&str] = schema::STEPS;
    const INTERRUPT: &str = schema::INTERRUPT;
}

impl Table for NodeWork {
    type Row = Row;

    fn write(&mut self, to: &Transaction<'_>, rows: &[Row]) -> rusqlite::Result<()> {
        let mut received = HashSet::with_capacity(rows.len());
        let mut ended = HashSet::with_capacity(rows.len());
        for Row { receipt, outcome } in rows {
            let keys = if outcome.is_none() { &mut received } else { &mut ended };
            keys.insert(receipt.key);
        }
        let mut begin = to.prepare_cached(
            "INSERT OR REPLACE INTO at_work (run_id, attempt, provider, target, received_at)
            VALUES (?, ?, ?, ?, ?)",
        )?;
        let mut end = to.prepare_cached(
            "INSERT INTO node_work (run_id, attempt, provider, target, received_at, head_ms,
                ended_ms, kind, code)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?;
        let mut leave =
            to.prepare_cached("DELETE FROM at_work WHERE run_id = ? AND attempt = ?")?;
        for Row { receipt, outcome } in rows {
            let key = receipt.key;
            let (run_id, attempt) = (key.run_id.as_bytes(), key.attempt.0);
            let (provider, target) = (receipt.provider.as_str(), receipt.target.as_str());
            let received_at = receipt.received_at.as_millisecond();
            self.newest = self.newest.max(received_at);
            match outcome {
                // Its end is in the same batch and brings the beginning with it.
                None if ended.contains(&key) => {}
                None => {
                    begin.execute(params![run_id, attempt, provider, target, received_at])?;
                }
                Some(outcome) => {
                    end.execute(params![
                        run_id,
                        attempt,
                        provider,
                        target,
                        received_at,
                        optional(outcome.head_ms),
                        whole(outcome.ended_ms),
                        outcome.kind.as_str(),
                        outcome.code.map(ErrorCode::as_str),
                    ])?;
                    if !received.contains(&key) {
                        leave.execute(params![run_id, attempt])?;
                    }
                }
            }
        }
        Ok(())
    }

    fn prune(&mut self, from: &Transaction<'_>) -> rusqlite::Result<bool> {
        let ends = from
            .prepare_cached(
                // One look each; both in one SELECT would be a walk over all rows.
                "SELECT (SELECT min(ended) FROM node_work), (SELECT max(ended) FROM node_work)",
            )?
            .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let (Some(first), Some(newest)) = ends else { return Ok(false) };
        let last = self
            .last_for_space(from, first, newest)?
            .max(self.last_for_time(from, first)?)
            .min(first + PRUNED_AT_ONCE - 1);
        if last < first {
            return Ok(false);
        }
        from.prepare_cached("DELETE FROM node_work WHERE ended <= ?")?.execute([last])?;
        database::give_back_pages(from)?;
        Ok(last - first + 1 == PRUNED_AT_ONCE)
    }
}

/// Which rows need no longer be kept: up to what number, below the first where there are none.
impl NodeWork {
    fn last_for_space(
        &self,
        of: &Transaction<'_>,
        first: i64,
        newest: i64,
    ) -> rusqlite::Result<i64> {
        let pages = |figure| database::pages(of, figure);
        let used = (pages("page_count")? - pages("freelist_count")?) * pages("page_size")?;
        let excess = used - self.keep_bytes;
        if excess <= 0 {
            return Ok(first - 1);
        }
        // Rows are about equally long: of them goes the share that is over of the bytes.
        let share = (newest - first).saturating_mul(excess) / used;
        Ok((first + share).min(newest - 1))
    }

    fn last_for_time(&self, of: &Transaction<'_>, first: i64) -> rusqlite::Result<i64> {
        let limit = self.newest.saturating_sub(self.keep_ms);
        let mut oldest =
            of.prepare_cached("SELECT ended, received_at FROM node_work ORDER BY ended LIMIT ?")?;
        let mut rows = oldest.query([PRUNED_AT_ONCE])?;
        let mut last = first - 1;
        while let Some(row) = rows.next()? {
            if row.get::<_, i64>("received_at")? >= limit {
                break;
            }
            last = row.get("ended")?;
        }
        Ok(last)
    }
}
