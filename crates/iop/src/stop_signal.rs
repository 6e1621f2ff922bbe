//! The order to stop: the first signal asks, the second does not wait.

use std::io;

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
        signals.next().await;
        tracing::info!("stopping: what is running may finish, a second signal ends it at once");
        told.cancel();
        let code = signals.next().await;
        #[expect(
            clippy::disallowed_methods,
            reason = "a second signal means: do not wait for owners"
        )]
        std::process::exit(code);
    });
    Ok(stop)
}

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
