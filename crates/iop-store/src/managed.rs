//! What an Edge in managed mode must not lose and must not give away: its group's keys, identities,
//! invitations, provider credentials, client keys and the audit log.
//!
//! One file, `managed.db`, apart from history: history may be dropped when a disk is full, nothing of
//! this may. Every change is answered when it is on disk, in one transaction with its entry in the
//! audit log; a change that cannot be written is refused and has not happened. One thread owns the
//! file. Secrets lie in it sealed (`iop_vault`), so that file, write-ahead log and backups hold none.
//!
//! ```text
//! let found = master_key::find(dir.path(), &Environment::of_process())?;   // or `create` at `edge init`
//! let store = ManagedStore::open(&dir, found)?;                              // or `initialise`
//! let act = Act { who: "admin".into(), at: now };
//! let made = store.create_key(&act, NewKey { .. }).await?;                   // made.key.reveal(), once
//! store.snapshot().recognise(store.pepper(), &presented, now)?;              // per request, no disk
//! let opened = store.open_credential(&slot).await?;                          // once per grant
//! ```
//!
//! A [`Snapshot`] of all that is asked per request (keys, identities, slots) is published after each
//! change and before its answer: whoever hears that a key was revoked can rely on it. An operation
//! whose future is dropped happens nevertheless. Times come from the caller.
//!
//! Not decided here: who may do what, what a certificate or a token looks like, when to renew.
//!
//! Read next: `keeper.rs` for how a change is made, `schema.rs` for the tables, then one module per
//! topic. Where the master key comes from is [`crate::master_key`].

mod audit;
mod client_key;
mod credential;
mod error;
mod group;
mod identity;
mod invitation;
mod keeper;
mod rewrap;
mod schema;
mod snapshot;
mod vault;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use iop_vault::Pepper;
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};

pub use audit::{AuditEntry, AuditNote, VerifyError};
pub use client_key::{ClientKeyInfo, KeyError, KeyLimits, KeyOperation, KeyRefusal, KeyScope};
pub use client_key::{CreatedKey, NewKey};
pub use credential::{Credential, CredentialError, CredentialState, OpenedCredential};
pub use error::{OpenError, StoreError};
pub use group::{Authority, AuthorityError, AuthorityKind, AuthorityRole, Founding};
pub use identity::{
    Certificate, Enrolled, Identity, IdentityError, IdentityKind, IdentityStatus, NewIdentity,
    Renewal, Renewed,
};
pub use invitation::{BurnError, Invitation, InvitationError, InvitationId, NewInvitation};
pub use rewrap::RotateError;
pub use snapshot::Snapshot;

use crate::data_dir::DataDir;
use crate::master_key::Found;
use keeper::{Job, Keeper};

/// Name of the file in the Edge's data directory.
pub const FILE: &str = "managed.db";
/// Operations that may wait for the one that is at work; further ones wait to be taken.
const WAITING: usize = 64;

/// Who changes something, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Act {
    /// Who, as the audit log will say: `admin`, a Node, an address.
    pub who: String,
    /// When, by the Edge's wall clock.
    pub at: Timestamp,
}

/// A cheap handle on what an Edge keeps in managed mode. The last one to go ends its thread.
#[derive(Debug, Clone)]
pub struct ManagedStore {
    jobs: mpsc::Sender<Job>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    pepper: Pepper,
    group: Arc<str>,
    edge: Arc<str>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl ManagedStore {
    /// Opens the store of a data directory. Blocks on the disk; for the start of a host.
    ///
    /// # Errors
    /// Fails when there is none, when the master key is another one, and when the file cannot be read
    /// or is not what was written. Never makes a store and never replaces one.
    pub fn open(dir: &DataDir, master: Found) -> Result<Self, OpenError> {
        Self::open_at(&dir.path().join(FILE), master)
    }

    /// Makes the store of a new group, all in one transaction.
    ///
    /// # Errors
    /// Fails when the directory has one already, and when it cannot be written.
    pub fn initialise(
        dir: &DataDir,
        master: Found,
        founding: Founding,
        act: &Act,
    ) -> Result<Self, OpenError> {
        Self::initialise_at(&dir.path().join(FILE), master, founding, act)
    }

    /// Says whether the directory has a store, without opening it.
    pub fn exists(dir: &DataDir) -> bool {
        dir.path().join(FILE).exists()
    }

    fn open_at(file: &Path, master: Found) -> Result<Self, OpenError> {
        Self::start(file, Keeper::open(file, master)?)
    }

    fn initialise_at(
        file: &Path,
        master: Found,
        founding: Founding,
        act: &Act,
    ) -> Result<Self, OpenError> {
        Self::start(file, Keeper::initialise(file, master, founding, act)?)
    }

    fn start(file: &Path, mut keeper: Keeper) -> Result<Self, OpenError> {
        let (jobs, mut waiting) = mpsc::channel::<Job>(WAITING);
        let snapshots = keeper.subscribe();
        let pepper = keeper.vault.pepper.clone();
        let (group, edge) = (keeper.vault.group.as_str().into(), keeper.vault.edge.as_str().into());
        let thread = std::thread::Builder::new()
            .name("managed-store".into())
            .spawn(move || {
                while let Some(job) = waiting.blocking_recv() {
                    job(&mut keeper);
                }
            })
            .map_err(|source| OpenError::Io { file: file.to_owned(), source })?;
        let thread = Arc::new(Mutex::new(Some(thread)));
        Ok(Self { jobs, snapshots, pepper, group, edge, thread })
    }

    /// The name of the group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The id of this Edge in its group.
    pub fn edge(&self) -> &str {
        &self.edge
    }

    /// What is asked per request, as of the last change.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshots.borrow())
    }

    /// Follows the snapshots: changed whenever anything in them did.
    pub fn snapshots(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.clone()
    }

    /// The key of the hashes of client keys, for [`Snapshot::recognise`].
    pub const fn pepper(&self) -> &Pepper {
        &self.pepper
    }

    /// Finishes what was asked for and ends the thread. Call it on the last handle: while others are
    /// held, their operations are finished too.
    pub async fn close(self) {
        let Self { jobs, thread, .. } = self;
        drop(jobs);
        let thread = thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A thread that panicked has answered nobody; there is nothing left to tell.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }

    /// Has the thread do something, and waits for it.
    async fn ask<T, E>(
        &self,
        work: impl FnOnce(&mut Keeper) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |keeper| {
            // Whoever asked may have left; what was done stays done.
            let _ = answer.send(work(keeper));
        });
        self.jobs.send(job).await.map_err(|_| StoreError::Closed)?;
        answered.await.map_err(|_| StoreError::Closed)?
    }
}
