//! The Edge's end of a link between the task that drives it and the handles of its streams, with what
//! a driver does to it and without a socket.

#[expect(dead_code, reason = "the crate itself waits for more than these models do")]
#[path = "../../crates/iop-net/src/link/shared.rs"]
mod shared;

use std::task::Poll;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use iop_link::edge::{Edge, Output};
use iop_link::{Answer, Link, OpenError, RequestMessage, StreamError, StreamKey};
use iop_types::{CloseReason, EdgeBootId, Generation};
use iop_wire::frame::{self, Frame};
use iop_wire::{Message, PROTOCOL_VERSION, v1};

use self::shared::{Shared, Wait, wake};

/// A link that is up, shared as `iop-net` shares it.
pub struct EdgeEnd(Shared<Edge>);

impl EdgeEnd {
    /// Brings a link up whose first window for a request body is `window` bytes.
    pub fn up(window: u32) -> Self {
        let now = Instant::now();
        let boot_id = EdgeBootId::from_slice(&[3; 16]).expect("16 bytes");
        let limits = v1::Limits { credit_budget: window.into(), ..v1::Limits::standard() };
        let end = Self(Shared::new(Link::accept(now, boot_id, limits)));
        end.read(&of_link(Message::RegisterRequest(v1::RegisterRequest {
            protocol_version: PROTOCOL_VERSION,
            node_id: "workstation".into(),
            instance_id: Bytes::from_static(&[1; 16]),
            ..v1::RegisterRequest::default()
        })));
        let generation = Generation(7);
        end.0.with_driver(|link| link.register(now, generation, v1::NodeConfig::default(), 0));
        let ready = v1::NodeReadyRequest { generation: 7, ..v1::NodeReadyRequest::default() };
        end.read(&of_link(Message::NodeReadyRequest(ready)));
        end.write();
        end
    }

    // ---- as a handle does

    /// Opens a stream behind the pre-send fence.
    ///
    /// # Errors
    /// The link has ended.
    pub fn open(&self) -> Result<StreamKey, OpenError> {
        let head = RequestMessage::Tunnel(v1::ProviderTunnelRequest::default());
        self.0.with(|link| link.open(head))
    }

    /// Queues a part of the request body.
    pub fn queue_body(&self, key: StreamKey, data: Bytes, last: bool) {
        self.0.with(|link| link.queue_body(key, data, last));
    }

    /// Waits until less than a window of the body waits.
    pub async fn body_room(&self, key: StreamKey) {
        let poll = |link: &mut Link<Edge>| link.poll_body_room(key);
        std::future::poll_fn(|cx| self.0.poll(key, Wait::Writable, cx, poll)).await;
    }

    /// Waits for the next answer.
    ///
    /// # Errors
    /// Nothing follows.
    pub async fn answer(&self, key: StreamKey) -> Result<Answer, StreamError> {
        let poll = |link: &mut Link<Edge>| link.poll_answer(key);
        std::future::poll_fn(|cx| self.0.poll(key, Wait::Readable, cx, poll)).await
    }

    /// Ends this generation, as a takeover does.
    pub fn fence(&self) {
        self.0.with_driver(|link| link.fence(Instant::now(), CloseReason::Superseded));
    }

    // ---- as a driver does

    /// Hands over what was read from the socket.
    pub fn read(&self, bytes: &[u8]) {
        let mut inner = self.0.lock();
        inner.link.handle_read(Instant::now(), &mut BytesMut::from(bytes));
        let woken = inner.take_signalled();
        drop(inner);
        wake(woken);
    }

    /// Takes what is to be written.
    pub fn write(&self) -> Vec<Frame> {
        let mut batch = Vec::new();
        let mut inner = self.0.lock();
        inner.link.transmit(&mut batch);
        let woken = inner.take_signalled();
        drop(inner);
        wake(woken);
        let mut bytes = BytesMut::from(&batch[..]);
        std::iter::from_fn(|| frame::decode(&mut bytes).expect("own frames are right")).collect()
    }

    /// Sleeps as a driver does and wakes with what is to be written, or with the end of the link.
    pub async fn drive(&self) -> Vec<Frame> {
        std::future::poll_fn(|cx| {
            self.0.lock().driver_runs(cx);
            let frames = self.write();
            let is_over = self.outputs().iter().any(|told| matches!(told, Output::Closed(_)));
            if !frames.is_empty() || is_over {
                return Poll::Ready(frames);
            }
            if self.0.lock().driver_gathers() {
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        })
        .await
    }

    fn outputs(&self) -> Vec<Output> {
        let mut inner = self.0.lock();
        std::iter::from_fn(|| inner.link.poll_output()).collect()
    }
}

/// A frame of the link itself.
pub fn of_link(message: Message) -> Vec<u8> {
    encoded(v1::Envelope { message: Some(message), ..v1::Envelope::default() })
}

/// A frame of a stream.
pub fn of_stream(key: StreamKey, seq: u64, message: Message) -> Vec<u8> {
    let envelope = v1::Envelope { stream_id: key.id, seq, ..v1::Envelope::default() };
    encoded(v1::Envelope { message: Some(message), ..envelope })
}

fn encoded(envelope: v1::Envelope) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode(&envelope, &mut bytes).expect("it fits a frame");
    bytes
}
