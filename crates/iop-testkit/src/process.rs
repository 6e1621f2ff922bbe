//! The real `iop` command as a child process.
//!
//! ```no_run
//! # async fn example() {
//! use iop_testkit::IopProcess;
//!
//! // A test of the `iop` crate writes env!("CARGO_BIN_EXE_iop").
//! let mut iop = IopProcess::start("target/debug/iop", &["up", "--demo", "--listen", "127.0.0.1:0"]);
//! let line = iop.wait_for_line("listening").await;
//! assert!(line.contains("127.0.0.1"));
//! iop.terminate();
//! assert!(iop.wait_for_exit().await.success());
//! # }
//! ```
//!
//! Output of both streams is kept line by line and printed when a wait fails. A process that the
//! test forgets is killed when the value is dropped.

use crate::PATIENCE;
use crate::http;
use crate::kernel;
use rustix::process::{Pid, Signal};
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::watch;

/// A started child process whose output is captured.
#[derive(Debug)]
pub struct IopProcess {
    child: Child,
    pid: u32,
    stdin: Option<ChildStdin>,
    output: Arc<Output>,
}

/// One of the two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl IopProcess {
    /// Starts `binary` with these arguments and without any `IOP_*` variable of the surroundings.
    ///
    /// # Panics
    /// Panics when the binary cannot be started.
    #[must_use]
    pub fn start<A: AsRef<OsStr>>(binary: impl AsRef<Path>, arguments: &[A]) -> Self {
        let mut command = Command::new(binary.as_ref());
        command.args(arguments);
        Self::start_command(command)
    }

    /// Starts a prepared command, for tests that need a folder or variables of their own.
    ///
    /// # Panics
    /// Panics when the command cannot be started.
    #[must_use]
    pub fn start_command(mut command: Command) -> Self {
        let own: Vec<_> = command.as_std().get_envs().map(|(name, _)| name.to_owned()).collect();
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("IOP_") && !own.contains(&name) {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => panic!("cannot start {command:?}: {error}"),
        };
        let output = Arc::new(Output::default());
        let stdout = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().expect("stderr is piped");
        // Detached: they end with the child's streams.
        tokio::spawn(capture(stdout, Stream::Out, Arc::clone(&output)));
        tokio::spawn(capture(stderr, Stream::Err, Arc::clone(&output)));
        let pid = child.id().expect("a child that was not awaited has an id");
        let stdin = child.stdin.take();
        Self { child, pid, stdin, output }
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// All lines of one stream up to now.
    #[must_use]
    pub fn lines(&self, stream: Stream) -> Vec<String> {
        let lines = self.output.lines();
        lines.iter().filter(|(from, _)| *from == stream).map(|(_, line)| line.clone()).collect()
    }

    /// Both streams up to now, in the order in which they were read.
    #[must_use]
    pub fn output(&self) -> String {
        self.output.lines().iter().map(|(from, line)| format!("{from:?}: {line}\n")).collect()
    }

    /// Waits for a line that contains `text`, on either stream, and returns it.
    ///
    /// # Panics
    /// Panics with the whole output when no such line comes within [`PATIENCE`].
    pub async fn wait_for_line(&self, text: &str) -> String {
        self.wait_for(&format!("a line with `{text}`"), |lines| {
            lines.iter().find(|(_, line)| line.contains(text)).map(|(_, line)| line.clone())
        })
        .await
    }

    /// Waits until `look` finds something in the lines.
    ///
    /// # Panics
    /// As [`wait_for_line`](Self::wait_for_line).
    pub async fn wait_for<T>(
        &self,
        what: &str,
        look: impl Fn(&[(Stream, String)]) -> Option<T>,
    ) -> T {
        let mut changes = self.output.changes.subscribe();
        let waiting = async {
            loop {
                changes.mark_unchanged();
                if let Some(found) = look(&self.output.lines()) {
                    return found;
                }
                changes.changed().await.expect("the sender lives in self");
            }
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(found) => found,
            Err(_) => panic!("waited {PATIENCE:?} in vain for {what}; output:\n{}", self.output()),
        }
    }

    /// Waits until `GET path` on `address` answers with this status.
    ///
    /// # Panics
    /// Panics with the whole output when that does not happen within [`PATIENCE`].
    pub async fn wait_for_status(&self, address: SocketAddr, path: &str, status: u16) {
        let mut last = "no answer".to_owned();
        let asking = async {
            loop {
                match http::get(address, path).await {
                    Ok((head, _)) if head.status == status => return,
                    Ok((head, body)) => {
                        last = format!("{}: {}", head.status, String::from_utf8_lossy(&body));
                    }
                    Err(error) => last = error.to_string(),
                }
                // The state is at the other end of a socket that may not exist yet: ask again.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, asking).await.is_err() {
            let output = self.output();
            panic!("{address}{path} does not answer {status} (last: {last}); output:\n{output}");
        }
    }

    /// Writes to the child's standard input; `None` closes it.
    ///
    /// # Panics
    /// Panics when the input is closed already.
    pub async fn input(&mut self, text: Option<&str>) {
        let Some(text) = text else {
            self.stdin = None;
            return;
        };
        let stdin = self.stdin.as_mut().expect("standard input is open");
        if let Err(error) = stdin.write_all(text.as_bytes()).await {
            panic!("cannot write to the child: {error}; output:\n{}", self.output());
        }
    }

    /// Asks the process to end (SIGTERM).
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Interrupts the process as Ctrl-C does (SIGINT).
    pub fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// Kills the process without a chance to clean up (SIGKILL).
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Freezes the process (SIGSTOP): its sockets stay open and nobody answers.
    ///
    /// Returns when it stands still; a signal sent before that could still be acted on.
    ///
    /// # Panics
    /// Panics with the whole output when it does not stop within [`PATIENCE`].
    pub async fn freeze(&self) {
        self.signal(Signal::STOP);
        let stopping = async {
            while kernel::process_state(self.pid) != Some('T') {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, stopping).await.is_err() {
            panic!("process {} does not stop; output:\n{}", self.pid, self.output());
        }
    }

    /// Lets a frozen process go on (SIGCONT).
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Waits for the end of the process.
    ///
    /// # Panics
    /// Panics with the whole output when it does not end within [`PATIENCE`] (see
    /// [`wait_for_exit_within`](Self::wait_for_exit_within)).
    pub async fn wait_for_exit(&mut self) -> ExitStatus {
        self.wait_for_exit_within(PATIENCE).await
    }

    /// Waits for the end of the process, at most this long.
    ///
    /// # Panics
    /// Panics with the whole output when it does not end in time.
    pub async fn wait_for_exit_within(&mut self, limit: Duration) -> ExitStatus {
        let ended = tokio::time::timeout(limit, self.child.wait()).await;
        let Ok(status) = ended else {
            panic!("process {} does not end within {limit:?}; output:\n{}", self.pid, self.output())
        };
        status.expect("a child can be awaited")
    }

    fn signal(&self, signal: Signal) {
        let raw = i32::try_from(self.pid).expect("process ids are small");
        let pid = Pid::from_raw(raw).expect("process ids are not zero");
        if let Err(error) = rustix::process::kill_process(pid, signal) {
            panic!("cannot signal process {raw}: {error}; output:\n{}", self.output());
        }
    }
}

/// Lines in the order of their arrival.
#[derive(Debug)]
struct Output {
    lines: Mutex<Vec<(Stream, String)>>,
    changes: watch::Sender<()>,
}

impl Default for Output {
    fn default() -> Self {
        Self { lines: Mutex::default(), changes: watch::Sender::new(()) }
    }
}

impl Output {
    fn lines(&self) -> std::sync::MutexGuard<'_, Vec<(Stream, String)>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn capture(from: impl AsyncRead + Unpin, stream: Stream, output: Arc<Output>) {
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned();
        output.lines().push((stream, text));
        output.changes.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_of_both_streams_input_and_signals_reach_their_ends() {
        let script = "echo out; echo err >&2; read line; echo \"got $line\"; exec sleep 100";
        let mut child = IopProcess::start("/bin/sh", &["-c", script]);
        assert_eq!(child.wait_for_line("err").await, "err");
        child.input(Some("text\n")).await;
        assert_eq!(child.wait_for_line("got").await, "got text");
        assert_eq!(child.lines(Stream::Out), ["out", "got text"]);
        child.terminate();
        assert!(!child.wait_for_exit().await.success());
    }

    #[tokio::test]
    async fn a_frozen_process_does_not_end_until_it_is_thawed() {
        let mut child = IopProcess::start("/bin/sh", &["-c", "echo up; exec sleep 100"]);
        child.wait_for_line("up").await;
        child.freeze().await;
        child.terminate();
        assert_eq!(kernel::process_state(child.pid()), Some('T'));
        child.thaw();
        child.wait_for_exit().await;
    }
}
