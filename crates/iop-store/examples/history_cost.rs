//! What history costs: CPU a run on the caller's thread and on the writer's, bytes, and queries.
//!
//! ```text
//! cargo run --release -p iop-store --example history_cost -- edge [RUNS_A_SECOND] [SECONDS] [KEPT]
//! cargo run --release -p iop-store --example history_cost -- node [RUNS_A_SECOND] [SECONDS] [KEPT]
//! cargo run --release -p iop-store --example history_cost -- queries [RUNS]
//! ```
//!
//! `edge` and `node` push realistic runs at a steady rate, 15 000 a second for ten seconds unless
//! told otherwise; each ends 4 ms after its receipt, as under 64 busy connections. Runs are kept for
//! `KEPT` seconds, a month unless told otherwise: with fewer than the run lasts, what letting go costs
//! is in the figures. What the pacing itself costs is measured first, with nothing to record, and
//! subtracted. Figures are the scheduler's own account of each thread (Linux only). `queries` fills an Edge's history with a
//! million runs of a day and times what `iop runs` asks.

#![expect(clippy::print_stdout, reason = "a tool for people")]

use std::collections::VecDeque;
use std::error::Error;
use std::fs;
use std::time::{Duration, Instant};

use iop_store::{
    AttemptRecord, DataDir, EdgeHistory, Form, NodeHistory, Outcome, Query, Receipt, TerminalKind,
    TerminalRecord, UsageRecord, WorkOutcome, WorkReceipt,
};
use iop_types::{
    Attempt, ErrorCode, Failure, Generation, NodeId, ProviderKey, RequestId, RouteName, RunId,
    Target, Usage, UsageSource, WorkKey,
};
use jiff::Timestamp;

/// How long one run takes: 64 connections at 15 000 requests a second.
const DURATION: Duration = Duration::from_millis(4);
/// How often the producer wakes up.
const TICK: Duration = Duration::from_millis(1);
const SOON: Duration = Duration::from_secs(60);
const MONTH: u32 = 30 * 86_400;

type Failed = Box<dyn Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u32| match arguments.get(at) {
        Some(text) => text.parse().map_err(|_| format!("`{text}` is not a number")),
        None => Ok(default),
    };
    match arguments.first().map(String::as_str) {
        Some("edge") => edge(number(1, 15_000)?, number(2, 10)?, number(3, MONTH)?).await,
        Some("node") => node(number(1, 15_000)?, number(2, 10)?, number(3, MONTH)?).await,
        Some("queries") => queries(number(1, 1_000_000)?).await,
        _ => Err("say `edge`, `node` or `queries`; the head of this file explains them".into()),
    }
}

async fn edge(rate: u32, seconds: u32, kept: u32) -> Result<(), Failed> {
    let temporary = tempfile::tempdir()?;
    let dir = DataDir::open(temporary.path().join("edge"))?;
    let history = EdgeHistory::open(&dir, seconds_of(kept), Timestamp::now());
    let names = Names::new();
    let pacing = pace(rate, 1, |number| number, |_| {});
    let before = Cost::so_far()?;
    pace(
        rate,
        seconds,
        |number| {
            let receipt = names.receipt(number, Timestamp::now());
            history.received(receipt.clone());
            receipt
        },
        |receipt| history.ended(receipt, names.outcome()),
    );
    assert!(history.flush(SOON).await, "{:?}", history.health());
    let cost = Cost::so_far()?.since(&before);
    println!("edge: {:?}", history.health());
    assert!(history.close(SOON).await);
    cost.print(rate * seconds, pacing, &dir)
}

async fn node(rate: u32, seconds: u32, kept: u32) -> Result<(), Failed> {
    let temporary = tempfile::tempdir()?;
    let dir = DataDir::open(temporary.path().join("node"))?;
    let history = NodeHistory::open(&dir, seconds_of(kept), u64::MAX, Timestamp::now());
    let names = Names::new();
    let pacing = pace(rate, 1, |number| number, |_| {});
    let before = Cost::so_far()?;
    pace(
        rate,
        seconds,
        |number| {
            let receipt = names.work(number, Timestamp::now());
            history.received(receipt.clone());
            receipt
        },
        |receipt| {
            let outcome = WorkOutcome {
                head_ms: Some(3),
                ended_ms: 4,
                kind: TerminalKind::Completed,
                code: None,
            };
            history.ended(receipt, outcome);
        },
    );
    assert!(history.flush(SOON).await, "{:?}", history.health());
    let cost = Cost::so_far()?.since(&before);
    println!("node: {:?}", history.health());
    assert!(history.close(SOON).await);
    cost.print(rate * seconds, pacing, &dir)
}

async fn queries(runs: u32) -> Result<(), Failed> {
    let temporary = tempfile::tempdir()?;
    let dir = DataDir::open(temporary.path().join("edge"))?;
    let history = EdgeHistory::open(&dir, seconds_of(MONTH), Timestamp::now());
    let names = Names::new();
    let rare = runs / 3;
    let began = Timestamp::from_second(1_800_000_000)?;
    let at = |number: u32| {
        began + Duration::from_millis(86_400_000 * u64::from(number) / u64::from(runs))
    };
    for number in 0..runs {
        let mut receipt = names.receipt(number, at(number));
        let mut outcome = names.outcome();
        if number == rare {
            receipt.route = Some(RouteName::from("rare"));
            outcome.attempts[0].node = NodeId::from("attic");
            let failure = Failure::new(ErrorCode::NodeLost, "the link ended");
            outcome.terminal = TerminalRecord::failed(&failure);
        }
        history.ended(receipt, outcome);
        if number % 4000 == 3999 {
            assert!(history.flush(SOON).await, "{:?}", history.health());
        }
    }
    assert!(history.flush(SOON).await, "{:?}", history.health());
    let all = Query::default;
    let asked = [
        ("newest 50", all()),
        ("newest 1000", Query { limit: 1000, ..all() }),
        ("common route", Query { route: Some(names.route.clone()), ..all() }),
        ("one run of a rare route", Query { route: Some(RouteName::from("rare")), ..all() }),
        ("one run of a rare code", Query { code: Some(ErrorCode::NodeLost), ..all() }),
        ("one run of a rare node", Query { node: Some(NodeId::from("attic")), ..all() }),
        ("the last minute", Query { since: Some(at(runs - runs / 1440)), ..all() }),
    ];
    for (name, query) in asked {
        let began = Instant::now();
        let found = history.list(query).await?;
        println!("{name}: {} found in {:.1?}", found.len(), began.elapsed());
    }
    let id = names.receipt(rare, at(rare)).run_id.to_string();
    for (name, id) in [("whole id", &id[..]), ("beginning of an id", &id[..23])] {
        let began = Instant::now();
        let found = history.find(id).await.map(|run| run.receipt.run_id.to_string());
        println!("{name}: {found:?} in {:.1?}", began.elapsed());
    }
    assert!(history.close(SOON).await);
    println!("{:.1} bytes of file a run", file_bytes(&dir)? / f64::from(runs));
    Ok(())
}

const fn seconds_of(kept: u32) -> Duration {
    Duration::from_secs(kept as u64)
}

/// Begins and ends `rate` runs a second, and returns what that cost this thread, in nanoseconds a run.
fn pace<T>(rate: u32, seconds: u32, begin: impl Fn(u32) -> T, end: impl Fn(T)) -> f64 {
    let before = thread_ns("thread-self");
    let began = Instant::now();
    let total = rate * seconds;
    let mut open: VecDeque<(Instant, T)> = VecDeque::new();
    let mut begun = 0;
    while begun < total || !open.is_empty() {
        let now = Instant::now();
        while open.front().is_some_and(|(since, _)| now - *since >= DURATION) {
            end(open.pop_front().expect("there is a first").1);
        }
        let due = now.saturating_duration_since(began).as_secs_f64() * f64::from(rate);
        while begun < total && f64::from(begun) < due {
            open.push_back((now, begin(begun)));
            begun += 1;
        }
        std::thread::sleep(TICK);
    }
    let cost = thread_ns("thread-self").saturating_sub(before);
    cost as f64 / f64::from(total)
}

/// What a run is called.
struct Names {
    request_id: RequestId,
    route: RouteName,
    node: NodeId,
    provider: ProviderKey,
    target: Target,
}

impl Names {
    fn new() -> Self {
        Self {
            request_id: RequestId::from("req_0193a1b2c3d47e8f9a0b1c2d3e4f5a6b"),
            route: RouteName::from("llama3.2:3b"),
            node: NodeId::from("workstation"),
            provider: ProviderKey::from("ollama"),
            target: Target::from("llama3.2:3b"),
        }
    }

    /// An id as the Edge mints it, UUID v7: time, then a counter, then anything.
    fn run_id(number: u32, at: Timestamp) -> RunId {
        let mut id = [0; 16];
        id[..6].copy_from_slice(&at.as_millisecond().to_be_bytes()[2..]);
        id[6] = 0x70;
        id[8] = 0x80;
        id[9..13].copy_from_slice(&number.to_be_bytes());
        id[13..].copy_from_slice(&number.wrapping_mul(2_654_435_761).to_be_bytes()[1..]);
        RunId::from_slice(&id).expect("16 bytes")
    }

    fn receipt(&self, number: u32, at: Timestamp) -> Receipt {
        Receipt {
            run_id: Self::run_id(number, at),
            request_id: self.request_id.clone(),
            session_id: None,
            surface: "openai.chat".into(),
            principal: None,
            route: Some(self.route.clone()),
            form: None,
            received_at: at,
        }
    }

    fn outcome(&self) -> Outcome {
        Outcome {
            form: Some(Form::Tunnel),
            queued_ms: Some(0),
            attempts: vec![AttemptRecord {
                attempt: Attempt::FIRST,
                node: self.node.clone(),
                provider: self.provider.clone(),
                target: self.target.clone(),
                generation: Generation(3),
                why: Some("least_loaded".into()),
                sent_ms: Some(0),
                head_ms: Some(3),
                first_token_ms: Some(3),
                ended_ms: Some(4),
                terminal: Some(TerminalRecord::completed()),
                recovery_eligible: Some(false),
            }],
            terminal: TerminalRecord::completed(),
            usage: Some(UsageRecord {
                tokens: Usage { input_tokens: 25, output_tokens: 120 },
                source: UsageSource::Provider,
            }),
        }
    }

    fn work(&self, number: u32, at: Timestamp) -> WorkReceipt {
        WorkReceipt {
            key: WorkKey { run_id: Self::run_id(number, at), attempt: Attempt::FIRST },
            provider: self.provider.clone(),
            target: self.target.clone(),
            received_at: at,
        }
    }
}

/// What this process has used so far.
struct Cost {
    caller_ns: u64,
    writer_ns: u64,
    written_bytes: u64,
    writes: u64,
    waits: u64,
    resident_kib: u64,
}

impl Cost {
    fn so_far() -> Result<Self, Failed> {
        let mut writer_ns = 0;
        let mut waits = 0;
        for task in fs::read_dir("/proc/self/task")?.flatten() {
            let name = fs::read_to_string(task.path().join("comm"))?;
            if name.trim_end().ends_with("-history") {
                let path = format!("self/task/{}", task.file_name().to_string_lossy());
                writer_ns += thread_ns(&path);
                waits += figure(&task.path().join("status"), "voluntary_ctxt_switches:")?;
            }
        }
        let io = |name: &str| figure("/proc/self/io".as_ref(), name);
        Ok(Self {
            caller_ns: thread_ns("thread-self"),
            writer_ns,
            written_bytes: io("wchar:")?,
            writes: io("syscw:")?,
            waits,
            resident_kib: figure("/proc/self/status".as_ref(), "VmRSS:")?,
        })
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            caller_ns: self.caller_ns - before.caller_ns,
            writer_ns: self.writer_ns - before.writer_ns,
            written_bytes: self.written_bytes - before.written_bytes,
            writes: self.writes - before.writes,
            waits: self.waits - before.waits,
            resident_kib: self.resident_kib.saturating_sub(before.resident_kib),
        }
    }

    fn print(&self, runs: u32, pacing_ns: f64, dir: &DataDir) -> Result<(), Failed> {
        let runs = f64::from(runs);
        let caller = self.caller_ns as f64 / runs - pacing_ns;
        let writer = self.writer_ns as f64 / runs;
        println!("CPU us a run: caller {:.2}, writer {:.2}", caller / 1e3, writer / 1e3);
        println!(
            "a run: {:.0} bytes written in {:.3} writes, {:.4} waits of the writer, {:.1} bytes of file",
            self.written_bytes as f64 / runs,
            self.writes as f64 / runs,
            self.waits as f64 / runs,
            file_bytes(dir)? / runs,
        );
        println!("resident memory grew by {} KiB", self.resident_kib);
        Ok(())
    }
}

/// CPU time of one thread so far, in nanoseconds.
fn thread_ns(thread: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{thread}/schedstat")).expect("Linux");
    text.split_ascii_whitespace().next().and_then(|word| word.parse().ok()).expect("a figure")
}

fn figure(path: &std::path::Path, name: &str) -> Result<u64, Failed> {
    let text = fs::read_to_string(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such figure")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

fn file_bytes(dir: &DataDir) -> Result<f64, Failed> {
    Ok(fs::metadata(dir.path().join("history.db"))?.len() as f64)
}
