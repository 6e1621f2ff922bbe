//! `iop-bench`: what a request and a streamed chunk cost on their way through IOP.
//!
//! Three commands in one program. [`provider`] is a fast scripted provider, [`load`] sends it
//! requests through whatever stands in between and checks every stream, and [`run`] puts both around
//! a bare connection, nginx, two nginx in a row, and a real Edge and Node, in turns, and prints how
//! they compare.
//!
//! What is decided here is only how to measure fairly: the same provider and load for all, every
//! target in every repetition, ratios to the direct connection *of the same repetition*, the
//! rig on one core and the whole path under test on another. `docs/performance.md` explains the
//! figures.

mod load;
mod monotonic;
mod process;
mod provider;
mod run;
mod stamp;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Measures IOP beside a direct connection and nginx.
#[derive(Debug, Parser)]
#[command(name = "iop-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves scripted OpenAI-compatible answers on loopback.
    Provider(provider::Arguments),
    /// Sends requests to one base URL, checks the answers and prints one JSON object.
    Load(load::Arguments),
    /// Measures direct, nginx and IOP side by side and prints ratios.
    Run(run::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // One thread: a rig that spreads over cores would compete with what it measures.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    let outcome: Result<ExitCode, Box<dyn std::error::Error>> = tokio::task::LocalSet::new()
        .block_on(&runtime, async {
            match arguments.command {
                Command::Provider(arguments) => {
                    provider::serve(&arguments).await.map_err(Into::into)
                }
                Command::Load(arguments) => load::main(&arguments).await.map_err(Into::into),
                Command::Run(arguments) => run::main(&arguments).await.map_err(Into::into),
            }
        });
    match outcome {
        Ok(code) => code,
        Err(error) => fail(error.as_ref()),
    }
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message.push_str(": ");
        message.push_str(&error.to_string());
        cause = error.source();
    }
    eprintln!("iop-bench: {message}");
    ExitCode::FAILURE
}
