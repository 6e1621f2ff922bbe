//! Links as hosts see them: the tokio form of [`iop_link`].

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use iop_types::{CloseReason, EdgeBootId, Generation, InstanceId, NodeId};
use iop_wire::v1;

/// A future in a box, for traits that hosts implement.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The head that opens a stream.
#[derive(Debug, Clone, PartialEq)]
pub enum RequestMessage {
    /// A normalized run.
    Run(v1::RunRequest),
    /// A tunnel.
    Tunnel(v1::ProviderTunnelRequest),
}

/// One message of an answer stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Of a run.
    Event(v1::RunEvent),
    /// Of a tunnel.
    Frame(v1::ProviderTunnelFrame),
}

// ---------------------------------------------------------------- Edge

/// What a link asks of the Edge that owns it. No method may block.
pub trait EdgeHost: Send + Sync + 'static {
    /// Decides whether this Node may join and what it is configured to do.
    ///
    /// # Errors
    /// The refusal is sent to the Node and the link closes.
    fn admit(
        &self,
        peer: SocketAddr,
        request: &v1::RegisterRequest,
    ) -> Result<v1::NodeConfig, v1::RegisterRefused>;

    /// The Node is ready and may be dispatched to: every head opened on `link` from now on follows
    /// the NodeReadyResponse.
    fn ready(&self, link: EdgeLink, ready: v1::NodeReadyRequest);

    /// A provider of the Node changed.
    fn status(&self, link: &EdgeLink, status: v1::ProviderStatus);

    /// The Node asked to drain: dispatch nothing new to this generation.
    fn draining(&self, link: &EdgeLink);

    /// This generation ended; called exactly once for every link that was `ready`, after its streams
    /// were ended with the same reason.
    fn closed(&self, node: &NodeId, generation: Generation, reason: CloseReason);
}

/// A ready link, as the Edge holds it. Clones are handles of the same link.
#[derive(Clone)]
pub struct EdgeLink;

impl EdgeLink {
    /// Returns the Node at the other end.
    pub fn node(&self) -> &NodeId { todo!() }
    /// Returns the number that the Edge minted for this link.
    pub fn generation(&self) -> Generation { todo!() }
    /// Opens a stream and queues its head behind the pre-send fence.
    ///
    /// # Errors
    /// Nothing was and nothing will be sent: the link ended, drains, or has `max_streams` open.
    pub fn open(&self, head: RequestMessage) -> Result<EdgeStream, OpenError> { let _ = head; todo!() }
    /// Tells the Node to finish what it has and closes after it, or at `deadline`.
    pub fn drain(&self, deadline: Duration) { let _ = deadline; todo!() }
    /// Returns counters for `iop status` and `/metrics`.
    pub fn stats(&self) -> LinkStats { todo!() }
}

/// Why no stream was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The generation is fenced.
    #[error("the link ended ({0}) before the request was sent")]
    Fenced(CloseReason),
    /// The link drains.
    #[error("the node is draining")]
    Draining,
    /// The link carries as many streams as it may.
    #[error("the link already carries its limit of {limit} streams")]
    TooManyStreams {
        /// The limit.
        limit: u32,
    },
    /// The head does not fit a frame.
    #[error("the request head of {bytes} bytes is larger than a control frame")]
    HeadTooLarge {
        /// Its encoded length.
        bytes: usize,
    },
}

/// The Edge's end of one run or tunnel.
///
/// Dropping it before its terminal was received cancels the request at the Node.
pub struct EdgeStream;

impl EdgeStream {
    /// Queues the next part of the request body; the link sends it as credit comes in. The caller
    /// bounds what it queues ([`Self::poll_body_sent`]); a body that is in memory anyway is queued whole.
    pub fn queue_body(&mut self, data: Bytes, last: bool) { let _ = (data, last); todo!() }
    /// Ready once less than one credit window of the body waits. Ready too when the stream ended.
    pub fn poll_body_sent(&mut self, cx: &mut Context<'_>) -> Poll<()> { let _ = cx; todo!() }
    /// Yields the next answer. Taking it returns its credit. Cancel safe.
    ///
    /// # Errors
    /// The link ended, or this stream broke the protocol; nothing follows.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Answer, StreamError>> { let _ = cx; todo!() }
    /// As [`Self::poll_recv`]. Cancel safe.
    pub async fn recv(&mut self) -> Result<Answer, StreamError> {
        std::future::poll_fn(|cx| self.poll_recv(cx)).await
    }
    /// Asks the Node to stop; its terminal still comes. A head that is still queued is removed
    /// unsent and `poll_recv` yields [`StreamError::Unsent`].
    pub fn cancel(&mut self, reason: v1::CancelReason) { let _ = reason; todo!() }
}

/// Why a stream yields nothing more without a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The link ended.
    #[error("the link to the node ended: {0}")]
    LinkClosed(CloseReason),
    /// The stream's messages were out of order; the Node was told to cancel.
    #[error("the node broke the order of the stream")]
    Protocol,
    /// Nothing of it was sent: it was cancelled in time, or the link ended first. It is safe to send
    /// the request elsewhere.
    #[error("ended before it was sent")]
    Unsent,
    /// The answer does not fit a frame (a response head beyond 64 KiB). It was not queued; the
    /// stream goes on.
    #[error("the answer of {bytes} bytes is larger than a data frame")]
    TooLarge {
        /// Its encoded length without the payload.
        bytes: usize,
    },
}

/// Counters of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Streams open.
    pub streams: u32,
    /// Payload bytes granted to the peer and not yet used.
    pub granted_bytes: u64,
    /// Payload bytes received and not yet taken by their streams.
    pub buffered_bytes: u64,
    /// Payload bytes queued for sending.
    pub queued_bytes: u64,
    /// Frames dropped because their stream or generation had ended.
    pub late_frames: u64,
    /// Last measured heartbeat round trip.
    pub heartbeat_rtt: Option<Duration>,
}

/// Accepts links, mints generations, settles takeovers.
pub struct LinkServer;

/// What a link server is told at start.
#[derive(Debug, Clone)]
pub struct LinkServerConfig {
    /// This Edge process.
    pub boot_id: EdgeBootId,
    /// Limits told to every Node.
    pub limits: v1::Limits,
}

impl LinkServer {
    /// Makes a server that asks `host`.
    pub fn new(config: LinkServerConfig, host: Arc<dyn EdgeHost>) -> Self { let _ = (config, host); todo!() }
    /// Accepts links until `shutdown` is cancelled, then drains every link for `drain` at most.
    pub async fn serve(self, listener: tokio::net::TcpListener, shutdown: tokio_util::sync::CancellationToken, drain: Duration) { let _ = (listener, shutdown, drain); }
}

// ---------------------------------------------------------------- Node

/// What a link asks of the Node that owns it.
pub trait NodeHost: Send + Sync + 'static {
    /// Builds and starts the adapters of this configuration; says what is served.
    fn configure(&self, registered: v1::Registered) -> BoxFuture<'_, v1::NodeReadyRequest>;
    /// The Edge answered NodeReadyRequest; statuses may be sent from now on.
    fn link_up(&self, link: NodeLink);
    /// A request arrived. Must not block: the host spawns the work.
    fn accept(&self, request: NodeRequest);
    /// The link ended; every request of it was told so ([`Cancelled`]).
    fn link_down(&self, generation: Generation, reason: CloseReason);
}

/// A link, as the Node holds it.
#[derive(Clone)]
pub struct NodeLink;

impl NodeLink {
    /// Returns the link's generation.
    pub fn generation(&self) -> Generation { todo!() }
    /// Tells the Edge that a provider changed; a newer status replaces one of the same provider that still waits.
    pub fn send_status(&self, status: v1::ProviderStatus) { let _ = status; todo!() }
    /// Returns counters.
    pub fn stats(&self) -> LinkStats { todo!() }
}

/// One request as the Node receives it.
pub struct NodeRequest {
    /// The head.
    pub message: RequestMessage,
    /// The request body.
    pub body: BodyReceiver,
    /// Where answers go.
    pub answers: AnswerSender,
    /// Tells when to stop.
    pub cancelled: Cancelled,
}

/// The request body of one stream.
pub struct BodyReceiver;

impl BodyReceiver {
    /// Yields the next part, `None` after the last. Taking it returns its credit. Cancel safe.
    ///
    /// # Errors
    /// The stream or link ended before the body did.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, StreamError>>> { let _ = cx; todo!() }
}

/// The answer side of one stream. Dropping it without a terminal sends `error: provider_error`.
pub struct AnswerSender;

impl AnswerSender {
    /// Ready when the stream has credit and queue space. Pending means: wait for the client.
    ///
    /// # Errors
    /// The stream or link ended: nothing will be sent any more.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> { let _ = cx; todo!() }
    /// Queues one answer; payloads above 16 KiB are split. Without a preceding ready it may exceed
    /// the queue, never the credit.
    pub fn send(&mut self, answer: Answer) -> Result<(), StreamError> { let _ = answer; todo!() }
    /// Queues the terminal behind what was sent; nothing can follow.
    pub fn finish(self, terminal: Answer) -> Result<(), StreamError> { let _ = terminal; todo!() }
}

/// Completes when the Edge cancelled the request or the link ended.
pub struct Cancelled;

impl Future for Cancelled {
    type Output = Result<v1::CancelReason, CloseReason>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> { let _ = cx; todo!() }
}

/// Who a Node is when it dials.
#[derive(Debug, Clone)]
pub struct SupervisorConfig {
    /// Address of the Edge's link listener, `host:port`.
    pub edge: String,
    /// This Node.
    pub node: NodeId,
    /// This process.
    pub instance: InstanceId,
    /// Version of the software, for people.
    pub software_version: String,
    /// How long a graceful stop may take.
    pub drain: Duration,
}

/// Dials, waits for the end, dials again: one owner, never two dials or two links.
///
/// Returns when `shutdown` was cancelled and the drain is over.
///
/// # Errors
/// Fails when the Edge's answer makes another dial pointless.
pub async fn supervise(config: SupervisorConfig, host: Arc<dyn NodeHost>, shutdown: tokio_util::sync::CancellationToken) -> Result<(), FatalLink> { let _ = (config, host, shutdown); todo!() }

/// Why a Node must not dial again.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FatalLink {
    /// The Node's identity was revoked.
    #[error("the edge revoked this node's identity: {0}")]
    IdentityRevoked(String),
}
