//! What a killed process leaves behind.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use iop_store::{DataDir, EdgeHistory, Outcome, Query, Receipt, TerminalRecord};
use iop_types::{ErrorCode, RequestId, RunId};
use jiff::Timestamp;

/// Where the child works; set only for a child.
const CHILD_DIR: &str = "IOP_STORE_TEST_CHILD_DIR";
const MONTH: Duration = Duration::from_secs(30 * 86_400);
/// Runs that are older than a batch when the process is killed; every third has ended.
const OLD: u8 = 150;
/// Runs of the batch in which the process is killed.
const YOUNG: u8 = 60;

fn receipt(number: u8) -> Receipt {
    Receipt {
        run_id: RunId::from_slice(&[number; 16]).expect("16 bytes"),
        request_id: RequestId::from("r"),
        session_id: None,
        surface: "openai.chat".into(),
        principal: None,
        route: None,
        form: None,
        received_at: Timestamp::from_second(1_800_000_000).expect("in range"),
    }
}

const fn has_ended(number: u8) -> bool {
    number.is_multiple_of(3)
}

#[tokio::test]
async fn a_killed_process_leaves_interrupted_for_every_run_older_than_a_batch() {
    let temporary = tempfile::tempdir().expect("a directory");
    let path = temporary.path().join("edge");
    let mut child = spawn(&path);
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut wait_for = |word: &str| {
        lines
            .by_ref()
            .map(|line| line.expect("readable"))
            .find(|line| line.ends_with(word))
            .expect("said")
    };
    wait_for("pushed old");
    wait_until_visible(&path, OLD);
    writeln!(child.stdin.as_mut().expect("piped")).expect("writes");
    wait_for("pushed young");
    child.kill().expect("killed");
    child.wait().expect("gone");

    let dir = DataDir::open(&path).expect("the lock went with the process");
    let history =
        EdgeHistory::open(&dir, MONTH, Timestamp::from_second(1_800_000_000).expect("in range"));
    let fresh = 255;
    history.received(receipt(fresh));
    assert!(history.flush(Duration::from_secs(10)).await, "{:?}", history.health());
    let runs = history.list(Query { limit: 1000, ..Query::default() }).await.expect("reads");
    let mut old = 0;
    for run in &runs {
        let number = run.receipt.run_id.as_bytes()[0];
        let code = run.terminal.as_ref().and_then(|terminal| terminal.code);
        match number {
            0..OLD => {
                old += 1;
                let expected = (!has_ended(number)).then_some(ErrorCode::Interrupted);
                assert_eq!(code, expected, "run {number}");
                assert!(run.terminal.is_some());
            }
            fresh_run if fresh_run == fresh => assert_eq!(run.terminal, None),
            _ => assert_eq!(code, Some(ErrorCode::Interrupted), "run {number}"),
        }
    }
    assert_eq!(old, u32::from(OLD));
    assert_eq!(history.health().set_aside, None);
}

/// The other process; does nothing in an ordinary run of the tests.
#[tokio::test]
async fn child() {
    let Some(path) = std::env::var_os(CHILD_DIR) else { return };
    let dir = DataDir::open(Path::new(&path)).expect("free");
    let history = EdgeHistory::open(&dir, MONTH, Timestamp::UNIX_EPOCH);
    for number in 0..OLD {
        history.received(receipt(number));
        if has_ended(number) {
            let outcome = Outcome {
                form: None,
                queued_ms: None,
                attempts: Vec::new(),
                terminal: TerminalRecord::completed(),
                usage: None,
            };
            history.ended(receipt(number), outcome);
        }
    }
    println!("pushed old");
    std::io::stdin().read_line(&mut String::new()).expect("readable");
    (OLD..OLD + YOUNG).for_each(|number| history.received(receipt(number)));
    println!("pushed young");
    std::future::pending::<()>().await;
}

fn spawn(path: &Path) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD_DIR, path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts")
}

/// Waits until rows are on disk without anybody asking for it: a batch is at most 50 ms old. It
/// polls, because a file of another process gives no signal.
fn wait_until_visible(path: &Path, count: u8) {
    for _ in 0..500 {
        let seen = rusqlite::Connection::open(path.join("history.db")).and_then(|connection| {
            connection.query_row(
                "SELECT (SELECT count(*) FROM runs) + (SELECT count(*) FROM at_work)",
                [],
                |row| row.get::<_, i64>(0),
            )
        });
        if seen == Ok(i64::from(count)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("rows did not reach the disk within 10 s");
}
