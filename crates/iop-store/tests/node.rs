//! What a Node's history keeps.

use std::time::Duration;

use iop_store::{DataDir, NodeHistory, TerminalKind, WorkOutcome, WorkReceipt};
use iop_types::{Attempt, ErrorCode, RunId, WorkKey};
use jiff::Timestamp;
use serde_json::json;

const WEEK: Duration = Duration::from_secs(7 * 86_400);
const SOON: Duration = Duration::from_secs(20);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("in range")
}

fn receipt(number: u32, received_at: Timestamp) -> WorkReceipt {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&number.to_be_bytes());
    WorkReceipt {
        key: WorkKey { run_id: RunId::from_slice(&id).expect("16 bytes"), attempt: Attempt(2) },
        provider: "lab".into(),
        target: "llama".into(),
        received_at,
    }
}

const COMPLETED: WorkOutcome =
    WorkOutcome { head_ms: Some(5), ended_ms: 9, kind: TerminalKind::Completed, code: None };

fn open(dir: &DataDir, keep_bytes: u64) -> NodeHistory {
    NodeHistory::open(dir, WEEK, keep_bytes, at(1_800_000_000))
}

#[tokio::test]
async fn work_is_kept_with_times_and_end_and_without_content() {
    let temporary = tempfile::tempdir().expect("a directory");
    let dir = DataDir::open(temporary.path()).expect("usable");
    let history = open(&dir, u64::MAX);
    history.received(receipt(1, at(1_800_000_000)));
    history.ended(receipt(1, at(1_800_000_000)), COMPLETED);
    history.received(receipt(2, at(1_800_000_001)));
    assert!(history.flush(SOON).await);
    let shown = serde_json::to_value(history.list(10).await.expect("reads")).expect("serializes");
    assert_eq!(
        shown,
        json!([
            {
                "run_id": "00000002-0000-0000-0000-000000000000", "attempt": 2, "provider": "lab",
                "target": "llama", "received_at": "2027-01-15T08:00:01.000Z"
            },
            {
                "run_id": "00000001-0000-0000-0000-000000000000", "attempt": 2, "provider": "lab",
                "target": "llama", "received_at": "2027-01-15T08:00:00.000Z", "head_ms": 5,
                "ended_ms": 9, "kind": "completed"
            }
        ])
    );
    assert!(history.close(SOON).await);
    let history = open(&dir, u64::MAX);
    history.received(receipt(3, at(1_800_000_002)));
    assert!(history.flush(SOON).await);
    let work = history.list(10).await.expect("reads");
    assert_eq!((work[0].kind, work[0].code), (None, None));
    assert_eq!(work[1].kind, Some(TerminalKind::Failed));
    assert_eq!(work[1].code, Some(ErrorCode::Interrupted));
}

#[tokio::test]
async fn work_is_let_go_after_a_week() {
    let temporary = tempfile::tempdir().expect("a directory");
    let dir = DataDir::open(temporary.path()).expect("usable");
    let history = open(&dir, u64::MAX);
    let week = 7 * 86_400;
    for (number, second) in [(1, 0), (2, 1), (3, week), (4, week + 1)] {
        history.ended(receipt(number, at(1_800_000_000 + second)), COMPLETED);
    }
    assert!(history.flush(SOON).await);
    assert_eq!(history.list(10).await.expect("reads").len(), 3);
}

#[tokio::test]
async fn the_file_never_grows_past_its_bound() {
    let temporary = tempfile::tempdir().expect("a directory");
    let dir = DataDir::open(temporary.path()).expect("usable");
    let bound = 256 * 1024;
    let history = open(&dir, bound);
    for number in 0..8000 {
        history.ended(receipt(number, at(1_800_000_000 + i64::from(number))), COMPLETED);
        if number % 1000 == 0 {
            assert!(history.flush(SOON).await);
        }
    }
    assert!(history.flush(SOON).await);
    let kept = history.list(1000).await.expect("reads");
    assert_eq!(kept[0].received_at, at(1_800_000_000 + 7999), "the newest stays");
    assert!(history.close(SOON).await);
    let size = dir.path().join("history.db").metadata().expect("exists").len();
    // One batch may be over before the oldest rows go.
    assert!(size < 2 * bound, "{size} bytes");
}
