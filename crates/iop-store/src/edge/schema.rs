//! Tables of the Edge's history. There is no column for what was said.

/// Steps of the schema; see [`Schema::STEPS`](crate::database::Schema::STEPS).
pub(super) const STEPS: &[&str] = &["
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
    CREATE INDEX runs_by_time ON runs (received_at, run_id);
    CREATE INDEX runs_at_work ON runs (run_id) WHERE terminal_kind IS NULL;
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
"];

/// Ends what a killed process left at work.
pub(super) const INTERRUPT: &str = "
    UPDATE runs SET terminal_kind = 'failed', code = 'interrupted', retryable = 0,
        message = 'the edge ended before it could record how the run ended'
    WHERE terminal_kind IS NULL;
";

/// The columns of a terminal, the same in both tables, in the order of `Terminal`'s parameters.
pub(super) const TERMINAL: &str = "terminal_kind, code, message, retryable, stall_timeout_ms, \
    silent_ms, phase, ownership, provider_health, liveness_classification, health_observation_seq";
