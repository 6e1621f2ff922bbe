//! Error objects of providers, in the shapes that OpenAI-compatible servers really send.

use iop_types::{ErrorCode, Failure};
use serde_json::Value;

/// Longest text that is taken over from a provider. An error is a line or two; callers that remove
/// secrets show less than this, so that none is cut in half before they look.
const MAX_TEXT: usize = 8 << 10;

/// What a provider says in an error object, bounded in size.
///
/// It holds whatever the provider put there: secrets are removed by whoever knows them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProviderError {
    /// The text for people; empty when there was none.
    pub message: String,
    /// OpenAI's `type`.
    pub kind: Option<String>,
    /// OpenAI's `code`, numbers as text.
    pub code: Option<String>,
}

impl ProviderError {
    /// Reads the body of a provider's non-2xx answer.
    ///
    /// Never fails: of a body that is no known error object, as a proxy's HTML page, nothing is
    /// taken over.
    pub fn from_body(body: &[u8]) -> Self {
        match serde_json::from_slice(body) {
            Ok(value) => Self::from_object(value),
            Err(_) => Self::default(),
        }
    }

    /// Reads the data of an in-stream event that is an error as a whole.
    pub(crate) fn from_event(data: &[u8]) -> Self {
        match serde_json::from_slice(data) {
            Ok(value) => Self::from_object(value),
            Err(_) => Self::from_text(&String::from_utf8_lossy(data)),
        }
    }

    /// Reads the value of an `error` member.
    pub(crate) fn from_member(json: &str) -> Self {
        match serde_json::from_str(json) {
            Ok(value) => Self::from_value(value),
            Err(_) => Self::from_text(json),
        }
    }

    /// Reads an object that has an `error` member or is an error itself.
    fn from_object(mut value: Value) -> Self {
        match value.get_mut("error").map(Value::take) {
            Some(error) if !error.is_null() => Self::from_value(error),
            Some(_) | None => Self::from_value(value),
        }
    }

    fn from_value(value: Value) -> Self {
        let text = |name: &str| match value.get(name) {
            Some(Value::String(text)) => Some(one_line(text)),
            Some(Value::Number(number)) => Some(number.to_string()),
            Some(_) | None => None,
        };
        match &value {
            Value::String(message) => Self::from_text(message),
            // `detail` is what FastAPI servers write.
            Value::Object(_) => Self {
                message: text("message").or_else(|| text("detail")).unwrap_or_default(),
                kind: text("type"),
                code: text("code"),
            },
            other => Self::from_text(&other.to_string()),
        }
    }

    fn from_text(message: &str) -> Self {
        Self { message: one_line(message), kind: None, code: None }
    }

    /// Makes the failure of a run; `status` is the provider's HTTP status where it answered with
    /// an error. In a stream that began with 2xx, a code that is a status counts as one.
    pub fn into_failure(self, status: Option<u16>) -> Failure {
        let mut details = Vec::new();
        details.extend(status.map(|status| format!("status {status}")));
        details.extend(self.kind.map(|kind| format!("type {kind}")));
        details.extend(self.code.as_ref().map(|code| format!("code {code}")));
        let details = match details.as_slice() {
            [] => String::new(),
            details => format!(" ({})", details.join(", ")),
        };
        let message = match self.message.as_str() {
            "" => format!("provider answered with an error without a message{details}"),
            message => format!("provider answered with an error: {message}{details}"),
        };
        let code = self.code.and_then(|code| code.parse().ok());
        Failure {
            provider_status: status.or(code.filter(|code| (400..600).contains(code))),
            ..Failure::new(ErrorCode::ProviderError, message)
        }
    }
}

/// Puts a text on one line of bounded length.
fn one_line(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_TEXT);
    text[..end].split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(message: &str, kind: Option<&str>, code: Option<&str>) -> ProviderError {
        let owned = |text: &str| text.to_owned();
        ProviderError { message: owned(message), kind: kind.map(owned), code: code.map(owned) }
    }

    #[test]
    fn error_bodies_are_read_in_each_shape() {
        for (body, expected) in [
            (
                r#"{"error":{"message":"too\n long","type":"t","param":null,"code":"c"}}"#,
                error("too long", Some("t"), Some("c")),
            ),
            (r#"{"error":{"message":"m","code":429}}"#, error("m", None, Some("429"))),
            (r#"{"error":"text"}"#, error("text", None, None)),
            (r#"{"detail":"Not Found"}"#, error("Not Found", None, None)),
            (
                r#"{"object":"error","message":"m","type":"t","code":400}"#,
                error("m", Some("t"), Some("400")),
            ),
            (r#"{"error":null,"message":"m"}"#, error("m", None, None)),
            ("<html>502</html>", error("", None, None)),
            ("", error("", None, None)),
        ] {
            assert_eq!(ProviderError::from_body(body.as_bytes()), expected, "{body}");
        }
    }

    #[test]
    fn a_failure_says_what_the_provider_said() {
        let failure = error("quota", Some("insufficient_quota"), Some("429")).into_failure(None);
        assert_eq!(failure.code, ErrorCode::ProviderError);
        assert_eq!(failure.provider_status, Some(429));
        assert_eq!(
            failure.message,
            "provider answered with an error: quota (type insufficient_quota, code 429)"
        );
        let silent = ProviderError::default().into_failure(Some(502));
        assert_eq!(silent.provider_status, Some(502));
        assert_eq!(
            silent.message,
            "provider answered with an error without a message (status 502)"
        );
    }

    #[test]
    fn a_page_of_text_is_cut_at_a_character() {
        let error = ProviderError::from_event("\u{c548}".repeat(5_000).as_bytes());
        assert_eq!(error.message.len(), MAX_TEXT - MAX_TEXT % 3);
    }
}
