//! One SQLite file: opened, brought up to date, and set aside when it is beyond reading.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};

use crate::data_dir::private;
use crate::sql::whole;

/// How long one statement waits for another process. Short: the writer retries by itself, and
/// notices in between that it is to stop.
const BUSY: Duration = Duration::from_millis(200);
/// How long a reader waits: somebody looks at a screen.
pub(crate) const READ_BUSY: Duration = Duration::from_secs(2);

/// Bytes of a page of a new file: measured with `examples/history_cost.rs`, twice SQLite's own spares
/// a tenth of a busy writer's CPU, and costs an idle one little.
const PAGE_BYTES: i64 = 8192;
/// SQLite's page cache, in KiB: twice what a batch of 50 ms changes at 15 000 runs a second.
const CACHE_KIB: i64 = 512;

/// The tables of one kind of history.
pub(crate) trait Schema {
    /// Steps from an empty file to the present schema; `user_version` counts those that are done.
    /// A step that was released is never changed.
    const STEPS: &[&str];
    /// What turns rows of a process that was killed into ended ones.
    const INTERRUPT: &str;
}

/// Opens a file for writing, making or upgrading it.
pub(crate) fn open<S: Schema>(path: &Path) -> Result<Connection, DatabaseError> {
    // SQLite gives its side files the mode of the main one.
    let file = private(OpenOptions::new().create(true).truncate(false)).open(path)?;
    keep_private(&file)?;
    drop(file);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    // These two only take effect on a file without tables, and in this order.
    connection.pragma_update(None, "page_size", PAGE_BYTES)?;
    connection.pragma_update(None, "auto_vacuum", "incremental")?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "normal")?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    // Otherwise a statement that compares a parameter is planned anew for each row.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    upgrade::<S>(&mut connection)?;
    Ok(connection)
}

/// Opens a file for one read.
pub(crate) fn open_to_read(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(READ_BUSY)?;
    Ok(connection)
}

/// Begins a transaction that holds the write lock from the start, so that it cannot fail halfway
/// for want of it.
pub(crate) fn begin(connection: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate)
}

/// Gives the file system some of the pages that nothing is in any more, once they are many: a few
/// are better kept for what comes next.
pub(crate) fn give_back_pages(of: &Transaction<'_>) -> rusqlite::Result<()> {
    if pages(of, "freelist_count")? > pages(of, "page_count")? / 4 {
        of.execute_batch("PRAGMA incremental_vacuum(1000)")?;
    }
    Ok(())
}

/// Reads one of SQLite's figures about pages.
pub(crate) fn pages(of: &Connection, figure: &str) -> rusqlite::Result<i64> {
    of.pragma_query_value(None, figure, |row| row.get(0))
}

/// Moves a file that is beyond reading out of the way, and returns where it went.
pub(crate) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let beside = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let aside = (1..)
        .map(|number: u32| beside(&format!(".corrupt-{number}")))
        .find(|aside| !aside.exists())
        .ok_or_else(|| io::Error::other("no free name for a corrupt file"))?;
    std::fs::rename(path, &aside)?;
    for suffix in ["-wal", "-shm"] {
        match std::fs::remove_file(beside(suffix)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(aside)
}

fn upgrade<S: Schema>(connection: &mut Connection) -> Result<(), DatabaseError> {
    let known = S::STEPS.len();
    let transaction = begin(connection)?;
    let version: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let done = usize::try_from(version).map_err(|_| DatabaseError::Newer { version })?;
    let steps = S::STEPS.get(done..).ok_or(DatabaseError::Newer { version })?;
    for step in steps {
        transaction.execute_batch(step)?;
    }
    if !steps.is_empty() {
        transaction.pragma_update(None, "user_version", whole(known))?;
    }
    transaction.commit()?;
    Ok(())
}

#[cfg(unix)]
fn keep_private(file: &std::fs::File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = file.metadata()?.permissions().mode();
    if mode & 0o077 != 0 {
        file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}

#[cfg(not(unix))]
fn keep_private(_: &std::fs::File) -> io::Result<()> {
    Ok(())
}

/// Why a file cannot be written at the moment.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DatabaseError {
    /// What the operating system says.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What SQLite says.
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    /// Written by a later version of this program.
    #[error("history has schema {version}, which this version of iop does not know: upgrade iop")]
    Newer { version: i64 },
}

impl DatabaseError {
    /// Says what to do about it.
    pub(crate) fn remedy(&self) -> Remedy {
        match self {
            Self::Sqlite(error) => match error.sqlite_error_code() {
                Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => Remedy::SetAside,
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::DiskFull) => {
                    Remedy::Retry
                }
                _ => Remedy::Reopen,
            },
            Self::Io(_) | Self::Newer { .. } => Remedy::Reopen,
        }
    }
}

/// What to do about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// The same connection will do later.
    Retry,
    /// Try again with a new connection.
    Reopen,
    /// The file is beyond reading: begin a new one.
    SetAside,
}
