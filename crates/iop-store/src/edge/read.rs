//! Tables into runs.

use iop_types::{
    Attempt, ErrorCode, Generation, NodeId, ProviderKey, RequestId, RouteName, RunId, SessionId,
    Target, Usage,
};
use rusqlite::types::Value;
use rusqlite::{Connection, Row, params_from_iter};

use crate::query::Query;
use crate::record::{
    AttemptRecord, HealthEvidence, Receipt, Run, Stall, TerminalRecord, UsageRecord,
};
use crate::sql::{read_count, read_text, read_time, read_word, whole};

/// Returns runs, newest first.
pub(super) fn list(connection: &Connection, query: &Query) -> rusqlite::Result<Vec<Run>> {
    let mut clauses = String::from("1");
    let mut values = Vec::new();
    let mut filter = |clause: &str, value: Option<Value>| {
        if let Some(value) = value {
            clauses.push_str(" AND ");
            clauses.push_str(clause);
            values.push(value);
        }
    };
    let text = |text: &str| Value::Text(text.to_owned());
    filter("received_at >= ?", query.since.map(|time| Value::Integer(time.as_millisecond())));
    filter("route = ?", query.route.as_ref().map(|route| text(route.as_str())));
    filter("code = ?", query.code.map(|code| text(code.as_str())));
    filter(
        "EXISTS (SELECT 1 FROM attempts WHERE attempts.run_id = runs.run_id AND node = ?)",
        query.node.as_ref().map(|node| text(node.as_str())),
    );
    values.push(Value::Integer(whole(query.limit.min(Query::MAX_LIMIT))));
    select(
        connection,
        &format!("WHERE {clauses} ORDER BY received_at DESC, run_id DESC LIMIT ?"),
        values,
    )
}

/// Returns the runs whose ids begin like this, at most two.
pub(super) fn find(connection: &Connection, prefix: &str) -> rusqlite::Result<Vec<Run>> {
    // Ids are hexadecimal digits and hyphens: `g` follows all of them.
    let values = vec![Value::Text(prefix.to_owned()), Value::Text(format!("{prefix}g"))];
    select(connection, "WHERE run_id >= ? AND run_id < ? LIMIT 2", values)
}

fn select(connection: &Connection, filter: &str, values: Vec<Value>) -> rusqlite::Result<Vec<Run>> {
    // One transaction, so that runs and attempts belong together.
    let transaction = connection.unchecked_transaction()?;
    let mut statement = transaction.prepare(&format!("SELECT * FROM runs {filter}"))?;
    let mut runs =
        statement.query_map(params_from_iter(values), run)?.collect::<Result<Vec<_>, _>>()?;
    let mut statement =
        transaction.prepare("SELECT * FROM attempts WHERE run_id = ? ORDER BY attempt")?;
    for run in &mut runs {
        run.attempts = statement
            .query_map([run.receipt.run_id.to_string()], attempt)?
            .collect::<Result<_, _>>()?;
    }
    Ok(runs)
}

fn run(row: &Row<'_>) -> rusqlite::Result<Run> {
    let text = |column| row.get::<_, Option<String>>(column);
    Ok(Run {
        receipt: Receipt {
            run_id: read_text(row, "run_id", RunId::parse)?,
            request_id: RequestId::from(row.get::<_, String>("request_id")?),
            session_id: text("session_id")?.and_then(|id| SessionId::new(&id).ok()),
            surface: row.get::<_, String>("surface")?.into(),
            principal: text("principal")?,
            route: text("route")?.map(RouteName::from),
            form: read_word(row, "form")?,
            received_at: read_time(row, "received_at")?,
        },
        queued_ms: read_count(row, "queued_ms")?,
        attempts: Vec::new(),
        terminal: terminal(row)?,
        usage: usage(row)?,
    })
}

fn attempt(row: &Row<'_>) -> rusqlite::Result<AttemptRecord> {
    Ok(AttemptRecord {
        attempt: Attempt(row.get("attempt")?),
        node: NodeId::from(row.get::<_, String>("node")?),
        provider: ProviderKey::from(row.get::<_, String>("provider")?),
        target: Target::from(row.get::<_, String>("target")?),
        generation: Generation(read_count(row, "generation")?.unwrap_or_default()),
        why: row.get("why")?,
        sent_ms: read_count(row, "sent_ms")?,
        head_ms: read_count(row, "head_ms")?,
        first_token_ms: read_count(row, "first_token_ms")?,
        ended_ms: read_count(row, "ended_ms")?,
        terminal: terminal(row)?,
    })
}

fn terminal(row: &Row<'_>) -> rusqlite::Result<Option<TerminalRecord>> {
    let Some(kind) = read_word(row, "terminal_kind")? else { return Ok(None) };
    let code: Option<String> = row.get("code")?;
    Ok(Some(TerminalRecord {
        kind,
        code: code.and_then(|code| ErrorCode::parse(&code)),
        message: row.get("message")?,
        retryable: row.get("retryable")?,
        stall: stall(row)?,
    }))
}

/// A stall is known whole or not at all.
fn stall(row: &Row<'_>) -> rusqlite::Result<Option<Stall>> {
    let health: Option<String> = row.get("provider_health")?;
    let (Some(stall_timeout_ms), Some(silent_ms), Some(phase), Some(ownership), Some(health)) = (
        read_count(row, "stall_timeout_ms")?,
        read_count(row, "silent_ms")?,
        read_word(row, "phase")?,
        read_word(row, "ownership")?,
        health,
    ) else {
        return Ok(None);
    };
    Ok(Some(Stall {
        stall_timeout_ms,
        silent_ms,
        phase,
        ownership,
        evidence: HealthEvidence::parse(&health),
        health_observation_seq: read_count(row, "health_observation_seq")?,
    }))
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
