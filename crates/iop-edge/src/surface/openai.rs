//! Inference in OpenAI's dialect: from an HTTP request to a call that can be admitted.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::header::EXPECT;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use http_body::Body;
use iop_admission::{AffinityKey, Need};
use iop_dialect::openai::TextKind;
use iop_dialect::splice::{BodyError, Routing};
use iop_net::accept::Peer;
use iop_store::Receipt;
use iop_types::{ErrorCode, RequestId, RouteName, RunKind};
use jiff::Timestamp;

use super::errors::ErrorAnswer;
use super::identity;
use super::response::ResponseBody;
use crate::body::{self, Limits};
use crate::core::Core;
use crate::relay::{self, Call, Head, Original, RelayBody};

/// One inference operation.
#[derive(Debug)]
pub(crate) struct Operation {
    /// Name in history and metrics.
    pub(crate) name: &'static str,
    /// What a provider must offer.
    pub(crate) need: Need,
    /// What a run of it produces.
    pub(crate) kind: RunKind,
    /// Which text it answers with; `None` where it answers with vectors.
    pub(crate) text: Option<TextKind>,
}

/// Every inference operation.
pub(crate) static OPERATIONS: [Operation; 3] = [
    Operation {
        name: "openai.chat",
        need: Need { method: "POST", path: "/v1/chat/completions", run: Some(RunKind::Chat) },
        kind: RunKind::Chat,
        text: Some(TextKind::Chat),
    },
    Operation {
        name: "openai.completions",
        need: Need { method: "POST", path: "/v1/completions", run: Some(RunKind::Completion) },
        kind: RunKind::Completion,
        text: Some(TextKind::Completion),
    },
    Operation {
        name: "openai.embeddings",
        need: Need { method: "POST", path: "/v1/embeddings", run: Some(RunKind::Embedding) },
        kind: RunKind::Embedding,
        text: None,
    },
];

/// Headers by which known clients tell which calls belong together.
const AFFINITY_HEADERS: [&str; 4] =
    ["x-session-affinity", "x-session-id", "session-id", "x-claude-code-session-id"];

/// Finds the operation of a path.
pub(crate) fn operation(path: &str) -> Option<&'static Operation> {
    OPERATIONS.iter().find(|operation| operation.need.path == path)
}

/// Answers one inference request.
///
/// # Errors
/// The request never got as far as admission.
pub(crate) async fn infer<B>(
    core: &Arc<Core>,
    operation: &'static Operation,
    request_id: &RequestId,
    request: Request<B>,
    peer: Peer,
) -> Result<Response<ResponseBody>, ErrorAnswer>
where
    B: Body<Data = Bytes> + Unpin,
{
    let received = crate::now();
    if core.is_stopping() {
        return Err(shutting_down());
    }
    let (parts, body) = request.into_parts();
    let session_id = identity::session_id(&parts.headers)?;
    let waits = parts.headers.contains_key(EXPECT);
    let body = body::read(body, body_limits(core), &core.budget, waits).await?;
    let routing = Routing::read(&body)?;
    check_model(routing.model())?;
    let receipt = Receipt {
        run_id: identity::run_id(),
        request_id: request_id.clone(),
        session_id: session_id.clone(),
        surface: operation.name.into(),
        principal: None,
        route: Some(RouteName::from(routing.model())),
        form: None,
        received_at: received_at(received),
    };
    let (call, original) = call(operation, receipt, received, parts, body, routing);
    let attendance = relay::Request::begin(core, call, original, peer);
    Ok(match attendance.head().await {
        Head::Whole(response) => response,
        Head::Relayed { status, headers } => {
            let mut response = Response::new(ResponseBody::Relayed(RelayBody::new(attendance)));
            *response.status_mut() = status;
            *response.headers_mut() = headers;
            response
        }
    })
}

fn call(
    operation: &'static Operation,
    receipt: Receipt,
    received: Instant,
    parts: Parts,
    body: Bytes,
    routing: Routing,
) -> (Call, Original) {
    let path_and_query =
        parts.uri.path_and_query().map_or(operation.need.path, |target| target.as_str());
    let call = Call {
        operation,
        session_id: receipt.session_id.clone(),
        receipt,
        received,
        path_and_query: path_and_query.to_owned(),
        version: parts.version,
        affinity: affinity(&parts.headers),
        body_bytes: body.len(),
        routing,
    };
    (call, Original { headers: parts.headers, body })
}

/// Names go into history, messages and the link; no server has longer ones.
fn check_model(model: &str) -> Result<(), ErrorAnswer> {
    const LONGEST: usize = 512;
    if model.len() <= LONGEST {
        return Ok(());
    }
    let bytes = model.len();
    let message = format!("`model` is {bytes} bytes long: at most {LONGEST} can be a model's name");
    Err(ErrorAnswer::new(ErrorCode::InvalidRequest, message).about(Some("model")))
}

fn body_limits(core: &Core) -> Limits {
    let bytes = usize::try_from(core.file.limits.json_body).unwrap_or(usize::MAX);
    Limits { bytes, pause: core.timing.body_pause }
}

fn affinity(headers: &HeaderMap) -> Option<AffinityKey> {
    let value = AFFINITY_HEADERS.iter().find_map(|name| headers.get(*name))?;
    Some(AffinityKey::new(value.as_bytes()))
}

/// The wall clock at `received`: the body may have taken its time since.
fn received_at(received: Instant) -> Timestamp {
    let now = Timestamp::now();
    now.checked_sub(crate::now().saturating_duration_since(received)).unwrap_or(now)
}

fn shutting_down() -> ErrorAnswer {
    ErrorAnswer::new(ErrorCode::ShuttingDown, "the edge is shutting down: try again in a moment")
}

impl From<BodyError> for ErrorAnswer {
    fn from(error: BodyError) -> Self {
        Self::new(ErrorCode::InvalidRequest, error.to_string()).about(error.param())
    }
}
