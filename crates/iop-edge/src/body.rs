//! Reads a client's JSON body whole, under the limit of one body and the budget of all.
//!
//! The body must be read to its end before anything else is decided: only then does hyper notice a
//! client that leaves while its request waits. A refused body is still drained for a moment, because
//! a socket that is closed over unread bytes resets and takes the answer with it.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::relay::Incoming;
use bytes::{Buf, Bytes};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::{Instant, Sleep, sleep_until};

use iop_net::memory::{Budget, OverBudget, Share};

/// How a body may arrive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes of one body.
    pub(crate) bytes: usize,
    /// Longest pause between two parts of it.
    pub(crate) pause: Duration,
}

/// Why a body was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    /// One body is larger than the limit of one.
    #[error("the body is larger than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// All bodies together are.
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
    /// Nothing more came.
    #[error("the body stopped arriving for {} s before it was complete", .0.as_secs())]
    Paused(Duration),
    /// The connection ended, or the body is malformed on the HTTP level.
    #[error("the body ended before it was complete")]
    Broken,
}

/// What is drained of a refused body, and for how long.
const DRAIN_BYTES: usize = 64 * 1024 * 1024;
const DRAIN_TIME: Duration = Duration::from_secs(5);
/// First allocation for a body of unknown length; small prompts need no second one.
const FIRST_CAPACITY: usize = 2 * 1024;
/// How far a declared length is believed before its bytes are there: most prompts need one
/// allocation, and a client that sends one byte of many does not get more.
const BELIEVED: usize = 64 * 1024;
/// How many times what has arrived is believed as well, so that a long prompt is not moved either: its
/// first part is 8 KiB.
const BELIEVED_TIMES: usize = 32;

/// Reads the whole body.
///
/// `waits` says that the client sent `Expect: 100-continue` and has not begun to send: its body is
/// refused unread when its declared length is too large already.
///
/// # Errors
/// See [`BodyError`].
pub(crate) async fn read<B>(
    mut body: B,
    limits: Limits,
    budget: &Budget,
    waits: bool,
) -> Result<Bytes, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    let declared = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    if body.size_hint().lower() > limits.bytes as u64 {
        if !waits {
            drain(body).await;
        }
        return Err(BodyError::TooLarge { limit: limits.bytes });
    }
    let mut buffer = Buffer::new(budget.share(), declared, limits.bytes);
    let mut patience = Patience::new(limits.pause);
    loop {
        let Some(data) = patience.next(&mut body).await? else { return Ok(buffer.seal()) };
        if let Err(refusal) = buffer.append(&data) {
            drop(buffer);
            drain(body).await;
            return Err(refusal);
        }
    }
}

/// The bytes so far and the share of the budget that covers their allocation.
struct Buffer {
    bytes: Vec<u8>,
    share: Share,
    declared: Option<usize>,
    limit: usize,
}

impl Buffer {
    fn new(share: Share, declared: Option<usize>, limit: usize) -> Self {
        Self { bytes: Vec::new(), share, declared, limit }
    }

    fn append(&mut self, data: &[u8]) -> Result<(), BodyError> {
        let needed = self.bytes.len() + data.len();
        if needed > self.limit {
            return Err(BodyError::TooLarge { limit: self.limit });
        }
        let capacity = self.bytes.capacity();
        if needed > capacity {
            let doubled = needed.max(capacity * 2).max(FIRST_CAPACITY).min(self.limit);
            let target = match self.declared {
                Some(declared) => {
                    let believed = BELIEVED.max(needed.saturating_mul(BELIEVED_TIMES));
                    doubled.max(believed).min(declared).max(needed)
                }
                None => doubled,
            };
            self.share.grow(target - capacity)?;
            self.bytes.reserve_exact(target - self.bytes.len());
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    fn seal(self) -> Bytes {
        self.share.seal(self.bytes)
    }
}

/// Waits for the next part, with one timer for the whole body.
struct Patience {
    pause: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    const fn new(pause: Duration) -> Self {
        Self { pause, timer: None }
    }

    async fn next<B>(&mut self, body: &mut B) -> Result<Option<Bytes>, BodyError>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        loop {
            let mut frame = std::pin::pin!(body.frame());
            let frame = std::future::poll_fn(|cx| {
                if let std::task::Poll::Ready(frame) = frame.as_mut().poll(cx) {
                    return std::task::Poll::Ready(Ok(frame));
                }
                let pause = self.pause;
                let timer =
                    self.timer.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + pause)));
                timer.as_mut().poll(cx).map(|()| Err(BodyError::Paused(pause)))
            })
            .await?;
            if let Some(timer) = &mut self.timer {
                timer.as_mut().reset(Instant::now() + self.pause);
            }
            match frame {
                None => return Ok(None),
                Some(Err(_)) => return Err(BodyError::Broken),
                // Trailers of a request say nothing that is needed here.
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.has_remaining() => return Ok(Some(data)),
                    Ok(_) | Err(_) => {}
                },
            }
        }
    }
}

/// As [`drain`], for a body that was to stream.
pub(crate) async fn drain_source(mut source: Box<dyn Incoming>) {
    let discard = async {
        let mut left = DRAIN_BYTES;
        while let Some(Ok(data)) = std::future::poll_fn(|cx| source.poll_data(cx)).await {
            match left.checked_sub(data.len()) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // Whether it ended or not, the answer follows now.
    let _ = tokio::time::timeout(DRAIN_TIME, discard).await;
}

/// Reads on for a moment, so that the client gets to the answer.
async fn drain<B>(mut body: B)
where
    B: Body<Data = Bytes> + Unpin,
{
    let discard = async {
        let mut left = DRAIN_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(bytes) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // Whether it ended or not, the answer follows now.
    let _ = tokio::time::timeout(DRAIN_TIME, discard).await;
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::task::{Context, Poll};

    use http_body::{Frame, SizeHint};

    use super::*;

    const LIMITS: Limits = Limits { bytes: 16, pause: Duration::from_secs(30) };

    struct Parts {
        parts: VecDeque<Result<&'static [u8], ()>>,
        declared: Option<u64>,
        ends: bool,
    }

    impl Parts {
        fn new(parts: &[&'static [u8]]) -> Self {
            Self { parts: parts.iter().copied().map(Ok).collect(), declared: None, ends: true }
        }
    }

    impl Body for Parts {
        type Data = Bytes;
        type Error = ();

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, ()>>> {
            match self.parts.pop_front() {
                Some(part) => {
                    Poll::Ready(Some(part.map(|part| Frame::data(Bytes::from_static(part)))))
                }
                None if self.ends => Poll::Ready(None),
                None => Poll::Pending,
            }
        }

        fn size_hint(&self) -> SizeHint {
            self.declared.map_or_else(SizeHint::default, SizeHint::with_exact)
        }
    }

    #[tokio::test]
    async fn parts_are_joined_and_the_budget_is_free_after_them() {
        let budget = Budget::new(100);
        let body = read(Parts::new(&[b"{\"a\"", b"", b":1}"]), LIMITS, &budget, false).await;
        assert_eq!(body.as_deref(), Ok(b"{\"a\":1}".as_slice()));
        assert!(budget.used() >= 7);
        drop(body);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn a_body_of_exactly_the_limit_passes_and_one_byte_more_does_not() {
        let budget = Budget::new(100);
        let fits = read(Parts::new(&[b"0123456789abcdef"]), LIMITS, &budget, false).await;
        assert_eq!(fits.map(|body| body.len()), Ok(16));
        let over = read(Parts::new(&[b"0123456789abcdef", b"!"]), LIMITS, &budget, false).await;
        assert_eq!(over, Err(BodyError::TooLarge { limit: 16 }));
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn a_declared_length_bounds_the_allocation() {
        let budget = Budget::new(100);
        let mut body = Parts::new(&[]);
        body.declared = Some(17);
        body.ends = false;
        assert_eq!(read(body, LIMITS, &budget, true).await, Err(BodyError::TooLarge { limit: 16 }));
        let mut body = Parts::new(&[b"ab"]);
        body.declared = Some(16);
        let body = read(body, LIMITS, &budget, false).await.unwrap();
        assert_eq!((body.len(), budget.used()), (2, 16));
    }

    #[tokio::test]
    async fn a_declared_length_is_believed_as_far_as_bytes_have_come() {
        static ONE: [u8; 1] = [b'x'; 1];
        static FIRST: [u8; 8 * 1024] = [b'x'; 8 * 1024];
        const LONG: usize = 200 * 1024;
        let limits = Limits { bytes: 1024 * 1024, ..LIMITS };
        for (first, believed) in [(ONE.as_slice(), BELIEVED), (&FIRST, LONG)] {
            let budget = Budget::new(1024 * 1024);
            let mut body = Parts::new(&[first]);
            body.declared = Some(LONG as u64);
            body.ends = false;
            let mut reading = Box::pin(read(body, limits, &budget, false));
            assert!(futures_util::poll!(reading.as_mut()).is_pending());
            assert_eq!(budget.used(), believed);
        }
    }

    #[tokio::test]
    async fn a_full_budget_refuses_the_next_body_and_lets_the_others_be() {
        let budget = Budget::new(20);
        let first = read(Parts::new(&[b"0123456789abcdef"]), LIMITS, &budget, false).await;
        assert_eq!(budget.used(), 16);
        let second = read(Parts::new(&[b"01234"]), LIMITS, &budget, false).await;
        assert_eq!(second, Err(BodyError::OverBudget(OverBudget { limit: 20 })));
        assert_eq!(first.map(|body| body.len()), Ok(16));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_arriving_is_given_up() {
        let budget = Budget::new(100);
        let mut body = Parts::new(&[b"{"]);
        body.ends = false;
        assert_eq!(read(body, LIMITS, &budget, false).await, Err(BodyError::Paused(LIMITS.pause)));
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn a_connection_that_breaks_leaves_nothing_behind() {
        let budget = Budget::new(100);
        let mut body = Parts::new(&[b"{"]);
        body.parts.push_back(Err(()));
        assert_eq!(read(body, LIMITS, &budget, false).await, Err(BodyError::Broken));
        assert_eq!(budget.used(), 0);
    }
}
