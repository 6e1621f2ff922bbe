//! What an Edge's history keeps, and how it is asked.

use std::time::Duration;

use iop_store::{
    AttemptRecord, DataDir, EdgeHistory, FindError, Form, HealthEvidence, Outcome, Ownership,
    Query, Receipt, Run, Stall, StallPhase, TerminalKind, TerminalRecord, UsageRecord,
};
use iop_types::{
    Attempt, ErrorCode, Failure, Generation, RequestId, RunId, SessionId, Usage, UsageSource,
};
use jiff::Timestamp;
use serde_json::json;

const MONTH: Duration = Duration::from_secs(30 * 86_400);
const SOON: Duration = Duration::from_secs(10);

fn time(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

fn id(last: &str) -> RunId {
    RunId::parse(&format!("01890000-0000-7000-8000-{last:0>12}")).expect("an id")
}

/// An id as it is minted at this time.
fn id_of(last: &str, at: Timestamp) -> RunId {
    let ms = at.as_millisecond();
    let text = format!("{:08x}-{:04x}-7000-8000-{last:0>12}", ms >> 16, ms & 0xffff);
    RunId::parse(&text).expect("an id")
}

fn receipt(run_id: RunId, received_at: &str) -> Receipt {
    Receipt {
        run_id,
        request_id: RequestId::from("req_1"),
        session_id: None,
        surface: "openai.chat".into(),
        principal: None,
        route: None,
        form: None,
        received_at: time(received_at),
    }
}

fn attempt(number: u32, node: &str) -> AttemptRecord {
    AttemptRecord {
        attempt: Attempt(number),
        node: node.into(),
        provider: "p".into(),
        target: "t".into(),
        generation: Generation(7),
        why: None,
        sent_ms: None,
        head_ms: None,
        first_token_ms: None,
        ended_ms: None,
        terminal: None,
        recovery_eligible: None,
    }
}

fn completed(attempts: Vec<AttemptRecord>) -> Outcome {
    Outcome {
        form: None,
        queued_ms: None,
        attempts,
        terminal: TerminalRecord::completed(),
        usage: None,
    }
}

fn failed(code: ErrorCode) -> Outcome {
    let failure = Failure::new(code, "why");
    Outcome { terminal: TerminalRecord::failed(&failure), ..completed(Vec::new()) }
}

fn open(dir: &DataDir) -> EdgeHistory {
    EdgeHistory::open(dir, MONTH, time("2026-11-30T00:00:00Z"))
}

struct Fixture {
    _temporary: tempfile::TempDir,
    dir: DataDir,
    history: EdgeHistory,
}

fn fixture() -> Fixture {
    let temporary = tempfile::tempdir().expect("a directory");
    let dir = DataDir::open(temporary.path().join("edge")).expect("usable");
    let history = open(&dir);
    Fixture { _temporary: temporary, dir, history }
}

impl Fixture {
    async fn flushed(&self) -> &EdgeHistory {
        assert!(self.history.flush(SOON).await, "{:?}", self.history.health());
        &self.history
    }
}

#[tokio::test]
async fn a_run_is_shown_with_everything_that_is_known_of_it() {
    let fixture = fixture();
    let stalled = Stall {
        stall_timeout_ms: 300_000,
        silent_ms: 300_004,
        phase: StallPhase::MidStream,
        ownership: Ownership::Unconfirmed,
        evidence: HealthEvidence::Available,
        health_observation_seq: Some(9),
    };
    let failure = Failure::new(ErrorCode::ResponseStalled, "silent for 300 s");
    let terminal = TerminalRecord { stall: Some(stalled), ..TerminalRecord::failed(&failure) };
    let known = Receipt {
        session_id: Some(SessionId::new("s-1").expect("short")),
        principal: Some("ann".to_owned()),
        route: Some("chat".into()),
        ..receipt(id("1"), "2026-11-30T12:00:00.123Z")
    };
    fixture.history.received(known.clone());
    fixture.history.ended(
        known,
        Outcome {
            form: Some(Form::Tunnel),
            queued_ms: Some(12),
            attempts: vec![AttemptRecord {
                why: Some("least_loaded".into()),
                sent_ms: Some(13),
                head_ms: Some(20),
                first_token_ms: Some(40),
                ended_ms: Some(300_044),
                terminal: Some(terminal.clone()),
                recovery_eligible: Some(false),
                ..attempt(1, "workstation")
            }],
            terminal,
            usage: Some(UsageRecord {
                tokens: Usage { input_tokens: 5, output_tokens: 3 },
                source: UsageSource::Provider,
            }),
        },
    );
    let run = fixture.flushed().await.find("01890000").await.expect("found");
    let end = json!({
        "kind": "failed", "code": "response_stalled", "message": "silent for 300 s",
        "retryable": false, "stall_timeout_ms": 300_000, "silent_ms": 300_004,
        "phase": "mid_stream", "ownership": "unconfirmed", "provider_health": "available",
        "liveness_classification": "request_stalled", "health_observation_seq": 9
    });
    let shown = json!({
        "run_id": "01890000-0000-7000-8000-000000000001", "request_id": "req_1",
        "session_id": "s-1", "surface": "openai.chat", "principal": "ann", "route": "chat",
        "form": "tunnel", "received_at": "2026-11-30T12:00:00.123Z", "queued_ms": 12,
        "attempts": [{
            "attempt": 1, "node": "workstation", "provider": "p", "target": "t", "generation": 7,
            "why": "least_loaded", "sent_ms": 13, "head_ms": 20, "first_token_ms": 40,
            "ended_ms": 300_044, "terminal": end, "recovery_eligible": false
        }],
        "terminal": end,
        "usage": { "input_tokens": 5, "output_tokens": 3, "source": "provider" }
    });
    assert_eq!(serde_json::to_value(&run).expect("serializes"), shown);
    assert_eq!(serde_json::from_value::<Run>(shown).expect("reads back"), run);
}

#[tokio::test]
async fn what_is_unknown_is_absent_and_never_invented() {
    let fixture = fixture();
    fixture.history.received(receipt(id("2"), "2026-11-30T12:00:00Z"));
    let run = fixture.flushed().await.find(&id("2").to_string()).await.expect("found");
    let shown = json!({
        "run_id": "01890000-0000-7000-8000-000000000002", "request_id": "req_1",
        "surface": "openai.chat", "received_at": "2026-11-30T12:00:00.000Z", "attempts": []
    });
    assert_eq!(serde_json::to_value(&run).expect("serializes"), shown);
}

#[tokio::test]
async fn runs_are_listed_newest_first_and_every_filter_must_match() {
    let Fixture { history, .. } = &fixture();
    let routed = |number: &str, at: &str, route: &str| Receipt {
        route: Some(route.into()),
        ..receipt(id_of(number, time(at)), at)
    };
    history.ended(
        routed("1", "2026-11-30T01:00:00Z", "a"),
        completed(vec![attempt(1, "one"), attempt(2, "two")]),
    );
    history.ended(routed("2", "2026-11-30T02:00:00Z", "a"), failed(ErrorCode::NodeLost));
    history.ended(routed("3", "2026-11-30T03:00:00Z", "b"), completed(vec![attempt(1, "two")]));
    history.received(routed("4", "2026-11-30T03:00:00Z", "b"));
    assert!(history.flush(SOON).await);
    let all = Query::default;
    let queries = [
        (all(), "4321"),
        (Query { limit: 2, ..all() }, "43"),
        (Query { route: Some("a".into()), ..all() }, "21"),
        (Query { node: Some("two".into()), ..all() }, "31"),
        (Query { node: Some("two".into()), route: Some("a".into()), ..all() }, "1"),
        (Query { code: Some(ErrorCode::NodeLost), ..all() }, "2"),
        (Query { since: Some(time("2026-11-30T02:00:00Z")), ..all() }, "432"),
        (Query { node: Some("' OR 1=1 --".into()), ..all() }, ""),
        (Query { limit: 0, ..all() }, ""),
        (Query { limit: usize::MAX, ..all() }, "4321"),
    ];
    for (query, expected) in queries {
        let runs = history.list(query.clone()).await.expect("reads");
        let ids: String =
            runs.iter().filter_map(|run| run.receipt.run_id.to_string().chars().last()).collect();
        assert_eq!(ids, expected, "{query:?}");
    }
}

#[tokio::test]
async fn a_run_is_found_by_any_beginning_that_is_its_own() {
    let fixture = fixture();
    fixture.history.received(receipt(id("a1"), "2026-11-30T01:00:00Z"));
    fixture.history.received(receipt(id("b1"), "2026-11-30T01:00:00Z"));
    let history = fixture.flushed().await;
    let found = history.find("01890000-0000-7000-8000-0000000000A").await.expect("found");
    assert_eq!(found.receipt.run_id, id("a1"));
    assert!(matches!(history.find("0189").await, Err(FindError::Ambiguous { .. })));
    assert!(matches!(history.find("req_1").await, Err(FindError::Ambiguous { .. })));
    assert!(matches!(history.find("").await, Err(FindError::Ambiguous { .. })));
    for unknown in ["ff", "%", "_", "' OR 1=1 --", "g", "\u{10ffff}"] {
        assert!(matches!(history.find(unknown).await, Err(FindError::Unknown { .. })), "{unknown}");
    }
}

#[tokio::test]
async fn runs_that_were_at_work_are_interrupted_at_the_next_start() {
    let Fixture { _temporary, dir, history } = fixture();
    history.received(receipt(id("1"), "2026-11-30T01:00:00Z"));
    history.ended(receipt(id("2"), "2026-11-30T01:00:00Z"), completed(Vec::new()));
    assert!(history.close(SOON).await);
    let history = open(&dir);
    history.received(receipt(id("3"), "2026-11-30T01:00:00Z"));
    assert!(history.flush(SOON).await);
    let terminal =
        async |last: &str| history.find(&id(last).to_string()).await.expect("found").terminal;
    let interrupted = terminal("1").await.expect("ended");
    assert_eq!(interrupted.kind, TerminalKind::Failed);
    assert_eq!(interrupted.code, Some(ErrorCode::Interrupted));
    assert_eq!(interrupted.retryable, Some(false));
    assert_eq!(terminal("2").await, Some(TerminalRecord::completed()));
    assert_eq!(terminal("3").await, None, "it is at work");
}

#[tokio::test]
async fn old_runs_are_let_go_at_the_start() {
    let Fixture { _temporary, dir, history } = fixture();
    for number in 0..1200 {
        history.received(receipt(id(&number.to_string()), "2026-11-30T00:00:00Z"));
    }
    history.received(receipt(id("ffff"), "2026-12-05T00:00:00Z"));
    assert!(history.close(SOON).await);
    let history = EdgeHistory::open(&dir, MONTH, time("2027-01-01T00:00:00Z"));
    history.received(receipt(id("fffe"), "2027-01-01T00:00:00Z"));
    assert!(history.flush(SOON).await);
    assert_eq!(
        history.list(Query { limit: 1000, ..Query::default() }).await.expect("reads").len(),
        2
    );
}

#[tokio::test]
async fn a_history_without_a_directory_drops_and_says_why() {
    let history = EdgeHistory::disabled("no data directory");
    history.received(receipt(id("1"), "2026-11-30T00:00:00Z"));
    assert!(history.flush(SOON).await);
    let health = history.health();
    assert_eq!((health.dropped, health.written), (1, 0));
    assert_eq!(health.degraded.as_deref(), Some("no data directory"));
    let error = history.list(Query::default()).await.expect_err("nothing to read");
    assert!(error.to_string().contains("no data directory"), "{error}");
    assert!(history.close(SOON).await);
}

#[tokio::test]
async fn a_long_message_is_cut_between_characters() {
    let message = "ü".repeat(TerminalRecord::MAX_MESSAGE);
    let record = TerminalRecord::failed(&Failure::new(ErrorCode::ProviderError, message));
    assert_eq!(record.message.expect("kept").len(), TerminalRecord::MAX_MESSAGE);
}

#[tokio::test]
async fn nothing_that_was_said_has_a_column() {
    let fixture = fixture();
    fixture.history.received(receipt(id("1"), "2026-11-30T00:00:00Z"));
    fixture.flushed().await;
    let connection =
        rusqlite::Connection::open(fixture.dir.path().join("history.db")).expect("opens");
    let mut statement = connection
        .prepare(
            "SELECT DISTINCT c.name FROM sqlite_schema t, pragma_table_info(t.name) c
            WHERE t.type = 'table' ORDER BY c.name",
        )
        .expect("prepares");
    let columns: Vec<String> = statement
        .query_map([], |row| row.get(0))
        .expect("reads")
        .collect::<Result<_, _>>()
        .expect("reads");
    // Whoever adds a column decides here whether it could hold a prompt, an answer or a secret.
    // Texts of JSON hold what `AttemptRecord` and `Stall` hold.
    let known = [
        "attempts",
        "code",
        "form",
        "input_tokens",
        "message",
        "output_tokens",
        "principal",
        "queued_ms",
        "received_at",
        "request_id",
        "retryable",
        "route",
        "run_id",
        "session_id",
        "stall",
        "surface",
        "terminal_kind",
        "usage_source",
    ];
    assert_eq!(columns, known);
}

#[cfg(unix)]
#[tokio::test]
async fn every_file_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = fixture();
    fixture.history.received(receipt(id("1"), "2026-11-30T00:00:00Z"));
    fixture.flushed().await;
    let mut names = Vec::new();
    for entry in std::fs::read_dir(fixture.dir.path()).expect("reads") {
        let entry = entry.expect("reads");
        let mode = entry.metadata().expect("exists").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{entry:?}");
        names.push(entry.file_name());
    }
    names.sort();
    assert_eq!(names, ["history.db", "history.db-shm", "history.db-wal", "lock"]);
}
