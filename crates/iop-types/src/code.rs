//! The one table of errors: code, status and whether trying again can help.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $status:literal, $retry:ident;)*) => {
        /// Says why a request did not complete. One page per code lies in `docs/errors/`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[$doc])* #[serde(rename = $code)] $variant,)*
        }

        impl ErrorCode {
            /// Every code, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the stable code that clients, history and the error pages use.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $code),* }
            }

            /// Returns the HTTP status; 499 marks what no client can see any more, and what an
            /// operator ended.
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status),* }
            }

            /// Says whether the same request may succeed later without being changed.
            pub const fn is_retryable(self) -> bool {
                match self { $(Self::$variant => codes!(@retry $retry)),* }
            }
        }
    };
    (@retry retry) => { true };
    (@retry final) => { false };
}

codes! {
    /// The request is malformed or asks for something that cannot be done.
    InvalidRequest = "invalid_request", 400, final;
    /// The client key is missing, unknown or expired.
    InvalidApiKey = "invalid_api_key", 401, final;
    /// Host, Origin or key scope does not allow this.
    Forbidden = "forbidden", 403, final;
    /// No route has this model name.
    ModelNotFound = "model_not_found", 404, final;
    /// No such path.
    NotFound = "not_found", 404, final;
    /// The body is larger than the limit.
    BodyTooLarge = "body_too_large", 413, final;
    /// The route's queue is full.
    QueueFull = "queue_full", 429, retry;
    /// The caller sends faster than allowed.
    RateLimited = "rate_limited", 429, retry;
    /// The caller's budget is spent.
    BudgetExhausted = "budget_exhausted", 429, final;
    /// The provider answered with an error.
    ProviderError = "provider_error", 502, final;
    /// No connection to the provider could be made.
    ConnectFailed = "connect_failed", 502, retry;
    /// The link to the Node ended while the request ran on it.
    NodeLost = "node_lost", 502, retry;
    /// The response ended before it was finished.
    Truncated = "truncated", 502, final;
    /// No provider is ready to take the request.
    NoReadyProvider = "no_ready_provider", 503, retry;
    /// The request waited too long for capacity.
    QueueTimeout = "queue_timeout", 503, retry;
    /// The Edge is stopping.
    ShuttingDown = "shutting_down", 503, retry;
    /// Buffered bodies fill the memory budget.
    OverMemoryBudget = "over_memory_budget", 503, retry;
    /// The provider's credential cannot be used.
    CredentialUnavailable = "credential_unavailable", 503, final;
    /// The provider stayed silent for the stall timeout.
    ResponseStalled = "response_stalled", 504, final;
    /// The request's deadline passed.
    DeadlineExceeded = "deadline_exceeded", 504, final;
    /// Somebody cancelled it.
    Cancelled = "cancelled", 499, final;
    /// The client left before the end.
    ClientGone = "client_gone", 499, final;
    /// The client stopped reading.
    ClientStalled = "client_stalled", 499, final;
    /// The Edge ended before it could record how the run ended.
    Interrupted = "interrupted", 499, final;
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl ErrorCode {
    /// Finds a code by its stable text.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_found_by_its_own_text() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::parse(code.as_str()), Some(*code));
        }
    }
}
