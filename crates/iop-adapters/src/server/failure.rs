//! What a failed exchange is to the Edge and its clients.
//!
//! Messages say what happened to "the provider" and leave out its address: they reach clients.

use std::time::SystemTime;

use http::header;
use http::{HeaderMap, HeaderValue};
use iop_dialect::openai::ProviderError;
use iop_dialect::retry_after;
use iop_net::http::{CallError, Cut, Phase};
use iop_types::{ErrorCode, Failure};

/// The longest message of a provider that is passed on, in characters.
const MAX_MESSAGE: usize = 1_024;

/// Says how an exchange failed on the way.
pub(crate) fn failure_of(error: &CallError) -> Failure {
    let (code, message) = match error {
        CallError::Request { problem, .. } => {
            (ErrorCode::InvalidRequest, format!("the request cannot be sent: {problem}"))
        }
        CallError::Resolve { .. } => {
            (ErrorCode::ConnectFailed, "the provider's host name cannot be resolved".to_owned())
        }
        CallError::Egress { .. } => (
            ErrorCode::ConnectFailed,
            "the provider's address is not in the `egress` list of the node's file".to_owned(),
        ),
        CallError::Connect { source, .. } => (
            ErrorCode::ConnectFailed,
            format!("the provider does not accept connections: {}", source.kind()),
        ),
        CallError::Tls { source, .. } => {
            (ErrorCode::ConnectFailed, format!("the provider cannot be reached over TLS: {source}"))
        }
        CallError::ConnectTimeout { limit, .. } => (
            ErrorCode::ConnectFailed,
            format!("the provider did not accept a connection within {limit:?}"),
        ),
        CallError::RequestBody { .. } => {
            (ErrorCode::ClientGone, "the request body ended before it was complete".to_owned())
        }
        CallError::Lost { phase: Phase::Connecting, .. } => (
            ErrorCode::ConnectFailed,
            "the provider closed the connection before it had any of the request".to_owned(),
        ),
        CallError::Lost { phase, .. } => {
            (ErrorCode::ProviderError, format!("the provider closed the connection {}", at(*phase)))
        }
        CallError::Malformed { .. } => {
            (ErrorCode::ProviderError, "the provider did not answer with HTTP".to_owned())
        }
        CallError::Truncated { cut, .. } => {
            (ErrorCode::Truncated, format!("the provider's answer is incomplete: {}", how(*cut)))
        }
        CallError::TooLarge { limit, .. } => {
            (ErrorCode::ProviderError, format!("the provider's answer exceeds {limit} bytes"))
        }
        CallError::OverBudget { source, .. } => (
            ErrorCode::OverMemoryBudget,
            format!("the provider's answer does not fit the node: {source}"),
        ),
        CallError::Ended { .. } => {
            (ErrorCode::ProviderError, "the call to the provider had already ended".to_owned())
        }
    };
    Failure { connection_lost: is_lost(error), ..Failure::new(code, message) }
}

/// Says whether the provider let go of the connection before its answer was complete.
const fn is_lost(error: &CallError) -> bool {
    match error {
        CallError::Lost { phase, .. } => !matches!(phase, Phase::Connecting),
        CallError::Truncated { cut, .. } => !matches!(cut, Cut::Framing),
        CallError::Request { .. }
        | CallError::Resolve { .. }
        | CallError::Egress { .. }
        | CallError::Connect { .. }
        | CallError::Tls { .. }
        | CallError::ConnectTimeout { .. }
        | CallError::RequestBody { .. }
        | CallError::Malformed { .. }
        | CallError::TooLarge { .. }
        | CallError::OverBudget { .. }
        | CallError::Ended { .. } => false,
    }
}

const fn at(phase: Phase) -> &'static str {
    match phase {
        Phase::Connecting | Phase::Sending => "before it had the whole request",
        Phase::BeforeHead => "before it answered",
        Phase::MidStream => "in the middle of its answer",
        Phase::Ended => "after its answer",
    }
}

const fn how(cut: Cut) -> &'static str {
    match cut {
        Cut::Length => "fewer bytes than announced",
        Cut::LastChunk => "its last chunk is missing",
        Cut::Reset => "the connection was reset",
        Cut::Framing => "its framing is broken",
    }
}

/// Says what a provider's non-2xx answer means.
pub(crate) fn refused(
    status: u16,
    headers: &HeaderMap,
    body: &[u8],
    redactor: &Redactor,
) -> Failure {
    let failure = ProviderError::from_body(body).into_failure(Some(status));
    let value = |name| headers.get(name).map(HeaderValue::as_bytes);
    let retry_after_s = value(header::RETRY_AFTER)
        .and_then(|wish| retry_after(wish, value(header::DATE), SystemTime::now()))
        .map(|wish| wish.as_secs().try_into().unwrap_or(u32::MAX));
    redactor.redact(Failure { retry_after_s, ..failure })
}

/// Removes what a provider must not repeat to our clients.
#[derive(Clone)]
pub(crate) struct Redactor {
    /// Longest first, so that a secret within a longer one leaves nothing of it.
    secrets: Vec<String>,
}

impl Redactor {
    /// Remembers texts to remove. What is shorter than four characters is no secret, and removing it
    /// would garble messages.
    pub(crate) fn new(secrets: impl IntoIterator<Item = String>) -> Self {
        let mut secrets: Vec<_> =
            secrets.into_iter().filter(|secret| secret.chars().count() >= 4).collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.dedup();
        Self { secrets }
    }

    /// Returns the failure without them, its message one line of bounded length.
    pub(crate) fn redact(&self, failure: Failure) -> Failure {
        let mut message = failure.message;
        for secret in &self.secrets {
            if message.contains(secret.as_str()) {
                message = message.replace(secret.as_str(), "***");
            }
        }
        let mut message: String =
            message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE) {
            message.truncate(end);
            message.push('…');
        }
        Failure { message, ..failure }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_removed_wherever_they_occur_and_also_when_one_holds_another() {
        let redactor = Redactor::new(["sk-1234", "sk-1234-long", "abc"].map(str::to_owned));
        let message = "bad key sk-1234-long (sk-1234), abc\r\nnext";
        let failure = redactor.redact(Failure::new(ErrorCode::ProviderError, message));
        assert_eq!(failure.message, "bad key *** (***), abc  next");
    }

    #[test]
    fn a_lost_connection_is_told_from_an_answer_that_is_wrong_and_from_one_never_made() {
        let authority = || "h:1".into();
        let lost = |phase| failure_of(&CallError::Lost { authority: authority(), phase });
        let cut = |cut| failure_of(&CallError::Truncated { authority: authority(), cut });
        for failure in [lost(Phase::Sending), lost(Phase::BeforeHead), cut(Cut::Reset)] {
            assert!(failure.connection_lost, "{failure}");
        }
        let unsent = lost(Phase::Connecting);
        assert_eq!((unsent.code, unsent.connection_lost), (ErrorCode::ConnectFailed, false));
        assert!(!cut(Cut::Framing).connection_lost);
        assert!(!failure_of(&CallError::Malformed { authority: authority() }).connection_lost);
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let redactor = Redactor::new([]);
        let long = "ä".repeat(5_000);
        let failure = redactor.redact(Failure::new(ErrorCode::ProviderError, long));
        assert_eq!(failure.message, format!("{}…", "ä".repeat(MAX_MESSAGE)));
    }

    #[test]
    fn retry_after_is_read_in_seconds_and_as_a_date_by_the_providers_clock() {
        let retry = |value: &'static str, date: Option<&'static str>| {
            let value = (header::RETRY_AFTER, value);
            let date = date.map(|date| (header::DATE, date));
            let headers = date.into_iter().chain([value]);
            let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
            refused(429, &headers.collect(), b"{}", &Redactor::new([])).retry_after_s
        };
        assert_eq!(retry("7", None), Some(7));
        assert_eq!(retry("99999999999999", None), Some(u32::MAX));
        assert_eq!(retry("-1", None), None);
        let (sent, until) = ("Tue, 21 Oct 2036 07:28:00 GMT", "Tue, 21 Oct 2036 07:29:30 GMT");
        assert_eq!(retry(until, Some(sent)), Some(90), "however its clock and ours differ");
        let left = retry(until, None).expect("a date without a clock counts from now");
        assert!(left > 90, "{left}");
    }
}
