//! What identifies one call: our id for it, and the client's own correlation value.

use http::{HeaderMap, HeaderName, HeaderValue};
use iop_types::{ErrorCode, RequestId, RunId, SessionId};
use uuid::Uuid;

use super::errors::ErrorAnswer;

/// On every answer; taken over from the client where it sent a usable one.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Echoed unchanged.
pub(crate) const SESSION_ID: HeaderName = HeaderName::from_static("x-session-id");

/// Longest id of a client that is taken over.
const MAX_REQUEST_ID: usize = 128;

/// Returns the client's request id, or a fresh one.
pub(crate) fn request_id(headers: &HeaderMap) -> RequestId {
    let sent = headers.get(&REQUEST_ID).and_then(|value| value.to_str().ok());
    match sent.filter(|id| (1..=MAX_REQUEST_ID).contains(&id.len())) {
        Some(id) => RequestId::from(id),
        None => RequestId::from(format!("req_{}", Uuid::now_v7().simple())),
    }
}

/// Mints the id of a run; ids sort by time of receipt.
pub(crate) fn run_id() -> RunId {
    RunId::from_uuid(Uuid::now_v7())
}

/// Reads the client's correlation value.
///
/// # Errors
/// It cannot be carried; the answer names the header.
pub(crate) fn session_id(headers: &HeaderMap) -> Result<Option<SessionId>, ErrorAnswer> {
    let Some(value) = headers.get(&SESSION_ID) else { return Ok(None) };
    let refuse = |problem: &str| {
        ErrorAnswer::new(
            ErrorCode::InvalidRequest,
            format!(
                "header `x-session-id`: {problem}: send 1 to {} bytes of visible ASCII or leave it out",
                SessionId::MAX_BYTES
            ),
        )
    };
    let text = value.to_str().map_err(|_| refuse("session id is not visible ASCII"))?;
    SessionId::new(text).map(Some).map_err(|error| refuse(&error.to_string()))
}

/// Writes an id that was read from a header or made here.
pub(crate) fn header_value(id: &str) -> HeaderValue {
    HeaderValue::from_str(id).unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn a_usable_id_of_the_client_is_kept() {
        assert_eq!(request_id(&with(REQUEST_ID, "abc-1")).as_str(), "abc-1");
        let long = "x".repeat(129);
        assert!(request_id(&with(REQUEST_ID, &long)).as_str().starts_with("req_"));
        let first = request_id(&HeaderMap::new());
        assert_ne!(first, request_id(&HeaderMap::new()));
    }

    #[test]
    fn a_session_id_is_carried_up_to_128_bytes_and_its_header_is_named_beyond() {
        let fits = session_id(&with(SESSION_ID, &"s".repeat(128))).unwrap().unwrap();
        assert_eq!(fits.as_str().len(), 128);
        let refused = session_id(&with(SESSION_ID, &"s".repeat(129))).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::InvalidRequest);
        assert!(refused.message().contains("`x-session-id`"), "{}", refused.message());
        assert!(refused.message().contains("129 bytes"), "{}", refused.message());
        assert!(session_id(&with(SESSION_ID, "")).is_err());
        assert_eq!(session_id(&HeaderMap::new()).unwrap(), None);
    }
}
