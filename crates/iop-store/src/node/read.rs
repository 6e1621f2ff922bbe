//! Rows into work.

use iop_types::{Attempt, ErrorCode, ProviderKey, Target};
use rusqlite::{Connection, Row};

use crate::sql::{read_count, read_id, read_time, read_word, whole};
use crate::work::Work;

/// Returns what has not ended, then what has.
pub(super) fn list(connection: &Connection, limit: usize) -> rusqlite::Result<Vec<Work>> {
    // One transaction, so that no work ends between the two tables.
    let transaction = connection.unchecked_transaction()?;
    let select = |sql, work: fn(&Row<'_>) -> rusqlite::Result<Work>| {
        transaction.prepare(sql)?.query_map([whole(limit)], work)?.collect::<Result<Vec<_>, _>>()
    };
    let mut work =
        select("SELECT * FROM at_work ORDER BY run_id DESC, attempt DESC LIMIT ?", at_work)?;
    work.extend(select("SELECT * FROM node_work ORDER BY ended DESC LIMIT ?", ended)?);
    work.truncate(limit);
    Ok(work)
}

fn ended(row: &Row<'_>) -> rusqlite::Result<Work> {
    let code: Option<String> = row.get("code")?;
    Ok(Work {
        head_ms: read_count(row, "head_ms")?,
        ended_ms: read_count(row, "ended_ms")?,
        kind: read_word(row, "kind")?,
        code: code.and_then(|code| ErrorCode::parse(&code)),
        ..at_work(row)?
    })
}

fn at_work(row: &Row<'_>) -> rusqlite::Result<Work> {
    Ok(Work {
        run_id: read_id(row, "run_id")?,
        attempt: Attempt(row.get("attempt")?),
        provider: ProviderKey::from(row.get::<_, String>("provider")?),
        target: Target::from(row.get::<_, String>("target")?),
        received_at: read_time(row, "received_at")?,
        head_ms: None,
        ended_ms: None,
        kind: None,
        code: None,
    })
}
