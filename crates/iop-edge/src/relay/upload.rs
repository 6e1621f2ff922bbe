//! A request body that passes while it arrives: forms with audio or images.
//!
//! It is never held whole. The client is read only while the stream to the Node has room, so that a
//! slow link slows the client down and costs no memory, and nobody's silence is counted while it
//! waits for us. The `model` field of a form gets the winner's name for the target on its way.
//!
//! A send may be refused by the Node's gate and go back to its place in the queue. The beginning is
//! therefore kept until that can no longer happen. A Node that refuses a request queues its answer
//! first and then lets go of the body, which returns one more window of credit at most; the window
//! after that is granted for bytes that left when the refusal was here already.

use std::collections::VecDeque;
use std::mem::take;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::Body;
use iop_dialect::multipart::{FormError, FormScan, Piece};
use iop_net::link::REQUEST_WINDOW;
use iop_net::memory::{Budget, OverBudget, Share};
use iop_types::{ErrorCode, Failure};

/// Bytes after which a refusal cannot come any more: the first window, the one that a refusing Node
/// returns, and one that may wait in the link.
const KEPT: u64 = 3 * REQUEST_WINDOW as u64;

/// The client's body, whatever carries it.
pub(crate) trait Incoming: Send {
    /// Yields the next bytes, `None` at the end.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>>;
}

/// The client's connection ended within its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken;

impl<B> Incoming for B
where
    B: Body<Data = Bytes> + Send + Unpin,
{
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        loop {
            match ready!(std::pin::Pin::new(&mut *self).poll_frame(cx)) {
                None => return Poll::Ready(None),
                Some(Err(_)) => return Poll::Ready(Some(Err(Broken))),
                // Trailers of a request say nothing that is needed here.
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => return Poll::Ready(Some(Ok(data))),
                    Ok(_) | Err(_) => {}
                },
            }
        }
    }
}

/// How a body may arrive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes of it.
    pub(crate) bytes: u64,
    /// Longest pause within it while somebody waits for more.
    pub(crate) pause: Duration,
}

/// Why a body goes no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It is larger than the limit.
    TooLarge(u64),
    /// Its beginning does not fit into memory.
    OverBudget(OverBudget),
    /// Nothing more came.
    Paused(Duration),
    /// The connection ended within it.
    Broken,
    /// The form cannot be read.
    Form(FormError),
}

/// A body on its way.
pub(crate) struct Upload {
    source: Box<dyn Incoming>,
    limits: Limits,
    /// Its length, where the client announced one.
    declared: Option<u64>,
    form: Option<FormScan>,
    /// The value of the form's `model` field, once it has come.
    found: Option<Bytes>,
    /// What was read and belongs to no send yet.
    ready: VecDeque<Piece>,
    /// What was sent and may have to be sent again.
    kept: Option<Vec<Piece>>,
    share: Share,
    /// What goes in place of the form's model.
    target: Bytes,
    /// What the form's model must be, should it still come.
    model: Option<String>,
    read: u64,
    has_ended: bool,
    /// Since when the client is waited for.
    waits_since: Option<Instant>,
}

impl Upload {
    /// Takes a body over before anything of it was read.
    pub(crate) fn new(
        source: Box<dyn Incoming>,
        declared: Option<u64>,
        form: Option<FormScan>,
        limits: Limits,
        budget: &Budget,
    ) -> Self {
        Self {
            source,
            limits,
            declared,
            form,
            found: None,
            ready: VecDeque::new(),
            kept: Some(Vec::new()),
            share: budget.share(),
            target: Bytes::new(),
            model: None,
            read: 0,
            has_ended: false,
            waits_since: None,
        }
    }

    /// Returns the name in the form, once it has come.
    pub(crate) fn model(&self) -> Option<&str> {
        self.found.as_ref().and_then(|name| std::str::from_utf8(name).ok())
    }

    /// Says whether the client has sent everything.
    pub(crate) const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The request goes to this model, whatever named it; a form that names another one is refused.
    pub(crate) fn route_to(&mut self, model: &str) {
        self.model = Some(model.to_owned());
    }

    /// Reads on until the form has named its model, `bytes` were read, or nothing is left.
    pub(crate) fn poll_beginning(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        bytes: u64,
    ) -> Poll<Result<(), Stop>> {
        while !self.has_ended && self.found.is_none() && self.read < bytes {
            ready!(self.poll_read(cx, now))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Begins a send to a provider that has this name for the model. Returns the body's length, where
    /// that is known before the whole has come.
    pub(super) fn begin(&mut self, target: &str) -> Option<u64> {
        self.target = Bytes::copy_from_slice(target.as_bytes());
        if let Some(kept) = &mut self.kept {
            // What an earlier send took comes first again.
            let again: Vec<_> = take(kept);
            for piece in again.into_iter().rev() {
                self.ready.push_front(piece);
            }
        }
        let declared = self.declared?;
        if self.form.is_none() || self.model.as_deref() == Some(target) {
            return Some(declared);
        }
        let found = self.found.as_ref()?;
        Some(declared - found.len() as u64 + target.len() as u64)
    }

    /// Says whether a send can still be followed by another.
    pub(super) const fn can_begin_again(&self) -> bool {
        self.kept.is_some()
    }

    /// Yields the next bytes for the send, `None` at the end.
    pub(super) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
    ) -> Poll<Option<Result<Bytes, Stop>>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                let bytes = match &piece {
                    Piece::Bytes(bytes) => bytes.clone(),
                    Piece::Model(_) => self.target.clone(),
                };
                if let Some(kept) = &mut self.kept {
                    kept.push(piece);
                }
                return Poll::Ready(Some(Ok(bytes)));
            }
            if self.has_ended {
                return Poll::Ready(None);
            }
            if self.read >= KEPT && self.kept.take().is_some() {
                let _ = self.share.cover(0);
            }
            if let Err(stop) = ready!(self.poll_read(cx, now)) {
                return Poll::Ready(Some(Err(stop)));
            }
        }
    }

    /// Nobody asks the client for more right now.
    pub(super) const fn rest(&mut self) {
        self.waits_since = None;
    }

    /// Returns when the client's silence becomes too long.
    pub(super) fn due(&self) -> Option<Instant> {
        self.waits_since.map(|since| since + self.limits.pause)
    }

    /// Says whether the client was silent for too long.
    pub(super) fn overdue(&self, now: Instant) -> Option<Stop> {
        (self.due()? <= now).then_some(Stop::Paused(self.limits.pause))
    }

    /// Returns what is left of the client's body, for whoever lets it run out.
    pub(crate) fn into_source(self) -> Box<dyn Incoming> {
        self.source
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<Result<(), Stop>> {
        let Poll::Ready(data) = self.source.poll_data(cx) else {
            self.waits_since.get_or_insert(now);
            return Poll::Pending;
        };
        self.waits_since = None;
        Poll::Ready(match data {
            None => self.end(),
            Some(Err(Broken)) => Err(Stop::Broken),
            Some(Ok(data)) => self.take(data),
        })
    }

    fn end(&mut self) -> Result<(), Stop> {
        self.has_ended = true;
        self.form.as_ref().map_or(Ok(()), FormScan::finish).map_err(Stop::Form)
    }

    fn take(&mut self, data: Bytes) -> Result<(), Stop> {
        self.read += data.len() as u64;
        if self.read > self.limits.bytes {
            return Err(Stop::TooLarge(self.limits.bytes));
        }
        if self.kept.is_some() {
            self.share.grow(data.len()).map_err(Stop::OverBudget)?;
        }
        let Some(form) = &mut self.form else {
            self.ready.push_back(Piece::Bytes(data));
            return Ok(());
        };
        let (ready, found) = (&mut self.ready, &mut self.found);
        form.push(data, |piece| {
            if let Piece::Model(name) = &piece {
                *found = Some(name.clone());
            }
            ready.push_back(piece);
        })
        .map_err(Stop::Form)?;
        match (&self.model, self.model()) {
            (Some(model), Some(found)) if model != found => Err(Stop::Form(FormError::OtherModel)),
            _ => Ok(()),
        }
    }
}

impl Stop {
    /// Says what the client is told.
    pub(crate) fn failure(self) -> Failure {
        let invalid = |problem: String| Failure::new(ErrorCode::InvalidRequest, problem);
        match self {
            Self::TooLarge(limit) => Failure::new(
                ErrorCode::BodyTooLarge,
                format!(
                    "the body is larger than the limit of {limit} bytes: send less, or raise \
                     `limits.other_body` in the edge's file"
                ),
            ),
            Self::OverBudget(over) => Failure::new(
                ErrorCode::OverMemoryBudget,
                format!(
                    "{over}: try again in a moment, or raise `limits.buffered_bodies` in the edge's \
                     file"
                ),
            ),
            Self::Paused(pause) => invalid(format!(
                "the body stopped arriving for {} s before it was complete: send it whole",
                pause.as_secs()
            )),
            Self::Broken => invalid("the body ended before it was complete: send it whole".into()),
            Self::Form(error) => invalid(error.to_string()),
        }
    }
}
