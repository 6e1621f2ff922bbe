//! One provider instance and the calls that hold it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;

use crate::provider::Provider;

/// A provider that several snapshots may share. It is stopped once nothing holds it.
pub(super) struct Instance {
    pub(super) provider: Arc<dyn Provider>,
    /// How many hold it, or [`CLOSED`].
    holders: AtomicUsize,
    /// The one who waits to stop it.
    closing: AtomicWaker,
}

/// Nothing can hold the instance any more.
const CLOSED: usize = usize::MAX;

impl Instance {
    pub(super) fn new(provider: Arc<dyn Provider>) -> Arc<Self> {
        Arc::new(Self { provider, holders: AtomicUsize::new(0), closing: AtomicWaker::new() })
    }

    /// Keeps the instance from being stopped; `None` once it is closed.
    pub(super) fn hold(self: &Arc<Self>) -> Option<Hold> {
        self.holders
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |holders| {
                (holders != CLOSED).then(|| holders + 1)
            })
            .ok()
            .map(|_| Hold(Arc::clone(self)))
    }

    /// Ready once nothing holds the instance; from then on nothing can.
    pub(super) fn poll_closed(&self, cx: &Context<'_>) -> Poll<()> {
        self.closing.register(cx.waker());
        match self.holders.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) | Err(CLOSED) => Poll::Ready(()),
            Err(_) => Poll::Pending,
        }
    }
}

/// One call's hold on an instance.
pub(super) struct Hold(Arc<Instance>);

impl Hold {
    pub(super) fn provider(&self) -> &dyn Provider {
        &*self.0.provider
    }
}

impl Clone for Hold {
    /// Another hold beside one that is there, so that the instance has not been stopped.
    fn clone(&self) -> Self {
        self.0.holders.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.0.holders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.closing.wake();
        }
    }
}
