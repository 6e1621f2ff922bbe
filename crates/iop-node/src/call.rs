//! One request from its checks to its one terminal.
//!
//! ```text
//! read ─► admit ─► gate ─► calling ──returned──────────────────────► terminal of the call
//!   └──refused──┴────┴─────   │ cancelled, or the link ended
//!                             └─► winding up ──returned──► cancelled   return confirmed
//!                                       └──2 s──► reset ─► cancelled   permit is a zombie
//! ```
//!
//! A call is one future of its adapter; this module owns it, the time it has to wind up and the
//! permit that it holds. What is decided (checks, fence, terminal) is [`iop_execution`]'s.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use iop_execution::admit::{Asked, Need, Passed};
use iop_execution::emission::Terminus;
use iop_execution::registry::Bound;
use iop_execution::{
    Body, BodyLost, BodySource, BoxFuture, CallError, Cancelled, Canceller, Completion, Emission,
    Fence,
};
use iop_net::link::{BodyReceiver, NodeRequest};
use iop_net::memory::{Budget, Gathering};
use iop_types::{
    ErrorCode, Event, EventKind, Failure, Generation, ProviderKey, Refusal, RequestHead,
    RunRequest, TunnelFrame, TunnelRequest,
};
use tracing::{Instrument as _, Span, debug, debug_span, info};

use crate::bridge::{self, Request};
use crate::node::Shared;
use crate::outlet::{Events, Frames};

/// How long a cancelled provider call may take to be seen to return.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// The largest input of a normalized run. The Edge's own limit for JSON bodies is lower; this keeps
/// the Node's memory safe whatever its Edge allows.
const MAX_RUN_INPUT: usize = 64 * 1024 * 1024;

/// Checks a request that arrived on the link of `generation` and, when it may run, spawns its call.
pub(crate) fn accept(node: &Arc<Shared>, generation: Generation, request: NodeRequest) {
    let NodeRequest { message, body, answers, cancelled } = request;
    match bridge::read(message, answers) {
        Some(Request::Run(request, outlet)) => {
            match pass(node, generation, &request.head, Need::Run(request.kind)) {
                Ok(passed) => {
                    let span = span(&request.head);
                    let call = run(Arc::clone(node), passed, request, body, outlet, cancelled);
                    node.tasks.spawn(call.instrument(span));
                }
                Err(refusal) => {
                    refused(&request.head, &refusal);
                    let _ = outlet.refuse(&refusal);
                }
            }
        }
        Some(Request::Tunnel(request, outlet)) => {
            let need =
                Need::Tunnel { method: &request.method, path_and_query: &request.path_and_query };
            match pass(node, generation, &request.head, need) {
                Ok(passed) => {
                    let span = span(&request.head);
                    let call = tunnel(Arc::clone(node), passed, request, body, outlet, cancelled);
                    node.tasks.spawn(call.instrument(span));
                }
                Err(refusal) => {
                    refused(&request.head, &refusal);
                    let _ = outlet.refuse(&refusal);
                }
            }
        }
        None => {}
    }
}

fn pass(
    node: &Shared,
    generation: Generation,
    head: &RequestHead,
    need: Need<'_>,
) -> Result<Passed, Refusal> {
    let asked = Asked {
        stall_timeout_ms: head.stall_timeout.as_wire(),
        work: head.work,
        generation,
        provider: &head.provider,
        revision: head.revision,
        need,
    };
    let admitted = node.checks.admit(&asked)?;
    admitted.pass_gate().inspect_err(|refusal| {
        if let Refusal::CapacityExceeded { .. } = refusal {
            node.providers.note_full(&head.provider);
        }
    })
}

/// Executes a normalized run.
async fn run(
    node: Arc<Shared>,
    passed: Passed,
    request: RunRequest,
    mut body: BodyReceiver,
    outlet: Events,
    told: iop_net::link::Cancelled,
) {
    let head = request.head.clone();
    let memory = node.memory.clone();
    let call: Call<'_, Events, Completion> = Box::new(move |provider, outlet, cancelled| {
        Box::pin(async move {
            let input = collect(&mut body, &memory, cancelled).await?;
            provider.run(request, input, outlet, cancelled).await
        })
    });
    conduct(&node, passed, &head, outlet, told, call, |returned| match returned {
        Returned::Itself(Ok(completion)) => complete(completion),
        Returned::Itself(Err(CallError::Failed(failure))) => {
            EventKind::Error(named(failure, &head.provider)).into()
        }
        Returned::Itself(Err(CallError::Cancelled)) | Returned::Cancelled | Returned::Unseen => {
            EventKind::Cancelled.into()
        }
    })
    .await;
}

/// Executes a tunnel.
async fn tunnel(
    node: Arc<Shared>,
    passed: Passed,
    request: TunnelRequest,
    body: BodyReceiver,
    outlet: Frames,
    told: iop_net::link::Cancelled,
) {
    let head = request.head.clone();
    let call: Call<'_, Frames, ()> = Box::new(move |provider, outlet, cancelled| {
        Box::pin(async move {
            let Some(tunnel) = provider.tunnel() else {
                let message = "the provider's adapter has no tunnel";
                return Err(CallError::Failed(Failure::new(ErrorCode::ProviderError, message)));
            };
            let body = arrived(body).await;
            tunnel.tunnel(request, body, outlet, cancelled).await
        })
    });
    conduct(&node, passed, &head, outlet, told, call, |returned| match returned {
        Returned::Itself(Ok(())) => TunnelFrame::End,
        Returned::Itself(Err(CallError::Failed(failure))) => {
            TunnelFrame::Error(named(failure, &head.provider))
        }
        Returned::Itself(Err(CallError::Cancelled)) | Returned::Cancelled | Returned::Unseen => {
            TunnelFrame::Cancelled
        }
    })
    .await;
}

/// The provider's part of a request: what is called, with which output.
type Call<'c, O, R> = Box<
    dyn for<'a> FnOnce(
            &'a Bound,
            &'a mut Emission<O, Clock>,
            &'a mut Cancelled,
        ) -> BoxFuture<'a, Result<R, CallError>>
        + Send
        + 'c,
>;

/// Tells the time of a progress.
pub(crate) type Clock = fn() -> Instant;

/// Carries one call from its permit to its terminal, whatever its form.
async fn conduct<T, O, R>(
    node: &Shared,
    passed: Passed,
    head: &RequestHead,
    outlet: O,
    told: iop_net::link::Cancelled,
    call: Call<'_, O, R>,
    terminal: impl FnOnce(&Returned<R>) -> T,
) where
    O: Terminus<T>,
{
    let Passed { permit, entry, mut cancelled, provider, stall_timeout: _ } = passed;
    let record = node.journal.begin(head);
    let mut emission = Emission::new(outlet, now as Clock);
    let fence = emission.fence();
    let call = call(&provider, &mut emission, &mut cancelled);
    let returned = until_returned(call, told, entry.canceller(), &fence).await;
    settle(node, permit, &returned);
    if let Some(claim) = fence.claim() {
        // A link that ended has told the client's side by itself.
        let _ = emission.finish(claim, terminal(&returned));
    }
    node.journal.end(record, fence.first_progress(), &returned);
    drop(entry);
}

/// How a provider call came back.
pub(crate) enum Returned<T> {
    /// By itself, with this outcome.
    Itself(Result<T, CallError>),
    /// After it was cancelled, within the close grace: the return is confirmed.
    Cancelled,
    /// Not within the close grace: it was reset, and what the provider still does is unknown.
    Unseen,
}

/// Drives a call until it returned, or was cancelled and did not return within the close grace. A
/// call that is given up is dropped here, which resets its connection.
pub(crate) async fn until_returned<T>(
    call: impl Future<Output = Result<T, CallError>>,
    told: impl Future<Output: Debug>,
    canceller: &Canceller,
    fence: &Fence,
) -> Returned<T> {
    let mut call = pin!(call);
    let mut told = pin!(told);
    tokio::select! {
        biased;
        outcome = &mut call => return Returned::Itself(outcome),
        why = &mut told => debug!(?why, "call is cancelled"),
    }
    canceller.cancel();
    fence.close();
    match tokio::time::timeout(CLOSE_GRACE, call).await {
        Ok(_) => Returned::Cancelled,
        Err(_) => Returned::Unseen,
    }
}

/// Gives the permit back, or keeps it as a zombie when nobody saw the call return.
fn settle<T>(node: &Shared, permit: iop_execution::Permit, returned: &Returned<T>) {
    match returned {
        Returned::Itself(Err(CallError::Failed(failure)))
            if failure.code == ErrorCode::ConnectFailed =>
        {
            drop(permit);
            node.look_again();
        }
        Returned::Itself(_) | Returned::Cancelled => drop(permit),
        Returned::Unseen => {
            info!("provider did not end a cancelled call within the close grace: connection reset");
            permit.into_zombie(now());
            node.look_again();
        }
    }
}

/// Says which provider could not be reached: a client of a route with several knows none of them, and
/// the adapter does not know its own name.
pub(crate) fn named(failure: &Failure, provider: &ProviderKey) -> Failure {
    let mut failure = failure.clone();
    if failure.code == ErrorCode::ConnectFailed {
        failure.message = format!("provider `{provider}`: {}", failure.message);
    }
    failure
}

fn complete(completion: &Completion) -> Event {
    Event {
        kind: EventKind::Complete { finish: completion.finish.clone() },
        usage: completion.usage,
    }
}

/// Waits for the whole input of a run.
async fn collect(
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
async fn arrived(mut body: BodyReceiver) -> Body {
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

fn span(head: &RequestHead) -> Span {
    debug_span!(
        "call",
        run = %head.work.run_id,
        attempt = %head.work.attempt,
        provider = %head.provider,
        target = %head.target,
    )
}

fn refused(head: &RequestHead, refusal: &Refusal) {
    debug!(run = %head.work.run_id, attempt = %head.work.attempt, %refusal, "refused a request");
}

/// Tokio's clock, which tests and simulations can stop.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
