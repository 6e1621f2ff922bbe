//! The side-by-side run: same provider, same load, every target in turns.
//!
//! For each cell and repetition every target takes its turn, and the order is rotated by one with
//! each repetition, so that whatever else the machine does meets all alike. What is compared are
//! ratios within a repetition; the medians of those are printed.
//!
//! The rig (provider and load) is pinned to the first core and the whole path under test to the last:
//! one core for everything that stands between, however many processes that is.

mod cell;
mod child;
mod summary;
mod target;

use self::cell::Cell;
use self::child::{Children, Pinning};
use self::summary::{Results, Turn};
use self::target::Target;
use crate::load::Report;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How much to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Shorter turns: about a third of the time, noisier figures.
    #[arg(long)]
    quick: bool,
    /// How many times every target takes its turn in every cell.
    #[arg(long, default_value_t = 3)]
    repetitions: usize,
    /// Only these targets; `direct` is always measured.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only these cells, such as `unary-64`.
    #[arg(long, value_delimiter = ',')]
    cells: Vec<String>,
    /// The release build of `iop` (default: beside this program).
    #[arg(long)]
    iop: Option<PathBuf>,
    /// A folder with the programs `vllm-router` and `smg`, to be measured beside the others.
    #[arg(long)]
    peer_programs: Option<PathBuf>,
    /// Where `results.json` and `results.md` go.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
    /// Lets the system place the processes.
    #[arg(long)]
    unpinned: bool,
}

/// Why a run could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("cannot {what}")]
    Io { what: String, source: io::Error },
    #[error("no target or cell is called `{0}`; there are {1}")]
    UnknownName(String, String),
    #[error("`{0}` does not answer a request as it should: {1}\n{2}")]
    TargetFails(String, String, String),
    #[error("the load printed no report: {0}")]
    NoReport(String),
    #[error("`{0}` ended at once:\n{1}")]
    Ended(String, String),
}

impl RunError {
    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// Measures everything, prints the tables and says by its exit code whether IOP made no mistake.
pub(crate) async fn main(arguments: &Arguments) -> Result<ExitCode, RunError> {
    let pinning = if arguments.unpinned { Pinning::none() } else { Pinning::first_and_last() };
    let mut children = Children::new(pinning)?;
    // Whatever happens, what was started is stopped.
    let measured = measure(arguments, &mut children).await;
    children.stop().await;
    let results = measured?;

    let markdown = results.markdown();
    std::fs::create_dir_all(&arguments.out).map_err(RunError::io("make the folder of results"))?;
    let json = serde_json::to_string_pretty(&results).expect("results are plain data");
    for (name, text) in [("results.json", &json), ("results.md", &markdown)] {
        let path = arguments.out.join(name);
        let what = format!("write {}", path.display());
        std::fs::write(path, text).map_err(RunError::io(what))?;
    }
    let mut out = io::stdout();
    writeln!(out, "{markdown}").map_err(RunError::io("print the tables"))?;
    let faults = results.faults_of(target::IOP);
    Ok(if faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure(arguments: &Arguments, children: &mut Children) -> Result<Results, RunError> {
    let cells = Cell::selected(arguments.quick, &arguments.cells)?;
    note("starting the provider and the targets");
    let (iop, peers) = (arguments.iop.as_deref(), arguments.peer_programs.as_deref());
    let targets = target::start_all(iop, peers, &arguments.only, children).await?;
    for target in &targets {
        check(target, children).await?;
    }
    let mut results = Results::new(arguments.repetitions, &targets, children.pinning());
    for cell in &cells {
        for repetition in 0..arguments.repetitions {
            for position in 0..targets.len() {
                let target = &targets[(position + repetition) % targets.len()];
                let report = turn(cell, target, children).await?;
                note(&format!("{cell} {}/{} {target}", repetition + 1, arguments.repetitions));
                let (cell, target) = (cell.to_string(), target.name.to_owned());
                results.add(Turn { cell, target, repetition, report });
            }
        }
    }
    Ok(results)
}

/// Asks until the target answers both forms well: its processes may still be starting.
async fn check(target: &Target, children: &Children) -> Result<(), RunError> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let arguments =
            ["load".to_owned(), "--once".to_owned(), format!("--target={}", target.address)];
        let report = children.load(&arguments).await?;
        if report.is_clean() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let why =
                report.first_error.unwrap_or_else(|| "a short or disordered answer".to_owned());
            return Err(RunError::TargetFails(target.name.to_owned(), why, children.logs()));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn turn(cell: &Cell, target: &Target, children: &Children) -> Result<Report, RunError> {
    let mut arguments = cell.load_arguments();
    arguments.push(format!("--target={}", target.address));
    let list = |pids: &[u32]| pids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    if !target.pids.is_empty() {
        arguments.push(format!("--pids={}", list(&target.pids)));
    }
    arguments.push(format!("--rig-pids={}", list(children.rig())));
    children.load(&arguments).await
}

fn note(what: &str) {
    eprintln!("bench: {what}");
}
