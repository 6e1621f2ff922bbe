//! The error object of the OpenAI surface.

use bytes::Bytes;
use iop_types::ErrorCode;
use serde::Serialize;

use super::head::to_json;

#[derive(Serialize)]
struct Body<'a> {
    error: Object<'a>,
}

#[derive(Serialize)]
struct Object<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: &'static str,
}

/// Writes `{"error":{message,type,param,code}}`; the status is [`ErrorCode::status`].
pub fn error_body(code: ErrorCode, message: &str, param: Option<&str>) -> Bytes {
    let (r#type, code) = (error_type(code), code.as_str());
    to_json(&Body { error: Object { message, r#type, param, code } }).into()
}

/// Writes the error object as the one event that ends a stream which has begun. Official clients
/// raise it as an exception; no `[DONE]` may follow.
pub fn error_event(code: ErrorCode, message: &str) -> Bytes {
    event(error_type(code), code.as_str(), message)
}

/// Writes the event that ends a stream whose run somebody cancelled.
pub(super) fn cancelled_event() -> Bytes {
    event(SERVER_ERROR, "cancelled", "the run was cancelled")
}

fn event(r#type: &'static str, code: &'static str, message: &str) -> Bytes {
    let body = to_json(&Body { error: Object { message, r#type, param: None, code } });
    [b"data: ", body.as_slice(), b"\n\n"].concat().into()
}

const SERVER_ERROR: &str = "server_error";

/// Returns OpenAI's `type` for a code: what the official clients choose the exception by, besides
/// the status.
pub const fn error_type(code: ErrorCode) -> &'static str {
    match (code, code.status()) {
        (ErrorCode::BudgetExhausted, _) => "insufficient_quota",
        (_, 403) => "permission_error",
        (_, 429) => "rate_limit_error",
        (_, 503) => "service_unavailable_error",
        // What no client sees any more counts as ours.
        (_, 400..499) => "invalid_request_error",
        (_, _) => SERVER_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_type() {
        let types: Vec<_> =
            ErrorCode::ALL.iter().map(|code| (code.as_str(), error_type(*code))).collect();
        assert_eq!(
            types,
            [
                ("invalid_request", "invalid_request_error"),
                ("invalid_api_key", "invalid_request_error"),
                ("forbidden", "permission_error"),
                ("model_not_found", "invalid_request_error"),
                ("not_found", "invalid_request_error"),
                ("body_too_large", "invalid_request_error"),
                ("queue_full", "rate_limit_error"),
                ("rate_limited", "rate_limit_error"),
                ("budget_exhausted", "insufficient_quota"),
                ("provider_error", "server_error"),
                ("connect_failed", "server_error"),
                ("node_lost", "server_error"),
                ("truncated", "server_error"),
                ("no_ready_provider", "service_unavailable_error"),
                ("queue_timeout", "service_unavailable_error"),
                ("shutting_down", "service_unavailable_error"),
                ("over_memory_budget", "service_unavailable_error"),
                ("credential_unavailable", "service_unavailable_error"),
                ("response_stalled", "server_error"),
                ("deadline_exceeded", "server_error"),
                ("cancelled", "server_error"),
                ("client_gone", "server_error"),
                ("client_stalled", "server_error"),
                ("interrupted", "server_error"),
            ]
        );
    }

    #[test]
    fn the_error_object_has_all_four_members() {
        assert_eq!(
            error_body(ErrorCode::InvalidRequest, "`model` is \"x\"", Some("model")),
            r#"{"error":{"message":"`model` is \"x\"","type":"invalid_request_error","param":"model","code":"invalid_request"}}"#
        );
        assert_eq!(
            error_event(ErrorCode::NodeLost, "a\nb"),
            "data: {\"error\":{\"message\":\"a\\nb\",\"type\":\"server_error\",\"param\":null,\"code\":\"node_lost\"}}\n\n"
        );
    }
}
