//! What an adapter offers to its Node: four traits, of which only [`Provider`] is required.
//!
//! A call is one future. While it runs it puts its output into an [`Outlet`]; when it returns, the
//! provider's side of the call has returned. The terminal is the future's own result, so that no
//! adapter can emit two. Cancelling asks the call to wind up: it shuts down its sending side, reads
//! on and returns once the provider has ended. Dropping the future instead resets the provider
//! connection and confirms nothing.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use iop_types::{
    AdapterType, Capabilities, CommandFrame, Event, Failure, Finish, Operation, Patience,
    RunRequest, Target, TunnelFrame, TunnelRequest, Usage,
};

use crate::cancel::Cancelled;
use crate::probe::Probe;
use crate::vitals::Sent;

/// A future in a box, for traits that adapters implement.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One served endpoint.
pub trait Provider: Send + Sync + 'static {
    /// Names the dialect; the type name of the registry.
    fn adapter(&self) -> AdapterType;

    /// Says what the provider can do.
    fn capabilities(&self) -> &Capabilities;

    /// Prepares the instance. Needs no reachable server.
    ///
    /// # Errors
    /// Fails only when the instance can never work as configured.
    fn start(&self) -> BoxFuture<'_, Result<(), StartError>>;

    /// Releases what [`start`](Self::start) took: idle connections, background work.
    fn stop(&self) -> BoxFuture<'_, ()>;

    /// Asks the server what it serves, over a connection of its own, outside the gate.
    ///
    /// # Errors
    /// Fails when the server does not answer or answers something else than a list.
    fn discover(&self) -> BoxFuture<'_, Result<Discovery, DiscoverError>>;

    /// Executes a normalized run. `input` is the OpenAI object of the request's kind.
    fn run<'a>(
        &'a self,
        request: RunRequest,
        input: Bytes,
        outlet: &'a mut dyn Outlet<Event>,
        cancelled: &'a mut Cancelled,
    ) -> BoxFuture<'a, Result<Completion, CallError>>;

    /// Returns the tunnel, where the adapter has one.
    fn tunnel(&self) -> Option<&dyn Tunnel> {
        None
    }

    /// Returns the health probe, where the adapter has one.
    fn probe(&self) -> Option<&dyn Probe> {
        None
    }

    /// Returns the closed commands, where the adapter has any.
    fn commands(&self) -> Option<&dyn Commands> {
        None
    }

    /// Counts the connections to the server, where the adapter has any.
    fn connections(&self) -> Option<Connections> {
        None
    }
}

/// Connections to one server, as counted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Connections {
    /// Open, idle ones included.
    pub open: usize,
    /// Open and without a call.
    pub idle: usize,
}

/// Raw HTTP to the provider.
pub trait Tunnel: Send + Sync {
    /// Sends one HTTP request and relays its response: a head, bodies, perhaps trailers.
    ///
    /// Returning `Ok` means that the response ended cleanly.
    fn tunnel<'a>(
        &'a self,
        request: TunnelRequest,
        body: Body,
        outlet: &'a mut dyn Outlet<TunnelFrame>,
        cancelled: &'a mut Cancelled,
    ) -> BoxFuture<'a, Result<(), CallError>>;
}

/// The management API of a server, as far as commands reach it; never inference.
pub trait Commands: Send + Sync {
    /// Returns the closed list of operations.
    fn list(&self) -> Vec<Command>;

    /// Calls one operation of the list, outside the gate, and puts the answer out as it comes.
    /// Permission and patience are the caller's.
    ///
    /// Fails without opening a socket when the operation is not on the list, spelled exactly so, or
    /// when the body is not the one that it takes.
    fn call<'a>(
        &'a self,
        operation: Operation,
        body: Bytes,
        outlet: &'a mut dyn Outlet<CommandFrame>,
        cancelled: &'a mut Cancelled,
    ) -> BoxFuture<'a, Result<(), CallError>>;
}

/// One operation of a server's management API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Method and path.
    pub operation: Operation,
    /// Whether it changes what the server holds, which needs permission.
    pub manages: bool,
    /// How long the server may take.
    pub patience: Patience,
}

/// Where the output of a call goes; pending while the client does not keep up.
pub trait Outlet<T>: Send {
    /// Ready when the next item can be put.
    ///
    /// # Errors
    /// The outlet is fenced: nothing will leave any more.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fenced>>;

    /// Puts one item.
    ///
    /// # Errors
    /// The outlet is fenced: the item was dropped.
    fn put(&mut self, item: T) -> Result<(), Fenced>;

    /// Notes how much of its request the provider has taken. An adapter says so while it sends,
    /// whenever that changes; an outlet that nobody watches need not listen.
    fn note_sent(&mut self, sent: Sent) {
        let _ = sent;
    }

    /// Notes that the call's outcome is known and only the provider's end is awaited, for a time that
    /// the adapter bounds: from here on its silence means nothing.
    fn note_outcome(&mut self) {}

    /// Notes that the provider has said that its answer is whole, after all of it was put. Whoever
    /// watches the call bounds the time that is left for the provider's end, and cancels it then; the
    /// call completed as `completion` says either way.
    fn note_done(&mut self, completion: Completion) {
        drop(completion);
    }
}

impl<T> dyn Outlet<T> + '_ {
    /// Waits until there is room, then puts the item. Cancel safe: dropped early, nothing was put.
    ///
    /// # Errors
    /// The outlet is fenced: the item was dropped.
    pub async fn emit(&mut self, item: T) -> Result<(), Fenced> {
        std::future::poll_fn(|cx| self.poll_ready(cx)).await?;
        self.put(item)
    }
}

/// Nothing leaves this call any more: it was cancelled or its link ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the call's output is fenced")]
pub struct Fenced;

/// The body of a tunnel request.
pub enum Body {
    /// It arrived whole.
    Full(Bytes),
    /// It is still arriving.
    Stream(Box<dyn BodySource>),
}

/// A request body that is still arriving.
pub trait BodySource: Send + 'static {
    /// Yields the next part, `None` after the last.
    ///
    /// # Errors
    /// The body will never be complete.
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyLost>>>;
}

/// The link ended or the request was cancelled before its body was complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the request body ended before it was complete")]
pub struct BodyLost;

/// How a run completed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Completion {
    /// Why each choice ended; empty for embeddings and scores.
    pub finish: Vec<Finish>,
    /// The provider's last figures.
    pub usage: Option<Usage>,
}

/// How a call returned other than by completing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It failed, and the provider's part in it is over.
    #[error("{0}")]
    Failed(Failure),
    /// It failed, and its connection was reset before the provider was seen to end: what it still
    /// does is unknown.
    #[error("{0}")]
    Abandoned(Failure),
    /// It was cancelled and the provider's end was seen.
    #[error("cancelled")]
    Cancelled,
}

impl CallError {
    /// Returns the failure, unless the call was cancelled.
    pub const fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed(failure) | Self::Abandoned(failure) => Some(failure),
            Self::Cancelled => None,
        }
    }
}

impl From<Fenced> for CallError {
    fn from(_: Fenced) -> Self {
        Self::Cancelled
    }
}

/// What a server serves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Discovery {
    /// Targets, in the server's order.
    pub targets: Vec<Target>,
    /// Targets held in memory, where the server tells.
    pub loaded: Vec<Target>,
    /// Requests waiting inside the server, where it tells.
    pub queued: Option<u32>,
    /// Whether the server says that it works at no request and none waits in it.
    pub is_idle: bool,
}

/// An instance that can never work as configured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StartError(pub String);

/// A server that did not say what it serves.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiscoverError {
    /// Nothing answers there (yet).
    #[error("{0}")]
    Unreachable(String),
    /// Its Node may not connect to it, which waiting does not change.
    #[error("{0}")]
    Forbidden(String),
    /// Something answers, but not with a list of models.
    #[error("{0}")]
    Unusable(String),
    /// The server lists models and says at the same time that it cannot serve them.
    #[error("{0}")]
    Unwell(String),
}
