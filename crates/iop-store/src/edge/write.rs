//! Rows into tables.

use std::collections::HashSet;
use std::time::Duration;

use iop_types::{ErrorCode, RouteName, SessionId};
use jiff::Timestamp;
use rusqlite::types::Value;
use rusqlite::{Transaction, params_from_iter};

use crate::database::Schema;
use crate::record::{AttemptRecord, Outcome, Receipt, TerminalRecord};
use crate::sql::{integer, optional, whole, word};
use crate::writer::Table;

use super::{Row, schema};

/// Runs that are let go in one transaction at most: more than one batch brings.
const PRUNED_AT_ONCE: i64 = 500;

/// The tables `runs` and `attempts`.
#[derive(Debug)]
pub(super) struct Runs {
    keep_ms: i64,
    /// The latest time that was seen, in Unix milliseconds.
    newest: i64,
}

impl Runs {
    pub(super) fn new(keep: Duration, now: Timestamp) -> Self {
        Self { keep_ms: whole(keep.as_millis()), newest: now.as_millisecond() }
    }
}

impl Schema for Runs {
    const STEPS: &[&str] = schema::STEPS;
    const INTERRUPT: &str = schema::INTERRUPT;
}

impl Table for Runs {
    type Row = Row;

    fn write(&mut self, to: &Transaction<'_>, rows: &[Row]) -> rusqlite::Result<()> {
        let is_ended = |row: &&Row| matches!(row, Row::Ended(_));
        let ended: HashSet<_> = rows.iter().filter(is_ended).map(Row::run_id).collect();
        for row in rows {
            match row {
                // Its end is in the same batch and brings the beginning with it.
                Row::Received(receipt) if ended.contains(&receipt.run_id) => {}
                Row::Received(receipt) => self.begin(to, receipt)?,
                Row::Ended(ended) => self.end(to, &ended.0, &ended.1)?,
            }
        }
        Ok(())
    }

    fn prune(&mut self, from: &Transaction<'_>) -> rusqlite::Result<bool> {
        let mut delete = from.prepare_cached(
            "DELETE FROM runs WHERE run_id IN (
                SELECT run_id FROM runs WHERE received_at < ? ORDER BY received_at LIMIT ?
            )",
        )?;
        let deleted = delete.execute([self.newest.saturating_sub(self.keep_ms), PRUNED_AT_ONCE])?;
        if deleted > 0 {
            from.execute_batch("PRAGMA incremental_vacuum(100)")?;
        }
        Ok(whole(deleted) == PRUNED_AT_ONCE)
    }
}

impl Runs {
    fn begin(&mut self, to: &Transaction<'_>, receipt: &Receipt) -> rusqlite::Result<()> {
        // A row that is already complete stays so.
        let mut insert = to.prepare_cached(
            "INSERT OR IGNORE INTO runs (run_id, request_id, session_id, surface, principal, route,
                form, received_at)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        )?;
        insert.execute(params_from_iter(self.beginning(receipt)))?;
        Ok(())
    }

    fn end(
        &mut self,
        to: &Transaction<'_>,
        receipt: &Receipt,
        outcome: &Outcome,
    ) -> rusqlite::Result<()> {
        let mut values = self.beginning(receipt);
        if outcome.form.is_some() {
            values[FORM] = word(outcome.form);
        }
        values.push(optional(outcome.queued_ms));
        let tokens = outcome.usage.map(|usage| usage.tokens);
        values.push(optional(tokens.map(|tokens| tokens.input_tokens)));
        values.push(optional(tokens.map(|tokens| tokens.output_tokens)));
        values.push(word(outcome.usage.map(|usage| usage.source)));
        values.extend(terminal(Some(&outcome.terminal)));
        let mut insert = to.prepare_cached(&format!(
            "INSERT OR REPLACE INTO runs (run_id, request_id, session_id, surface, principal, route,
                form, received_at, queued_ms, input_tokens, output_tokens, usage_source, {})
            VALUES ({})",
            schema::TERMINAL,
            marks(values.len()),
        ))?;
        insert.execute(params_from_iter(values))?;
        for attempt in &outcome.attempts {
            add_attempt(to, receipt, attempt)?;
        }
        Ok(())
    }

    fn beginning(&mut self, receipt: &Receipt) -> Vec<Value> {
        let received_at = receipt.received_at.as_millisecond();
        self.newest = self.newest.max(received_at);
        vec![
            Value::Text(receipt.run_id.to_string()),
            Value::Text(receipt.request_id.to_string()),
            text(receipt.session_id.as_ref().map(SessionId::as_str)),
            Value::Text(receipt.surface.to_string()),
            text(receipt.principal.as_deref()),
            text(receipt.route.as_ref().map(RouteName::as_str)),
            word(receipt.form),
            Value::Integer(received_at),
        ]
    }
}

/// Index of the form in [`Runs::beginning`].
const FORM: usize = 6;

fn add_attempt(
    to: &Transaction<'_>,
    receipt: &Receipt,
    attempt: &AttemptRecord,
) -> rusqlite::Result<()> {
    let mut values = vec![
        Value::Text(receipt.run_id.to_string()),
        Value::Integer(i64::from(attempt.attempt.0)),
        Value::Text(attempt.node.to_string()),
        Value::Text(attempt.provider.to_string()),
        Value::Text(attempt.target.to_string()),
        integer(attempt.generation.0),
        text(attempt.why.as_deref()),
        optional(attempt.sent_ms),
        optional(attempt.head_ms),
        optional(attempt.first_token_ms),
        optional(attempt.ended_ms),
    ];
    values.extend(terminal(attempt.terminal.as_ref()));
    let mut insert = to.prepare_cached(&format!(
        "INSERT OR REPLACE INTO attempts (run_id, attempt, node, provider, target, generation, why,
            sent_ms, head_ms, first_token_ms, ended_ms, {})
        VALUES ({})",
        schema::TERMINAL,
        marks(values.len()),
    ))?;
    insert.execute(params_from_iter(values))?;
    Ok(())
}

/// The values of [`schema::TERMINAL`].
fn terminal(record: Option<&TerminalRecord>) -> [Value; 11] {
    let stall = record.and_then(|record| record.stall);
    let retryable = record.and_then(|record| record.retryable);
    [
        word(record.map(|record| record.kind)),
        text(record.and_then(|record| record.code).map(ErrorCode::as_str)),
        text(record.and_then(|record| record.message.as_deref())),
        retryable.map_or(Value::Null, |yes| Value::Integer(i64::from(yes))),
        optional(stall.map(|stall| stall.stall_timeout_ms)),
        optional(stall.map(|stall| stall.silent_ms)),
        word(stall.map(|stall| stall.phase)),
        word(stall.map(|stall| stall.ownership)),
        text(stall.map(|stall| stall.evidence.provider_health())),
        text(stall.map(|stall| stall.evidence.liveness_classification())),
        optional(stall.and_then(|stall| stall.health_observation_seq)),
    ]
}

fn text(text: Option<&str>) -> Value {
    text.map_or(Value::Null, |text| Value::Text(text.to_owned()))
}

fn marks(count: usize) -> String {
    vec!["?"; count].join(", ")
}

#[cfg(test)]
mod tests {
    use iop_types::{RequestId, RunId};
    use rusqlite::Connection;

    use super::*;
    use crate::edge::read;
    use crate::query::Query;

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

    fn outcome() -> Outcome {
        Outcome {
            form: None,
            queued_ms: None,
            attempts: Vec::new(),
            terminal: TerminalRecord::completed(),
            usage: None,
        }
    }

    fn database() -> Connection {
        let connection = Connection::open_in_memory().expect("opens");
        connection.pragma_update(None, "foreign_keys", true).expect("sets");
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
        let ended = Row::Ended(Box::new((receipt(1, 0), outcome())));
        write(&mut runs, &mut connection, &[Row::Received(receipt(1, 0)), ended]);
        assert_eq!(connection.total_changes() - before, 1);
    }

    #[test]
    fn a_late_receipt_never_undoes_an_end() {
        let mut connection = database();
        let mut runs = Runs::new(Duration::MAX, Timestamp::UNIX_EPOCH);
        write(&mut runs, &mut connection, &[Row::Ended(Box::new((receipt(1, 0), outcome())))]);
        write(&mut runs, &mut connection, &[Row::Received(receipt(1, 0))]);
        let found = read::list(&connection, &Query::default()).expect("reads");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].terminal, Some(TerminalRecord::completed()));
    }

    #[test]
    fn runs_are_let_go_once_they_are_older_than_the_newest_by_the_time_they_are_kept() {
        let mut connection = database();
        let day = Duration::from_secs(86_400);
        let mut runs = Runs::new(30 * day, Timestamp::UNIX_EPOCH);
        let days = |days: i64| days * 86_400_000;
        for (id, received) in [(1, 0), (2, 1), (3, 30)] {
            write(&mut runs, &mut connection, &[Row::Received(receipt(id, days(received)))]);
        }
        let found = |connection: &Connection| {
            read::list(connection, &Query::default()).expect("reads").len()
        };
        assert_eq!(found(&connection), 3);
        write(&mut runs, &mut connection, &[Row::Received(receipt(4, days(31)))]);
        assert_eq!(found(&connection), 3, "the first is older than 30 days, the second exactly");
    }

    #[test]
    fn what_is_let_go_takes_its_attempts_with_it() {
        let mut connection = database();
        let mut runs = Runs::new(Duration::from_millis(1), Timestamp::UNIX_EPOCH);
        let attempt = AttemptRecord {
            attempt: iop_types::Attempt::FIRST,
            node: "n".into(),
            provider: "p".into(),
            target: "t".into(),
            generation: iop_types::Generation(u64::MAX),
            why: None,
            sent_ms: None,
            head_ms: None,
            first_token_ms: None,
            ended_ms: None,
            terminal: None,
        };
        let with_attempt = Outcome { attempts: vec![attempt], ..outcome() };
        write(&mut runs, &mut connection, &[Row::Ended(Box::new((receipt(1, 0), with_attempt)))]);
        write(&mut runs, &mut connection, &[Row::Received(receipt(2, 100))]);
        let count = |table| {
            let count = format!("SELECT count(*) FROM {table}");
            connection.query_row(&count, [], |row| row.get::<_, i64>(0)).expect("counts")
        };
        assert_eq!((count("runs"), count("attempts")), (1, 0));
    }
}
