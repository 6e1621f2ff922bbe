//! The client behind a request.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::activity::Activity;

/// The client at the other end of a connection; a cheap handle given with each request.
///
/// It does not keep the connection open.
#[derive(Clone)]
pub struct Peer(Arc<Shared>);

struct Shared {
    address: SocketAddr,
    sent: AtomicU64,
    activity: Activity,
    gone: CancellationToken,
    is_aborted: AtomicBool,
}

impl Peer {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self(Arc::new(Shared {
            address,
            sent: AtomicU64::new(0),
            activity: Activity::new(),
            gone: CancellationToken::new(),
            is_aborted: AtomicBool::new(false),
        }))
    }

    /// Returns the client's address.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Completes when the client closed, reset, or ended its sending side, in any phase and whatever
    /// of its request is unread; also when its connection ended for another reason. Whoever is polled
    /// by the connection is polled once more and then dropped.
    pub fn closed(&self) -> WaitForCancellationFutureOwned {
        self.0.gone.clone().cancelled_owned()
    }

    /// Says whether [`Self::closed`] has completed.
    pub fn is_closed(&self) -> bool {
        self.0.gone.is_cancelled()
    }

    /// Resets the connection, with all that runs on it and whatever the client has not read.
    pub fn abort(&self) {
        self.0.is_aborted.store(true, Ordering::Relaxed);
        self.0.gone.cancel();
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.0.is_aborted.load(Ordering::Relaxed)
    }

    /// Returns how many bytes the kernel has accepted for this client, over the whole connection.
    pub fn sent_bytes(&self) -> u64 {
        self.0.sent.load(Ordering::Relaxed)
    }

    pub(super) fn gone(&self) -> &CancellationToken {
        &self.0.gone
    }

    pub(super) fn activity(&self) -> &Activity {
        &self.0.activity
    }

    pub(super) fn count_sent(&self, bytes: usize) {
        self.0.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Peer").field(&self.0.address).finish()
    }
}
