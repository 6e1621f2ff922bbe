//! Cutting an event whose payload is longer than a frame carries, and joining it again.

use bytes::BytesMut;

use crate::v1::{self, run_event::Kind};

impl v1::RunEvent {
    /// Cuts the first `len` payload bytes off as an event of their own, which carries everything
    /// else too; what remains is its continuation.
    ///
    /// # Panics
    /// Panics when `len` exceeds the payload.
    #[must_use]
    pub fn split_front(&mut self, len: usize) -> Self {
        let payload = self.payload.split_to(len);
        let rest = Self {
            payload: std::mem::take(&mut self.payload),
            continues: self.continues,
            kind: Some(Kind::Continuation(v1::Continuation {})),
            ..Self::default()
        };
        let mut front = std::mem::replace(self, rest);
        front.payload = payload;
        front.continues = true;
        front
    }
}

/// Joins the parts of one stream's events.
///
/// A terminal may come in the middle of an event (the rest was dropped when the run was cancelled):
/// it ends the run and what was collected is forgotten.
#[derive(Debug)]
pub struct EventJoiner {
    max_bytes: usize,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    event: v1::RunEvent,
    payload: BytesMut,
}

impl EventJoiner {
    /// Makes a joiner that refuses events with more than `max_bytes` of payload.
    pub const fn new(max_bytes: usize) -> Self {
        Self { max_bytes, open: None }
    }

    /// Returns the bytes that an unfinished event takes in memory.
    pub fn held(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.payload.capacity())
    }

    /// Takes the next event of the stream; yields it once it is whole.
    ///
    /// # Errors
    /// The parts do not fit together, or the event is longer than allowed; the stream is broken.
    pub fn push(&mut self, mut part: v1::RunEvent) -> Result<Option<v1::RunEvent>, JoinError> {
        if part.is_terminal() {
            self.open = None;
            return Ok(Some(part));
        }
        let is_continuation = matches!(part.kind, Some(Kind::Continuation(_)));
        match (self.open.take(), is_continuation, part.continues) {
            (None, false, false) => Ok(Some(part)),
            (None, false, true) => {
                let mut payload = BytesMut::with_capacity(2 * part.payload.len());
                payload.extend_from_slice(&std::mem::take(&mut part.payload));
                self.keep(part, payload)
            }
            (Some(open), true, continues) => {
                let Open { mut event, mut payload } = open;
                payload.extend_from_slice(&part.payload);
                if continues {
                    return self.keep(event, payload);
                }
                self.check(&payload)?;
                event.payload = payload.freeze();
                event.continues = false;
                Ok(Some(event))
            }
            (None, true, _) | (Some(_), false, _) => Err(JoinError::OutOfOrder),
        }
    }

    fn keep(
        &mut self,
        event: v1::RunEvent,
        payload: BytesMut,
    ) -> Result<Option<v1::RunEvent>, JoinError> {
        self.check(&payload)?;
        self.open = Some(Open { event, payload });
        Ok(None)
    }

    fn check(&self, payload: &BytesMut) -> Result<(), JoinError> {
        if payload.len() > self.max_bytes {
            return Err(JoinError::TooLong { limit: self.max_bytes });
        }
        Ok(())
    }
}

/// Parts that make no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// A continuation without a beginning, or a beginning without its end.
    #[error("the parts of an event are out of order")]
    OutOfOrder,
    /// Longer than `max_run_event`.
    #[error("an event is longer than the {limit} bytes that max_run_event allows")]
    TooLong {
        /// What is allowed.
        limit: usize,
    },
}
