//! The `iop` command: reads flags and files, composes the hosts, prints for people.
//!
//! Standard output holds answers, standard error everything else. Exit codes: 0 done, 1 failed,
//! 2 wrong usage. Read `cli.rs` for what can be typed and `up.rs` for how one machine becomes one
//! endpoint.

#![expect(clippy::print_stdout, reason = "printing answers is what a command line is for")]

mod chat;
mod cli;
mod client;
mod config_command;
mod data_dir;
mod descriptors;
mod edge;
mod logging;
mod models;
mod node;
mod nodes;
mod ollama;
mod runs;
mod status;
mod stop_signal;
mod table;
mod up;

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use crate::chat::ChatError;
use crate::cli::{Cli, Command, Node};
use crate::client::AskError;
use crate::ollama::OllamaError;
use crate::table::printable;
use crate::up::UpError;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let usual = cli.command.usual_log();
    if let Err(reason) = logging::start(cli.log.as_deref(), usual, cli.log_format) {
        eprintln!("error: {reason}");
        return ExitCode::from(USAGE);
    }
    let runtime = match runtime(cli.workers) {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the runtime cannot be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(cli.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", faults(&printable(&chain(&*error))));
            if is_usage(&*error) { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}

/// Marks every line: a file may have several faults, each told on its own.
fn faults(told: &str) -> String {
    let lines: Vec<_> = told.lines().map(|line| format!("error: {line}")).collect();
    lines.join("\n")
}

/// Makes the runtime. A single worker needs no stealing: it runs on this thread.
fn runtime(workers: Option<u16>) -> io::Result<tokio::runtime::Runtime> {
    let mut builder = match workers {
        Some(1) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if let Some(workers) = workers {
        builder.worker_threads(usize::from(workers));
    }
    builder.enable_all().build()
}

/// Exit code of a command line that cannot be carried out as typed; clap's own.
const USAGE: u8 = 2;

/// Says whether the command line is to blame rather than what it met.
fn is_usage(error: &(dyn Error + 'static)) -> bool {
    let asked = |error: &(dyn Error + 'static)| {
        matches!(error.downcast_ref(), Some(AskError::Malformed { .. }))
    };
    match error.downcast_ref() {
        Some(OllamaError::NotListed(..)) => return true,
        Some(OllamaError::Ask(error)) => return asked(error),
        Some(OllamaError::Failed(_) | OllamaError::BrokenOff) | None => {}
    }
    match (error.downcast_ref(), error.downcast_ref()) {
        (Some(up), _) => UpError::is_usage(up),
        (None, Some(ChatError::Ask(error))) => asked(error),
        (None, _) => asked(error),
    }
}

async fn run(command: Command) -> Result<(), Box<dyn Error>> {
    match command {
        Command::Up(up) => up::run(up).await?,
        Command::Edge(edge) => edge::run(edge).await?,
        Command::Node(Node::Run { config }) => node::run(&config).await?,
        Command::Status(asking) => print(&status::run(&asking).await?)?,
        Command::Models(asking) => print(&models::run(&asking).await?)?,
        Command::Nodes(nodes) => print(&nodes::run(&nodes).await?)?,
        Command::Providers(providers) => print(&nodes::providers(&providers).await?)?,
        Command::Ollama(ollama) => print(&ollama::run(&ollama).await?)?,
        Command::Runs(runs) => print(&runs::run(&runs).await?)?,
        Command::Chat(chat) => chat::run(chat).await?,
        Command::Config(config) => print(&config_command::run(&config)?)?,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "iop", &mut script);
            print(&String::from_utf8_lossy(&script))?;
        }
    }
    Ok(())
}

/// Prints an answer. A reader that has seen enough, as in `iop runs list | head`, is no error.
fn print(answer: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(answer.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

/// Prints what a server has to say of itself. It serves on whether anybody can read that or not.
pub(crate) fn announce(text: &str) {
    if let Err(error) = print(text) {
        tracing::warn!(%error, "standard output cannot be written");
    }
}

/// Tells an error with everything that led to it, once.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut told = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        // Some libraries repeat their source in their own words.
        if !told.contains(&words) {
            let _ = write!(told, ": {words}");
        }
        source = cause.source();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_of_a_file_is_marked_as_an_error() {
        let text = "version: 2\nnodes: { a: { providers: { p: { adapter: ollama } } } }\n";
        let error = iop_config::EdgeConfig::parse(text, "edge.yaml").unwrap_err();
        let told = faults(&printable(&chain(&error)));
        assert_eq!(told.lines().count(), 2, "{told}");
        assert!(told.lines().all(|line| line.starts_with("error: edge.yaml:")), "{told}");
    }
}
