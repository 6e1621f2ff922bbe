//! One HTTP exchange with the provider, wound up in the same way from every phase.
//!
//! ```text
//! head ─► frames ─► clean end ─► returned
//!   └───────┴─ cancelled or fenced ─► FIN, read on ─► the provider's end ─► CallError::Cancelled
//!   └───────┴─ the answer is unusable ─► FIN, read on for the grace, then reset ─► CallError::Failed
//! ```
//!
//! How long a cancelled call may take to return is for the caller to bound: dropping the future
//! drops the exchange, which resets the connection.

use std::time::Duration;

use bytes::Bytes;
use iop_execution::{CallError, Cancelled, Outlet};
use iop_net::http::{Call, Frame, Head};
use iop_types::Failure;

use super::failure::failure_of;

/// How long a provider whose answer is unusable, or said to be over, may take to end before it is
/// reset; the close grace of a cancelled call.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

pub(crate) struct Exchange<'a> {
    call: Call,
    cancelled: &'a mut Cancelled,
}

impl<'a> Exchange<'a> {
    pub(crate) const fn new(call: Call, cancelled: &'a mut Cancelled) -> Self {
        Self { call, cancelled }
    }

    /// Waits for the head of the answer.
    pub(crate) async fn head(&mut self) -> Result<Head, CallError> {
        let head = tokio::select! {
            biased;
            () = &mut *self.cancelled => None,
            head = self.call.head() => Some(head),
        };
        match head {
            Some(head) => head.map_err(|error| CallError::Failed(failure_of(&error))),
            None => Err(self.wind_up().await),
        }
    }

    /// Waits for the next frame, `None` at the clean end.
    pub(crate) async fn frame(&mut self) -> Result<Option<Frame>, CallError> {
        let frame = tokio::select! {
            biased;
            () = &mut *self.cancelled => None,
            frame = self.call.frame() => Some(frame),
        };
        match frame {
            Some(frame) => frame.map_err(|error| CallError::Failed(failure_of(&error))),
            None => Err(self.wind_up().await),
        }
    }

    /// Reads the rest of the body into memory.
    pub(crate) async fn body(&mut self, limit: usize) -> Result<Bytes, CallError> {
        let body = tokio::select! {
            biased;
            () = &mut *self.cancelled => None,
            body = self.call.body(limit) => Some(body),
        };
        match body {
            Some(body) => body.map_err(|error| CallError::Failed(failure_of(&error))),
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

    /// Waits for the end of a body that has nothing more to say. However it ends, the answer is
    /// whole; a provider that leaves its body open does not keep it from whoever asked.
    pub(crate) async fn let_end(&mut self) -> Result<(), CallError> {
        let call = &mut self.call;
        let rest = async { while let Ok(Some(_)) = call.frame().await {} };
        let ended = tokio::select! {
            biased;
            () = &mut *self.cancelled => false,
            _ = tokio::time::timeout(CLOSE_GRACE, rest) => true,
        };
        if ended { Ok(()) } else { Err(self.wind_up().await) }
    }

    /// Ends a call whose answer cannot be used.
    pub(crate) async fn give_up(mut self, failure: Failure) -> CallError {
        self.call.cancel();
        // Past the grace the drop resets the connection: the failure is known either way.
        let _ = tokio::time::timeout(CLOSE_GRACE, self.call.returned()).await;
        CallError::Failed(failure)
    }

    /// Tells the provider to stop and returns when its end was seen.
    async fn wind_up(&mut self) -> CallError {
        self.call.cancel();
        self.call.returned().await;
        CallError::Cancelled
    }
}
