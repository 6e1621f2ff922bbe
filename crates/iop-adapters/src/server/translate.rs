//! Answers of runs, read into events as they come.

use bytes::Bytes;
use iop_execution::{CallError, Completion, Outlet};
use iop_net::http::Frame;
use iop_net::memory::{Budget, Gathering};
use iop_types::{ErrorCode, Event, Failure};

use super::{Exchange, Redactor};

/// The largest answer that is not streamed: vectors of 2 048 inputs as numbers come near it.
const MAX_ANSWER: usize = 64 << 20;

/// Reads a stream of one dialect, in any segmentation.
pub(crate) trait Reader {
    /// What is known at the end.
    type Ended;

    /// Takes the next segment and appends the events that it completes.
    fn push(&mut self, segment: &[u8], events: &mut Vec<Event>) -> Result<(), Failure>;

    /// Says whether the provider has said that this was all. What follows is read no more.
    fn has_ended(&self) -> bool {
        false
    }

    /// Ends the stream at the provider's end of file, or where it said that this was all.
    fn finish(self, events: &mut Vec<Event>) -> Result<Self::Ended, Failure>;

    /// Says how a call completed that ended so.
    fn completion(ended: &Self::Ended) -> Completion;
}

/// Translates a stream, event by event.
pub(crate) async fn read_stream<R: Reader>(
    mut exchange: Exchange<'_>,
    mut reader: R,
    outlet: &mut dyn Outlet<Event>,
    redactor: &Redactor,
) -> Result<R::Ended, CallError> {
    let mut events = Vec::new();
    while let Some(frame) = exchange.frame(outlet).await? {
        let Frame::Data(data) = frame else { continue };
        let read = reader.push(&data, &mut events);
        for event in events.drain(..) {
            exchange.emit(outlet, event).await?;
        }
        if let Err(failure) = read {
            return Err(exchange.give_up(outlet, redactor.redact(failure)).await);
        }
        if reader.has_ended() {
            break;
        }
    }
    let ended = reader.finish(&mut events);
    for event in events.drain(..) {
        exchange.emit(outlet, event).await?;
    }
    match ended {
        Ok(ended) => {
            exchange.let_end(outlet, R::completion(&ended)).await?;
            Ok(ended)
        }
        Err(failure) => Err(exchange.give_up(outlet, redactor.redact(failure)).await),
    }
}

/// Translates an answer that came in one piece, also where a stream was asked for.
pub(crate) async fn read_whole<E>(
    mut exchange: Exchange<'_>,
    read: impl FnOnce(&[u8], &mut Vec<Event>) -> Result<E, Failure>,
    outlet: &mut dyn Outlet<Event>,
    memory: &Budget,
    redactor: &Redactor,
) -> Result<E, CallError> {
    let body = match gather(&mut exchange, outlet, memory).await {
        Ok(body) => body,
        Err(Unread::Ended(error)) => return Err(error),
        Err(Unread::Unusable(failure)) => return Err(exchange.give_up(outlet, failure).await),
    };
    let mut events = Vec::new();
    let ended = read(&body, &mut events);
    for event in events {
        exchange.emit(outlet, event).await?;
    }
    ended.map_err(|failure| CallError::Failed(redactor.redact(failure)))
}

/// Why an answer was not read to its end.
enum Unread {
    /// The call ended.
    Ended(CallError),
    /// It goes on, for nothing: the answer does not fit.
    Unusable(Failure),
}

/// Reads an answer that makes sense only as a whole, under the limit of one and the budget of all.
async fn gather(
    exchange: &mut Exchange<'_>,
    outlet: &mut dyn Outlet<Event>,
    memory: &Budget,
) -> Result<Bytes, Unread> {
    let mut answer = Gathering::new(memory);
    while let Some(frame) = exchange.frame(outlet).await.map_err(Unread::Ended)? {
        let Frame::Data(data) = frame else { continue };
        if answer.len() + data.len() > MAX_ANSWER {
            let message = format!("the provider's answer exceeds {MAX_ANSWER} bytes");
            return Err(Unread::Unusable(Failure::new(ErrorCode::ProviderError, message)));
        }
        answer.append(&data).map_err(|over| {
            let message = format!("the provider's answer does not fit the node: {over}");
            Unread::Unusable(Failure::new(ErrorCode::OverMemoryBudget, message))
        })?;
    }
    Ok(answer.finish())
}
