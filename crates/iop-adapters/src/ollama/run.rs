//! Normalized runs: an OpenAI request by Ollama's own API, its lines as events.

use bytes::Bytes;
use iop_dialect::ollama::{
    Ended, RequestError, StreamReader, chat_body, completion_body, embed_body, read_embed,
};
use iop_dialect::openai::TextKind;
use iop_execution::{CallError, Cancelled, Completion, Outlet};
use iop_net::http::Head;
use iop_types::{ErrorCode, Event, EventKind, Failure, RunKind, RunRequest};

use super::contexts::Context;
use super::{Ollama, operations};
use crate::server::{Exchange, Reader, content_type, read_stream, read_whole, unexpected};

/// What is sent, and how its answer is read.
struct Prepared {
    path: &'static str,
    body: Bytes,
    reading: Reading,
}

enum Reading {
    Text(TextKind),
    Embeddings { inputs: usize },
}

impl Ollama {
    pub(super) async fn execute(
        &self,
        request: RunRequest,
        input: Bytes,
        outlet: &mut dyn Outlet<Event>,
        cancelled: &mut Cancelled,
    ) -> Result<Completion, CallError> {
        let prepared = self.prepare(&request, &input).map_err(CallError::Failed)?;
        // Images make inputs large; the provider's body is all that is needed from here on.
        drop(input);
        self.contexts.note(&request.head.target, Context::of_body(&prepared.body));
        let call = self.server.execute(prepared.path, prepared.body);
        let mut exchange = Exchange::new(call, cancelled);
        let head = exchange.head(outlet).await?;
        if !head.status.is_success() {
            return Err(self.refusal(exchange, &head, prepared.path, outlet).await);
        }
        let redactor = self.server.redactor();
        if let Err(failure) = check_form(&head) {
            return Err(exchange.give_up(outlet, redactor.redact(failure)).await);
        }
        exchange.emit(outlet, EventKind::Start.into()).await?;
        let ended = match prepared.reading {
            Reading::Text(kind) => {
                read_stream(exchange, StreamReader::new(kind), outlet, redactor).await?
            }
            Reading::Embeddings { inputs } => {
                let read = |body: &[u8], events: &mut Vec<Event>| read_embed(body, inputs, events);
                read_whole(exchange, read, outlet, self.server.memory(), redactor).await?
            }
        };
        log_timings(&request, &ended);
        Ok(completion(&ended))
    }

    /// Makes Ollama's body of the run's input.
    fn prepare(&self, request: &RunRequest, input: &[u8]) -> Result<Prepared, Failure> {
        let (target, forced) = (request.head.target.as_str(), &self.forced);
        let Some(path) = operations::path_of(request.kind) else {
            return Err(Failure::new(ErrorCode::InvalidRequest, "Ollama does not rerank"));
        };
        let made = match request.kind {
            RunKind::Chat => {
                chat_body(input, target, forced).map(|body| (body, Reading::Text(TextKind::Chat)))
            }
            RunKind::Completion => completion_body(input, target, forced)
                .map(|body| (body, Reading::Text(TextKind::Completion))),
            RunKind::Embedding | RunKind::Rerank => embed_body(input, target, forced)
                .map(|body| (body.json, Reading::Embeddings { inputs: body.inputs })),
        };
        let (body, reading) = made.map_err(|error| invalid(&error))?;
        Ok(Prepared { path, body, reading })
    }

    /// Reads why the server refused. A 404 without an error object is not about the model: such a
    /// server has no such path.
    async fn refusal(
        &self,
        exchange: Exchange<'_>,
        head: &Head,
        path: &str,
        outlet: &mut dyn Outlet<Event>,
    ) -> CallError {
        let knows_path = head.status.as_u16() != 404 || is_json(head);
        let unknown = |failure: Failure| {
            let message = format!("the provider has no POST {path}: update Ollama");
            Failure { message, ..failure }
        };
        match self.server.refusal(exchange, head, outlet).await {
            CallError::Failed(failure) if !knows_path => CallError::Failed(unknown(failure)),
            CallError::Abandoned(failure) if !knows_path => CallError::Abandoned(unknown(failure)),
            error => error,
        }
    }
}

fn completion(ended: &Ended) -> Completion {
    Completion { finish: ended.answer.finish.clone(), usage: ended.answer.usage }
}

fn invalid(error: &RequestError) -> Failure {
    Failure::new(ErrorCode::InvalidRequest, error.to_string())
}

/// Lines come as `application/x-ndjson`, vectors and the lines of some proxies as JSON.
fn check_form(head: &Head) -> Result<(), Failure> {
    match content_type(head)? {
        essence if essence.eq_ignore_ascii_case(b"application/x-ndjson") => Ok(()),
        essence if essence.eq_ignore_ascii_case(b"application/json") => Ok(()),
        essence => Err(unexpected("content type", essence)),
    }
}

fn is_json(head: &Head) -> bool {
    content_type(head).is_ok_and(|essence| essence.eq_ignore_ascii_case(b"application/json"))
}

impl Reader for StreamReader {
    type Ended = Ended;

    fn push(&mut self, segment: &[u8], events: &mut Vec<Event>) -> Result<(), Failure> {
        self.push(segment, events)
    }

    fn has_ended(&self) -> bool {
        self.has_ended()
    }

    fn finish(self, events: &mut Vec<Event>) -> Result<Ended, Failure> {
        self.finish(events)
    }

    fn completion(ended: &Ended) -> Completion {
        completion(ended)
    }
}

/// A model that was loaded for this request is why it took long.
fn log_timings(request: &RunRequest, ended: &Ended) {
    let timings = ended.timings;
    tracing::debug!(
        run_id = %request.head.work.run_id,
        target = %request.head.target,
        total = ?timings.total(),
        load = ?timings.load(),
        prompt = ?timings.prompt(),
        generation = ?timings.generation(),
        "what the provider says of its time"
    );
}
