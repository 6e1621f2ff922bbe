//! Runs into rows.

use std::collections::HashSet;
use std::time::Duration;

use iop_types::{ErrorCode, Form, RouteName, SessionId, UsageSource};
use jiff::Timestamp;
use rusqlite::{CachedStatement, Transaction, params};

use crate::database::{self, Schema};
use crate::record::{Outcome, Receipt};
use crate::sql::{self, optional, whole};
use crate::writer::Table;

use super::{Row, attempts, schema};

/// Runs that are let go in one transaction at most: more than a busy batch brings.
const PRUNED_AT_ONCE: i64 = 4096;

/// The tables `runs` and `at_work`.
#[derive(Debug)]
pub(super) struct Runs {
    keep_ms: i64,
    /// The latest time that was seen, in Unix milliseconds.
    newest: i64,
    /// Where the attempts of one run become text.
    text: Vec<u8>,
}

impl Runs {
    pub(super) fn new(keep: Duration, now: Timestamp) -> Self {
        Self { keep_ms: whole(keep.as_millis()), newest: now.as_millisecond(), text: Vec::new() }
    }
}

impl Schema for Runs {
    const STEPS: &[&str] = schema::STEPS;
    const INTERRUPT: &str = schema::INTERRUPT;
}

impl Table for Runs {
    type Row = Row;

    fn write(&mut self, to: &Transaction<'_>, rows: &[Row]) -> rusqlite::Result<()> {
        let mut received = HashSet::with_capacity(rows.len());
        let mut ended = HashSet::with_capacity(rows.len());
        for row in rows {
            match row {
                Row::Received(receipt) => received.insert(receipt.run_id),
                Row::Ended(end) => ended.insert(end.0.run_id),
            };
        }
        let mut statements = Statements::prepare(to)?;
        for row in rows {
            match row {
                // Its end is in the same batch and brings the beginning with it.
                Row::Received(receipt) if ended.contains(&receipt.run_id) => {}
                Row::Received(receipt) => self.begin(&mut statements, receipt)?,
                Row::Ended(end) => {
                    let (receipt, outcome) = &**end;
                    self.end(&mut statements, receipt, outcome)?;
                    if !received.contains(&receipt.run_id) {
                        statements.leave.execute([receipt.run_id.as_bytes()])?;
                    }
                }
            }
        }
        Ok(())
    }

    fn prune(&mut self, from: &Transaction<'_>) -> rusqlite::Result<bool> {
        let oldest = self.newest.saturating_sub(self.keep_ms);
        let mut runs =
            from.prepare_cached("SELECT run_id, received_at FROM runs ORDER BY run_id LIMIT ?")?;
        let old = runs
            .query_map([PRUNED_AT_ONCE], |row| Ok((row.get(0)?, row.get(1)?)))?
            .take_while(|run: &rusqlite::Result<([u8; 16], i64)>| {
                run.as_ref().map_or(true, |(_, received_at)| *received_at < oldest)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let Some((last, _)) = old.last() else { return Ok(false) };
        from.prepare_cached("DELETE FROM runs WHERE run_id <= ?")?.execute([last])?;
        database::give_back_pages(from)?;
        Ok(whole(old.len()) == PRUNED_AT_ONCE)
    }
}

impl Runs {
    fn begin(&mut self, to: &mut Statements<'_>, receipt: &Receipt) -> rusqlite::Result<()> {
        let received_at = self.see(receipt);
        to.begin.execute(params![
            receipt.run_id.as_bytes(),
            received_at,
            receipt.route.as_ref().map(RouteName::as_str),
            receipt.request_id.as_str(),
            receipt.session_id.as_ref().map(SessionId::as_str),
            receipt.surface,
            receipt.principal,
            receipt.form.map(Form::as_str),
        ])?;
        Ok(())
    }

    fn end(
        &mut self,
        to: &mut Statements<'_>,
        receipt: &Receipt,
        outcome: &Outcome,
    ) -> rusqlite::Result<()> {
        let received_at = self.see(receipt);
        let tokens = outcome.usage.map(|usage| usage.tokens);
        let terminal = &outcome.terminal;
        let stall = terminal.stall.map(|stall| serde_json::to_string(&stall)).transpose();
        attempts::write(&outcome.attempts, &mut self.text).map_err(sql::unwritable)?;
        to.end.execute(params![
            receipt.run_id.as_bytes(),
            received_at,
            receipt.route.as_ref().map(RouteName::as_str),
            terminal.code.map(ErrorCode::as_str),
            receipt.request_id.as_str(),
            receipt.session_id.as_ref().map(SessionId::as_str),
            receipt.surface,
            receipt.principal,
            outcome.form.or(receipt.form).map(Form::as_str),
            optional(outcome.queued_ms),
            optional(tokens.map(|tokens| tokens.input_tokens)),
            optional(tokens.map(|tokens| tokens.output_tokens)),
            outcome.usage.map(|usage| UsageSource::as_str(usage.source)),
            terminal.kind.as_str(),
            terminal.message,
            terminal.retryable,
            stall.map_err(sql::unwritable)?,
            str::from_utf8(&self.text)?,
        ])?;
        Ok(())
    }

    /// Returns when a run was received, and keeps the latest such time.
    fn see(&mut self, receipt: &Receipt) -> i64 {
        let received_at = receipt.received_at.as_millisecond();
        self.newest = self.newest.max(received_at);
        received_at
    }
}

/// What is executed once for each run of a batch.
struct Statements<'a> {
    begin: CachedStatement<'a>,
    end: CachedStatement<'a>,
    leave: CachedStatement<'a>,
}

impl<'a> Statements<'a> {
    fn prepare(to: &'a Transaction<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            // A run that has ended stays so.
            begin: to.prepare_cached(
                "INSERT OR REPLACE INTO at_work (run_id, received_at, route, request_id,
                    session_id, surface, principal, form)
                SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
                WHERE NOT EXISTS (SELECT 1 FROM runs WHERE run_id = ?1)",
            )?,
            end: to.prepare_cached(
                "INSERT OR REPLACE INTO runs (run_id, received_at, route, code, request_id,
                    session_id, surface, principal, form, queued_ms, input_tokens, output_tokens,
                    usage_source, terminal_kind, message, retryable, stall, attempts)
                VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )?,
            leave: to.prepare_cached("DELETE FROM at_work WHERE run_id = ?")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use iop_types::{RequestId, RunId};
    use rusqlite::Connection;

    use super::*;
    use crate::edge::read;
    use crate::query::Query;
    use crate::record::TerminalRecord;

    fn receipt(id: u8, received_ms: i64) -> Receipt {
        Receipt {
            run_id: RunId::from_slice(&[id; 16]).expect("16 bytes"),
            request_id: RequestId::from("r"),
            session_id: None,
            surface: "openai.chat".into(),
            principal: None,
            route: None,
            form: None,
            received_at: Timestamp::from_millisecond(received_ms).expect("in range"),
        }
    }

    fn ended(id: u8, received_ms: i64) -> Row {
        let outcome = Outcome {
            form: None,
            queued_ms: None,
            attempts: Vec::new(),
            terminal: TerminalRecord::completed(),
            usage: None,
        };
        Row::Ended(Box::new((receipt(id, received_ms), outcome)))
    }

    fn database() -> Connection {
        let connection = Connection::open_in_memory().expect("opens");
        schema::STEPS.iter().for_each(|step| connection.execute_batch(step).expect("creates"));
        connection
    }

    fn write(runs: &mut Runs, connection: &mut Connection, rows: &[Row]) {
        let transaction = connection.transaction().expect("begins");
        runs.write(&transaction, rows).expect("writes");
        while runs.prune(&transaction).expect("prunes") {}
        transaction.commit().expect("commits");
    }

    #[test]
    fn a_run_that_begins_and_ends_within_one_batch_is_one_write() {
        let mut connection = database();
        let before = connection.total_changes();
        let mut runs = Runs::new(Duration::MAX, Timestamp::UNIX_EPOCH);
        write(&mut runs, &mut connection, &[Row::Received(receipt(1, 0)), ended(1, 0)]);
        assert_eq!(connection.total_changes() - before, 1);
    }

    #[test]
    fn a_late_receipt_never_undoes_an_end() {
        let mut connection = database();
        let mut runs = Runs::new(Duration::MAX, Timestamp::UNIX_EPOCH);
        write(&mut runs, &mut connection, &[ended(1, 0)]);
        write(&mut runs, &mut connection, &[Row::Received(receipt(1, 0))]);
        let found = read::list(&connection, &Query::default()).expect("reads");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].terminal, Some(TerminalRecord::completed()));
    }

    #[test]
    fn a_run_that_ends_in_a_later_batch_is_not_at_work_any_more() {
        let mut connection = database();
        let mut runs = Runs::new(Duration::MAX, Timestamp::UNIX_EPOCH);
        write(&mut runs, &mut connection, &[Row::Received(receipt(1, 0))]);
        let count = |connection: &Connection, table| {
            let count = format!("SELECT count(*) FROM {table}");
            connection.query_row(&count, [], |row| row.get::<_, i64>(0)).expect("counts")
        };
        assert_eq!((count(&connection, "at_work"), count(&connection, "runs")), (1, 0));
        write(&mut runs, &mut connection, &[ended(1, 0)]);
        assert_eq!((count(&connection, "at_work"), count(&connection, "runs")), (0, 1));
    }

    #[test]
    fn runs_are_let_go_once_they_are_older_than_the_newest_by_the_time_they_are_kept() {
        let mut connection = database();
        let day = Duration::from_secs(86_400);
        let mut runs = Runs::new(30 * day, Timestamp::UNIX_EPOCH);
        let days = |days: i64| days * 86_400_000;
        for (id, received) in [(1, 0), (2, 1), (3, 30)] {
            write(&mut runs, &mut connection, &[ended(id, days(received))]);
        }
        let found = |connection: &Connection| {
            read::list(connection, &Query::default()).expect("reads").len()
        };
        assert_eq!(found(&connection), 3);
        write(&mut runs, &mut connection, &[ended(4, days(31))]);
        assert_eq!(found(&connection), 3, "the first is older than 30 days, the second exactly");
    }
}
