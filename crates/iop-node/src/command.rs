//! One command from its checks to its one terminal.
//!
//! Commands execute nothing that takes capacity, so they pass by the gate and are answered while every
//! permit is out. Checks, in this order: id, provider, operation, permission; what does not pass them
//! opens no socket. Then the answer is put out part by part, held back by credit, until it has ended,
//! somebody cancelled it, its link ended or its patience is over.

mod capabilities;
mod transport;

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use iop_execution::registry::Bound;
use iop_execution::watchdog::CLOSE_GRACE;
use iop_execution::work::Entry;
use iop_execution::{
    BoxFuture, CallError, Cancelled, Canceller, Emission, Fence, Outlet, cancellation,
};
use iop_net::link::NodeCommand;
use iop_types::{
    ApiCall, Command, CommandFrame, CommandId, CommandRequest, ErrorCode, Failure, Generation,
    Operation, Patience, Refusal,
};
use tracing::{Instrument as _, debug, debug_span, info};

use crate::bridge;
use crate::call::{Clock, named, now};
use crate::node::Shared;
use crate::outlet::Steps;

/// How long the end of a command that changed what a server holds may wait for the look that tells
/// the Edge: whoever pulled a target can use it as soon as the command has ended.
const LOOK_BEFORE_END: Duration = Duration::from_secs(1);

/// Checks a command that arrived on the link of `generation` and, when it may run, spawns it.
pub(crate) fn accept(node: &Arc<Shared>, generation: Generation, command: NodeCommand) {
    let NodeCommand { request, answers, cancelled } = command;
    let Some((request, steps)) = bridge::read_command(request, answers) else { return };
    let span = debug_span!("command", id = %request.id, kind = %request.command.kind());
    match admit(node, generation, &request) {
        Ok(admitted) => {
            let work = execute(Arc::clone(node), admitted, steps, cancelled);
            node.tasks.spawn(work.instrument(span));
        }
        Err(refusal) => {
            span.in_scope(|| debug!(%refusal, "refused a command"));
            let _ = steps.refuse(&refusal);
        }
    }
}

/// A command that may run.
struct Admitted {
    entry: Entry<CommandId>,
    cancelled: Cancelled,
    work: Work,
    patience: Patience,
}

/// What there is to do.
enum Work {
    /// The Node knows the answer.
    Capabilities,
    /// The Node knows the answer.
    TransportStatus,
    /// A server is asked.
    Call { provider: Bound, operation: Operation, body: Bytes, manages: bool },
}

fn admit(
    node: &Shared,
    generation: Generation,
    request: &CommandRequest,
) -> Result<Admitted, Refusal> {
    let (entry, cancelled) = node.commands.enter(request.id, generation)?;
    let mut patience = request.command.patience();
    let work = match &request.command {
        Command::Capabilities => Work::Capabilities,
        Command::TransportStatus => Work::TransportStatus,
        Command::OllamaApi(call) => {
            let (work, bound) = admit_call(node, call)?;
            patience = bound;
            work
        }
    };
    Ok(Admitted { entry, cancelled, work, patience })
}

fn admit_call(node: &Shared, call: &ApiCall) -> Result<(Work, Patience), Refusal> {
    let provider = node.checks.registry.find(&call.provider)?;
    let Some(commands) = provider.commands() else {
        let adapter = provider.adapter();
        let what = format!("Ollama's API: `{}` is served by adapter `{adapter}`", call.provider);
        return Err(Refusal::Unsupported { what });
    };
    let operation = &call.operation;
    let Some(listed) = commands.list().into_iter().find(|command| command.operation == *operation)
    else {
        let what = format!("{} {} as a command", operation.method, operation.path);
        return Err(Refusal::Unsupported { what: shown(&what) });
    };
    if listed.manages {
        node.providers.permissions().check(provider.key()).map_err(|remedy| {
            let what = format!("{} {}", operation.method, operation.path);
            Refusal::NotPermitted { what, remedy }
        })?;
        info!(
            provider = %provider.key(),
            method = operation.method,
            path = operation.path,
            "a command changes what a server holds"
        );
    }
    let work = Work::Call {
        provider,
        operation: listed.operation,
        body: call.body.clone(),
        manages: listed.manages,
    };
    Ok((work, listed.patience))
}

async fn execute(
    node: Arc<Shared>,
    admitted: Admitted,
    steps: Steps,
    told: iop_net::link::Cancelled,
) {
    let Admitted { entry, cancelled: asked, work, patience } = admitted;
    let began = now();
    let mut emission = Emission::new(steps, now as Clock);
    let (fence, ender) = (emission.fence(), emission.ender());
    let (canceller, mut cancelled) = cancellation();
    let mut is_late = false;
    let stop = async {
        tokio::select! {
            biased;
            why = told => debug!(?why, "the command is cancelled"),
            () = asked => {}
            () = patience_over(patience, began, &fence) => {
                is_late = true;
            }
        }
    };
    let answer = answer(&node, &work, &mut emission, &mut cancelled);
    let returned = until_returned(answer, stop, &canceller, &fence).await;
    let key = match &work {
        Work::Call { provider, .. } => Some(provider.key().clone()),
        Work::Capabilities | Work::TransportStatus => None,
    };
    if let Work::Call { provider, manages: true, .. } = work {
        look(&node, provider, &returned).await;
    }
    let terminal = match returned {
        Returned::Itself(Ok(())) => CommandFrame::End,
        Returned::Itself(Err(CallError::Failed(failure) | CallError::Abandoned(failure))) => {
            CommandFrame::Error(match &key {
                Some(key) => named(&failure, key),
                None => failure,
            })
        }
        Returned::Itself(Err(CallError::Cancelled)) | Returned::Stopped => match is_late {
            true => CommandFrame::Error(late(patience)),
            false => CommandFrame::Cancelled,
        },
    };
    if let Some(claim) = ender.claim() {
        // A link that ended has told the Edge by itself.
        let _ = claim.finish(terminal);
    }
    drop(entry);
}

/// How a command's answer came back.
enum Returned {
    /// By itself, with this outcome.
    Itself(Result<(), CallError>),
    /// After it was stopped. A command holds no permit: whether its server was seen to end within the
    /// close grace makes no difference.
    Stopped,
}

/// Drives an answer until it has ended, or was stopped and had its close grace. What is given up is
/// dropped by the caller, which resets its connection.
async fn until_returned(
    answer: impl Future<Output = Result<(), CallError>>,
    stop: impl Future<Output = ()>,
    canceller: &Canceller,
    fence: &Fence,
) -> Returned {
    let mut answer = pin!(answer);
    tokio::select! {
        biased;
        outcome = &mut answer => return Returned::Itself(outcome),
        () = stop => {}
    }
    canceller.cancel();
    fence.close();
    let _ = tokio::time::timeout(CLOSE_GRACE, answer).await;
    Returned::Stopped
}

fn answer<'a>(
    node: &'a Shared,
    work: &'a Work,
    outlet: &'a mut dyn Outlet<CommandFrame>,
    cancelled: &'a mut Cancelled,
) -> BoxFuture<'a, Result<(), CallError>> {
    match work {
        Work::Capabilities => own(outlet, capabilities::answer(node)),
        Work::TransportStatus => own(outlet, transport::answer(node)),
        Work::Call { provider, operation, body, .. } => match provider.commands() {
            Some(commands) => commands.call(operation.clone(), body.clone(), outlet, cancelled),
            None => {
                let message = "the provider's adapter takes no commands";
                let failure = Failure::new(ErrorCode::InvalidRequest, message);
                Box::pin(std::future::ready(Err(CallError::Failed(failure))))
            }
        },
    }
}

fn own(
    outlet: &mut dyn Outlet<CommandFrame>,
    answer: Vec<u8>,
) -> BoxFuture<'_, Result<(), CallError>> {
    Box::pin(async move { Ok(outlet.emit(CommandFrame::Part(answer.into())).await?) })
}

/// Completes when the server has had its time. Nothing that its reader holds back is counted as
/// progress, so that an answer which nobody takes ends as well.
async fn patience_over(patience: Patience, began: Instant, fence: &Fence) {
    let due = || match patience {
        Patience::Whole(time) => began + time,
        Patience::Idle(time) => fence.last_progress().unwrap_or(began) + time,
    };
    while due() > now() {
        tokio::time::sleep_until(due().into()).await;
    }
}

fn late(patience: Patience) -> Failure {
    Failure::new(ErrorCode::DeadlineExceeded, format!("the command has come to {patience}"))
}

/// Looks at a server that was changed, and tells the Edge before the command ends.
async fn look(node: &Shared, provider: Bound, returned: &Returned) {
    if matches!(returned, Returned::Itself(Ok(()))) {
        let look = node.providers.look_at(provider);
        if let Ok(changed) = tokio::time::timeout(LOOK_BEFORE_END, look).await {
            node.tell(changed);
        }
    }
    // A look that began before the change may still come in.
    node.look_again();
}

/// Cuts what the Edge should not have sent down to what fits into a message.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use iop_execution::Fenced;

    use super::*;

    /// Takes everything.
    struct Sink;

    impl Outlet<CommandFrame> for Sink {
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Fenced>> {
            Poll::Ready(Ok(()))
        }

        fn put(&mut self, _: CommandFrame) -> Result<(), Fenced> {
            Ok(())
        }
    }

    const TIME: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn the_whole_of_a_command_is_bounded_whatever_comes() {
        let mut emission = Emission::new(Sink, now as Clock);
        let fence = emission.fence();
        let began = now();
        let over = patience_over(Patience::Whole(TIME), began, &fence);
        let putting = async {
            loop {
                tokio::time::sleep(TIME / 3).await;
                emission.put(CommandFrame::Part(Bytes::from_static(b"x"))).unwrap();
            }
        };
        tokio::select! {
            () = over => {}
            () = putting => {}
        }
        assert_eq!(now() - began, TIME);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_bound_runs_from_the_last_part() {
        let mut emission = Emission::new(Sink, now as Clock);
        let fence = emission.fence();
        let began = now();
        let over = patience_over(Patience::Idle(TIME), began, &fence);
        let putting = async {
            for _ in 0..10 {
                tokio::time::sleep(TIME / 3).await;
                emission.put(CommandFrame::Part(Bytes::from_static(b"x"))).unwrap();
            }
        };
        tokio::join!(over, putting);
        assert_eq!(now() - began, TIME / 3 * 10 + TIME);
    }
}
