//! The one owner of the file: opens it, and makes each change whole or not at all.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use iop_vault::MasterKey;
use iop_vault::audit::Head;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use tokio::sync::watch;
use tracing::warn;

use super::Act;
use super::audit;
use super::error::{OpenError, StoreError};
use super::group::{self, Founding};
use super::schema::Managed;
use super::snapshot::Snapshot;
use super::vault::{self, Lock, Vault};
use crate::database;
use crate::master_key::Found;

/// How long a change waits for another process, such as a backup: somebody waits for the answer.
const BUSY: Duration = Duration::from_secs(5);

/// Something to do on the thread that owns the file.
pub(super) type Job = Box<dyn FnOnce(&mut Keeper) + Send>;

/// The file and what must agree with it.
pub(super) struct Keeper {
    pub(super) connection: Connection,
    pub(super) vault: Vault,
    pub(super) found: Found,
    /// How far the log has come; the file may be further, never behind.
    pub(super) head: Head,
    published: watch::Sender<Arc<Snapshot>>,
}

impl Keeper {
    pub(super) fn open(file: &Path, mut found: Found) -> Result<Self, OpenError> {
        if !file.exists() {
            return Err(OpenError::NotInitialised { file: file.to_owned() });
        }
        let connection = connect(file)?;
        let of = |source| OpenError::Store { file: file.to_owned(), source };
        let lock = Lock::read(&connection)
            .map_err(of)?
            .ok_or_else(|| OpenError::NotInitialised { file: file.to_owned() })?;
        if !found.settle(&lock.check) {
            return Err(OpenError::WrongMasterKey {
                file: file.to_owned(),
                sealed_by: lock.id,
                at_hand: found.key().id(),
                source_of_key: found.source().to_string(),
            });
        }
        Self::unlock(connection, found).map_err(of)
    }

    pub(super) fn initialise(
        file: &Path,
        found: Found,
        founding: Founding,
        act: &Act,
    ) -> Result<Self, OpenError> {
        let mut connection = connect(file)?;
        let of = |source| OpenError::Store { file: file.to_owned(), source };
        let transaction = database::begin(&mut connection).map_err(|error| of(error.into()))?;
        if let Some(Lock { group, .. }) = Lock::read(&transaction).map_err(of)? {
            return Err(OpenError::AlreadyInitialised { file: file.to_owned(), group });
        }
        found_group(&transaction, found.key(), founding, act).map_err(of)?;
        transaction.commit().map_err(|error| of(error.into()))?;
        Self::unlock(connection, found).map_err(of)
    }

    fn unlock(connection: Connection, found: Found) -> Result<Self, StoreError> {
        let vault = Vault::read(&connection, found.key())?;
        let head = audit::read_head(&connection, &vault, &Head::EMPTY)?;
        let first = Snapshot::read(&connection, 1)?;
        let (published, _) = watch::channel(Arc::new(first));
        Ok(Self { connection, vault, found, head, published })
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.published.subscribe()
    }

    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.published.borrow())
    }

    /// Makes a change: all of it is on disk, with its entries in the log, or none of it happened. What
    /// `work` refuses is taken back.
    pub(super) fn change<T, E: From<StoreError>>(
        &mut self,
        act: &Act,
        work: impl FnOnce(&Change<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let number = self.snapshot().number + 1;
        let transaction = database::begin(&mut self.connection).map_err(StoreError::from)?;
        let head = audit::read_head(&transaction, &self.vault, &self.head)?;
        let change =
            Change { connection: &transaction, vault: &self.vault, act, head: Cell::new(head) };
        let done = work(&change)?;
        let head = change.head.get();
        let snapshot = Snapshot::read(&transaction, number)?;
        transaction.commit().map_err(StoreError::from)?;
        self.head = head;
        self.published.send_replace(Arc::new(snapshot));
        Ok(done)
    }

    /// Lets go of pages in the write-ahead log that still hold what was just erased. What lies there
    /// is sealed, so that another process in the way is no reason to fail what is done already.
    pub(super) fn scrub(&self) {
        let busy =
            self.connection.query_one("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0));
        match busy {
            Ok(0_i64) => {}
            Ok(_) => warn!("erased rows stay, sealed, in the write-ahead log: the file is in use"),
            Err(error) => warn!(%error, "erased rows stay, sealed, in the write-ahead log"),
        }
    }
}

/// One change in the making.
pub(super) struct Change<'a> {
    pub(super) connection: &'a Connection,
    pub(super) vault: &'a Vault,
    pub(super) act: &'a Act,
    pub(super) head: Cell<Head>,
}

impl Change<'_> {
    /// When the change is made, as it is kept.
    pub(super) fn now(&self) -> i64 {
        self.act.at.as_millisecond()
    }
}

fn found_group(
    connection: &Connection,
    master: &MasterKey,
    founding: Founding,
    act: &Act,
) -> Result<(), StoreError> {
    connection.execute(
        "INSERT INTO vault (only_row, group_name, edge, master_key_id, master_key_check, created)
         VALUES (1, ?, ?, ?, ?, ?)",
        (
            &founding.group,
            &founding.edge,
            master.id().as_bytes(),
            master.check().as_bytes(),
            act.at.as_millisecond(),
        ),
    )?;
    vault::make_standing(connection, &master.wrapping_keys(), &founding.group)?;
    let vault = Vault::read(connection, master)?;
    audit::write_head(connection, &vault, &Head::EMPTY)?;
    let change = Change { connection, vault: &vault, act, head: Cell::new(Head::EMPTY) };
    change.record("group.found", &founding.group, &serde_json::json!({ "edge": founding.edge }))?;
    for authority in founding.authorities {
        group::insert(&change, authority)?;
    }
    Ok(())
}

fn connect(file: &Path) -> Result<Connection, OpenError> {
    let connection = database::open::<Managed>(file).map_err(|error| OpenError::of(file, error))?;
    let prepare = || {
        connection.busy_timeout(BUSY)?;
        // History may lose its last 50 ms with the power; nothing of this may.
        connection.pragma_update(None, "synchronous", "full")?;
        connection.pragma_update(None, "fullfsync", true)?;
        connection.pragma_update(None, "checkpoint_fullfsync", true)?;
        connection.pragma_update_and_check(None, "secure_delete", true, |_| Ok(()))?;
        connection.pragma_update(None, "foreign_keys", true)?;
        // A crafted file must not make its schema run anything.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        Ok(())
    };
    prepare().map_err(|error: rusqlite::Error| OpenError::Store {
        file: file.to_owned(),
        source: error.into(),
    })?;
    Ok(connection)
}
