//! The order to stop: the first signal asks, the second does not wait.
//!
//! Programs such as `timeout` send a signal to the process and again to its group, so that one order
//! arrives twice within milliseconds; that is still the first.

use std::io;
use std::time::Duration;

use tokio::time::Instant;

use tokio_util::sync::CancellationToken;

/// Listens for SIGINT and SIGTERM from now on. The first cancels the token that is returned; a
/// second one ends the process at once, with the exit code that shells give to a signal.
///
/// # Errors
/// The operating system refuses the handlers.
pub(crate) fn listen() -> io::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut signals = Signals::new()?;
    let told = stop.clone();
    // Lives as long as the process: its whole work is to end it.
    tokio::spawn(async move {
        let order = signals.next().await;
        let given = Instant::now();
        tracing::info!("stopping: what is running may finish, a second signal ends it at once");
        told.cancel();
        let code = loop {
            let code = signals.next().await;
            if code != order || given.elapsed() > SAME_ORDER {
                break code;
            }
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "a second signal means: do not wait for owners"
        )]
        std::process::exit(code);
    });
    Ok(stop)
}

/// The same signal again within this time is the same order. `timeout` takes under a millisecond, a
/// person who presses a key twice more than a quarter of a second.
const SAME_ORDER: Duration = Duration::from_millis(200);

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for a signal and returns 128 plus its number.
    async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.interrupt.recv() => 130,
            _ = self.terminate.recv() => 143,
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> i32 {
        // Without a handler there is nothing to wait for but the end of the process.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        130
    }
}
