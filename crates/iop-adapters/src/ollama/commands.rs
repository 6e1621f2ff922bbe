//! Commands: the operations of Ollama's API that are no inference.
//!
//! What is sent is written here from what was understood ([`body`]), never passed on, so that nothing
//! can mean one thing to us and another to the server. Each call has a connection of its own, which is
//! not kept: a pull of an hour takes nothing from requests, and nothing of it outlives it.

mod body;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use iop_dialect::ndjson::Splitter;
use iop_dialect::openai::ProviderError;
use iop_execution::{BoxFuture, CallError, Cancelled, Command, Commands, Outlet};
use iop_net::http::{Body, Frame, Request};
use iop_types::{CommandFrame, ErrorCode, Failure, OllamaOperation, Operation};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::Ollama;
use crate::server::{Exchange, content_type, unexpected};

/// Longest answer but that of a pull. `show` with `verbose` tells a vocabulary, some 10 MiB.
const MAX_ANSWER: usize = 16 << 20;
/// How much of it is put out at once.
const PART: usize = 16 << 10;
/// Longest line of a pull's progress: a status, a digest, two numbers.
const MAX_LINE: usize = 64 << 10;

impl Commands for Ollama {
    fn list(&self) -> Vec<Command> {
        let listed = OllamaOperation::ALL.iter().map(|operation| Command {
            operation: Operation {
                method: operation.method().to_owned(),
                path: operation.path().to_owned(),
            },
            manages: operation.manages(),
            patience: operation.patience(),
        });
        listed.collect()
    }

    fn call<'a>(
        &'a self,
        operation: Operation,
        body: Bytes,
        outlet: &'a mut dyn Outlet<CommandFrame>,
        cancelled: &'a mut Cancelled,
    ) -> BoxFuture<'a, Result<(), CallError>> {
        Box::pin(async move {
            let (operation, request) = request(&operation, &body).map_err(CallError::Failed)?;
            let mut exchange = Exchange::new(self.server.aside(request), cancelled);
            let head = exchange.head(outlet).await?;
            if !head.status.is_success() {
                return Err(self.server.refusal(exchange, &head, outlet).await);
            }
            match operation {
                OllamaOperation::Version
                | OllamaOperation::Tags
                | OllamaOperation::Ps
                | OllamaOperation::Show => {
                    if let Err(failure) = json(content_type(&head)) {
                        return Err(exchange.give_up(outlet, failure).await);
                    }
                    let answer = exchange.body(MAX_ANSWER, outlet).await?;
                    put_object(exchange, answer, outlet).await
                }
                // Both answer with nothing but their status.
                OllamaOperation::Copy | OllamaOperation::Delete => {
                    exchange.body(MAX_ANSWER, outlet).await?;
                    put_object(exchange, Bytes::from_static(b"{}"), outlet).await
                }
                OllamaOperation::Pull => self.follow(exchange, outlet).await,
            }
        })
    }
}

impl Ollama {
    /// Puts out a pull's progress, line by line. Only the line that says so is success.
    async fn follow(
        &self,
        mut exchange: Exchange<'_>,
        outlet: &mut dyn Outlet<CommandFrame>,
    ) -> Result<(), CallError> {
        let mut splitter = Splitter::new(MAX_LINE);
        let mut is_done = false;
        loop {
            let mut lines = Vec::new();
            let frame = exchange.frame(outlet).await?;
            match &frame {
                Some(Frame::Data(data)) => splitter.push(data, |line| lines.push(read(line))),
                Some(Frame::Trailers(_)) => {}
                None => splitter.finish(|line| lines.push(read(line))),
            }
            for line in lines {
                match line {
                    Ok(line) => {
                        is_done = line.is_success;
                        exchange.emit(outlet, CommandFrame::Part(line.text)).await?;
                    }
                    Err(failure) => {
                        let failure = self.server.redactor().redact(failure);
                        return Err(exchange.give_up(outlet, failure).await);
                    }
                }
            }
            if frame.is_none() {
                return if is_done { Ok(()) } else { Err(CallError::Failed(unfinished())) };
            }
        }
    }
}

/// Makes the server's request of an operation on the list.
fn request(asked: &Operation, body: &[u8]) -> Result<(OllamaOperation, Request), Failure> {
    let Some(operation) = OllamaOperation::find(&asked.method, &asked.path) else {
        let message = "the operation is not on the closed list of commands";
        return Err(Failure::new(ErrorCode::InvalidRequest, message));
    };
    let body = body::written(operation, body)
        .map_err(|problem| Failure::new(ErrorCode::InvalidRequest, problem.to_string()))?;
    let mut headers = HeaderMap::new();
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let method = match operation.method() {
        "GET" => Method::GET,
        "DELETE" => Method::DELETE,
        _ => Method::POST,
    };
    let body = match body {
        Some(body) => {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            Body::Full(body.into())
        }
        None => Body::empty(),
    };
    Ok((operation, Request { method, path: operation.path().to_owned(), headers, body }))
}

/// Checks that an answer claims to be what it should.
fn json(content_type: Result<&[u8], Failure>) -> Result<(), Failure> {
    let found = content_type?;
    match found.eq_ignore_ascii_case(b"application/json") {
        true => Ok(()),
        false => Err(unexpected("content type", found)),
    }
}

/// Puts out a JSON object that is here as a whole.
async fn put_object(
    mut exchange: Exchange<'_>,
    mut object: Bytes,
    outlet: &mut dyn Outlet<CommandFrame>,
) -> Result<(), CallError> {
    if !is_object(&object) {
        let failure =
            Failure::new(ErrorCode::ProviderError, "the provider's answer is no JSON object");
        return Err(CallError::Failed(failure));
    }
    while !object.is_empty() {
        let part = object.split_to(object.len().min(PART));
        exchange.emit(outlet, CommandFrame::Part(part)).await?;
    }
    Ok(())
}

fn is_object(text: &[u8]) -> bool {
    text.trim_ascii_start().starts_with(b"{") && serde_json::from_slice::<IgnoredAny>(text).is_ok()
}

/// One line of a pull's progress.
struct Line {
    /// As it came, with its end.
    text: Bytes,
    is_success: bool,
}

#[derive(Deserialize)]
struct Progress {
    status: Option<String>,
    error: Option<IgnoredAny>,
}

fn read(line: Result<&[u8], iop_dialect::ndjson::LineTooLarge>) -> Result<Line, Failure> {
    let failed = |message: String| Failure::new(ErrorCode::ProviderError, message);
    let line = line.map_err(|error| failed(format!("the provider's progress: {error}")))?;
    let progress: Progress = Some(line)
        .filter(|line| line.trim_ascii_start().starts_with(b"{"))
        .and_then(|line| serde_json::from_slice(line).ok())
        .ok_or_else(|| failed("a line of the provider's progress is no JSON object".to_owned()))?;
    if progress.error.is_some() {
        return Err(ProviderError::from_body(line).into_failure(None));
    }
    let is_success = progress.status.as_deref() == Some("success");
    Ok(Line { text: [line, b"\n"].concat().into(), is_success })
}

fn unfinished() -> Failure {
    Failure::new(
        ErrorCode::Truncated,
        "the provider ended the pull without saying that it succeeded",
    )
}
