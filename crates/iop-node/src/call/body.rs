//! The body of a request on its way to the adapter.

use std::task::Poll;

use bytes::Bytes;
use iop_execution::{Body, BodyLost, BodySource, CallError, Cancelled};
use iop_net::link::BodyReceiver;
use iop_net::memory::{Budget, Gathering};
use iop_types::{ErrorCode, Failure};

/// The largest input of a normalized run. The Edge's own limit for JSON bodies is lower; this keeps
/// the Node's memory safe whatever its Edge allows.
const MAX_RUN_INPUT: usize = 64 * 1024 * 1024;

/// Waits for the whole input of a run.
pub(super) async fn collect(
    body: &mut BodyReceiver,
    memory: &Budget,
    cancelled: &mut Cancelled,
) -> Result<Bytes, CallError> {
    let mut input = Gathering::new(memory);
    loop {
        let part = tokio::select! {
            biased;
            part = std::future::poll_fn(|cx| body.poll_recv(cx)) => part,
            () = &mut *cancelled => return Err(CallError::Cancelled),
        };
        match part {
            Some(Ok(part)) if input.len() + part.len() > MAX_RUN_INPUT => {
                let limit = MAX_RUN_INPUT / (1024 * 1024);
                let message = format!(
                    "the run's input is {} bytes or more, over the node's limit of {limit} MiB",
                    input.len() + part.len()
                );
                return Err(CallError::Failed(Failure::new(ErrorCode::BodyTooLarge, message)));
            }
            Some(Ok(part)) => input.append(&part).map_err(|over| {
                let message = format!("the run's input does not fit the node: {over}");
                CallError::Failed(Failure::new(ErrorCode::OverMemoryBudget, message))
            })?,
            Some(Err(_)) => return Err(CallError::Cancelled),
            None => return Ok(input.finish()),
        }
    }
}

/// Takes what is there of a tunnel's body: a small one came with its head and is whole. A long one
/// may arrive as fast as it is taken, and no more than one window of it is held here.
pub(super) async fn arrived(mut body: BodyReceiver) -> Body {
    const MOST: usize = 256 * 1024;
    let mut parts = Vec::new();
    let mut taken = 0;
    let ended = std::future::poll_fn(|cx| {
        loop {
            match body.poll_recv(cx) {
                Poll::Ready(Some(Ok(part))) => {
                    taken += part.len();
                    parts.push(Ok(part));
                    if taken >= MOST {
                        return Poll::Ready(false);
                    }
                }
                Poll::Ready(Some(Err(_))) => {
                    parts.push(Err(BodyLost));
                    return Poll::Ready(false);
                }
                Poll::Ready(None) => return Poll::Ready(true),
                Poll::Pending => return Poll::Ready(false),
            }
        }
    })
    .await;
    match (ended, parts.as_slice()) {
        (true, []) => Body::Full(Bytes::new()),
        (true, [Ok(only)]) => Body::Full(only.clone()),
        (true | false, _) => {
            parts.reverse();
            Body::Stream(Box::new(Arriving { first: parts, rest: (!ended).then_some(body) }))
        }
    }
}

/// A body of which the first parts are here.
struct Arriving {
    /// Last first.
    first: Vec<Result<Bytes, BodyLost>>,
    /// `None` when nothing is left to come.
    rest: Option<BodyReceiver>,
}

impl BodySource for Arriving {
    fn poll_part(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<Bytes, BodyLost>>> {
        if let Some(part) = self.first.pop() {
            return Poll::Ready(Some(part));
        }
        match &mut self.rest {
            Some(rest) => {
                rest.poll_recv(cx).map(|part| part.map(|part| part.map_err(|_| BodyLost)))
            }
            None => Poll::Ready(None),
        }
    }
}
