//! Commands: what people and scripts ask of a Node through the admin listener.
//!
//! ```text
//! asked ─► read ─► sent ─► first part ─► 200 ─► parts ─► end
//!            └───────┴─────────┴─ error answer     └─► last line with `error`, or the body breaks off
//! ```
//!
//! What is not on the closed list is refused here, before anything is sent, and by the Node again. The
//! asker's presence is the [`Answer`] that it holds: when it is dropped the Node is told to stop.

mod asked;
mod failure;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body::{Body, Frame};
use iop_dialect::openai::error_body;
use iop_net::link::EdgeCommand;
use iop_types::{
    Command, CommandFrame, CommandId, CommandRequest, ErrorCode, Failure, MAX_COMMAND_BODY, NodeId,
    OllamaOperation,
};
use iop_wire::{CommandAnswer, v1};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tracing::info;

use self::asked::Asked;
use crate::body;
use crate::core::Core;
use crate::relay::Broken;
use crate::surface::errors::ErrorAnswer;
use crate::surface::identity;
use crate::surface::response::ResponseBody;

/// Names the command on its answer.
const COMMAND_ID: HeaderName = HeaderName::from_static("x-command-id");

/// What the Edge waits beyond the Node's own patience, so that the Node's words come first.
const MARGIN: Duration = Duration::from_secs(5);

/// Longest request: a command's body and the few names around it.
const MAX_REQUEST: usize = MAX_COMMAND_BODY + 4 * 1024;

/// Answers `POST /api/v1/nodes/{node}/commands`.
///
/// # Errors
/// The command was refused, or failed before anything of its answer came.
pub(crate) async fn ask<B>(
    core: &Arc<Core>,
    node: &NodeId,
    request: Request<B>,
) -> Result<Response<ResponseBody>, ErrorAnswer>
where
    B: Body<Data = Bytes> + Unpin,
{
    let session_id = identity::session_id(request.headers())?;
    let limits = body::Limits { bytes: MAX_REQUEST, pause: core.timing.body_pause };
    let text = body::read(request.into_body(), limits, &core.budget, false)
        .await
        .map_err(failure::of_body)?;
    let Asked { id, command } = asked::read(&text)?;
    if core.is_stopping() {
        return Err(ErrorAnswer::new(ErrorCode::ShuttingDown, "the edge is stopping"));
    }
    let link = core.group.linked(node)?;
    failure::check_provider(core, node, &command)?;
    let entry = core.commands.enter(id)?;
    info!(command = %id, %node, kind = %command.kind(), "asks a node");
    let is_pull = is_pull(&command);
    let patience = command.patience().extended(MARGIN);
    let request = CommandRequest { id, session_id, command };
    let stream = link.command(request, patience).map_err(|error| failure::of_sending(&error))?;
    let mut answer = Answer::new(node.clone(), stream, entry, is_pull);
    let first = std::future::poll_fn(|cx| answer.poll_part(cx)).await;
    answer.first = first.map_err(|failure| ErrorAnswer::from_failure(&failure))?;
    let content_type = if is_pull { "application/x-ndjson" } else { "application/json" };
    let mut response = Response::new(ResponseBody::Command(answer));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(COMMAND_ID, identity::header_value(&id.to_string()));
    Ok(response)
}

fn is_pull(command: &Command) -> bool {
    match command {
        Command::OllamaApi(call) => {
            let operation = &call.operation;
            let found = OllamaOperation::find(&operation.method, &operation.path);
            found == Some(OllamaOperation::Pull)
        }
        Command::Capabilities | Command::TransportStatus => false,
    }
}

/// The commands under way, by id.
#[derive(Debug, Default)]
pub(crate) struct Commands(Arc<Mutex<BTreeMap<CommandId, CancellationToken>>>);

impl Commands {
    fn enter(&self, id: CommandId) -> Result<Entry, ErrorAnswer> {
        let mut commands = lock(&self.0);
        if commands.contains_key(&id) {
            let message = format!("command {id} is under way: leave `id` out, or give another one");
            return Err(ErrorAnswer::new(ErrorCode::InvalidRequest, message));
        }
        let cancelled = CancellationToken::new();
        commands.insert(id, cancelled.clone());
        drop(commands);
        Ok(Entry { commands: Arc::clone(&self.0), id, cancelled })
    }

    /// Cancels one; says whether it was under way.
    pub(crate) fn cancel(&self, id: CommandId) -> bool {
        let found = lock(&self.0).get(&id).cloned();
        found.is_some_and(|cancelled| {
            cancelled.cancel();
            true
        })
    }

    /// Cancels all of them.
    pub(crate) fn cancel_all(&self) {
        let all: Vec<_> = lock(&self.0).values().cloned().collect();
        all.iter().for_each(CancellationToken::cancel);
    }
}

fn lock(
    commands: &Mutex<BTreeMap<CommandId, CancellationToken>>,
) -> MutexGuard<'_, BTreeMap<CommandId, CancellationToken>> {
    commands.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A command's place in the table, until its asker has the whole answer or is gone.
struct Entry {
    commands: Arc<Mutex<BTreeMap<CommandId, CancellationToken>>>,
    id: CommandId,
    cancelled: CancellationToken,
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.commands).remove(&self.id);
    }
}

/// A command's answer on its way to whoever asked. Dropping it before its end means that the asker is
/// gone, and cancels the command.
pub(crate) struct Answer {
    node: NodeId,
    /// What came before there was a response to put it in; `None` of it is a whole answer.
    first: Option<Bytes>,
    stream: Option<EdgeCommand>,
    cancelled: Pin<Box<WaitForCancellationFutureOwned>>,
    is_told: bool,
    is_pull: bool,
    _entry: Entry,
}

impl Answer {
    fn new(node: NodeId, stream: EdgeCommand, entry: Entry, is_pull: bool) -> Self {
        let cancelled = Box::pin(entry.cancelled.clone().cancelled_owned());
        let stream = Some(stream);
        Self { node, first: None, stream, cancelled, is_told: false, is_pull, _entry: entry }
    }

    /// Yields the next piece of the body. A pull that fails says so in its last line; of any other
    /// answer a part would be no JSON, so that it breaks off.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        Poll::Ready(match ready!(self.poll_part(cx)) {
            Ok(part) => part.map(|part| Ok(Frame::data(part))),
            Err(failure) if self.is_pull => {
                let line = [&error_body(failure.code, &failure.message, None)[..], b"\n"].concat();
                Some(Ok(Frame::data(line.into())))
            }
            Err(_) => Some(Err(Broken)),
        })
    }

    /// Yields the next part, `None` after the last.
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Failure>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Ok(None)) };
        if !self.is_told && self.cancelled.as_mut().poll(cx).is_ready() {
            self.is_told = true;
            stream.cancel(v1::CancelReason::Operator);
        }
        let heard = ready!(stream.poll_recv(cx));
        let step = match heard.map(CommandAnswer::try_from) {
            Ok(Ok(CommandAnswer::Frame(CommandFrame::Part(part)))) => {
                return Poll::Ready(Ok(Some(part)));
            }
            Ok(Ok(CommandAnswer::Frame(CommandFrame::End))) => Ok(None),
            Ok(Ok(CommandAnswer::Frame(CommandFrame::Error(failure)))) => Err(failure),
            Ok(Ok(CommandAnswer::Frame(CommandFrame::Cancelled))) => Err(failure::cancelled()),
            Ok(Ok(CommandAnswer::Refused(refused))) => Err(failure::of_refusal(&refused)),
            Ok(Err(nonsense)) => Err(Failure::new(ErrorCode::ProviderError, nonsense.to_string())),
            Err(_) if self.is_told => Err(failure::cancelled()),
            Err(error) => Err(failure::of_stream(&self.node, error)),
        };
        self.stream = None;
        Poll::Ready(step)
    }
}
