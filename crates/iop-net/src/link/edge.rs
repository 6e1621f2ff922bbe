//! Handles of a link at the Edge.

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use iop_link::edge::Edge;
use iop_link::{Answer, LinkStats, NotSent, OpenError, RequestMessage, StreamError, StreamKey};
use iop_types::{CloseReason, CommandRequest, Generation, NodeId, Patience};
use iop_wire::{EventJoiner, v1};

use super::LinkServerConfig;
use super::shared::{Shared, Wait, now};
use crate::memory::{Budget, Share};
use crate::tls::Channel;

/// A ready link, as the Edge holds it. Clones are handles of the same link.
#[derive(Clone)]
pub struct EdgeLink {
    shared: Arc<Shared<Edge>>,
    node: NodeId,
    generation: Generation,
    channel: Option<Arc<Channel>>,
    max_run_event: usize,
    memory: Budget,
}

impl EdgeLink {
    pub(super) fn new(
        shared: Arc<Shared<Edge>>,
        node: NodeId,
        generation: Generation,
        channel: Option<Arc<Channel>>,
        config: &LinkServerConfig,
    ) -> Self {
        let max_run_event = usize::try_from(config.limits.max_run_event).unwrap_or(usize::MAX);
        Self { shared, node, generation, channel, max_run_event, memory: config.memory.clone() }
    }

    /// Returns the Node at the other end.
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// Returns the number that the Edge minted for this link.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns who the Node proved to be and the link's secret; `None` on a plaintext link.
    pub fn channel(&self) -> Option<&Arc<Channel>> {
        self.channel.as_ref()
    }

    /// Ends the link at once: its streams end with `reason`, and the Node is told nothing else.
    pub fn fence(&self, reason: CloseReason) {
        self.shared.with_driver(|link| link.fence(now(), reason));
    }

    /// Opens a stream for a request that was granted under `generation` and queues its head. This is
    /// the pre-send fence: between a grant and its send a Node may have come back on another link,
    /// whose providers and revisions are others.
    ///
    /// # Errors
    /// Nothing was and nothing will be sent: this is another generation's link, it ended, drains, or
    /// has `max_streams` open.
    pub fn open(
        &self,
        generation: Generation,
        head: RequestMessage,
    ) -> Result<EdgeStream, OpenError> {
        if generation != self.generation {
            return Err(OpenError::Fenced(CloseReason::Superseded));
        }
        let key = self.shared.with(|link| link.open(head))?;
        Ok(EdgeStream {
            shared: Arc::clone(&self.shared),
            key,
            joiner: EventJoiner::new(self.max_run_event),
            joining: self.memory.share(),
        })
    }

    /// Sends a command, behind the pre-send fence, and waits for its answers as long as `patience`
    /// says.
    ///
    /// # Errors
    /// Nothing was and nothing will be sent.
    pub fn command(
        &self,
        request: CommandRequest,
        patience: Patience,
    ) -> Result<EdgeCommand, NotSent> {
        // The driver arms its timer anew.
        let open = |link: &mut iop_link::Link<Edge>| link.open_command(now(), request, patience);
        let key = self.shared.with_driver(open)?;
        Ok(EdgeCommand { shared: Arc::clone(&self.shared), key })
    }

    /// Tells the Node to finish what it has and closes after it, or at `deadline`.
    pub fn drain(&self, deadline: Duration) {
        self.shared.with_driver(|link| link.drain(now(), deadline));
    }

    /// Returns counters for `iop status` and `/metrics`.
    pub fn stats(&self) -> LinkStats {
        self.shared.lock().link.stats()
    }
}

impl std::fmt::Debug for EdgeLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EdgeLink")
            .field("node", &self.node)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

/// The Edge's end of one run or tunnel.
///
/// Dropping it before its terminal was received cancels the request at the Node.
pub struct EdgeStream {
    shared: Arc<Shared<Edge>>,
    key: StreamKey,
    joiner: EventJoiner,
    /// Covers the event that is being joined.
    joining: Share,
}

impl EdgeStream {
    /// Queues the next part of the request body; the link sends it as credit comes in. The caller
    /// bounds what it queues ([`Self::poll_body_sent`]); a body that is in memory anyway is queued whole.
    pub fn queue_body(&mut self, data: Bytes, last: bool) {
        self.shared.with(|link| link.queue_body(self.key, data, last));
    }

    /// Ready once less than one credit window of the body waits. Ready too when the stream ended.
    pub fn poll_body_sent(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.shared.poll(self.key, Wait::Writable, cx, |link| link.poll_body_room(self.key))
    }

    /// Yields the next answer, its parts joined. Taking it returns its credit. Cancel safe. What
    /// arrived before the end is yielded before the error.
    ///
    /// # Errors
    /// The link ended, this stream broke the protocol, or no memory is left for a long event; nothing
    /// follows.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Answer, StreamError>> {
        loop {
            let answer = ready!(
                self.shared.poll(self.key, Wait::Readable, cx, |link| link.poll_answer(self.key))
            )?;
            match answer {
                Answer::Frame(_) => return Poll::Ready(Ok(answer)),
                Answer::Command(_) => self.shared.with(|link| link.reject(self.key)),
                Answer::Event(event) => match self.joiner.push(event) {
                    Ok(Some(event)) => {
                        let _ = self.joining.cover(0);
                        return Poll::Ready(Ok(Answer::Event(event)));
                    }
                    Ok(None) if self.joining.cover(self.joiner.held()).is_ok() => {}
                    // Whoever reads this lets go of the stream, which tells the Node to stop.
                    Ok(None) => return Poll::Ready(Err(StreamError::NoMemory)),
                    Err(_) => self.shared.with(|link| link.reject(self.key)),
                },
            }
        }
    }

    /// As [`Self::poll_recv`]. Cancel safe.
    ///
    /// # Errors
    /// As [`Self::poll_recv`].
    pub async fn recv(&mut self) -> Result<Answer, StreamError> {
        std::future::poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Asks the Node to stop; its terminal still comes. A head that is still queued is removed
    /// unsent and `poll_recv` yields [`StreamError::Unsent`].
    pub fn cancel(&mut self, reason: v1::CancelReason) {
        self.shared.with(|link| link.cancel(self.key, reason));
    }
}

impl Drop for EdgeStream {
    fn drop(&mut self) {
        self.shared.with(|link| link.release(self.key));
    }
}

impl std::fmt::Debug for EdgeStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EdgeStream").field("id", &self.key.id).finish_non_exhaustive()
    }
}

/// The Edge's end of one command.
///
/// Dropping it before its terminal was received cancels the command at the Node.
pub struct EdgeCommand {
    shared: Arc<Shared<Edge>>,
    key: StreamKey,
}

impl EdgeCommand {
    /// Yields the next step of the answer and returns its credit. Cancel safe. What arrived before
    /// the end is yielded before the error.
    ///
    /// # Errors
    /// The link ended, the Node took too long, or it broke the protocol; nothing follows.
    pub fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<v1::NodeCommandResponse, StreamError>> {
        loop {
            let answer = ready!(
                self.shared.poll(self.key, Wait::Readable, cx, |link| link.poll_answer(self.key))
            )?;
            match answer {
                Answer::Command(response) => return Poll::Ready(Ok(response)),
                Answer::Event(_) | Answer::Frame(_) => {
                    self.shared.with(|link| link.reject(self.key));
                }
            }
        }
    }

    /// Asks the Node to stop; its terminal still comes.
    pub fn cancel(&mut self, reason: v1::CancelReason) {
        self.shared.with(|link| link.cancel(self.key, reason));
    }
}

impl Drop for EdgeCommand {
    fn drop(&mut self) {
        self.shared.with(|link| link.release(self.key));
    }
}

impl std::fmt::Debug for EdgeCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EdgeCommand").field("stream", &self.key.id).finish_non_exhaustive()
    }
}
