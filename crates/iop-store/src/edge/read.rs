//! Rows into runs.

use iop_types::{ErrorCode, RequestId, RouteName, SessionId, Usage};
use jiff::Timestamp;
use rusqlite::types::Value;
use rusqlite::{Connection, Row, params_from_iter};

use crate::query::Query;
use crate::record::{Receipt, Run, TerminalRecord, UsageRecord};
use crate::sql::{read_count, read_id, read_json, read_time, read_word, whole};

use super::attempts;

/// Returns runs, newest first.
pub(super) fn list(connection: &Connection, query: &Query) -> rusqlite::Result<Vec<Run>> {
    let limit = query.limit.min(Query::MAX_LIMIT);
    // One transaction, so that no run ends between the two tables.
    let transaction = connection.unchecked_transaction()?;
    let mut runs = Filter::of(query).select(&transaction, "runs", limit, ended)?;
    // What is at work has neither a code nor attempts yet.
    if query.code.is_none() && query.node.is_none() {
        runs.extend(Filter::of(query).select(&transaction, "at_work", limit, at_work)?);
        runs.sort_by_key(|run| std::cmp::Reverse(run.receipt.run_id));
        runs.truncate(limit);
    }
    Ok(runs)
}

/// Returns the runs whose ids begin like this or, if there are none, whose request id this is: at most
/// two.
pub(super) fn find(connection: &Connection, id: &str) -> rusqlite::Result<Vec<Run>> {
    let transaction = connection.unchecked_transaction()?;
    let select = |clause: &str, values: &[Value]| -> rusqlite::Result<Vec<Run>> {
        let filter = || {
            let mut filter = Filter::default();
            filter.add(clause, values.iter().cloned());
            filter
        };
        let mut runs = filter().select(&transaction, "runs", 2, ended)?;
        runs.extend(filter().select(&transaction, "at_work", 2, at_work)?);
        runs.truncate(2);
        Ok(runs)
    };
    if let Some((first, last)) = id_range(&id.to_ascii_lowercase()) {
        let range = [Value::Blob(first.into()), Value::Blob(last.into())];
        let runs = select("run_id BETWEEN ? AND ?", &range)?;
        if !runs.is_empty() {
            return Ok(runs);
        }
    }
    select("request_id = ?", &[Value::Text(id.to_owned())])
}

/// Conditions that must all hold.
#[derive(Default)]
struct Filter {
    clauses: String,
    values: Vec<Value>,
}

impl Filter {
    fn of(query: &Query) -> Self {
        let text = |text: &str| Value::Text(text.to_owned());
        let mut filter = Self::default();
        if let Some(since) = query.since {
            filter.add("run_id >= ?", [Value::Blob(first_id_of(since).into())]);
            filter.add("received_at >= ?", [Value::Integer(since.as_millisecond())]);
        }
        if let Some(route) = &query.route {
            filter.add("route = ?", [text(route.as_str())]);
        }
        if let Some(code) = query.code {
            filter.add("code = ?", [text(code.as_str())]);
        }
        if let Some(node) = &query.node {
            // Looking for the bytes first is what makes looking through many rows quick.
            let quoted = serde_json::to_string(node).expect("a name is a JSON string");
            filter.add("instr(attempts, ?) > 0", [Value::Text(quoted)]);
            filter.add(
                &format!(
                    "EXISTS (SELECT 1 FROM json_each(attempts)
                        WHERE json_extract(value, '{}') = ?)",
                    attempts::NODE
                ),
                [text(node.as_str())],
            );
        }
        filter
    }

    fn add(&mut self, clause: &str, values: impl IntoIterator<Item = Value>) {
        self.clauses.push_str(if self.clauses.is_empty() { "WHERE " } else { " AND " });
        self.clauses.push_str(clause);
        self.values.extend(values);
    }

    fn select(
        mut self,
        connection: &Connection,
        table: &str,
        limit: usize,
        run: fn(&Row<'_>) -> rusqlite::Result<Run>,
    ) -> rusqlite::Result<Vec<Run>> {
        self.values.push(Value::Integer(whole(limit)));
        let mut statement = connection.prepare(&format!(
            "SELECT * FROM {table} {} ORDER BY run_id DESC LIMIT ?",
            self.clauses
        ))?;
        statement.query_map(params_from_iter(self.values), run)?.collect()
    }
}

/// The smallest id that may be minted at this time: an id begins with its time in milliseconds.
fn first_id_of(time: Timestamp) -> [u8; 16] {
    let mut id = [0; 16];
    let ms = u64::try_from(time.as_millisecond()).unwrap_or_default();
    id[..6].copy_from_slice(&ms.to_be_bytes()[2..]);
    id
}

/// The first and the last id that begin like this; `None` when an id cannot.
fn id_range(prefix: &str) -> Option<([u8; 16], [u8; 16])> {
    const HYPHENS: [usize; 4] = [8, 13, 18, 23];
    const LENGTH: usize = 36;
    if prefix.len() > LENGTH {
        return None;
    }
    let (mut first, mut last) = ([0; 16], [u8::MAX; 16]);
    let mut digits = 0;
    for (at, char) in prefix.char_indices() {
        if HYPHENS.contains(&at) {
            if char != '-' {
                return None;
            }
            continue;
        }
        let digit = u8::try_from(char.to_digit(16)?).ok()?;
        let (mask, digit) = if digits % 2 == 0 { (0x0f, digit << 4) } else { (0xf0, digit) };
        first[digits / 2] |= digit;
        last[digits / 2] &= mask | digit;
        digits += 1;
    }
    Some((first, last))
}

fn ended(row: &Row<'_>) -> rusqlite::Result<Run> {
    let code: Option<String> = row.get("code")?;
    let terminal = |kind| -> rusqlite::Result<_> {
        Ok(TerminalRecord {
            kind,
            code: code.and_then(|code| ErrorCode::parse(&code)),
            message: row.get("message")?,
            retryable: row.get("retryable")?,
            stall: read_json(row, "stall", |text| serde_json::from_str(text))?,
        })
    };
    Ok(Run {
        queued_ms: read_count(row, "queued_ms")?,
        attempts: read_json(row, "attempts", attempts::read)?.unwrap_or_default(),
        terminal: read_word(row, "terminal_kind")?.map(terminal).transpose()?,
        usage: usage(row)?,
        ..at_work(row)?
    })
}

fn at_work(row: &Row<'_>) -> rusqlite::Result<Run> {
    let text = |column| row.get::<_, Option<String>>(column);
    Ok(Run {
        receipt: Receipt {
            run_id: read_id(row, "run_id")?,
            request_id: RequestId::from(row.get::<_, String>("request_id")?),
            session_id: text("session_id")?.and_then(|id| SessionId::new(&id).ok()),
            surface: row.get::<_, String>("surface")?.into(),
            principal: text("principal")?,
            route: text("route")?.map(RouteName::from),
            form: read_word(row, "form")?,
            received_at: read_time(row, "received_at")?,
        },
        queued_ms: None,
        attempts: Vec::new(),
        terminal: None,
        usage: None,
    })
}

fn usage(row: &Row<'_>) -> rusqlite::Result<Option<UsageRecord>> {
    let Some(source) = read_word(row, "usage_source")? else { return Ok(None) };
    let (Some(input_tokens), Some(output_tokens)) =
        (read_count(row, "input_tokens")?, read_count(row, "output_tokens")?)
    else {
        return Ok(None);
    };
    Ok(Some(UsageRecord { tokens: Usage { input_tokens, output_tokens }, source }))
}

#[cfg(test)]
mod tests {
    use iop_types::RunId;

    use super::*;

    #[test]
    fn every_beginning_of_an_id_has_it_in_its_range_and_not_its_neighbours() {
        let id = RunId::parse("01890a1b-2c3d-7e4f-8a5b-6c7d8e9f0a1b").expect("an id");
        let text = id.to_string();
        for length in 0..=text.len() {
            let (first, last) = id_range(&text[..length]).expect("a beginning");
            assert!((first..=last).contains(id.as_bytes()), "{length}");
            for (at, other) in [(0, b'f'), (7, b'0'), (14, b'0'), (35, b'0')] {
                let mut neighbour = text.clone().into_bytes();
                neighbour[at] = other;
                let neighbour =
                    RunId::parse(str::from_utf8(&neighbour).expect("text")).expect("id");
                let is_inside = (first..=last).contains(neighbour.as_bytes());
                assert_eq!(is_inside, length <= at, "{length} {at}");
            }
        }
        assert_eq!(id_range(&text), Some((*id.as_bytes(), *id.as_bytes())));
    }

    #[test]
    fn what_no_id_begins_with_has_no_range() {
        let long = format!("{}0", RunId::from_slice(&[0; 16]).expect("16 bytes"));
        for text in ["g", "-", "0189-", "018900000", "01890000-00000", "é", long.as_str()] {
            assert_eq!(id_range(text), None, "{text}");
        }
    }
}
