//! What clients see: one listener, on which method and path decide what is asked.
//!
//! Every answer passes through [`serve`]: it judges Host and Origin before anything else, and marks
//! the answer with the request's id, the client's correlation value and the CORS headers.

pub(crate) mod errors;
pub(crate) mod guard;
pub(crate) mod headers;
pub(crate) mod health;
pub(crate) mod identity;
pub(crate) mod models;
pub(crate) mod openai;
pub(crate) mod response;
pub(crate) mod upload;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body;
use iop_net::accept::Peer;
use iop_types::{ErrorCode, RequestId};

use self::errors::ErrorAnswer;
use self::guard::Guard;
use self::response::ResponseBody;
use crate::core::Core;

/// Answers one request of a client.
pub(crate) async fn serve<B>(
    core: Arc<Core>,
    guard: Arc<Guard>,
    request: Request<B>,
    peer: Peer,
) -> Response<ResponseBody>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    let stamp = Stamp::new(request.headers());
    let allowed = match guard.check(request.version(), request.uri(), request.headers()) {
        Ok(allowed) => allowed,
        Err(refusal) => return stamp.put(refuse(&core, refusal.into())),
    };
    let mut preflight = HeaderMap::new();
    let mut response = if allowed.preflight(request.method(), request.headers(), &mut preflight) {
        let mut response = Response::new(ResponseBody::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        *response.headers_mut() = preflight;
        response
    } else {
        // The future of an inference is large and lives only for requests that need it.
        let answer = Box::pin(route(&core, &stamp.request_id, request, peer));
        answer.await.unwrap_or_else(|answer| refuse(&core, answer))
    };
    allowed.mark(response.headers_mut());
    stamp.put(response)
}

async fn route<B>(
    core: &Arc<Core>,
    request_id: &RequestId,
    request: Request<B>,
    peer: Peer,
) -> Result<Response<ResponseBody>, ErrorAnswer>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    let path = request.uri().path();
    if let Some(operation) = openai::operation(path) {
        allow(&request, Methods::Post)?;
        return openai::infer(core, operation, request_id, request, peer).await;
    }
    match path {
        "/v1/models" => allow(&request, Methods::Read).map(|()| models::list(core)),
        "/health" => allow(&request, Methods::Read).map(|()| health::health()),
        "/ready" => allow(&request, Methods::Read).map(|()| health::ready(&core.desk)),
        _ => match path.strip_prefix("/v1/models/") {
            Some(id) if !id.is_empty() => {
                allow(&request, Methods::Read)?;
                models::one(core, id)
            }
            Some(_) | None => Err(not_found(path)),
        },
    }
}

/// Which methods a path takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Methods {
    /// GET and HEAD.
    Read,
    /// POST.
    Post,
    /// DELETE.
    Delete,
}

/// Checks the method of a request whose path exists.
///
/// # Errors
/// Names the methods that the path takes.
pub(crate) fn allow<B>(request: &Request<B>, methods: Methods) -> Result<(), ErrorAnswer> {
    let (fits, list) = match methods {
        Methods::Read => (matches!(*request.method(), Method::GET | Method::HEAD), "GET, HEAD"),
        Methods::Post => (*request.method() == Method::POST, "POST"),
        Methods::Delete => (*request.method() == Method::DELETE, "DELETE"),
    };
    match fits {
        true => Ok(()),
        false => Err(ErrorAnswer::method_not_allowed(request.method(), request.uri().path(), list)),
    }
}

/// Answers a path that does not exist.
pub(crate) fn not_found(path: &str) -> ErrorAnswer {
    let shown: String = path.chars().take(200).collect();
    if path.starts_with("/api/v1/") {
        // Where the other one listens is not for strangers.
        let message = format!(
            "no such path: {shown}; this is the clients' listener, and the admin listener is another"
        );
        return ErrorAnswer::new(ErrorCode::NotFound, message);
    }
    ErrorAnswer::new(
        ErrorCode::NotFound,
        format!(
            "no such path: {shown}; this edge serves /v1/chat/completions, /v1/completions, \
             /v1/embeddings, /v1/rerank, /v1/moderations, /v1/audio/…, /v1/images/…, /v1/models, \
             /health and /ready"
        ),
    )
}

fn refuse(core: &Core, answer: ErrorAnswer) -> Response<ResponseBody> {
    core.metrics.count_refused(answer.code().as_str());
    answer.into_response()
}

/// What every answer carries.
pub(crate) struct Stamp {
    request_id: RequestId,
    session_id: Option<http::HeaderValue>,
}

impl Stamp {
    /// Reads what is echoed.
    pub(crate) fn new(headers: &HeaderMap) -> Self {
        Self {
            request_id: identity::request_id(headers),
            // One that cannot be carried is refused later; it is not sent back.
            session_id: identity::session_id(headers)
                .is_ok()
                .then(|| headers.get(&identity::SESSION_ID).cloned())
                .flatten(),
        }
    }

    /// Marks an answer.
    pub(crate) fn put(&self, mut response: Response<ResponseBody>) -> Response<ResponseBody> {
        let headers = response.headers_mut();
        headers.insert(identity::REQUEST_ID, identity::header_value(self.request_id.as_str()));
        if let Some(session_id) = &self.session_id {
            headers.insert(identity::SESSION_ID, session_id.clone());
        }
        response
    }
}
