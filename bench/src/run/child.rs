//! The processes of a run: started pinned, logged, and stopped by their own ids.

use super::RunError;
use crate::load::Report;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// Which core the rig and the path run on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pinning(Option<(usize, usize)>);

impl Pinning {
    /// Leaves it to the system.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// The first and the last core that this process may use; nothing on a single core.
    pub(super) fn first_and_last() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let numbers: Vec<usize> = allowed
            .unwrap_or_default()
            .split([',', '-'])
            .filter_map(|number| number.trim().parse().ok())
            .collect();
        Self(match (numbers.first(), numbers.last()) {
            (Some(&first), Some(&last)) if first != last => Some((first, last)),
            _ => None,
        })
    }

    /// How the results describe it.
    pub(super) fn describe(self) -> String {
        match self.0 {
            Some((rig, path)) => format!("rig on core {rig}, whole path on core {path}"),
            None => "nothing pinned".to_owned(),
        }
    }
}

/// On which side of the measurement a process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Provider or load.
    Rig,
    /// Part of a path under test.
    Path,
}

/// All started processes and the folder with their files.
#[derive(Debug)]
pub(super) struct Children {
    folder: TempDir,
    pinning: Pinning,
    this_program: PathBuf,
    running: Vec<(String, Child)>,
    rig: Vec<u32>,
}

impl Children {
    pub(super) fn new(pinning: Pinning) -> Result<Self, RunError> {
        Ok(Self {
            folder: TempDir::new().map_err(RunError::io("make a folder for the run"))?,
            pinning,
            this_program: std::env::current_exe().map_err(RunError::io("find this program"))?,
            running: Vec::new(),
            rig: Vec::new(),
        })
    }

    pub(super) fn pinning(&self) -> Pinning {
        self.pinning
    }

    /// The processes of the rig, besides the load itself.
    pub(super) fn rig(&self) -> &[u32] {
        &self.rig
    }

    /// The folder for configuration and data of this run; removed at its end.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file into the folder and returns its path.
    pub(super) fn file(&self, name: &str, content: &str) -> Result<PathBuf, RunError> {
        let path = self.folder().join(name);
        fs::write(&path, content).map_err(RunError::io(format!("write {name}")))?;
        Ok(path)
    }

    /// A loopback address that was free a moment ago.
    pub(super) fn free_address() -> Result<SocketAddr, RunError> {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.local_addr())
            .map_err(RunError::io("find a free port"))
    }

    /// Starts a process of the path and returns its id.
    pub(super) fn start(
        &mut self,
        name: &str,
        program: &Path,
        arguments: &[String],
    ) -> Result<u32, RunError> {
        let log = self.log(name)?;
        let mut command = self.command(Side::Path, program);
        command.args(arguments).stdout(log.0).stderr(log.1);
        self.spawn(name, command)
    }

    /// Starts the provider and returns its address once it listens.
    pub(super) async fn start_provider(&mut self) -> Result<SocketAddr, RunError> {
        let log = self.log("provider")?;
        let mut command = self.command(Side::Rig, &self.this_program);
        command.arg("provider").stdout(Stdio::piped()).stderr(log.1);
        let pid = self.spawn("provider", command)?;
        self.rig.push(pid);
        let (_, child) = self.running.last_mut().expect("just started");
        let stdout = child.stdout.take().expect("stdout is piped");
        let mut line = String::new();
        BufReader::new(stdout)
            .read_line(&mut line)
            .await
            .map_err(RunError::io("read the address of the provider"))?;
        let address = line.trim().rsplit("//").next().and_then(|address| address.parse().ok());
        address.ok_or_else(|| RunError::Ended("provider".to_owned(), self.logs()))
    }

    /// Runs the load on the rig's core and reads its report.
    pub(super) async fn load(&self, arguments: &[String]) -> Result<Report, RunError> {
        let mut command = self.command(Side::Rig, &self.this_program);
        let output = command
            .args(arguments)
            .stderr(Stdio::inherit())
            .output()
            .await
            .map_err(RunError::io("run the load"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(&text).map_err(|error| RunError::NoReport(format!("{error}: {text}")))
    }

    /// The ends of all logs.
    pub(super) fn logs(&self) -> String {
        let tail = |name: &String| {
            let text = fs::read_to_string(self.folder().join(format!("{name}.log")));
            let text = text.unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = lines[lines.len().saturating_sub(15)..].join("\n");
            format!("--- {name}\n{last}\n")
        };
        self.running.iter().map(|(name, _)| tail(name)).collect()
    }

    /// Asks every process to end, and kills those that have not after five seconds.
    pub(super) async fn stop(&mut self) {
        for (_, child) in &self.running {
            let raw = child.id().and_then(|pid| i32::try_from(pid).ok());
            if let Some(pid) = raw.and_then(Pid::from_raw) {
                // It may have ended by itself.
                let _ = kill_process(pid, Signal::TERM);
            }
        }
        for (name, mut child) in self.running.drain(..) {
            if tokio::time::timeout(Duration::from_secs(5), child.wait()).await.is_err() {
                super::note(&format!("{name} did not end within 5 s of SIGTERM and was killed"));
                let _ = child.kill().await;
            }
        }
    }

    fn spawn(&mut self, name: &str, mut command: Command) -> Result<u32, RunError> {
        let child = command.spawn().map_err(RunError::io(format!("start {name}")))?;
        let pid = child.id().expect("a child that was not awaited has an id");
        self.running.push((name.to_owned(), child));
        Ok(pid)
    }

    fn command(&self, side: Side, program: &Path) -> Command {
        let mut command = match (self.pinning.0, side) {
            (Some((rig, path)), side) => {
                let core = if side == Side::Rig { rig } else { path };
                // taskset replaces itself by the program: the process id stays.
                let mut command = Command::new("taskset");
                command.arg("-c").arg(core.to_string()).arg(program);
                command
            }
            (None, _) => Command::new(program),
        };
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    fn log(&self, name: &str) -> Result<(Stdio, Stdio), RunError> {
        let path = self.folder().join(format!("{name}.log"));
        let file =
            fs::File::create(path).map_err(RunError::io(format!("make the log of {name}")))?;
        let twin = file.try_clone().map_err(RunError::io(format!("share the log of {name}")))?;
        Ok((file.into(), twin.into()))
    }
}
