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
use super::response::ResponseBody;
use super::{identity, upload};
use crate::body::{self, Limits};
use crate::core::Core;
use crate::relay::{self, Call, Head, Original, Payload, RelayBody};

/// One inference operation.
#[derive(Debug)]
pub(crate) struct Operation {
    /// Name in history and metrics.
    pub(crate) name: &'static str,
    /// What a provider must offer.
    pub(crate) need: Need,
    /// Which text it answers with; `None` where it answers with something else.
    pub(crate) text: Option<TextKind>,
    /// Whether its body may be a form, which streams through.
    pub(crate) takes_form: bool,
    /// Whether it may be executed twice: it leaves nothing behind and costs no more than tokens.
    pub(crate) is_repeatable: bool,
}

impl Operation {
    /// An operation that is only relayed.
    const fn relayed(name: &'static str, path: &'static str) -> Self {
        let need = Need { method: "POST", path, run: None };
        Self { name, need, text: None, takes_form: false, is_repeatable: false }
    }

    /// An operation that is only relayed and brings a file.
    const fn uploaded(name: &'static str, path: &'static str) -> Self {
        Self { takes_form: true, ..Self::relayed(name, path) }
    }

    /// Says whether tokens can be estimated where the provider reports none. Nobody counts those of
    /// sound or pixels, and of a text of which no delta was seen nothing is known; a zero would be made
    /// up.
    pub(crate) const fn can_estimate(&self, deltas: u64) -> bool {
        match self.text {
            Some(_) => deltas > 0,
            // Vectors have an input and no output.
            None => matches!(self.need.run, Some(RunKind::Embedding)),
        }
    }
}

/// Every inference operation.
pub(crate) static OPERATIONS: [Operation; 10] = [
    Operation {
        name: "openai.chat",
        need: Need { method: "POST", path: "/v1/chat/completions", run: Some(RunKind::Chat) },
        text: Some(TextKind::Chat),
        takes_form: false,
        is_repeatable: true,
    },
    Operation {
        name: "openai.completions",
        need: Need { method: "POST", path: "/v1/completions", run: Some(RunKind::Completion) },
        text: Some(TextKind::Completion),
        takes_form: false,
        is_repeatable: true,
    },
    Operation {
        name: "openai.embeddings",
        need: Need { method: "POST", path: "/v1/embeddings", run: Some(RunKind::Embedding) },
        text: None,
        takes_form: false,
        is_repeatable: true,
    },
    Operation { is_repeatable: true, ..Operation::relayed("openai.rerank", "/v1/rerank") },
    Operation::relayed("openai.moderations", "/v1/moderations"),
    Operation::relayed("openai.speech", "/v1/audio/speech"),
    Operation::uploaded("openai.transcriptions", "/v1/audio/transcriptions"),
    Operation::uploaded("openai.translations", "/v1/audio/translations"),
    Operation::relayed("openai.images", "/v1/images/generations"),
    Operation::uploaded("openai.image_edits", "/v1/images/edits"),
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
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    let received = crate::now();
    if core.is_stopping() {
        return Err(shutting_down());
    }
    let (parts, body) = request.into_parts();
    let session_id = identity::session_id(&parts.headers)?;
    let waits = parts.headers.contains_key(EXPECT);
    let (routing, payload) = if upload::is_upload(operation, &parts.headers) {
        let (model, upload) = upload::begin(core, operation, &parts, body, waits).await?;
        (Routing::elsewhere(model), Payload::Arriving(Box::new(upload)))
    } else {
        let body = body::read(body, body_limits(core), &core.budget, waits).await?;
        (Routing::read(&body)?, Payload::Whole(body))
    };
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
    let (call, original) = call(operation, receipt, received, parts, payload, routing);
    let attendance = relay::Request::begin(core, call, original, peer);
    let head = attendance.head().await;
    if let Some(rest) = attendance.unread(&head) {
        // A socket that closes over unread bytes resets and takes the answer with it.
        body::drain_source(rest).await;
    }
    Ok(match head {
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
    payload: Payload,
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
        body_bytes: match &payload {
            Payload::Whole(body) => body.len(),
            // No tokens can be estimated from sound or pixels.
            Payload::Arriving(_) => 0,
        },
        routing,
    };
    (call, Original { headers: parts.headers, payload })
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
