//! Answers of runs, read into events as they come.

use iop_execution::{CallError, Outlet};
use iop_net::http::Frame;
use iop_types::{Event, Failure};

use super::{Exchange, Redactor};

/// The largest answer that is not streamed: vectors of 2 048 inputs as numbers come near it.
const MAX_ANSWER: usize = 64 << 20;

/// Reads a stream of one dialect, in any segmentation.
pub(crate) trait Reader {
    /// What is known at the end.
    type Ended;

    /// Takes the next segment and appends the events that it completes.
    fn push(&mut self, segment: &[u8], events: &mut Vec<Event>) -> Result<(), Failure>;

    /// Ends the stream at the provider's end of file.
    fn finish(self, events: &mut Vec<Event>) -> Result<Self::Ended, Failure>;
}

/// Translates a stream, event by event.
pub(crate) async fn read_stream<R: Reader>(
    mut exchange: Exchange<'_>,
    mut reader: R,
    outlet: &mut dyn Outlet<Event>,
    redactor: &Redactor,
) -> Result<R::Ended, CallError> {
    let mut events = Vec::new();
    while let Some(frame) = exchange.frame().await? {
        let Frame::Data(data) = frame else { continue };
        let read = reader.push(&data, &mut events);
        for event in events.drain(..) {
            exchange.emit(outlet, event).await?;
        }
        if let Err(failure) = read {
            return Err(exchange.give_up(redactor.redact(failure)).await);
        }
    }
    let ended = reader.finish(&mut events);
    for event in events.drain(..) {
        exchange.emit(outlet, event).await?;
    }
    ended.map_err(|failure| CallError::Failed(redactor.redact(failure)))
}

/// Translates an answer that came in one piece, also where a stream was asked for.
pub(crate) async fn read_whole<E>(
    mut exchange: Exchange<'_>,
    read: impl FnOnce(&[u8], &mut Vec<Event>) -> Result<E, Failure>,
    outlet: &mut dyn Outlet<Event>,
    redactor: &Redactor,
) -> Result<E, CallError> {
    let body = exchange.body(MAX_ANSWER).await?;
    let mut events = Vec::new();
    let ended = read(&body, &mut events);
    for event in events {
        exchange.emit(outlet, event).await?;
    }
    ended.map_err(|failure| CallError::Failed(redactor.redact(failure)))
}
