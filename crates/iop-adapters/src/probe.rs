//! What a server's answers to a probe's questions say, whatever its dialect.
//!
//! A probe asks up to three questions, each over a connection of its own: how the engine says it is,
//! what is listed, and, where that is allowed, for one token. Each answer is a [`Finding`];
//! [`Findings::conclude`] makes one outcome of them.
//!
//! | | speaks for it | speaks against it | says nothing |
//! |---|---|---|---|
//! | health | 2xx, not a page for people | 5xx, unless it says that it loads | everything else |
//! | list | has the target | is a list without it | everything else |
//! | token | one was generated | – | everything else, 5xx too: busy is not dead |
//! | any | | refused, reset, ended before a head, TLS failure | not HTTP, our own mistakes |

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use iop_execution::ProbeOutcome;
use iop_net::http::{Body, Call, CallError, Head, Request};
use iop_net::tls::HandshakeError;
use tokio::time::Instant;

use crate::server::Server;

/// What a look reads of a list: as much as is read when the targets are discovered, so that nothing is
/// missing from it.
const MAX_LIST: usize = 8 << 20;
/// What it reads of the answer with one token, which may be a vector: 10,000 numbers take 200 KiB.
const MAX_TOKEN: usize = 1 << 20;
/// What it reads of the reason why a server is not well.
const MAX_REASON: usize = 64 << 10;

/// What one question showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finding {
    /// It speaks for the engine and the target.
    Good,
    /// It speaks against them.
    Bad,
    /// It was answered and says nothing.
    Nothing,
    /// It was not answered.
    Silence,
}

/// What the questions showed that were asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// The engine's word on itself.
    pub(crate) health: Option<Finding>,
    /// Whether that word is worth something: the engine speaks, not the server before it.
    pub(crate) health_is_proof: bool,
    /// Whether the target is listed.
    pub(crate) listing: Option<Finding>,
    /// Whether a token was generated.
    pub(crate) token: Option<Finding>,
}

impl Findings {
    /// Says whether a token could still change the outcome.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.conclude(), ProbeOutcome::Unknown)
    }

    /// Makes one outcome of all findings: a sign that the provider is down outweighs everything, only
    /// proof is proof, and silence is an answer where nothing else was heard.
    pub(crate) fn conclude(&self) -> ProbeOutcome {
        let asked = [self.health, self.listing, self.token];
        let mut heard = asked.iter().flatten().filter(|finding| **finding != Finding::Silence);
        if asked.contains(&Some(Finding::Bad)) {
            return ProbeOutcome::Unavailable;
        }
        let is_good = |finding| finding == Some(Finding::Good);
        let is_well = self.health_is_proof && is_good(self.health) && is_good(self.listing);
        if is_good(self.token) {
            return ProbeOutcome::Served;
        }
        if is_well {
            return ProbeOutcome::Available;
        }
        match heard.next() {
            None if asked != [None; 3] => ProbeOutcome::Silent,
            Some(_) | None => ProbeOutcome::Unknown,
        }
    }
}

/// The time that is left of a look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit(Instant);

impl Limit {
    /// Begins now.
    pub(crate) fn within(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    /// Waits for what a question shows as long as there is time.
    pub(crate) async fn bound(self, question: impl Future<Output = Finding>) -> Finding {
        tokio::time::timeout_at(self.0, question).await.unwrap_or(Finding::Silence)
    }
}

/// Asks the engine how it is. Only its head is waited for, unless it says that it is not well.
pub(crate) async fn health(server: &Server, path: &str) -> Finding {
    let mut call = server.get(path);
    let head = match call.head().await {
        Ok(head) => head,
        Err(error) => return lost(&error),
    };
    match head.status {
        // A page for people at this path is not the engine speaking.
        status if status.is_success() && !is_html(&head.headers) => Finding::Good,
        // llama.cpp says 503 while it loads, which is no illness.
        StatusCode::SERVICE_UNAVAILABLE => match call.body(MAX_REASON).await {
            Ok(body) if says_loading(&body) => Finding::Nothing,
            Ok(_) | Err(_) => Finding::Bad,
        },
        status if status.is_server_error() => Finding::Bad,
        _ => Finding::Nothing,
    }
}

/// Asks for a list; `has` reads it and says whether the target is on it, `None` where it is no list.
pub(crate) async fn listing(
    server: &Server,
    path: &str,
    has: impl FnOnce(&[u8]) -> Option<bool>,
) -> Finding {
    let mut call = server.get(path);
    match answer(server, &mut call, MAX_LIST).await {
        Ok((head, _)) if !head.status.is_success() => Finding::Nothing,
        Ok((_, body)) => match has(&body) {
            Some(true) => Finding::Good,
            Some(false) => Finding::Bad,
            None => Finding::Nothing,
        },
        Err(error) => lost(&error),
    }
}

/// Asks for one token; `has` says whether there is one in the answer. Yields the refusal's body where
/// the operation is not what the target is for.
pub(crate) async fn token(
    server: &Server,
    path: &str,
    body: String,
    has: impl FnOnce(&[u8]) -> bool,
) -> Result<Finding, Unsuited> {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let (path, body) = (path.to_owned(), Body::Full(Bytes::from(body)));
    let mut call = server.aside(Request { method: Method::POST, path, headers, body });
    match answer(server, &mut call, MAX_TOKEN).await {
        Ok((head, body)) if head.status.is_success() => {
            Ok(if has(&body) { Finding::Good } else { Finding::Nothing })
        }
        Ok((head, _)) => match head.status.as_u16() {
            400 | 404 | 405 | 422 | 501 => Err(Unsuited),
            _ => Ok(Finding::Nothing),
        },
        Err(error) => Ok(lost(&error)),
    }
}

/// The server does not take this operation for this target.
pub(crate) struct Unsuited;

async fn answer(
    server: &Server,
    call: &mut Call,
    limit: usize,
) -> Result<(Head, Bytes), CallError> {
    let head = call.head().await?;
    let body = server.gather(call, limit).await?;
    Ok((head, body))
}

/// What a failed exchange says: refused or cut off is down; our own mistakes say nothing.
const fn lost(error: &CallError) -> Finding {
    match error {
        // A machine without CA certificates can say nothing of a provider.
        CallError::Tls { source: HandshakeError::NoRoots(_), .. } => Finding::Nothing,
        CallError::Connect { .. }
        | CallError::Tls { .. }
        | CallError::Lost { .. }
        | CallError::Truncated { .. } => Finding::Bad,
        CallError::ConnectTimeout { .. } | CallError::Resolve { .. } => Finding::Silence,
        CallError::Request { .. }
        | CallError::Egress { .. }
        | CallError::RequestBody { .. }
        | CallError::Malformed { .. }
        | CallError::TooLarge { .. }
        | CallError::OverBudget { .. }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_that_fails_tls_is_down_unless_this_machine_can_verify_nobody() {
        let lost = |source| lost(&CallError::Tls { authority: "api.example:443".into(), source });
        assert!(matches!(lost(HandshakeError::Expired), Finding::Bad));
        assert!(matches!(lost(HandshakeError::NotTls), Finding::Bad));
        assert!(matches!(lost(HandshakeError::NoRoots(String::new())), Finding::Nothing));
    }

    const ALL: [Option<Finding>; 5] = [
        None,
        Some(Finding::Good),
        Some(Finding::Bad),
        Some(Finding::Nothing),
        Some(Finding::Silence),
    ];

    fn everything() -> impl Iterator<Item = Findings> {
        ALL.into_iter().flat_map(|health| {
            ALL.into_iter().flat_map(move |listing| {
                ALL.into_iter().flat_map(move |token| {
                    [true, false].map(|health_is_proof| Findings {
                        health,
                        health_is_proof,
                        listing,
                        token,
                    })
                })
            })
        })
    }

    #[test]
    fn only_proof_is_available_and_a_bad_sign_outweighs_it() {
        for findings in everything() {
            let Findings { health, health_is_proof, listing, token } = findings;
            let is_bad = [health, listing, token].contains(&Some(Finding::Bad));
            let good = Some(Finding::Good);
            let is_well = health_is_proof && health == good && listing == good;
            let outcome = findings.conclude();
            assert_eq!(outcome == ProbeOutcome::Unavailable, is_bad, "{findings:?}");
            assert_eq!(outcome == ProbeOutcome::Served, token == good && !is_bad, "{findings:?}");
            let says = is_well && token != good && !is_bad;
            assert_eq!(outcome == ProbeOutcome::Available, says, "{findings:?}");
        }
    }

    #[test]
    fn silence_takes_that_nothing_asked_was_answered() {
        for findings in everything() {
            let asked: Vec<_> =
                [findings.health, findings.listing, findings.token].into_iter().flatten().collect();
            let is_silent =
                !asked.is_empty() && asked.iter().all(|finding| *finding == Finding::Silence);
            assert_eq!(findings.conclude() == ProbeOutcome::Silent, is_silent, "{findings:?}");
        }
    }
}
