//! Answers that say what went wrong and what to do, in OpenAI's shape.

use http::header::{ALLOW, CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use iop_dialect::openai::error_body;
use iop_types::{ErrorCode, Failure};

use super::guard;
use super::response::ResponseBody;
use crate::body::BodyError;

/// Tells the official clients whether another try can help; they obey it before their own rules.
pub(crate) const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// One answer other than what was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ErrorAnswer {
    code: ErrorCode,
    status: StatusCode,
    message: String,
    param: Option<&'static str>,
    retry_after: Option<u64>,
    allow: Option<&'static str>,
    /// Whether the same request may succeed later.
    can_succeed: bool,
}

impl ErrorAnswer {
    /// Makes an answer with the status of the table.
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let status =
            StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self {
            code,
            status,
            message: message.into(),
            param: None,
            retry_after: default_retry_after(code),
            allow: None,
            can_succeed: code.is_retryable(),
        }
    }

    /// Names the member of the body that is at fault.
    #[must_use]
    pub(crate) const fn about(mut self, param: Option<&'static str>) -> Self {
        self.param = param;
        self
    }

    /// The path exists, the method does not.
    pub(crate) fn method_not_allowed(
        method: &http::Method,
        path: &str,
        allow: &'static str,
    ) -> Self {
        let mut answer = Self::new(
            ErrorCode::InvalidRequest,
            format!("method {method} is not allowed on {path}: use {allow}"),
        );
        answer.status = StatusCode::METHOD_NOT_ALLOWED;
        answer.allow = Some(allow);
        answer
    }

    /// A run failed before anything of its answer was sent.
    ///
    /// A provider's own status is kept where it speaks of the request. Where it speaks of the
    /// provider's credential it would mislead: the client's key was not refused.
    pub(crate) fn from_failure(failure: &Failure) -> Self {
        let mut answer = Self::new(failure.code, failure.message.clone());
        if failure.code == ErrorCode::ProviderError
            && let Some(status) = failure.provider_status
            && (400..600).contains(&status)
            && !matches!(status, 401 | 403 | 407)
            && let Ok(status) = StatusCode::from_u16(status)
        {
            answer.status = status;
        }
        if failure.is_retryable() {
            answer.can_succeed = true;
            // A stall whose call returned holds nothing at the provider.
            answer.retry_after = answer.retry_after.or(Some(1));
        }
        if let Some(seconds) = failure.retry_after_s {
            answer.retry_after = Some(u64::from(seconds));
        }
        answer
    }

    /// Returns the code.
    pub(crate) const fn code(&self) -> ErrorCode {
        self.code
    }

    #[cfg(test)]
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    fn should_retry(&self) -> bool {
        // A provider that is busy or limits its callers may take the same request later.
        let is_busy =
            matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        self.can_succeed || (self.code == ErrorCode::ProviderError && is_busy)
    }

    /// Writes the answer.
    pub(crate) fn into_response(self) -> Response<ResponseBody> {
        let should_retry = self.should_retry();
        let body = error_body(self.code, &self.message, self.param);
        let mut response = Response::new(ResponseBody::whole(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let retry = if should_retry { "true" } else { "false" };
        headers.insert(SHOULD_RETRY, HeaderValue::from_static(retry));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        response
    }
}

/// Seconds after which the condition has a fair chance to be over.
const fn default_retry_after(code: ErrorCode) -> Option<u64> {
    match code {
        ErrorCode::QueueFull | ErrorCode::QueueTimeout | ErrorCode::OverMemoryBudget => Some(2),
        // A Node looks for servers every 10 s and reconnects within a few.
        ErrorCode::NoReadyProvider | ErrorCode::NodeLost | ErrorCode::ConnectFailed => Some(5),
        ErrorCode::ShuttingDown | ErrorCode::RateLimited => Some(10),
        _ => None,
    }
}

impl From<BodyError> for ErrorAnswer {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge { limit } => Self::new(
                ErrorCode::BodyTooLarge,
                format!(
                    "the body is larger than the limit of {limit} bytes: send less, or raise \
                     `limits.json_body` in the edge's file"
                ),
            ),
            BodyError::OverBudget(over) => Self::new(
                ErrorCode::OverMemoryBudget,
                format!(
                    "{over}: try again in a moment, or raise `limits.buffered_bodies` in the edge's \
                     file"
                ),
            ),
            BodyError::Paused(_) | BodyError::Broken => {
                let mut answer = Self::new(
                    ErrorCode::InvalidRequest,
                    format!("{error}: send it whole, with a true content-length"),
                );
                if matches!(error, BodyError::Paused(_)) {
                    answer.status = StatusCode::REQUEST_TIMEOUT;
                }
                answer
            }
        }
    }
}

impl From<guard::Refusal> for ErrorAnswer {
    fn from(refusal: guard::Refusal) -> Self {
        let code = match refusal {
            guard::Refusal::NoHost | guard::Refusal::Several(_) => ErrorCode::InvalidRequest,
            guard::Refusal::Host(_) | guard::Refusal::Origin(_) => ErrorCode::Forbidden,
        };
        Self::new(code, refusal.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(status: u16, retry_after_s: Option<u32>) -> Response<ResponseBody> {
        let failure = Failure {
            provider_status: Some(status),
            retry_after_s,
            ..Failure::new(ErrorCode::ProviderError, "context too long")
        };
        ErrorAnswer::from_failure(&failure).into_response()
    }

    #[test]
    fn a_provider_status_about_the_request_is_kept() {
        assert_eq!(failed(400, None).status(), 400);
        assert_eq!(failed(503, None).status(), 503);
        let limited = failed(429, Some(7));
        assert_eq!(
            (limited.status().as_u16(), limited.headers()[RETRY_AFTER].as_bytes()),
            (429, b"7".as_slice())
        );
        assert_eq!(limited.headers()[SHOULD_RETRY], "true");
        assert_eq!(failed(400, None).headers()[SHOULD_RETRY], "false");
    }

    #[test]
    fn a_provider_status_about_its_own_credential_is_not_the_clients() {
        for status in [401, 403, 407, 200, 0] {
            assert_eq!(failed(status, None).status(), 502, "{status}");
        }
    }

    #[test]
    fn the_body_limit_is_named_with_its_setting() {
        let answer = ErrorAnswer::from(BodyError::TooLarge { limit: 33_554_432 });
        assert_eq!(answer.code(), ErrorCode::BodyTooLarge);
        assert!(
            answer.message().contains("33554432") && answer.message().contains("limits.json_body")
        );
        assert_eq!(answer.into_response().status(), 413);
    }

    #[test]
    fn every_retryable_code_says_when_to_come_again() {
        for code in ErrorCode::ALL {
            let answer = ErrorAnswer::new(*code, "x").into_response();
            let retry = answer.headers()[SHOULD_RETRY] == "true";
            assert_eq!(retry, code.is_retryable(), "{code}");
            assert_eq!(answer.headers().contains_key(RETRY_AFTER), retry, "{code}");
        }
    }

    #[test]
    fn a_wrong_method_lists_the_right_ones() {
        let answer = ErrorAnswer::method_not_allowed(&http::Method::PUT, "/v1/models", "GET, HEAD");
        let response = answer.into_response();
        assert_eq!(response.status(), 405);
        assert_eq!(response.headers()[ALLOW], "GET, HEAD");
    }
}
