//! What can be concluded about one target without generating anything.
//!
//! Two questions are asked at once: the engine's own health (`GET /health`, which vLLM, llama.cpp
//! and SGLang answer) and the list of models. Only both together prove that the engine is well and
//! has the target; what an unknown server's 404 means, nobody knows.

use std::time::Duration;

use http::{HeaderMap, StatusCode, header};
use iop_dialect::openai::read_model_list;
use iop_execution::{BoxFuture, Probe, ProbeOutcome};
use iop_net::http::{Call, CallError};
use iop_types::Target;

use super::OpenaiCompat;

/// Shorter than the five seconds that a watchdog gives a probe, so that what is known by then is
/// said.
const PATIENCE: Duration = Duration::from_millis(4_500);
const MAX_BODY: usize = 8 << 20;

impl Probe for OpenaiCompat {
    fn probe(&self, target: Target) -> BoxFuture<'_, ProbeOutcome> {
        Box::pin(self.examine("/health", target))
    }
}

impl OpenaiCompat {
    /// Asks for the engine's health at `path` and for the list of models.
    pub(crate) async fn examine(&self, path: &str, target: Target) -> ProbeOutcome {
        let health = within(health(self.server.get(path)));
        let listing = within(listing(self.server.get("/v1/models"), target));
        let (health, listing) = futures_util::future::join(health, listing).await;
        conclude(health, listing)
    }
}

/// What one question showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finding {
    /// It speaks for the engine and the target.
    Good,
    /// It speaks against them.
    Bad,
    /// It was answered and says nothing.
    Nothing,
    /// It was not answered.
    Silence,
}

/// A sign that the provider is down outweighs everything; health alone or a list alone proves
/// nothing; no answer to anything is an answer.
const fn conclude(health: Finding, listing: Finding) -> ProbeOutcome {
    match (health, listing) {
        (Finding::Bad, _) | (_, Finding::Bad) | (Finding::Silence, Finding::Silence) => {
            ProbeOutcome::Unavailable
        }
        (Finding::Good, Finding::Good) => ProbeOutcome::Available,
        (Finding::Good | Finding::Nothing | Finding::Silence, _) => ProbeOutcome::Unknown,
    }
}

async fn within(question: impl Future<Output = Finding>) -> Finding {
    tokio::time::timeout(PATIENCE, question).await.unwrap_or(Finding::Silence)
}

async fn health(mut call: Call) -> Finding {
    let head = match call.head().await {
        Ok(head) => head,
        Err(error) => return lost(&error),
    };
    match head.status {
        // A page for people at this path is not the engine speaking.
        status if status.is_success() && !is_html(&head.headers) => Finding::Good,
        // llama.cpp says 503 while it loads, which is no illness.
        StatusCode::SERVICE_UNAVAILABLE => match call.body(MAX_BODY).await {
            Ok(body) if says_loading(&body) => Finding::Nothing,
            Ok(_) | Err(_) => Finding::Bad,
        },
        status if status.is_server_error() => Finding::Bad,
        _ => Finding::Nothing,
    }
}

async fn listing(mut call: Call, target: Target) -> Finding {
    let head = match call.head().await {
        Ok(head) => head,
        Err(error) => return lost(&error),
    };
    if !head.status.is_success() {
        return Finding::Nothing;
    }
    match call.body(MAX_BODY).await.map(|body| read_model_list(&body)) {
        Ok(Ok(ids)) if ids.iter().any(|id| id == target.as_str()) => Finding::Good,
        Ok(Ok(_)) => Finding::Bad,
        Ok(Err(_)) => Finding::Nothing,
        Err(error) => lost(&error),
    }
}

/// What a failed exchange says: refused or cut off is down; our own mistakes say nothing.
const fn lost(error: &CallError) -> Finding {
    match error {
        CallError::Connect { .. } | CallError::Lost { .. } | CallError::Truncated { .. } => {
            Finding::Bad
        }
        CallError::ConnectTimeout { .. } => Finding::Silence,
        CallError::Request { .. }
        | CallError::Resolve { .. }
        | CallError::Egress { .. }
        | CallError::RequestBody { .. }
        | CallError::Malformed { .. }
        | CallError::TooLarge { .. }
        | CallError::Ended { .. } => Finding::Nothing,
    }
}

fn is_html(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().to_ascii_lowercase().starts_with(b"text/html"))
}

fn says_loading(body: &[u8]) -> bool {
    body.to_ascii_lowercase().windows(b"loading".len()).any(|window| window == b"loading")
}
