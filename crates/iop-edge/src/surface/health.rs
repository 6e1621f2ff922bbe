//! Whether the process lives and whether it can serve.

use http::header::RETRY_AFTER;
use http::{HeaderValue, Response, StatusCode};
use serde_json::json;

use super::response::{ResponseBody, json};
use crate::admit::Desk;

/// The process lives.
pub(crate) fn health() -> Response<ResponseBody> {
    json(&b"{\"status\":\"ok\"}"[..])
}

/// A request for some model could be dispatched, or why none could.
pub(crate) fn ready(desk: &Desk) -> Response<ResponseBody> {
    match desk.tell(|admission, _| admission.readiness()) {
        Ok(()) => json(&b"{\"ready\":true}"[..]),
        Err(reason) => {
            let body = json!({ "ready": false, "reason": reason.to_string() });
            let mut response = json(body.to_string());
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            // As often as a Node looks for servers.
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("10"));
            response
        }
    }
}
