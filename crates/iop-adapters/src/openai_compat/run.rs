//! Normalized runs: the same endpoints, their answers translated into events.

use bytes::Bytes;
use iop_dialect::openai::{
    Answer, EmbeddingsRequest, StreamReader, TextKind, read_chat_answer, read_completion_answer,
    read_embeddings,
};
use iop_dialect::splice::{BodyError, Edit, Routing};
use iop_dialect::sse::is_event_stream;
use iop_execution::{CallError, Cancelled, Completion, Outlet};
use iop_net::http::Head;
use iop_types::{ErrorCode, Event, EventKind, Failure, RunKind, RunRequest};

use super::OpenaiCompat;
use super::operations::path_of;
use crate::server::{Exchange, Reader, content_type, read_stream, read_whole, unexpected};

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
        let call = self.server.execute(path_of(request.kind), body);
        let redactor = self.server.redactor();
        let mut exchange = Exchange::new(call, cancelled);
        let head = exchange.head(outlet).await?;
        if !head.status.is_success() {
            return Err(self.server.refusal(exchange, &head, outlet).await);
        }
        let answer = match (form_of(&head), reading) {
            (Ok(Form::Stream), Reading::Text(kind)) => {
                exchange.emit(outlet, EventKind::Start.into()).await?;
                read_stream(exchange, StreamReader::new(kind), outlet, redactor).await?
            }
            (Ok(Form::Json), reading) => {
                exchange.emit(outlet, EventKind::Start.into()).await?;
                let read = |body: &[u8], events: &mut Vec<Event>| reading.whole(body, events);
                read_whole(exchange, read, outlet, self.server.memory(), redactor).await?
            }
            (Ok(Form::Stream), Reading::Embeddings { .. }) => {
                let failure = unexpected("content type", b"text/event-stream");
                return Err(exchange.give_up(outlet, failure).await);
            }
            (Err(failure), _) => {
                return Err(exchange.give_up(outlet, redactor.redact(failure)).await);
            }
        };
        Ok(completion(&answer))
    }
}

fn completion(answer: &Answer) -> Completion {
    Completion { finish: answer.finish.clone(), usage: answer.usage }
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
    match content_type(head)? {
        essence if is_event_stream(essence) => Ok(Form::Stream),
        essence if essence.eq_ignore_ascii_case(b"application/json") => Ok(Form::Json),
        essence => Err(unexpected("content type", essence)),
    }
}

impl Reader for StreamReader {
    type Ended = Answer;

    fn push(&mut self, segment: &[u8], events: &mut Vec<Event>) -> Result<(), Failure> {
        self.push(segment, events)
    }

    fn has_ended(&self) -> bool {
        self.has_ended()
    }

    fn finish(self, events: &mut Vec<Event>) -> Result<Answer, Failure> {
        self.finish(events)
    }

    fn completion(ended: &Answer) -> Completion {
        completion(ended)
    }
}

impl Reading {
    /// Reads an answer that came in one piece.
    fn whole(&self, body: &[u8], events: &mut Vec<Event>) -> Result<Answer, Failure> {
        match self {
            Self::Text(TextKind::Chat) => read_chat_answer(body, events),
            Self::Text(TextKind::Completion) => read_completion_answer(body, events),
            Self::Embeddings { inputs } => read_embeddings(body, *inputs, events),
        }
    }
}
