//! The processes of a group, each with a folder of its own.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

use iop_testkit::{IopProcess, ScriptedProvider};
use tempfile::TempDir;
use tokio::process::Command;

use super::{Edge, MODEL};

/// The command under test.
pub(crate) const IOP: &str = env!("CARGO_BIN_EXE_iop");

/// Any port of the loopback address, three times.
pub(crate) fn ports() -> [&'static str; 6] {
    ["--listen", "127.0.0.1:0", "--node-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
}

/// A process whose output is printed when the test fails.
pub(crate) struct Running {
    name: String,
    process: IopProcess,
}

impl Running {
    pub(crate) fn start(name: &str, arguments: &[&str]) -> Self {
        Self { name: name.to_owned(), process: IopProcess::start(IOP, arguments) }
    }

    /// Starts a prepared command, for tests that need a shell around it.
    pub(crate) fn start_command(name: &str, command: Command) -> Self {
        Self { name: name.to_owned(), process: IopProcess::start_command(command) }
    }

    /// Kills it and waits until it is gone.
    pub(crate) async fn end(&mut self) {
        self.process.kill();
        self.process.wait_for_exit().await;
    }
}

impl Deref for Running {
    type Target = IopProcess;

    fn deref(&self) -> &IopProcess {
        &self.process
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut IopProcess {
        &mut self.process
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("output of {}:\n{}", self.name, self.process.output());
        }
    }
}

/// `iop up`: an Edge and a Node in one process, linked over loopback.
pub(crate) struct Up {
    pub(crate) process: Running,
    pub(crate) edge: Edge,
    _dir: TempDir,
}

impl Up {
    /// Starts it with these arguments and waits until it has printed its endpoint.
    pub(crate) async fn start(arguments: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        let data = dir.path().display().to_string();
        let mut all = vec!["--log", "info", "up", "--data-dir", &data];
        all.extend(ports());
        all.extend(arguments);
        let process = Running::start("iop up", &all);
        let edge = Edge::found_in(&process).await;
        process.wait_for_line("Models ").await;
        Self { process, edge, _dir: dir }
    }

    /// Serves a scripted provider that takes so many calls at once.
    pub(crate) async fn serving(provider: &ScriptedProvider, capacity: usize) -> Self {
        let flag = format!("script=openai_compat:{}", provider.endpoint());
        let capacity = capacity.to_string();
        let up = Self::start(&["--provider", &flag, "--max-concurrency", &capacity]).await;
        up.edge.serves(MODEL).await;
        up
    }

    /// Serves a scripted provider whatever it lists.
    pub(crate) async fn serving_any(provider: &ScriptedProvider) -> Self {
        Self::start(&["--provider", &format!("script=openai_compat:{}", provider.endpoint())]).await
    }
}

/// An Edge and Nodes as processes of their own.
pub(crate) struct Apart {
    pub(crate) edge: Edge,
    pub(crate) process: Running,
    dir: TempDir,
}

impl Apart {
    /// Starts an Edge with this file; listeners and data directory are added to it.
    pub(crate) async fn start(file: &str) -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("edge.yaml"), file).unwrap();
        let process = run_edge(&dir, &ports());
        let edge = Edge::found_in(&process).await;
        Self { edge, process, dir }
    }

    /// Starts the Edge again, with the same file, addresses and data.
    pub(crate) async fn start_again(&mut self) {
        let [clients, nodes, admin] =
            [self.edge.clients, self.edge.nodes, self.edge.admin].map(|at| at.to_string());
        let listen = ["--listen", &clients, "--node-listen", &nodes, "--admin-listen", &admin];
        self.process = run_edge(&self.dir, &listen);
        self.edge = Edge::found_in(&self.process).await;
    }

    /// Starts a Node that dials the Edge and waits until the Edge has its link.
    pub(crate) async fn node(&self, name: &str) -> Running {
        let node = self.node_towards(name, self.edge.nodes);
        self.edge.linked(name).await;
        node
    }

    /// Starts a Node whose file has these lines too and waits until the Edge has its link.
    pub(crate) async fn node_with(&self, name: &str, lines: &str) -> Running {
        let node = self.process_with(name, self.edge.nodes, name, lines);
        self.edge.linked(name).await;
        node
    }

    /// Starts a Node that dials this address, which need not lead anywhere yet.
    pub(crate) fn node_towards(&self, name: &str, edge: SocketAddr) -> Running {
        self.process_of(name, edge, name)
    }

    /// Starts another process for a Node that runs already.
    pub(crate) fn twin(&self, name: &str) -> Running {
        self.process_of(name, self.edge.nodes, &format!("{name}-twin"))
    }

    fn process_of(&self, name: &str, edge: SocketAddr, folder: &str) -> Running {
        self.process_with(name, edge, folder, "")
    }

    fn process_with(&self, name: &str, edge: SocketAddr, folder: &str, lines: &str) -> Running {
        let path = self.dir.path().join(format!("{folder}.yaml"));
        let data = self.dir.path().join(folder);
        let mut file = "version: 1\n".to_owned();
        let _ = write!(file, "node: {name}\nedge: {edge}\ndata_dir: '{}'\n", data.display());
        file.push_str(lines);
        std::fs::write(&path, file).unwrap();
        let path = path.display().to_string();
        Running::start(name, &["node", "run", "--config", &path, "--log", "debug"])
    }
}

fn run_edge(dir: &TempDir, listen: &[&str]) -> Running {
    let file = dir.path().join("edge.yaml").display().to_string();
    let data = dir.path().join("edge").display().to_string();
    let mut arguments = vec!["edge", "--config", &file, "--data-dir", &data, "--log", "debug"];
    arguments.extend(listen);
    Running::start("iop edge", &arguments)
}
