//! The signal that asks a call to wind up.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use futures_util::task::AtomicWaker;

/// Makes a signal and its receiver.
pub fn cancellation() -> (Canceller, Cancelled) {
    let shared = Arc::new(Shared { fired: AtomicBool::new(false), waker: AtomicWaker::new() });
    (Canceller(Arc::clone(&shared)), Cancelled { shared, registered: None })
}

/// Fires the signal, once and for good.
#[derive(Clone)]
pub struct Canceller(Arc<Shared>);

impl Canceller {
    /// Asks the call to wind up.
    pub fn cancel(&self) {
        self.0.fired.store(true, Ordering::Release);
        self.0.waker.wake();
    }
}

/// Completes once the signal fired, and at every later poll. One task polls it.
pub struct Cancelled {
    shared: Arc<Shared>,
    /// Who will be woken. It is polled with every chunk: registering the same task again would cost
    /// more than all else here.
    registered: Option<Waker>,
}

impl Cancelled {
    /// Says whether the signal has fired.
    pub fn is_cancelled(&self) -> bool {
        self.shared.fired.load(Ordering::Acquire)
    }
}

impl Future for Cancelled {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_cancelled() {
            return Poll::Ready(());
        }
        if self.registered.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        self.shared.waker.register(cx.waker());
        self.registered = Some(cx.waker().clone());
        // The signal may have fired between the look and the registration.
        if self.is_cancelled() { Poll::Ready(()) } else { Poll::Pending }
    }
}

struct Shared {
    fired: AtomicBool,
    waker: AtomicWaker,
}
