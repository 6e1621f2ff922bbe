//! The command line: what can be typed, and nothing of what it does.
//!
//! Noun, then verb. Every flag has a line of help with its default; precedence is flag, `IOP_*`
//! variable, file, default, and nothing needs a variable.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use iop_config::{EdgeOverlay, ProviderFlag, SecretFlag};

use crate::ollama::{Object, Server};

/// Where the help lists what every command takes.
const EVERYWHERE: &str = "Options of every command";

/// One endpoint for the model servers you already run.
#[derive(Debug, Parser)]
#[command(name = "iop", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Start here:  iop up          serves what runs on this machine\n\
                        \x20            iop up --demo   serves a built-in provider, to try it out")]
pub(crate) struct Cli {
    /// What is logged [default: warn; info for `iop edge` and `iop node run`]
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "FILTER", env = "IOP_LOG")]
    pub log: Option<String>,

    /// How log lines look
    #[arg(
        long,
        global = true,
        help_heading = EVERYWHERE,
        value_name = "FORMAT",
        env = "IOP_LOG_FORMAT",
        default_value = "text"
    )]
    pub log_format: LogFormat,

    /// Threads that work, 1 to 1024 [default: all cores]
    #[arg(
        long,
        global = true,
        help_heading = EVERYWHERE,
        value_name = "N",
        env = "IOP_WORKERS",
        value_parser = clap::value_parser!(u16).range(1..=MAX_WORKERS)
    )]
    pub workers: Option<u16>,

    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// More threads than any machine has cores: beyond it, threads only cost memory.
const MAX_WORKERS: i64 = 1024;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve what runs on this machine: Edge and Node in one process
    Up(Up),
    /// Run an Edge: what clients talk to and Nodes dial
    Edge(Edge),
    /// Run a Node: what executes on one machine
    #[command(subcommand)]
    Node(Node),
    /// Show how the Edge and its Nodes are
    Status(Asking),
    /// List the models that clients can use
    Models(Asking),
    /// Look at the Nodes of the group
    #[command(subcommand)]
    Nodes(Nodes),
    /// Look at the providers of all Nodes
    #[command(subcommand)]
    Providers(Providers),
    /// Look at the history of runs, and cancel one
    #[command(subcommand)]
    Runs(Runs),
    /// Chat with a model in the terminal
    Chat(Chat),
    /// Call one operation of an Ollama server's own API; never inference
    Ollama(Ollama),
    /// Work with configuration files
    #[command(subcommand)]
    Config(Config),
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// Returns what is logged unless somebody says otherwise. `iop up` and the commands that ask an
    /// Edge print for people; a process that serves alone logs how it lives.
    pub(crate) const fn usual_log(&self) -> &'static str {
        match self {
            Self::Edge(_) | Self::Node(_) => "info",
            Self::Up(_)
            | Self::Status(_)
            | Self::Models(_)
            | Self::Nodes(_)
            | Self::Providers(_)
            | Self::Runs(_)
            | Self::Chat(_)
            | Self::Ollama(_)
            | Self::Config(_)
            | Self::Completions { .. } => "warn",
        }
    }
}

/// `iop up`
#[derive(Debug, Args)]
pub(crate) struct Up {
    /// A provider to serve; may be repeated. Without: local model servers
    #[arg(long = "provider", value_name = "NAME=ADAPTER:URL")]
    pub providers: Vec<ProviderFlag>,

    /// Serve only the built-in demo provider, whose answers are invented
    #[arg(long, conflicts_with_all = ["providers", "config"])]
    pub demo: bool,

    /// Send one chat through the whole path, print the answer, go on
    #[arg(long = "try", value_name = "TEXT")]
    pub try_text: Option<String>,

    /// Calls each provider given here takes at once [default: by adapter]
    #[arg(long, value_name = "N", requires = "providers", conflicts_with = "demo")]
    pub max_concurrency: Option<NonZeroU32>,

    /// Let `iop ollama` pull, copy and delete models of Ollamas here
    #[arg(long, conflicts_with = "demo")]
    pub manage_models: bool,

    /// An Edge file to start from
    #[arg(long, value_name = "FILE", env = "IOP_CONFIG")]
    pub config: Option<PathBuf>,

    /// A Node file, for secrets; its `egress` then says what may be dialled
    #[arg(long, value_name = "FILE", env = "IOP_NODE_CONFIG")]
    pub node_config: Option<PathBuf>,

    /// Where a secret is kept that a provider in the Edge file names
    #[arg(long = "secret", value_name = "NAME=env:VARIABLE|file:PATH")]
    pub secrets: Vec<SecretFlag>,

    /// Where it listens.
    #[command(flatten)]
    pub listen: Listen,
}

/// Where an Edge listens and keeps its data.
#[derive(Debug, Args)]
pub(crate) struct Listen {
    /// Address for clients [default: 127.0.0.1:7400]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub listen: Option<SocketAddr>,

    /// Address for Nodes [default: 127.0.0.1:7401]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub node_listen: Option<SocketAddr>,

    /// Address for the command line and metrics [default: 127.0.0.1:7402]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub admin_listen: Option<SocketAddr>,

    /// Folder for history [default: by operating system]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<String>,
}

/// Reads an address; clap repeats what was typed.
fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "write IP:PORT, like 127.0.0.1:7400 or [::1]:7400")
}

impl Listen {
    /// Returns what the flags override.
    pub(crate) fn overlay(&self) -> EdgeOverlay {
        EdgeOverlay {
            listen_clients: self.listen,
            listen_nodes: self.node_listen,
            listen_admin: self.admin_listen,
            data_dir: self.data_dir.clone(),
        }
    }
}

/// `iop edge`
#[derive(Debug, Args)]
pub(crate) struct Edge {
    /// The Edge file; `iop config example` prints one
    #[arg(long, value_name = "FILE", env = "IOP_CONFIG")]
    pub config: PathBuf,

    /// Where it listens.
    #[command(flatten)]
    pub listen: Listen,
}

/// `iop node`
#[derive(Debug, Subcommand)]
#[command(after_help = "What runs already:  iop nodes list   iop nodes show NAME")]
pub(crate) enum Node {
    /// Dial the Edge that the Node file names and execute what it sends
    Run {
        /// The Node file
        #[arg(long, value_name = "FILE", env = "IOP_NODE_CONFIG")]
        config: PathBuf,
    },
}

/// How an Edge is asked.
#[derive(Debug, Clone, Args)]
pub(crate) struct Asking {
    /// Where the Edge's admin listener is
    #[arg(long, value_name = "URL", env = "IOP_ADMIN", default_value = "http://127.0.0.1:7402")]
    pub admin: String,

    /// How the answer is printed
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Output,
}

/// How an answer is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Table,
    /// The Edge's own JSON.
    Json,
}

/// `iop runs`
#[derive(Debug, Subcommand)]
pub(crate) enum Runs {
    /// List the newest runs
    List {
        /// At most this many
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: u32,
        /// Only runs of this model
        #[arg(long, value_name = "NAME")]
        model: Option<String>,
        /// Only runs that ran on this Node
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        /// Only runs that ended with this code, as in `node_lost`
        #[arg(long, value_name = "CODE")]
        code: Option<String>,
        /// How the Edge is asked.
        #[command(flatten)]
        asking: Asking,
    },
    /// Show one run with all its attempts
    Show {
        /// Its id, the beginning of it, or its request id (`x-request-id`)
        id: String,
        /// How the Edge is asked.
        #[command(flatten)]
        asking: Asking,
    },
    /// Cancel one run that is under way, with all its attempts
    #[command(
        after_help = "Its client gets the error `cancelled`, or sees its stream end with it."
    )]
    Cancel {
        /// Its id, the beginning of it, or its request id (`x-request-id`)
        id: String,
        /// How the Edge is asked.
        #[command(flatten)]
        asking: Asking,
    },
}

/// `iop nodes`
#[derive(Debug, Subcommand)]
pub(crate) enum Nodes {
    /// List the Nodes that are linked or named in the Edge's file
    List {
        /// How the Edge is asked.
        #[command(flatten)]
        asking: Asking,
    },
    /// Show one Node: its link, and what it says of itself
    Show {
        /// Its name
        name: String,
        /// How the Edge is asked.
        #[command(flatten)]
        asking: Asking,
    },
}

/// `iop providers`
#[derive(Debug, Subcommand)]
pub(crate) enum Providers {
    /// List the providers of all Nodes
    List {
        /// How the Edge is asked.
        #[command(flatten)]
        asking: Asking,
    },
}

/// `iop ollama`
#[derive(Debug, Args)]
#[command(
    after_help = "Operations:  GET /api/version   GET /api/tags   GET /api/ps   POST /api/show\n\
                        With `manage_models`:  POST /api/pull   POST /api/copy   DELETE /api/delete\n\
                        \n\
                        iop ollama workstation/ollama GET /api/ps\n\
                        iop ollama workstation/ollama POST /api/pull '{\"model\":\"llama3.2:3b\"}'"
)]
pub(crate) struct Ollama {
    /// The server; `iop providers list` has them
    #[arg(value_name = "NODE/PROVIDER")]
    pub server: Server,

    /// GET, POST or DELETE
    pub method: String,

    /// Path of the operation
    pub path: String,

    /// Body of the operation, a JSON object
    pub body: Option<Object>,

    /// How the Edge is asked.
    #[command(flatten)]
    pub asking: Asking,
}

/// `iop chat`
#[derive(Debug, Args)]
pub(crate) struct Chat {
    /// What to say; without it, a conversation begins
    pub text: Option<String>,

    /// The model [default: the first that is available]
    #[arg(short, long, value_name = "NAME")]
    pub model: Option<String>,

    /// Where the Edge's client listener is
    #[arg(long, value_name = "URL", env = "IOP_ENDPOINT", default_value = "http://127.0.0.1:7400")]
    pub endpoint: String,

    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
}

/// `iop config`
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Validate a file and say what is wrong with it
    Check {
        /// The file
        file: PathBuf,
        /// What the file is [default: told by its keys]
        #[arg(long)]
        kind: Option<FileKind>,
    },
    /// Print the JSON schema
    Schema {
        /// Of which file
        #[arg(default_value = "edge")]
        kind: FileKind,
    },
    /// Print a commented file with every key and its default
    Example {
        /// Of which file
        #[arg(default_value = "edge")]
        kind: FileKind,
    },
}

/// Which configuration file is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileKind {
    /// The Edge's.
    Edge,
    /// A Node's.
    Node,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_of_up_fits_eighty_columns() {
        let help = Cli::try_parse_from(["iop", "up", "--help"]).unwrap_err().to_string();
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
