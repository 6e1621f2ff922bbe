//! Handles of a link at the Node.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use iop_link::node::Node;
use iop_link::{Answer, LinkStats, RequestMessage, StreamError, StreamKey};
use iop_types::{CloseReason, Generation};
use iop_wire::v1;

use super::shared::{Shared, Wait};
use crate::tls::Channel;

/// A link, as the Node holds it.
#[derive(Clone)]
pub struct NodeLink {
    shared: Arc<Shared<Node>>,
    generation: Generation,
    channel: Option<Arc<Channel>>,
}

impl NodeLink {
    pub(super) fn new(
        shared: Arc<Shared<Node>>,
        generation: Generation,
        channel: Option<Arc<Channel>>,
    ) -> Self {
        Self { shared, generation, channel }
    }

    /// Returns who the Edge proved to be and the link's secret; `None` on a plaintext link.
    pub fn channel(&self) -> Option<&Arc<Channel>> {
        self.channel.as_ref()
    }

    /// Returns the link's generation.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Tells the Edge that a provider changed; a newer status replaces one of the same provider that
    /// still waits.
    pub fn send_status(&self, status: v1::ProviderStatus) {
        self.shared.with(|link| link.send_status(status));
    }

    /// Numbers a health observation that is final and that a terminal carries: 1, 2, … on each link,
    /// each number once, from whatever task. `None` once this link has ended: a newer link numbers
    /// what is observed under it.
    pub fn number_observation(&self) -> Option<u64> {
        self.shared.lock().link.number_observation()
    }

    /// Numbers a health observation as [`Self::number_observation`] and reports it in a message of its
    /// own. An older one of the same target that still waits to be sent is dropped for it.
    pub fn send_observation(&self, observation: v1::HealthObservation) -> Option<u64> {
        self.shared.with(|link| link.send_observation(observation))
    }

    /// Returns counters.
    pub fn stats(&self) -> LinkStats {
        self.shared.lock().link.stats()
    }
}

impl std::fmt::Debug for NodeLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeLink").field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// One request as the Node receives it.
#[derive(Debug)]
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

impl NodeRequest {
    pub(super) fn new(shared: &Arc<Shared<Node>>, key: StreamKey, message: RequestMessage) -> Self {
        Self {
            message,
            body: BodyReceiver(Handle { shared: Arc::clone(shared), key }),
            answers: AnswerSender(Handle { shared: Arc::clone(shared), key }),
            cancelled: Cancelled(Handle { shared: Arc::clone(shared), key }),
        }
    }
}

/// One command as the Node receives it.
#[derive(Debug)]
pub struct NodeCommand {
    /// What is asked; whole.
    pub request: v1::NodeCommandRequest,
    /// Where answers go.
    pub answers: AnswerSender,
    /// Tells when to stop.
    pub cancelled: Cancelled,
}

impl NodeCommand {
    pub(super) fn new(
        shared: &Arc<Shared<Node>>,
        key: StreamKey,
        request: v1::NodeCommandRequest,
    ) -> Self {
        Self {
            request,
            answers: AnswerSender(Handle { shared: Arc::clone(shared), key }),
            cancelled: Cancelled(Handle { shared: Arc::clone(shared), key }),
        }
    }
}

/// The request body of one stream.
#[derive(Debug)]
pub struct BodyReceiver(Handle);

impl BodyReceiver {
    /// Yields the next part, `None` after the last. Taking it returns its credit. Cancel safe.
    ///
    /// # Errors
    /// The stream or link ended before the body did.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, StreamError>>> {
        let Handle { shared, key } = &self.0;
        shared.poll(*key, Wait::Readable, cx, |link| link.poll_body(*key))
    }

    /// As [`Self::poll_recv`]. Cancel safe.
    pub async fn recv(&mut self) -> Option<Result<Bytes, StreamError>> {
        std::future::poll_fn(|cx| self.poll_recv(cx)).await
    }
}

impl Drop for BodyReceiver {
    fn drop(&mut self) {
        self.0.shared.with(|link| link.release_body(self.0.key));
    }
}

/// The answer side of one stream. Dropping it without a terminal sends `error: provider_error`.
#[derive(Debug)]
pub struct AnswerSender(Handle);

impl AnswerSender {
    /// Ready when the stream has credit and queue space. Pending means: wait for the client.
    ///
    /// # Errors
    /// The link ended: nothing will be sent any more.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        let Handle { shared, key } = &self.0;
        shared.poll(*key, Wait::Writable, cx, |link| link.poll_answer_room(*key))
    }

    /// Queues one answer; payloads above 16 KiB are split. Without a preceding ready it may exceed
    /// the queue, never the credit. After a cancel it is dropped.
    ///
    /// # Errors
    /// The link ended, or the answer does not fit a frame ([`StreamError::TooLarge`]).
    pub fn send(&mut self, answer: Answer) -> Result<(), StreamError> {
        self.0.shared.with(|link| link.send(self.0.key, answer))
    }

    /// Queues the terminal behind what was sent; nothing can follow.
    ///
    /// # Errors
    /// The link ended.
    pub fn finish(self, terminal: Answer) -> Result<(), StreamError> {
        self.0.shared.with(|link| link.finish(self.0.key, terminal))
    }
}

impl Drop for AnswerSender {
    fn drop(&mut self) {
        self.0.shared.with(|link| link.release_answers(self.0.key));
    }
}

/// Completes when the Edge cancelled the request or the link ended, and again at every later poll.
#[derive(Debug)]
pub struct Cancelled(Handle);

impl Future for Cancelled {
    type Output = Result<v1::CancelReason, CloseReason>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Handle { shared, key } = &self.0;
        shared.poll(*key, Wait::Cancelled, cx, |link| link.poll_cancelled(*key))
    }
}

impl Drop for Cancelled {
    fn drop(&mut self) {
        self.0.shared.with(|link| link.release_cancelled(self.0.key));
    }
}

struct Handle {
    shared: Arc<Shared<Node>>,
    key: StreamKey,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("id", &self.key.id).finish_non_exhaustive()
    }
}
