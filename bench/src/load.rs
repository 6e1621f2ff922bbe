//! The load: so many connections, each with one request at a time, for so many seconds.
//!
//! A *cell* is what is measured in one turn. `unary` and `stream` are closed loops: the next request
//! leaves when the answer is whole. `paced` opens all its streams once and the provider's schedule
//! sets the pace. Every answer is checked, also those that end after the measured window.

mod client;
mod tally;

pub(crate) use self::tally::{Quantiles, Report};

use self::client::Worker;
use self::tally::Tally;
use crate::process;
use std::cell::RefCell;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Streams of a closed loop have as many chunks: the size of a short real answer.
const CHUNKS: u64 = 100;

/// What to send where, and whom to watch.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Host and port of the target, on loopback.
    #[arg(long)]
    target: SocketAddr,
    /// The model to ask for.
    #[arg(long, default_value = "mock-model")]
    model: String,
    /// What is measured.
    #[arg(long, value_enum, default_value = "unary")]
    cell: Kind,
    /// Connections, each with one request at a time.
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Length of the measured window.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Time before the window, not counted.
    #[arg(long, default_value_t = 0.5)]
    warmup: f64,
    /// Chunks a second of each paced stream.
    #[arg(long, default_value_t = 20)]
    rate: u32,
    /// Bytes of the prompt.
    #[arg(long, default_value_t = 300)]
    prompt_bytes: usize,
    /// Processes of the path under test.
    #[arg(long, value_delimiter = ',')]
    pids: Vec<u32>,
    /// Processes of the rig besides this one.
    #[arg(long, value_delimiter = ',')]
    rig_pids: Vec<u32>,
    /// Sends one request of each form and says whether both were answered well.
    #[arg(long)]
    once: bool,
}

/// The form of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Answers in one piece.
    Unary,
    /// Streams at full speed.
    Stream,
    /// Streams at a given rate.
    Paced,
}

/// Runs one cell and prints its report as JSON.
pub(crate) async fn main(arguments: &Arguments) -> io::Result<ExitCode> {
    if !arguments.target.ip().is_loopback() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} is not a loopback address: load stays on this machine", arguments.target),
        ));
    }
    let report = if arguments.once { once(arguments).await } else { measure(arguments).await };
    writeln!(io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One request of each form, as a check that the target works at all.
async fn once(arguments: &Arguments) -> Report {
    let tally = Rc::new(RefCell::new(Tally::default()));
    tally.borrow_mut().start();
    for kind in [Kind::Unary, Kind::Stream] {
        let mut worker = worker(&Arguments { cell: kind, ..arguments.clone() }, &tally);
        worker.exchange().await;
    }
    let tally = tally.borrow();
    tally.report(Duration::ZERO)
}

async fn measure(arguments: &Arguments) -> Report {
    let tally = Rc::new(RefCell::new(Tally::default()));
    let rss_before = process::resident_bytes(&arguments.pids);
    let warmup = Duration::from_secs_f64(arguments.warmup);
    let window = Duration::from_secs_f64(arguments.seconds);
    let end = Instant::now() + warmup + window;

    let workers: Vec<_> = (0..arguments.connections)
        .map(|number| {
            let mut worker = worker(arguments, &tally);
            let share = u32::try_from(number).unwrap_or(u32::MAX);
            let connections = u32::try_from(arguments.connections).unwrap_or(u32::MAX);
            let paced = arguments.cell == Kind::Paced;
            // Spread over one period, so that chunks do not come in volleys.
            let phase = Duration::from_secs(1) / arguments.rate.max(1) * share / connections.max(1);
            tokio::task::spawn_local(async move {
                if paced {
                    tokio::time::sleep(phase).await;
                    worker.exchange().await;
                } else {
                    worker.repeat_until(end).await;
                }
            })
        })
        .collect();

    let mut rig = arguments.rig_pids.clone();
    rig.push(std::process::id());
    tokio::time::sleep(warmup).await;
    tally.borrow_mut().start();
    let (began, path_began, rig_began) =
        (Instant::now(), process::cpu_ns(&arguments.pids), process::cpu_ns(&rig));
    tokio::time::sleep(window / 2).await;
    let rss_during = process::resident_bytes(&arguments.pids);
    tokio::time::sleep(window / 2).await;
    tally.borrow_mut().stop();
    let elapsed = began.elapsed();
    let path_cpu = process::cpu_ns(&arguments.pids).saturating_sub(path_began);
    let rig_cpu = process::cpu_ns(&rig).saturating_sub(rig_began);

    for worker in workers {
        // Every exchange is bounded, so every worker ends; a panic in one is a bug of the rig.
        worker.await.expect("a worker does not panic");
    }
    let mut report = tally.borrow().report(elapsed);
    report.rss_before = rss_before;
    report.rss_during = rss_during;
    report.set_cpu(path_cpu, rig_cpu, elapsed);
    report
}

fn worker(arguments: &Arguments, tally: &Rc<RefCell<Tally>>) -> Worker {
    let (chunks, delay_us) = match arguments.cell {
        Kind::Unary => (0, 0),
        Kind::Stream => (CHUNKS, 0),
        Kind::Paced => {
            let seconds = arguments.warmup + arguments.seconds;
            let chunks = (seconds * f64::from(arguments.rate)).ceil();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a few seconds times a few chunks, both positive"
            )]
            let chunks = chunks as u64;
            (chunks, 1_000_000 / u64::from(arguments.rate.max(1)))
        }
    };
    let knobs = format!("[[bench chunks={chunks} delay_us={delay_us}]] ");
    let filling = arguments.prompt_bytes.saturating_sub(knobs.len());
    let prompt: String = knobs.chars().chain("word ".chars().cycle().take(filling)).collect();
    let body = serde_json::json!({
        "model": arguments.model,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0.2,
        "stream": arguments.cell != Kind::Unary,
    });
    let expected = (arguments.cell != Kind::Unary).then_some(chunks);
    // A stream may take twice its schedule before it counts as stuck; anything else 30 s.
    let limit = Duration::from_secs(30).max(Duration::from_micros(2 * chunks * delay_us));
    Worker::new(arguments.target, body.to_string().into(), expected, limit, Rc::clone(tally))
}
