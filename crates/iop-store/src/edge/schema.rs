//! Tables of the Edge's history. There is no column for what was said.
//!
//! `runs` holds what has ended, each run written once and never changed, in the order of ids: UUIDs of
//! version 7 sort by time of receipt, so that new runs go to the end of the one tree there is. A
//! run's attempts are in its row, since nobody reads one without the other. `at_work` holds what
//! has not ended; it stays a few pages however long `runs` becomes, and is what a killed process
//! leaves to be interrupted.

/// Steps of the schema; see [`Schema::STEPS`](crate::database::Schema::STEPS).
pub(super) const STEPS: &[&str] = &[ONE_ROW_AN_ATTEMPT, ONE_ROW_A_RUN, VERDICT_OF_AN_ATTEMPT];

const ONE_ROW_AN_ATTEMPT: &str = "
    CREATE TABLE runs (
        run_id TEXT NOT NULL PRIMARY KEY,
        request_id TEXT NOT NULL,
        session_id TEXT,
        surface TEXT NOT NULL,
        principal TEXT,
        route TEXT,
        form TEXT,
        received_at INTEGER NOT NULL,
        queued_ms INTEGER,
        input_tokens INTEGER,
        output_tokens INTEGER,
        usage_source TEXT,
        terminal_kind TEXT,
        code TEXT,
        message TEXT,
        retryable INTEGER,
        stall_timeout_ms INTEGER,
        silent_ms INTEGER,
        phase TEXT,
        ownership TEXT,
        provider_health TEXT,
        liveness_classification TEXT,
        health_observation_seq INTEGER
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE attempts (
        run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
        attempt INTEGER NOT NULL,
        node TEXT NOT NULL,
        provider TEXT NOT NULL,
        target TEXT NOT NULL,
        generation INTEGER NOT NULL,
        why TEXT,
        sent_ms INTEGER,
        head_ms INTEGER,
        first_token_ms INTEGER,
        ended_ms INTEGER,
        terminal_kind TEXT,
        code TEXT,
        message TEXT,
        retryable INTEGER,
        stall_timeout_ms INTEGER,
        silent_ms INTEGER,
        phase TEXT,
        ownership TEXT,
        provider_health TEXT,
        liveness_classification TEXT,
        health_observation_seq INTEGER,
        PRIMARY KEY (run_id, attempt)
    ) STRICT, WITHOUT ROWID;
";

/// What filters look at comes first, so that a search need not read whole rows.
const ONE_ROW_A_RUN: &str = "
    ALTER TABLE runs RENAME TO earlier_runs;
    ALTER TABLE attempts RENAME TO earlier_attempts;
    CREATE TABLE runs (
        run_id BLOB NOT NULL PRIMARY KEY,
        received_at INTEGER NOT NULL,
        route TEXT,
        code TEXT,
        request_id TEXT NOT NULL,
        session_id TEXT,
        surface TEXT NOT NULL,
        principal TEXT,
        form TEXT,
        queued_ms INTEGER,
        input_tokens INTEGER,
        output_tokens INTEGER,
        usage_source TEXT,
        terminal_kind TEXT NOT NULL,
        message TEXT,
        retryable INTEGER,
        stall TEXT,
        attempts TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE at_work (
        run_id BLOB NOT NULL PRIMARY KEY,
        received_at INTEGER NOT NULL,
        route TEXT,
        request_id TEXT NOT NULL,
        session_id TEXT,
        surface TEXT NOT NULL,
        principal TEXT,
        form TEXT
    ) STRICT, WITHOUT ROWID;
    CREATE VIEW earlier AS
        SELECT *, json_patch('{}', json_object('stall_timeout_ms', stall_timeout_ms,
            'silent_ms', silent_ms, 'phase', phase, 'ownership', ownership,
            'provider_health', provider_health,
            'liveness_classification', liveness_classification,
            'health_observation_seq', health_observation_seq)) AS stall
        FROM earlier_attempts;
    INSERT INTO runs SELECT unhex(replace(run_id, '-', '')), received_at, route, code, request_id,
        session_id, surface, principal, form, queued_ms, input_tokens, output_tokens, usage_source,
        terminal_kind, message, retryable,
        CASE WHEN stall_timeout_ms IS NOT NULL THEN json_patch('{}', json_object(
            'stall_timeout_ms', stall_timeout_ms, 'silent_ms', silent_ms, 'phase', phase,
            'ownership', ownership, 'provider_health', provider_health,
            'liveness_classification', liveness_classification,
            'health_observation_seq', health_observation_seq)) END,
        (SELECT json_group_array(json_array(attempt, node, provider, target, generation, why,
            sent_ms, head_ms, first_token_ms, ended_ms,
            CASE WHEN earlier.terminal_kind IS NOT NULL THEN json_patch(earlier.stall, json_object(
                'kind', earlier.terminal_kind, 'code', earlier.code, 'message', earlier.message,
                'retryable', json(iif(earlier.retryable, 'true',
                    iif(earlier.retryable IS NULL, 'null', 'false'))))) END) ORDER BY attempt)
            FROM earlier WHERE earlier.run_id = earlier_runs.run_id)
        FROM earlier_runs WHERE terminal_kind IS NOT NULL ORDER BY run_id;
    INSERT INTO at_work SELECT unhex(replace(run_id, '-', '')), received_at, route, request_id,
        session_id, surface, principal, form
        FROM earlier_runs WHERE terminal_kind IS NULL ORDER BY run_id;
    DROP VIEW earlier;
    DROP TABLE earlier_attempts;
    DROP TABLE earlier_runs;
";

/// Attempts have one more element, which rows from before do not need. The step is counted so that an
/// earlier version leaves the file alone instead of stumbling over it.
const VERDICT_OF_AN_ATTEMPT: &str = "";

/// Ends what a killed process left at work.
pub(super) const INTERRUPT: &str = "
    INSERT OR IGNORE INTO runs (run_id, received_at, route, code, request_id, session_id, surface,
        principal, form, terminal_kind, message, retryable, attempts)
    SELECT run_id, received_at, route, 'interrupted', request_id, session_id, surface, principal,
        form, 'failed', 'the edge ended before it could record how the run ended', 0, '[]'
    FROM at_work;
    DELETE FROM at_work;
";

#[cfg(test)]
mod tests {
    use rusqlite::Connection;
    use serde_json::json;

    use super::*;
    use crate::edge::read;
    use crate::query::Query;

    #[test]
    fn a_file_with_a_row_for_each_attempt_keeps_all_that_it_knew() {
        let connection = Connection::open_in_memory().expect("opens");
        connection.execute_batch(ONE_ROW_AN_ATTEMPT).expect("creates");
        connection
            .execute_batch(
                "INSERT INTO runs VALUES
                    ('01890000-0000-7000-8000-000000000001', 'r1', 's', 'openai.chat', 'ann',
                        'chat', 'tunnel', 1000, 12, 5, 3, 'provider', 'failed', 'response_stalled',
                        'silent', 0, 300000, 300004, 'mid_stream', 'unconfirmed', 'available',
                        'request_stalled', 9),
                    ('01890000-0000-7000-8000-000000000002', 'r2', NULL, 'openai.chat', NULL, NULL,
                        NULL, 2000, NULL, NULL, NULL, NULL, 'completed', NULL, NULL, NULL, NULL,
                        NULL, NULL, NULL, NULL, NULL, NULL),
                    ('01890000-0000-7000-8000-000000000003', 'r3', NULL, 'openai.chat', NULL, NULL,
                        NULL, 3000, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                        NULL, NULL, NULL, NULL, NULL);
                INSERT INTO attempts VALUES
                    ('01890000-0000-7000-8000-000000000001', 2, 'n', 'p', 't', 7, NULL, 3, NULL,
                        NULL, 4, 'failed', 'response_stalled', 'silent', 0, 300000, 300004,
                        'mid_stream', 'unconfirmed', 'available', 'request_stalled', 9),
                    ('01890000-0000-7000-8000-000000000001', 1, 'n', 'p', 't', 7, 'why', 1, 2, 3, 4,
                        'failed', NULL, 'full', 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL);",
            )
            .expect("inserts");
        connection.execute_batch(ONE_ROW_A_RUN).expect("moves");
        connection.execute_batch(INTERRUPT).expect("interrupts");
        let end = json!({
            "kind": "failed", "code": "response_stalled", "message": "silent", "retryable": false,
            "stall_timeout_ms": 300_000, "silent_ms": 300_004, "phase": "mid_stream",
            "ownership": "unconfirmed", "provider_health": "available",
            "liveness_classification": "request_stalled", "health_observation_seq": 9
        });
        let shown = json!([
            {
                "run_id": "01890000-0000-7000-8000-000000000003", "request_id": "r3",
                "surface": "openai.chat", "received_at": "1970-01-01T00:00:03.000Z", "attempts": [],
                "terminal": {
                    "kind": "failed", "code": "interrupted", "retryable": false,
                    "message": "the edge ended before it could record how the run ended"
                }
            },
            {
                "run_id": "01890000-0000-7000-8000-000000000002", "request_id": "r2",
                "surface": "openai.chat", "received_at": "1970-01-01T00:00:02.000Z", "attempts": [],
                "terminal": { "kind": "completed" }
            },
            {
                "run_id": "01890000-0000-7000-8000-000000000001", "request_id": "r1",
                "session_id": "s", "surface": "openai.chat", "principal": "ann", "route": "chat",
                "form": "tunnel", "received_at": "1970-01-01T00:00:01.000Z", "queued_ms": 12,
                "attempts": [
                    {
                        "attempt": 1, "node": "n", "provider": "p", "target": "t", "generation": 7,
                        "why": "why", "sent_ms": 1, "head_ms": 2, "first_token_ms": 3,
                        "ended_ms": 4,
                        "terminal": { "kind": "failed", "message": "full", "retryable": true }
                    },
                    {
                        "attempt": 2, "node": "n", "provider": "p", "target": "t", "generation": 7,
                        "sent_ms": 3, "ended_ms": 4, "terminal": end
                    }
                ],
                "terminal": end,
                "usage": { "input_tokens": 5, "output_tokens": 3, "source": "provider" }
            }
        ]);
        let runs = read::list(&connection, &Query::default()).expect("reads");
        assert_eq!(serde_json::to_value(runs).expect("serializes"), shown);
    }
}
