//! One request and its response.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use ::http::{Method, StatusCode, Uri};
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http_body::Body as _;
use hyper::body::Incoming;

use super::body::Outgoing;
use super::lane::{Lane, Responding, peek};
use super::pool::{Connection, Inner};
use super::{Body, CallError, Cut, Phase, Request, Sending};
use crate::memory::Gathering;

/// The head of a provider's response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Status.
    pub status: StatusCode,
    /// Headers, as received.
    pub headers: HeaderMap,
}

/// A piece of a provider's response after its head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// The next bytes of the body, never empty.
    Data(Bytes),
    /// Headers after the body.
    Trailers(HeaderMap),
}

/// One call to a provider: polled for its head, then for its frames.
///
/// Every method that polls moves bytes in both directions: the request body goes on being sent while
/// the response is read. Dropping a call before its end resets the connection.
pub struct Call {
    pool: Arc<Inner>,
    stage: Stage,
}

type Dialling<T> = Pin<Box<dyn Future<Output = Result<T, CallError>> + Send>>;

enum Stage {
    /// Not polled yet.
    New(Request),
    /// Waiting for a connection to send this request on.
    Connecting { dialling: Dialling<Lane>, request: ::http::Request<()>, body: Body },
    /// The request is with hyper; `redialling` replaces a pooled connection that was dead.
    Waiting { lane: Lane, responding: Responding, redialling: Option<Dialling<Connection>> },
    /// The head has been yielded.
    Streaming { lane: Lane, incoming: Incoming, framing: Framing },
    /// Hyper gave up; the provider's end is still awaited.
    Draining { lane: Lane },
    /// The connection went back to the pool, was closed, or there never was one.
    Ended,
}

/// How the end of a response is marked; names what is missing when it is cut off.
#[derive(Clone, Copy)]
enum Framing {
    Length,
    Chunks,
}

impl Call {
    pub(super) fn new(pool: Arc<Inner>, request: Request) -> Self {
        Self { pool, stage: Stage::New(request) }
    }

    /// Waits for the head of the response. Cancel safe. Yields it once.
    ///
    /// # Errors
    /// No response will come. Where the provider has not ended the connection, our sending side ends
    /// now, [`Self::returned`] waits for the provider's, and dropping the call resets.
    pub async fn head(&mut self) -> Result<Head, CallError> {
        std::future::poll_fn(|cx| self.poll_head(cx)).await
    }

    /// As [`Self::head`].
    pub fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Head, CallError>> {
        let outcome = ready!(self.poll_waiting(cx));
        if outcome.is_err() {
            self.fail();
        }
        Poll::Ready(outcome)
    }

    /// Waits for the next frame after the head, `None` at the clean end. Cancel safe.
    ///
    /// # Errors
    /// The response is incomplete. The connection ends as after a failed [`Self::head`].
    pub async fn frame(&mut self) -> Result<Option<Frame>, CallError> {
        std::future::poll_fn(|cx| self.poll_frame(cx)).await
    }

    /// As [`Self::frame`].
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame>, CallError>> {
        let outcome = ready!(self.poll_streaming(cx));
        match &outcome {
            Ok(Some(_)) => {}
            Ok(None) => self.finish(),
            Err(_) => self.fail(),
        }
        Poll::Ready(outcome)
    }

    /// Reads the rest of the body into memory, at most `limit` bytes. Nobody pays for these; for more
    /// than a small body there is [`Self::gather`].
    ///
    /// # Errors
    /// The response is incomplete or larger. The connection ends as after a failed [`Self::head`].
    pub async fn body(&mut self, limit: usize) -> Result<Bytes, CallError> {
        let mut whole = BytesMut::new();
        while let Some(frame) = self.frame().await? {
            let Frame::Data(data) = frame else { continue };
            if whole.len() + data.len() > limit {
                self.fail();
                return Err(CallError::TooLarge { authority: self.authority(), limit });
            }
            whole.extend_from_slice(&data);
        }
        Ok(whole.freeze())
    }

    /// Reads the rest of the body into `body`, which pays for it; at most `limit` bytes.
    ///
    /// # Errors
    /// The response is incomplete, larger, or more than the budget has room for. The connection ends
    /// as after a failed [`Self::head`].
    pub async fn gather(&mut self, limit: usize, mut body: Gathering) -> Result<Bytes, CallError> {
        while let Some(frame) = self.frame().await? {
            let Frame::Data(data) = frame else { continue };
            if body.len() + data.len() > limit {
                self.fail();
                return Err(CallError::TooLarge { authority: self.authority(), limit });
            }
            if let Err(source) = body.append(&data) {
                self.fail();
                return Err(CallError::OverBudget { authority: self.authority(), source });
            }
        }
        Ok(body.finish())
    }

    /// Says how far the call has got.
    pub fn phase(&self) -> Phase {
        match &self.stage {
            Stage::New(_) | Stage::Connecting { .. } => Phase::Connecting,
            Stage::Waiting { lane, .. } if lane.line().is_handed_over() => Phase::BeforeHead,
            Stage::Waiting { lane, .. } if lane.line().written() > 0 => Phase::Sending,
            Stage::Waiting { .. } => Phase::Connecting,
            Stage::Streaming { .. } => Phase::MidStream,
            Stage::Draining { .. } | Stage::Ended => Phase::Ended,
        }
    }

    /// Says whether the kernel has accepted the whole request; stays false when the provider
    /// answered without taking it, and after the end.
    pub fn is_handed_over(&self) -> bool {
        self.lane().is_some_and(|lane| lane.line().is_handed_over())
    }

    /// Returns how many bytes of the request, head included, the kernel has accepted; 0 after the end.
    pub fn sent_bytes(&self) -> u64 {
        self.lane().map_or(0, |lane| lane.line().written())
    }

    /// Says how much of the request the provider has taken; nothing after the end.
    pub fn sending(&self) -> Sending {
        self.lane().map_or(Sending::Nothing, |lane| lane.line().sending())
    }

    /// Says whether the provider is known to have returned from this call, or was never called.
    pub fn has_returned(&self) -> bool {
        matches!(self.stage, Stage::Ended)
    }

    /// Asks the provider to stop: ends our sending side at once, so that it sees FIN. Whatever of the
    /// request is not sent yet stays unsent. A call of which nothing was sent ends right here.
    ///
    /// Afterwards only [`Self::returned`] is of use; dropping the call resets the connection.
    pub fn cancel(&mut self) {
        match &mut self.stage {
            Stage::Waiting { lane, .. } | Stage::Streaming { lane, .. }
                if lane.line().written() > 0 =>
            {
                lane.line().fence();
            }
            // The connection, where there is one, has not carried a byte of this call.
            Stage::New(_)
            | Stage::Connecting { .. }
            | Stage::Waiting { .. }
            | Stage::Streaming { .. }
            | Stage::Ended => self.stage = Stage::Ended,
            Stage::Draining { .. } => {}
        }
    }

    /// Reads and discards until the provider is known to have returned from this call: its end of
    /// file or reset, or the clean end of its response. Cancel safe. The caller bounds the time.
    pub async fn returned(&mut self) {
        std::future::poll_fn(|cx| self.poll_returned(cx)).await;
    }

    /// As [`Self::returned`].
    pub fn poll_returned(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match &self.stage {
                Stage::New(_) | Stage::Connecting { .. } => self.stage = Stage::Ended,
                Stage::Waiting { .. } => {
                    if ready!(self.poll_waiting(cx)).is_err() {
                        self.drain();
                    }
                }
                Stage::Streaming { .. } => match ready!(self.poll_streaming(cx)) {
                    Ok(Some(_)) => {}
                    Ok(None) => self.finish(),
                    Err(_) => self.drain(),
                },
                Stage::Draining { lane } => {
                    ready!(lane.line().poll_drain(cx));
                    self.stage = Stage::Ended;
                }
                Stage::Ended => return Poll::Ready(()),
            }
        }
    }

    fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<Result<Head, CallError>> {
        loop {
            match &mut self.stage {
                Stage::New(_) => self.begin()?,
                Stage::Connecting { dialling, .. } => {
                    let lane = ready!(dialling.poll_unpin(cx))?;
                    self.send_on(lane);
                }
                Stage::Waiting { lane, responding, redialling } => {
                    if let Some(dialling) = redialling {
                        let connection = ready!(dialling.poll_unpin(cx))?;
                        lane.line().replace(connection);
                        *redialling = None;
                    }
                    let again = lane.drive(cx);
                    if lane.line().is_stale() {
                        let pool = Arc::clone(&self.pool);
                        *redialling = Some(Box::pin(async move { pool.dial().await }));
                        continue;
                    }
                    match peek(|cx| responding.poll_unpin(cx)) {
                        Poll::Ready(Ok(response)) => return Poll::Ready(self.stream(response)),
                        Poll::Ready(Err(error)) => {
                            return Poll::Ready(Err(self.lost(Some(&error))));
                        }
                        Poll::Pending if lane.has_ended() => {
                            return Poll::Ready(Err(self.lost(None)));
                        }
                        Poll::Pending if again => {}
                        Poll::Pending => return Poll::Pending,
                    }
                }
                Stage::Streaming { .. } | Stage::Draining { .. } | Stage::Ended => {
                    return Poll::Ready(Err(CallError::Ended { authority: self.authority() }));
                }
            }
        }
    }

    fn poll_streaming(&mut self, cx: &Context<'_>) -> Poll<Result<Option<Frame>, CallError>> {
        let Stage::Streaming { lane, incoming, .. } = &mut self.stage else {
            return Poll::Ready(Err(CallError::Ended { authority: self.authority() }));
        };
        let mut again = true;
        loop {
            match peek(|cx| Pin::new(&mut *incoming).poll_frame(cx)) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => return Poll::Ready(Ok(Some(Frame::Data(data)))),
                    Err(frame) => {
                        if let Ok(trailers) = frame.into_trailers() {
                            return Poll::Ready(Ok(Some(Frame::Trailers(trailers))));
                        }
                    }
                },
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Err(self.truncated(Some(&error))));
                }
                Poll::Ready(None) => return Poll::Ready(Ok(None)),
                Poll::Pending if again => again = lane.drive(cx),
                Poll::Pending if lane.has_ended() => {
                    return Poll::Ready(Err(self.truncated(None)));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Takes a pooled connection or starts to dial.
    fn begin(&mut self) -> Result<(), CallError> {
        let Stage::New(request) = std::mem::replace(&mut self.stage, Stage::Ended) else {
            unreachable!("a call begins once");
        };
        let (request, body) = self.framed(request)?;
        // Dialling comes first; a pooled connection takes its place before anything is polled.
        self.stage = Stage::Connecting { dialling: self.new_lane(), request, body };
        if let Some(lane) = self.pool.checkout() {
            self.send_on(lane);
        }
        Ok(())
    }

    fn new_lane(&self) -> Dialling<Lane> {
        let pool = Arc::clone(&self.pool);
        Box::pin(async move {
            let lane = Lane::new(pool.dial().await?).await;
            lane.map_err(|_| CallError::Lost {
                authority: Arc::clone(pool.endpoint().authority()),
                phase: Phase::Connecting,
            })
        })
    }

    /// Gives the request to hyper.
    fn send_on(&mut self, mut lane: Lane) {
        let Stage::Connecting { request, body, .. } =
            std::mem::replace(&mut self.stage, Stage::Ended)
        else {
            unreachable!("a request is sent once");
        };
        let body = Outgoing::new(body, lane.line().clone());
        let responding = lane.send(request.map(|()| body));
        self.stage = Stage::Waiting { lane, responding, redialling: None };
    }

    /// Writes the request's address and framing; what the caller said of them is dropped.
    fn framed(&self, request: Request) -> Result<(::http::Request<()>, Body), CallError> {
        const OURS: [HeaderName; 7] = [
            header::CONNECTION,
            header::CONTENT_LENGTH,
            header::EXPECT,
            header::TRANSFER_ENCODING,
            header::UPGRADE,
            HeaderName::from_static("keep-alive"),
            HeaderName::from_static("proxy-connection"),
        ];
        let Request { method, path, mut headers, body } = request;
        let path = self
            .pool
            .endpoint()
            .join(&path)
            .map_err(|problem| CallError::Request { authority: self.authority(), problem })?;
        for name in OURS {
            headers.remove(name);
        }
        headers.insert(header::HOST, self.pool.host().clone());
        let is_empty = matches!(&body, Body::Full(bytes) if bytes.is_empty());
        if is_empty && matches!(method, Method::POST | Method::PUT | Method::PATCH) {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        let mut framed = ::http::Request::new(());
        *framed.method_mut() = method;
        *framed.uri_mut() = Uri::from(path);
        *framed.headers_mut() = headers;
        Ok((framed, body))
    }

    /// Goes over from the head to the body.
    fn stream(&mut self, response: ::http::Response<Incoming>) -> Result<Head, CallError> {
        let (parts, incoming) = response.into_parts();
        // Nothing asked for another protocol.
        if parts.status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(CallError::Malformed { authority: self.authority() });
        }
        if let Some(lane) = self.take_lane() {
            let framing = if parts.headers.contains_key(header::TRANSFER_ENCODING) {
                Framing::Chunks
            } else {
                Framing::Length
            };
            self.stage = Stage::Streaming { lane, incoming, framing };
        }
        Ok(Head { status: parts.status, headers: parts.headers })
    }

    /// The response has ended cleanly: the connection may serve another call.
    fn finish(&mut self) {
        if let Some(lane) = self.take_lane()
            && lane.is_reusable()
        {
            self.pool.checkin(lane);
        }
    }

    /// Hyper has nothing more to say, the provider perhaps has.
    fn drain(&mut self) {
        if let Some(lane) = self.take_lane() {
            self.stage = Stage::Draining { lane };
        }
    }

    /// Nothing more of the response is of use.
    fn fail(&mut self) {
        let has_ended = self.lane().is_none_or(|lane| lane.line().has_peer_ended());
        // A request whose body was lost never becomes whole, so that nobody works at it; a FIN could
        // wait for ever behind what the provider does not read of it.
        if has_ended || self.body_failure().is_some() {
            return self.reset();
        }
        self.cancel();
        self.drain();
    }

    fn reset(&mut self) {
        if let Some(lane) = self.take_lane() {
            lane.line().reset_on_close();
        }
    }

    /// Ends the call here and hands out its connection, if it has one.
    fn take_lane(&mut self) -> Option<Lane> {
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Waiting { lane, .. }
            | Stage::Streaming { lane, .. }
            | Stage::Draining { lane } => Some(lane),
            Stage::New(_) | Stage::Connecting { .. } | Stage::Ended => None,
        }
    }

    fn lane(&self) -> Option<&Lane> {
        match &self.stage {
            Stage::Waiting { lane, .. }
            | Stage::Streaming { lane, .. }
            | Stage::Draining { lane } => Some(lane),
            Stage::New(_) | Stage::Connecting { .. } | Stage::Ended => None,
        }
    }

    fn authority(&self) -> Arc<str> {
        Arc::clone(self.pool.endpoint().authority())
    }

    fn body_failure(&self) -> Option<CallError> {
        let source = self.lane()?.line().body_failure()?;
        Some(CallError::RequestBody { authority: self.authority(), source })
    }

    /// Says why no head came.
    fn lost(&self, error: Option<&hyper::Error>) -> CallError {
        if let Some(failure) = self.body_failure() {
            return failure;
        }
        let authority = self.authority();
        if error.is_some_and(|error| error.is_parse() && !error.is_incomplete_message()) {
            return CallError::Malformed { authority };
        }
        let phase = if self.is_handed_over() { Phase::BeforeHead } else { Phase::Sending };
        CallError::Lost { authority, phase }
    }

    /// Says how a response is incomplete.
    fn truncated(&self, error: Option<&hyper::Error>) -> CallError {
        if let Some(failure) = self.body_failure() {
            return failure;
        }
        let cause = error
            .and_then(std::error::Error::source)
            .and_then(|source| source.downcast_ref::<io::Error>());
        let missing = match &self.stage {
            Stage::Streaming { framing: Framing::Chunks, .. } => Cut::LastChunk,
            _ => Cut::Length,
        };
        let cut = match cause.map(io::Error::kind) {
            Some(io::ErrorKind::UnexpectedEof) => missing,
            Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => Cut::Framing,
            Some(_) | None => Cut::Reset,
        };
        CallError::Truncated { authority: self.authority(), cut }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.reset();
    }
}
