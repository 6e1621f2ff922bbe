//! The one thread that writes a history.
//!
//! ```text
//! open file ──> take batch ──> write in one transaction ──> take batch …
//!     ^             ^                │ fails
//!     │             │                v
//!     │             └── locked, full: same connection after a pause
//!     ├── other failures: new connection after a pause
//!     └── corrupt: file set aside, new one at once
//! ```
//!
//! A batch that fails stays taken until it is written or given up, so that rows keep their order;
//! meanwhile the queue fills up to its bound and then drops.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, Transaction};
use tracing::{info, warn};

use crate::database::{self, DatabaseError, Remedy, Schema};
use crate::queue::Queue;

/// Pause before the same connection is tried again: a lock passes soon.
const RETRY: Duration = Duration::from_millis(250);
/// Pause before a new connection is tried: somebody has to mend something.
const REOPEN: Duration = Duration::from_secs(1);

/// What a history writes, and what it lets go.
pub(crate) trait Table: Schema + Send + 'static {
    /// One thing to write.
    type Row: Send + 'static;

    /// Writes rows in their order.
    fn write(&mut self, to: &Transaction<'_>, rows: &[Self::Row]) -> rusqlite::Result<()>;

    /// Deletes a bounded number of rows that need no longer be kept; says whether more are left.
    fn prune(&mut self, from: &Transaction<'_>) -> rusqlite::Result<bool>;

    /// Bounds the file, in pages: a full disk for tests.
    #[cfg(test)]
    fn page_limit(&self) -> Option<u32> {
        None
    }
}

/// Starts the writer of a file.
pub(crate) fn start<T: Table>(
    name: &str,
    path: PathBuf,
    table: T,
    queue: Arc<Queue<T::Row>>,
) -> io::Result<JoinHandle<()>> {
    let writer = Writer { path, table, queue, connection: None, is_recovered: false };
    std::thread::Builder::new().name(name.to_owned()).spawn(move || writer.run())
}

struct Writer<T: Table> {
    path: PathBuf,
    table: T,
    queue: Arc<Queue<T::Row>>,
    connection: Option<Connection>,
    /// Whether what a killed process left behind has been dealt with: before the first row of this
    /// process, and then never again.
    is_recovered: bool,
}

impl<T: Table> Writer<T> {
    fn run(mut self) {
        // A file that cannot be opened is tried again with the first batch.
        match self.connect() {
            Ok(_) => self.queue.recovered(),
            Err(error) => {
                let _ = self.mend(&error);
            }
        }
        while let Some(batch) = self.queue.take() {
            while let Err(error) = self.write(&batch) {
                let pause = self.mend(&error);
                if !self.queue.wait_for_retry(pause) {
                    self.queue.give_up();
                    return;
                }
            }
            if self.queue.health().degraded.is_some() {
                info!(file = %self.path.display(), "history is written again");
            }
            self.queue.written();
        }
    }

    fn write(&mut self, batch: &[T::Row]) -> Result<(), DatabaseError> {
        self.connect()?;
        let connection = self.connection.as_mut().expect("just connected");
        #[cfg(test)]
        if let Some(pages) = self.table.page_limit() {
            connection.pragma_update(None, "max_page_count", pages)?;
        }
        let transaction = database::begin(connection)?;
        self.table.write(&transaction, batch)?;
        self.table.prune(&transaction)?;
        transaction.commit()?;
        Ok(())
    }

    /// Makes sure that there is a connection to a file in good order.
    fn connect(&mut self) -> Result<(), DatabaseError> {
        if self.connection.is_some() {
            return Ok(());
        }
        let mut connection = database::open::<T>(&self.path)?;
        if !self.is_recovered {
            connection.execute_batch(T::INTERRUPT)?;
            self.is_recovered = true;
        }
        loop {
            let transaction = database::begin(&mut connection)?;
            let is_more_left = self.table.prune(&transaction)?;
            transaction.commit()?;
            if !is_more_left {
                break;
            }
        }
        self.connection = Some(connection);
        Ok(())
    }

    /// Does about a failure what can be done, and says how long to wait then.
    fn mend(&mut self, error: &DatabaseError) -> Duration {
        let reason = error.to_string();
        if self.queue.degraded(&reason) {
            warn!(file = %self.path.display(), %reason, "history cannot be written");
        }
        match error.remedy() {
            Remedy::Retry => RETRY,
            Remedy::Reopen => {
                self.connection = None;
                REOPEN
            }
            Remedy::SetAside => {
                self.connection = None;
                match database::set_aside(&self.path) {
                    Ok(aside) => {
                        warn!(aside = %aside.display(), "history was corrupt: a new one begins");
                        self.queue.set_aside(aside);
                        Duration::ZERO
                    }
                    Err(error) => {
                        warn!(file = %self.path.display(), %error, "corrupt history cannot be moved");
                        REOPEN
                    }
                }
            }
        }
    }
}
