//! Normalized runs: the same endpoints, their answers translated into events.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use iop_dialect::openai::{
    Answer, EmbeddingsRequest, StreamReader, TextKind, read_chat_answer, read_completion_answer,
    read_embeddings,
};
use iop_dialect::splice::{BodyError, Edit, Routing};
use iop_dialect::sse::is_event_stream;
use iop_execution::{CallError, Cancelled, Completion, Outlet};
use iop_net::http::{Body, Frame, Head, Request};
use iop_types::{ErrorCode, Event, EventKind, Failure, RunKind, RunRequest};

use super::OpenaiCompat;
use super::exchange::Exchange;
use super::failure::{Redactor, refused};
use super::operations::path_of;

/// The largest answer that is not streamed: vectors of 2 048 inputs as numbers come near it.
const MAX_ANSWER: usize = 64 << 20;
/// An error body is read up to here; it is a sentence or two, or a page of HTML.
const MAX_ERROR: usize = 64 << 10;
/// How long an error body may take once its head is there.
const ERROR_PATIENCE: Duration = Duration::from_secs(2);

/// How the answer of a run is read.
enum Reading {
    Text(TextKind),
    Embeddings { inputs: usize },
}

impl OpenaiCompat {
    pub(super) async fn execute(
        &self,
        request: RunRequest,
        input: Bytes,
        outlet: &mut dyn Outlet<Event>,
        cancelled: &mut Cancelled,
    ) -> Result<Completion, CallError> {
        let (reading, body) = prepare(&request, &input).map_err(CallError::Failed)?;
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        self.injected.add_to(&mut headers);
        let path = path_of(request.kind).to_owned();
        let body = Body::Full(body);
        let call = self.pool.call(Request { method: Method::POST, path, headers, body });

        let mut exchange = Exchange::new(call, cancelled);
        let head = exchange.head().await?;
        if !head.status.is_success() {
            return Err(self.refusal(exchange, &head).await);
        }
        let answer = match (form_of(&head), reading) {
            (Ok(Form::Stream), Reading::Text(kind)) => {
                exchange.emit(outlet, EventKind::Start.into()).await?;
                read_stream(exchange, kind, outlet, &self.redactor).await?
            }
            (Ok(Form::Json), reading) => {
                exchange.emit(outlet, EventKind::Start.into()).await?;
                read_whole(exchange, &reading, outlet, &self.redactor).await?
            }
            (Ok(Form::Stream), Reading::Embeddings { .. }) => {
                let failure = unexpected("content type", "text/event-stream");
                return Err(exchange.give_up(failure).await);
            }
            (Err(failure), _) => {
                return Err(exchange.give_up(self.redactor.redact(failure)).await);
            }
        };
        Ok(Completion { finish: answer.finish, usage: answer.usage })
    }

    /// Reads the provider's reason for refusing.
    async fn refusal(&self, mut exchange: Exchange<'_>, head: &Head) -> CallError {
        let status = head.status.as_u16();
        match tokio::time::timeout(ERROR_PATIENCE, exchange.body(MAX_ERROR)).await {
            Ok(Err(CallError::Cancelled)) => CallError::Cancelled,
            Ok(Ok(body)) => {
                CallError::Failed(refused(status, &head.headers, &body, &self.redactor))
            }
            // The status says enough where the body does not arrive.
            Ok(Err(CallError::Failed(_))) | Err(_) => {
                let failure = refused(status, &head.headers, b"", &self.redactor);
                exchange.give_up(failure).await
            }
        }
    }
}

/// Makes the provider's body of the run's input.
fn prepare(request: &RunRequest, input: &Bytes) -> Result<(Reading, Bytes), Failure> {
    let model = Some(request.head.target.as_str());
    let text = Edit { model, stream: Some(true), include_usage: true };
    let (reading, edit) = match request.kind {
        RunKind::Chat => (Reading::Text(TextKind::Chat), text),
        RunKind::Completion => (Reading::Text(TextKind::Completion), text),
        RunKind::Embedding => {
            let inputs = EmbeddingsRequest::read(input).map_err(|error| invalid(&error))?.inputs;
            (Reading::Embeddings { inputs }, Edit { model, ..Edit::default() })
        }
        RunKind::Rerank => {
            return Err(Failure::new(ErrorCode::InvalidRequest, "reranking is not offered"));
        }
    };
    let routing = Routing::read(input).map_err(|error| invalid(&error))?;
    Ok((reading, routing.edit(input, edit)))
}

fn invalid(error: &BodyError) -> Failure {
    Failure::new(ErrorCode::InvalidRequest, error.to_string())
}

/// What a 2xx head announces.
enum Form {
    Stream,
    Json,
}

fn form_of(head: &Head) -> Result<Form, Failure> {
    let value = |name| head.headers.get(name).map_or(&b""[..], HeaderValue::as_bytes);
    let coding = value(header::CONTENT_ENCODING);
    if !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity") {
        return Err(unexpected("content encoding", &String::from_utf8_lossy(coding)));
    }
    let content_type = value(header::CONTENT_TYPE);
    if is_event_stream(content_type) {
        return Ok(Form::Stream);
    }
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    if essence.trim_ascii().eq_ignore_ascii_case(b"application/json") {
        return Ok(Form::Json);
    }
    Err(unexpected("content type", &String::from_utf8_lossy(essence)))
}

fn unexpected(what: &str, found: &str) -> Failure {
    let message = format!("the provider answered with unexpected {what} `{found}`");
    Failure::new(ErrorCode::ProviderError, message)
}

/// Translates a stream, event by event.
async fn read_stream(
    mut exchange: Exchange<'_>,
    kind: TextKind,
    outlet: &mut dyn Outlet<Event>,
    redactor: &Redactor,
) -> Result<Answer, CallError> {
    let mut reader = StreamReader::new(kind);
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
    let answer = reader.finish(&mut events);
    for event in events.drain(..) {
        exchange.emit(outlet, event).await?;
    }
    answer.map_err(|failure| CallError::Failed(redactor.redact(failure)))
}

/// Translates an answer that came in one piece, also where a stream was asked for.
async fn read_whole(
    mut exchange: Exchange<'_>,
    reading: &Reading,
    outlet: &mut dyn Outlet<Event>,
    redactor: &Redactor,
) -> Result<Answer, CallError> {
    let body = exchange.body(MAX_ANSWER).await?;
    let mut events = Vec::new();
    let answer = match reading {
        Reading::Text(TextKind::Chat) => read_chat_answer(&body, &mut events),
        Reading::Text(TextKind::Completion) => read_completion_answer(&body, &mut events),
        Reading::Embeddings { inputs } => read_embeddings(&body, *inputs, &mut events),
    };
    for event in events {
        exchange.emit(outlet, event).await?;
    }
    answer.map_err(|failure| CallError::Failed(redactor.redact(failure)))
}
