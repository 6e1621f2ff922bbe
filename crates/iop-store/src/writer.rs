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
        self.queue.opened();
        let mut batch = Vec::new();
        while self.queue.take(&mut batch) {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::health::Health;
    use crate::queue::CAPACITY;

    /// A table of texts whose file can be bounded.
    struct Notes {
        page_limit: Arc<AtomicU32>,
    }

    impl Schema for Notes {
        const STEPS: &[&str] = &["CREATE TABLE notes (text TEXT NOT NULL) STRICT"];
        const INTERRUPT: &str = "UPDATE notes SET text = 'interrupted' WHERE text = 'open'";
    }

    impl Table for Notes {
        type Row = String;

        fn write(&mut self, to: &Transaction<'_>, rows: &[String]) -> rusqlite::Result<()> {
            rows.iter()
                .try_for_each(|row| to.execute("INSERT INTO notes VALUES (?)", [row]).map(drop))
        }

        fn prune(&mut self, _: &Transaction<'_>) -> rusqlite::Result<bool> {
            Ok(false)
        }

        fn page_limit(&self) -> Option<u32> {
            Some(self.page_limit.load(Ordering::Relaxed))
        }
    }

    struct Fixture {
        dir: tempfile::TempDir,
        page_limit: Arc<AtomicU32>,
        queue: Arc<Queue<String>>,
        writer: JoinHandle<()>,
    }

    impl Fixture {
        fn start(prepare: impl FnOnce(&std::path::Path)) -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("notes.db");
            prepare(&path);
            let queue = Arc::new(Queue::new(CAPACITY));
            let page_limit = Arc::new(AtomicU32::new(u32::MAX));
            let table = Notes { page_limit: Arc::clone(&page_limit) };
            let writer = start("notes", path, table, Arc::clone(&queue)).expect("a thread");
            Self { dir, page_limit, queue, writer }
        }

        fn path(&self) -> PathBuf {
            self.dir.path().join("notes.db")
        }

        fn count(&self) -> u64 {
            let connection = database::open_to_read(&self.path()).expect("readable");
            connection
                .query_row("SELECT count(*) FROM notes", [], |row| row.get::<_, u32>(0))
                .expect("a count")
                .into()
        }

        /// Waits until the history says what is expected.
        fn until(&self, is_expected: impl Fn(&Health) -> bool) -> Health {
            for _ in 0..1000 {
                let health = self.queue.health();
                if is_expected(&health) {
                    return health;
                }
                self.queue.flush(Duration::from_millis(10));
                std::thread::yield_now();
            }
            panic!("not within the time: {:?}", self.queue.health());
        }

        fn flush(&self) {
            assert!(self.queue.flush(Duration::from_secs(10)), "{:?}", self.queue.health());
        }

        fn end(self) -> Health {
            self.queue.close_now();
            self.writer.join().expect("no panic");
            self.queue.health()
        }
    }

    #[test]
    fn rows_wait_while_another_process_holds_the_file_and_are_written_afterwards() {
        let fixture = Fixture::start(|_| {});
        fixture.queue.push("first".to_owned());
        fixture.flush();
        let other = Connection::open(fixture.path()).expect("opens");
        other.execute_batch("BEGIN IMMEDIATE").expect("locks");
        for number in 0..20 {
            fixture.queue.push(number.to_string());
        }
        let health = fixture.until(|health| health.degraded.is_some());
        assert!(health.degraded.is_some_and(|reason| reason.contains("locked")));
        assert_eq!(health.waiting, 20);
        other.execute_batch("COMMIT").expect("unlocks");
        fixture.flush();
        assert_eq!(fixture.count(), 21);
        let health = fixture.end();
        assert_eq!((health.written, health.dropped, health.degraded), (21, 0, None));
    }

    #[test]
    fn a_full_disk_degrades_and_writing_resumes_when_there_is_room() {
        let fixture = Fixture::start(|_| {});
        fixture.page_limit.store(20, Ordering::Relaxed);
        let large = "x".repeat(4096);
        for _ in 0..50 {
            fixture.queue.push(large.clone());
        }
        let health = fixture.until(|health| health.degraded.is_some());
        assert!(health.degraded.is_some_and(|reason| reason.contains("full")));
        fixture.page_limit.store(1000, Ordering::Relaxed);
        fixture.flush();
        assert_eq!(fixture.count(), 50);
        assert_eq!(fixture.end().degraded, None);
    }

    #[test]
    fn what_waits_is_bounded_and_the_rest_is_counted_as_dropped() {
        let fixture = Fixture::start(|path| std::fs::create_dir(path).expect("a directory"));
        let more = CAPACITY + 1000;
        for number in 0..more {
            fixture.queue.push(number.to_string());
        }
        let health = fixture.until(|health| health.degraded.is_some());
        assert!(health.waiting <= CAPACITY);
        assert_eq!(health.waiting as u64 + health.dropped, more as u64);
        std::fs::remove_dir(fixture.path()).expect("removes");
        fixture.flush();
        assert_eq!(fixture.count(), fixture.queue.health().written);
        let health = fixture.end();
        assert_eq!(health.written + health.dropped, more as u64);
    }

    #[test]
    fn a_corrupt_file_is_set_aside_untouched_and_a_new_one_begins() {
        let garbage = vec![b'x'; 8192];
        let fixture = Fixture::start(|path| std::fs::write(path, &garbage).expect("writes"));
        fixture.queue.push("new".to_owned());
        fixture.flush();
        assert_eq!(fixture.count(), 1);
        let aside = fixture.queue.health().set_aside.expect("set aside");
        assert_eq!(std::fs::read(aside).expect("kept"), garbage);
        assert_eq!(fixture.end().degraded, None);
    }

    #[test]
    fn a_second_corrupt_file_does_not_replace_the_first() {
        let fixture = Fixture::start(|path| {
            std::fs::write(path, vec![b'x'; 8192]).expect("writes");
            let earlier = path.with_file_name("notes.db.corrupt-1");
            std::fs::write(earlier, "earlier").expect("writes");
        });
        fixture.queue.push("new".to_owned());
        fixture.flush();
        let health = fixture.queue.health();
        assert!(health.set_aside.is_some_and(|path| path.ends_with("notes.db.corrupt-2")));
        let earlier = fixture.dir.path().join("notes.db.corrupt-1");
        assert_eq!(std::fs::read(earlier).expect("kept"), b"earlier");
    }

    #[test]
    fn a_file_of_a_later_version_is_left_alone() {
        let fixture = Fixture::start(|path| {
            let later = Connection::open(path).expect("opens");
            later.pragma_update(None, "user_version", 99).expect("sets");
        });
        fixture.queue.push("row".to_owned());
        let health = fixture.until(|health| health.degraded.is_some());
        assert!(health.degraded.is_some_and(|reason| reason.contains("upgrade iop")));
        let Fixture { dir, queue, writer, .. } = fixture;
        queue.close_now();
        writer.join().expect("no panic");
        let health = queue.health();
        assert_eq!((health.written, health.dropped, health.set_aside), (0, 1, None));
        let later = Connection::open(dir.path().join("notes.db")).expect("opens");
        let version: i64 =
            later.pragma_query_value(None, "user_version", |row| row.get(0)).expect("reads");
        assert_eq!(version, 99);
    }

    #[test]
    fn what_a_killed_process_left_is_interrupted_once_and_never_again() {
        let fixture = Fixture::start(|path| {
            let earlier = database::open::<Notes>(path).expect("opens");
            earlier.execute("INSERT INTO notes VALUES ('open')", []).expect("inserts");
        });
        fixture.queue.push("open".to_owned());
        fixture.flush();
        let connection = database::open_to_read(&fixture.path()).expect("readable");
        let mut statement = connection.prepare("SELECT text FROM notes").expect("prepares");
        let texts = statement.query_map([], |row| row.get::<_, String>(0)).expect("reads");
        assert_eq!(
            texts.collect::<Result<Vec<_>, _>>(),
            Ok(vec!["interrupted".into(), "open".into()])
        );
    }
}
