//! Tables of a Node's history.
//!
//! `node_work` holds what has ended, in the order in which it ended: rows are only ever added at its
//! end and let go at its beginning, and no other tree has to be kept. `at_work` holds what has not
//! ended, and is what a killed process leaves to be interrupted.

/// Steps of the schema; see [`Schema::STEPS`](crate::database::Schema::STEPS).
pub(super) const STEPS: &[&str] = &[
    "
    CREATE TABLE node_work (
        run_id TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        provider TEXT NOT NULL,
        target TEXT NOT NULL,
        received_at INTEGER NOT NULL,
        head_ms INTEGER,
        ended_ms INTEGER,
        kind TEXT,
        code TEXT,
        PRIMARY KEY (run_id, attempt)
    ) STRICT, WITHOUT ROWID;
    ",
    "
    ALTER TABLE node_work RENAME TO earlier;
    CREATE TABLE node_work (
        ended INTEGER PRIMARY KEY,
        run_id BLOB NOT NULL,
        attempt INTEGER NOT NULL,
        provider TEXT NOT NULL,
        target TEXT NOT NULL,
        received_at INTEGER NOT NULL,
        head_ms INTEGER,
        ended_ms INTEGER,
        kind TEXT NOT NULL,
        code TEXT
    ) STRICT;
    CREATE TABLE at_work (
        run_id BLOB NOT NULL,
        attempt INTEGER NOT NULL,
        provider TEXT NOT NULL,
        target TEXT NOT NULL,
        received_at INTEGER NOT NULL,
        PRIMARY KEY (run_id, attempt)
    ) STRICT, WITHOUT ROWID;
    INSERT INTO node_work (run_id, attempt, provider, target, received_at, head_ms, ended_ms, kind,
        code)
    SELECT unhex(replace(run_id, '-', '')), attempt, provider, target, received_at, head_ms,
        ended_ms, kind, code
    FROM earlier WHERE kind IS NOT NULL ORDER BY received_at, run_id, attempt;
    INSERT INTO at_work
    SELECT unhex(replace(run_id, '-', '')), attempt, provider, target, received_at
    FROM earlier WHERE kind IS NULL;
    DROP TABLE earlier;
    ",
];

/// Ends what a killed process left at work.
pub(super) const INTERRUPT: &str = "
    INSERT INTO node_work (run_id, attempt, provider, target, received_at, kind, code)
    SELECT run_id, attempt, provider, target, received_at, 'failed', 'interrupted'
    FROM at_work ORDER BY run_id, attempt;
    DELETE FROM at_work;
";

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::node::read;

    #[test]
    fn a_file_in_the_order_of_ids_keeps_its_rows() {
        let connection = Connection::open_in_memory().expect("opens");
        connection.execute_batch(STEPS[0]).expect("creates");
        connection
            .execute_batch(
                "INSERT INTO node_work VALUES
                    ('01890000-0000-7000-8000-000000000001', 2, 'p', 't', 2000, 5, 9, 'completed',
                        NULL),
                    ('01890000-0000-7000-8000-000000000002', 1, 'p', 't', 1000, NULL, 9, 'failed',
                        'provider_error'),
                    ('01890000-0000-7000-8000-000000000003', 1, 'p', 't', 500, NULL, NULL, NULL,
                        NULL)",
            )
            .expect("inserts");
        connection.execute_batch(STEPS[1]).expect("moves");
        connection.execute_batch(INTERRUPT).expect("interrupts");
        let seen: Vec<_> = read::list(&connection, 10)
            .expect("reads")
            .into_iter()
            .map(|work| (work.run_id.as_bytes()[15], work.attempt.0, work.ended_ms, work.code))
            .collect();
        let code = |text| iop_types::ErrorCode::parse(text);
        assert_eq!(
            seen,
            [
                (3, 1, None, code("interrupted")),
                (1, 2, Some(9), None),
                (2, 1, Some(9), code("provider_error"))
            ]
        );
    }
}
