//! Why the store cannot be opened, and why an operation did not happen.

use std::io;
use std::path::PathBuf;

use iop_vault::MasterKeyId;
use rusqlite::ErrorCode;

use crate::database::DatabaseError;

/// An operation did not happen, for a reason that is the store's.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk is full, read-only or failing, or another process holds the file.
    #[error(
        "the managed store (`managed.db`) cannot be used, so that nothing was changed: free or mend its disk"
    )]
    Unavailable(#[source] rusqlite::Error),
    /// What is in the file is not what was written.
    #[error("the managed store (`managed.db`) is damaged at {what}: restore it from a backup")]
    Damaged {
        /// Where.
        what: String,
        /// What it looked like.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The operating system gives no random numbers.
    #[error("the operating system gives no random numbers")]
    NoRandomness(#[source] getrandom::Error),
    /// The store was closed, or its thread ended.
    #[error("the managed store is closed: start the edge again")]
    Closed,
}

impl StoreError {
    pub(super) fn damaged(
        what: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Damaged { what: what.into(), source: source.into() }
    }

    /// Says whether the same operation may succeed later without the store being mended.
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::NoRandomness(_) => true,
            Self::Damaged { .. } | Self::Closed => false,
        }
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        match (&error, error.sqlite_error_code()) {
            (_, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)) => {
                Self::damaged("its pages", error)
            }
            (
                rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::IntegralValueOutOfRange(..)
                | rusqlite::Error::InvalidColumnType(..),
                _,
            ) => Self::damaged("a row", error),
            _ => Self::Unavailable(error),
        }
    }
}

/// Lets an operation's own error carry what SQLite says.
macro_rules! from_sqlite {
    ($($error:ident),*) => {
        $(impl From<rusqlite::Error> for $error {
            fn from(error: rusqlite::Error) -> Self {
                Self::Store(error.into())
            }
        })*
    };
}
pub(super) use from_sqlite;

/// The store cannot be opened or made. The Edge does not start in managed mode.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is none.
    #[error("`{}` is no managed store: make one with `iop edge init`, or restore it from a backup", file.display())]
    NotInitialised {
        /// Where it was looked for.
        file: PathBuf,
    },
    /// There is one already.
    #[error("`{}` already holds group `{group}`: nothing was changed", file.display())]
    AlreadyInitialised {
        /// The file.
        file: PathBuf,
        /// Its group.
        group: String,
    },
    /// The master key is another one.
    #[error(
        "`{}` was sealed with master key {sealed_by}, but {source_of_key} holds {at_hand}: \
         bring back the key that belongs to it from its backup",
        file.display()
    )]
    WrongMasterKey {
        /// The file.
        file: PathBuf,
        /// The key that opens it.
        sealed_by: MasterKeyId,
        /// The key that was found.
        at_hand: MasterKeyId,
        /// Where the key was found.
        source_of_key: String,
    },
    /// A later version wrote it.
    #[error("`{}` has schema {version}, which this version of iop does not know: upgrade iop", file.display())]
    Newer {
        /// The file.
        file: PathBuf,
        /// Its schema.
        version: i64,
    },
    /// The operating system refuses.
    #[error("managed store `{}` cannot be opened: make it readable and writable for this user", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What it says.
        #[source]
        source: io::Error,
    },
    /// The file opened, but not what is in it.
    #[error("managed store `{}` cannot be opened", file.display())]
    Store {
        /// The file.
        file: PathBuf,
        /// Why.
        #[source]
        source: StoreError,
    },
}

impl OpenError {
    pub(super) fn of(file: &std::path::Path, error: DatabaseError) -> Self {
        let file = file.to_owned();
        match error {
            DatabaseError::Io(source) => Self::Io { file, source },
            DatabaseError::Sqlite(source) => Self::Store { file, source: source.into() },
            DatabaseError::Newer { version } => Self::Newer { file, version },
        }
    }
}
