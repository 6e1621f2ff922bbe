//! What both histories have in common: a queue, its writer, and reads off the async threads.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::Semaphore;
use tracing::warn;

use crate::data_dir::DataDir;
use crate::database;
use crate::health::Health;
use crate::query::ReadError;
use crate::queue::{CAPACITY, Queue};
use crate::writer::{self, Table};

/// Name of the file in its data directory.
const FILE: &str = "history.db";
/// Reads at once; each takes a blocking thread and the page cache.
const READERS: usize = 2;
/// How long a read waits for a file that the writer is about to open: as long as it waits for a lock.
const OPENING: Duration = database::READ_BUSY;

/// A queue and what becomes of its rows. The last owner to go closes it.
#[derive(Debug)]
pub(crate) struct Handle<R> {
    queue: Arc<Queue<R>>,
    file: Option<PathBuf>,
    readers: Arc<Semaphore>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl<R: Send + 'static> Handle<R> {
    /// Starts a history in a data directory. A history that cannot even start is disabled.
    pub(crate) fn open<T: Table<Row = R>>(dir: &DataDir, name: &str, table: T) -> Self {
        let file = dir.path().join(FILE);
        let queue = Arc::new(Queue::new(CAPACITY));
        match writer::start(name, file.clone(), table, Arc::clone(&queue)) {
            Ok(writer) => Self {
                queue,
                file: Some(file),
                readers: Arc::new(Semaphore::new(READERS)),
                writer: Mutex::new(Some(writer)),
            },
            Err(error) => Self::disabled(format!("no thread to write history: {error}")),
        }
    }

    /// Makes a history that keeps nothing.
    pub(crate) fn disabled(reason: String) -> Self {
        warn!(%reason, "history is disabled");
        Self {
            queue: Arc::new(Queue::disabled(reason)),
            file: None,
            readers: Arc::new(Semaphore::new(READERS)),
            writer: Mutex::new(None),
        }
    }

    pub(crate) fn push(&self, row: R) {
        self.queue.push(row);
    }

    pub(crate) fn health(&self) -> Health {
        self.queue.health()
    }

    /// Waits until every row so far is written or dropped; false when that takes too long.
    pub(crate) async fn flush(&self, within: Duration) -> bool {
        let queue = Arc::clone(&self.queue);
        off_thread(move || queue.flush(within)).await
    }

    /// Writes what waits, as long as `within` allows, and ends the writer. False when rows were
    /// given up.
    pub(crate) async fn close(&self, within: Duration) -> bool {
        self.queue.close();
        let is_written = self.flush(within).await;
        self.queue.close_now();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer {
            off_thread(move || {
                if writer.join().is_err() {
                    warn!("history writer panicked");
                }
            })
            .await;
        }
        is_written
    }

    /// Reads with a connection of its own, off the async threads.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, ReadError> {
        let Some(file) = self.file.clone() else {
            let reason = self.health().degraded.unwrap_or_else(|| "it is disabled".to_owned());
            return Err(ReadError { reason });
        };
        let permit = Arc::clone(&self.readers).acquire_owned().await;
        let queue = Arc::clone(&self.queue);
        off_thread(move || {
            let _permit = permit;
            // A file that is still being made has no tables; a read that comes too late fails then.
            queue.wait_until_opened(OPENING);
            let connection = database::open_to_read(&file)?;
            read(&connection)
        })
        .await
        .map_err(|error| ReadError { reason: error.to_string() })
    }
}

impl<R> Drop for Handle<R> {
    /// The writer is not waited for: it ends by itself once the rest is written or fails.
    fn drop(&mut self) {
        self.queue.close_now();
    }
}

/// Runs blocking work where it may block.
async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        // Blocking work is never aborted, so that it can only have panicked: go on with that.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
