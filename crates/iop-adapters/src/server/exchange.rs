//! One HTTP exchange with the provider, wound up in the same way from every phase.
//!
//! ```text
//! head ─► frames ─► clean end ─► returned
//!   └───────┴─ cancelled or fenced ─► FIN, read on ─► the provider's end ─► CallError::Cancelled
//!   │       └─ the answer is said to be whole ─► read on ─► clean end ─► returned
//!   │                                            └─ stopped ─► FIN, read on ─► the provider's end
//!   └───────┴─ the answer is unusable ─► FIN, read on ─► the provider's end ─► CallError::Failed
//!                                             └─ the grace is over: reset ─► CallError::Abandoned
//! ```
//!
//! Until the provider has its whole request, every poll tells the outlet how much it has taken: that
//! is what a silent provider is told from a slow upload by.
//!
//! Once the answer is known to be unusable, the outlet is told so: what is still awaited is the provider's
//! end, whose time is bounded here.
//!
//! How long a provider may leave an answer open that it said to be whole, and how long a cancelled call
//! may take to return, is for the caller to bound: dropping the future drops the exchange, which resets
//! the connection.

use std::time::Duration;

use bytes::Bytes;
use iop_execution::{CallError, Cancelled, Completion, Outlet, Sent};
use iop_net::http::{Call, Frame, Head, Phase, Sending};
use iop_types::Failure;

use super::failure::failure_of;

/// How long a provider whose answer is unusable may take to end before it is reset; the close grace of a
/// cancelled call.
const CLOSE_GRACE: Duration = iop_execution::watchdog::CLOSE_GRACE;

/// How long a cancelled provider may take to end that has not been sent its whole request. A FIN can
/// wait behind bytes that it never reads, and it has a second to see that its client left; what it has
/// is no request that it could be working at, so that its end need not be seen.
const UNSENT_GRACE: Duration = Duration::from_millis(500);

pub(crate) struct Exchange<'a> {
    call: Call,
    cancelled: &'a mut Cancelled,
    handover: Handover,
}

impl<'a> Exchange<'a> {
    pub(crate) const fn new(call: Call, cancelled: &'a mut Cancelled) -> Self {
        Self { call, cancelled, handover: Handover(Sending::Nothing) }
    }

    /// Waits for the head of the answer.
    pub(crate) async fn head<T>(&mut self, outlet: &mut dyn Outlet<T>) -> Result<Head, CallError> {
        let (call, handover) = (&mut self.call, &mut self.handover);
        let head = std::future::poll_fn(|cx| {
            let head = call.poll_head(cx);
            handover.tell(call, outlet);
            head
        });
        let head = tokio::select! {
            biased;
            () = &mut *self.cancelled => None,
            head = head => Some(head),
        };
        match head {
            Some(Ok(head)) => Ok(head),
            Some(Err(error)) => Err(self.abandon(outlet, failure_of(&error)).await),
            None => Err(self.wind_up().await),
        }
    }

    /// Waits for the next frame, `None` at the clean end.
    pub(crate) async fn frame<T>(
        &mut self,
        outlet: &mut dyn Outlet<T>,
    ) -> Result<Option<Frame>, CallError> {
        let (call, handover) = (&mut self.call, &mut self.handover);
        let frame = std::future::poll_fn(|cx| {
            let frame = call.poll_frame(cx);
            handover.tell(call, outlet);
            frame
        });
        let frame = tokio::select! {
            biased;
            () = &mut *self.cancelled => None,
            frame = frame => Some(frame),
        };
        match frame {
            Some(Ok(frame)) => Ok(frame),
            Some(Err(error)) => Err(self.abandon(outlet, failure_of(&error)).await),
            None => Err(self.wind_up().await),
        }
    }

    /// Reads the rest of the body into memory.
    pub(crate) async fn body<T>(
        &mut self,
        limit: usize,
        outlet: &mut dyn Outlet<T>,
    ) -> Result<Bytes, CallError> {
        let body = tokio::select! {
            biased;
            () = &mut *self.cancelled => None,
            body = self.call.body(limit) => Some(body),
        };
        match body {
            Some(Ok(body)) => Ok(body),
            Some(Err(error)) => Err(self.abandon(outlet, failure_of(&error)).await),
            None => Err(self.wind_up().await),
        }
    }

    /// Waits for room in the outlet and puts one item. The provider is not read meanwhile.
    pub(crate) async fn emit<T>(
        &mut self,
        outlet: &mut dyn Outlet<T>,
        item: T,
    ) -> Result<(), CallError> {
        let emitted = tokio::select! {
            biased;
            () = &mut *self.cancelled => None,
            emitted = outlet.emit(item) => emitted.ok(),
        };
        match emitted {
            Some(()) => Ok(()),
            None => Err(self.wind_up().await),
        }
    }

    /// Waits for the end of a body that has nothing more to say, until it is cancelled. `completion` is
    /// how the call completed, whichever comes first.
    pub(crate) async fn let_end<T>(
        &mut self,
        outlet: &mut dyn Outlet<T>,
        completion: Completion,
    ) -> Result<(), CallError> {
        if self.call.has_returned() {
            return Ok(());
        }
        outlet.note_done(completion);
        let call = &mut self.call;
        let rest = async {
            while let Ok(Some(_)) = call.frame().await {}
            // A body that breaks here costs nobody anything; its provider still has to return.
            call.returned().await;
        };
        let ended = tokio::select! {
            biased;
            () = &mut *self.cancelled => false,
            () = rest => true,
        };
        if ended { Ok(()) } else { Err(self.wind_up().await) }
    }

    /// Ends a call whose answer cannot be used.
    pub(crate) async fn give_up<T>(
        mut self,
        outlet: &mut dyn Outlet<T>,
        failure: Failure,
    ) -> CallError {
        self.abandon(outlet, failure).await
    }

    /// Lets the provider end within the grace. Past it the drop resets the connection; the failure is
    /// known either way.
    async fn abandon<T>(&mut self, outlet: &mut dyn Outlet<T>, failure: Failure) -> CallError {
        if self.call.has_returned() {
            return CallError::Failed(failure);
        }
        outlet.note_outcome();
        self.call.cancel();
        match tokio::time::timeout(CLOSE_GRACE, self.call.returned()).await {
            Ok(()) => CallError::Failed(failure),
            Err(_) => CallError::Abandoned(failure),
        }
    }

    /// Tells the provider to stop and returns when its end was seen, or need not be; then the drop
    /// resets the connection.
    async fn wind_up(&mut self) -> CallError {
        let is_unsent = self.call.phase() == Phase::Sending;
        self.call.cancel();
        if is_unsent {
            let _ = tokio::time::timeout(UNSENT_GRACE, self.call.returned()).await;
        } else {
            self.call.returned().await;
        }
        CallError::Cancelled
    }
}

/// How much of the request the outlet has been told of.
struct Handover(Sending);

impl Handover {
    fn tell<T>(&mut self, call: &Call, outlet: &mut dyn Outlet<T>) {
        if self.0 == Sending::HandedOver {
            return;
        }
        let sending = call.sending();
        if sending == self.0 {
            return;
        }
        self.0 = sending;
        match sending {
            // The call has ended, or starts again on a fresh connection.
            Sending::Nothing => {}
            Sending::Partly { is_starved: false, .. } => outlet.note_sent(Sent::More),
            Sending::Partly { is_starved: true, .. } => outlet.note_sent(Sent::AllSoFar),
            Sending::HandedOver => outlet.note_sent(Sent::Whole),
        }
    }
}
