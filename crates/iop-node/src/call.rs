//! One request from its checks to its one terminal.
//!
//! ```text
//! read ─► admit ─► gate ─► conduct ──► terminal
//!   └──refused──┴────┴──────────────► refusal
//! ```
//!
//! A call is one future of its adapter. [`conduct`](mod@conduct) owns it, the permit that it holds and
//! everything that may end it; what its end is, [`iop_execution::watchdog`] decides.

mod alarm;
mod body;
mod conduct;
mod silence;

use std::sync::Arc;
use std::time::Instant;

use iop_execution::admit::{Asked, Need, Passed};
use iop_execution::{CallError, Completion};
use iop_net::link::{BodyReceiver, NodeRequest};
use iop_types::{
    ErrorCode, Event, EventKind, Failure, Generation, ProviderKey, Refusal, RequestHead,
    RunRequest, TunnelFrame, TunnelRequest,
};
use tracing::{Instrument as _, Span, debug, debug_span};

use self::body::{arrived, collect};
use self::conduct::{Call, conduct};
use crate::bridge::{self, Request};
use crate::node::Shared;
use crate::outlet::{Events, Frames};

pub(crate) use self::conduct::Outcome;

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
    let call: Call<'_, Events> = Box::new(move |provider, outlet, cancelled| {
        Box::pin(async move {
            let input = collect(&mut body, &memory, cancelled).await?;
            provider.run(request, input, outlet, cancelled).await
        })
    });
    conduct(&node, passed, &head, outlet, told, call, |outcome| match outcome {
        Outcome::Completed(completion) => complete(completion),
        Outcome::Failed(failure) => EventKind::Error(failure.clone()).into(),
        Outcome::Cancelled(completion) => {
            let usage = completion.as_ref().and_then(|completion| completion.usage);
            Event { kind: EventKind::Cancelled, usage }
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
    let call: Call<'_, Frames> = Box::new(move |provider, outlet, cancelled| {
        Box::pin(async move {
            let Some(tunnel) = provider.tunnel() else {
                let message = "the provider's adapter has no tunnel";
                return Err(CallError::Failed(Failure::new(ErrorCode::ProviderError, message)));
            };
            let body = arrived(body).await;
            tunnel.tunnel(request, body, outlet, cancelled).await?;
            // What a tunnel carried, nobody here has read.
            Ok(Completion::default())
        })
    });
    conduct(&node, passed, &head, outlet, told, call, |outcome| match outcome {
        Outcome::Completed(_) => TunnelFrame::End,
        Outcome::Failed(failure) => TunnelFrame::Error(failure.clone()),
        Outcome::Cancelled(_) => TunnelFrame::Cancelled,
    })
    .await;
}

/// Tells when something of a call happened.
pub(crate) type Clock = fn() -> Instant;

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
