//! `scripts/simulate`: runs seeds, prints what broke and how to see it again.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Parser;
use tracing::Level;

/// Simulates whole Edges and Nodes.
#[derive(Parser)]
#[command(name = "simulate")]
struct Arguments {
    /// How many seeds.
    #[arg(default_value_t = 200)]
    count: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// This seed only, with its trace.
    #[arg(long)]
    seed: Option<u64>,
    /// With `--seed`: the software's logs as well.
    #[arg(long)]
    logs: bool,
    /// Seeds at once.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.seed {
        Some(seed) => show(seed, arguments.logs),
        None => run(&arguments),
    }
}

#[expect(clippy::print_stdout, reason = "what was asked for")]
fn show(seed: u64, logs: bool) -> ExitCode {
    let began = Instant::now();
    let report = iop_sim::run(seed, if logs { Level::DEBUG } else { Level::INFO });
    println!("{}", report.trace);
    if logs {
        println!("{}", report.log);
    }
    let (digest, simulated, took) = (report.digest, report.simulated, began.elapsed());
    println!("seed {seed}: digest {digest:016x}, {simulated:?} simulated in {took:.2?}");
    for violation in &report.violations {
        println!("{violation}");
    }
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[expect(clippy::print_stdout, reason = "what was asked for")]
fn run(arguments: &Arguments) -> ExitCode {
    let began = Instant::now();
    let next = AtomicU64::new(arguments.from);
    let last = arguments.from + arguments.count;
    let failed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= last {
                        return;
                    }
                    let report = iop_sim::run(seed, Level::INFO);
                    if !report.violations.is_empty() {
                        failed.fetch_add(1, Ordering::Relaxed);
                        println!("{}", report.verdict());
                    }
                }
            });
        }
    });
    let (count, failed, took) = (arguments.count, failed.into_inner(), began.elapsed());
    println!("{count} seeds, {failed} with violations, {took:.1?}");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
