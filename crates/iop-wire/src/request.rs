//! Requests on the wire: what an Edge asks of a Node.
//!
//! Reading checks the stall timeout before any other field: a Node refuses a bad one before it looks
//! up, counts or opens anything.

use std::time::Duration;

use iop_types::{
    Attempt, ProviderKey, ProviderRevision, Refusal, RequestHead, RunId, RunKind, RunRequest,
    SessionId, StallTimeout, Target, TunnelId, TunnelRequest, WorkKey,
};

use crate::{header, v1};

impl From<RunRequest> for v1::RunRequest {
    fn from(request: RunRequest) -> Self {
        Self { head: Some(request.head.into()), kind: v1::RunKind::from(request.kind).into() }
    }
}

impl TryFrom<v1::RunRequest> for RunRequest {
    type Error = Refusal;

    fn try_from(request: v1::RunRequest) -> Result<Self, Refusal> {
        let kind = request.kind();
        let head = RequestHead::try_from(present(request.head)?)?;
        let kind = RunKind::try_from(kind).map_err(|UnknownKind| Refusal::Malformed {
            field: "kind",
            problem: "not a kind that this node knows",
        })?;
        Ok(Self { head, kind })
    }
}

impl From<TunnelRequest> for v1::ProviderTunnelRequest {
    fn from(request: TunnelRequest) -> Self {
        Self {
            head: Some(request.head.into()),
            tunnel_id: copy(request.tunnel_id.as_bytes()),
            method: request.method,
            path_and_query: request.path_and_query,
            headers: request.headers.into_iter().map(v1::Header::from).collect(),
            content_length: request.content_length,
        }
    }
}

impl TryFrom<v1::ProviderTunnelRequest> for TunnelRequest {
    type Error = Refusal;

    fn try_from(request: v1::ProviderTunnelRequest) -> Result<Self, Refusal> {
        let head = RequestHead::try_from(present(request.head)?)?;
        let tunnel_id = TunnelId::from_slice(&request.tunnel_id)
            .map_err(|_| Refusal::Malformed { field: "tunnel_id", problem: NOT_16_BYTES })?;
        filled("method", &request.method)?;
        if !request.path_and_query.starts_with('/') {
            return Err(Refusal::Malformed {
                field: "path_and_query",
                problem: "not a path that begins with a slash",
            });
        }
        Ok(Self {
            head,
            tunnel_id,
            method: request.method,
            path_and_query: request.path_and_query,
            headers: header::owned(&request.headers),
            content_length: request.content_length,
        })
    }
}

impl From<RequestHead> for v1::RequestHead {
    fn from(head: RequestHead) -> Self {
        Self {
            response_stall_timeout_ms: head.stall_timeout.as_wire(),
            run_id: copy(head.work.run_id.as_bytes()),
            attempt: head.work.attempt.0,
            session_id: head.session_id.map_or_else(String::new, |id| id.as_str().to_owned()),
            adapter: head.provider.as_str().to_owned(),
            target: head.target.as_str().to_owned(),
            provider_revision: head.revision.0,
            first_progress_within_ms: bound_to_wire(head.first_progress_within),
            ends_within_ms: bound_to_wire(head.ends_within),
            lease: head.lease.map(|lease| Box::new((*lease).into())),
        }
    }
}

impl TryFrom<v1::RequestHead> for RequestHead {
    type Error = Refusal;

    fn try_from(head: v1::RequestHead) -> Result<Self, Refusal> {
        let stall_timeout = StallTimeout::from_wire(head.response_stall_timeout_ms)?;
        let run_id = RunId::from_slice(&head.run_id)
            .map_err(|_| Refusal::Malformed { field: "run_id", problem: NOT_16_BYTES })?;
        if head.attempt == 0 {
            return Err(Refusal::Malformed {
                field: "attempt",
                problem: "0; attempts count from 1",
            });
        }
        filled("adapter", &head.adapter)?;
        filled("target", &head.target)?;
        let session_id = match head.session_id.as_str() {
            "" => None,
            text => Some(SessionId::new(text).map_err(|_| Refusal::Malformed {
                field: "session_id",
                problem: "longer than 128 bytes",
            })?),
        };
        Ok(Self {
            work: WorkKey { run_id, attempt: Attempt(head.attempt) },
            session_id,
            provider: ProviderKey::from(head.adapter),
            target: Target::from(head.target),
            revision: ProviderRevision(head.provider_revision),
            stall_timeout,
            first_progress_within: bound_from_wire(head.first_progress_within_ms),
            ends_within: bound_from_wire(head.ends_within_ms),
            lease: head.lease.map(|lease| Box::new((*lease).into())),
        })
    }
}

impl From<RunKind> for v1::RunKind {
    fn from(kind: RunKind) -> Self {
        match kind {
            RunKind::Chat => Self::Chat,
            RunKind::Completion => Self::Completion,
            RunKind::Embedding => Self::Embedding,
            RunKind::Rerank => Self::Rerank,
        }
    }
}

/// A kind of run that this version does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown kind of run")]
pub struct UnknownKind;

impl TryFrom<v1::RunKind> for RunKind {
    type Error = UnknownKind;

    fn try_from(kind: v1::RunKind) -> Result<Self, UnknownKind> {
        match kind {
            v1::RunKind::Unspecified => Err(UnknownKind),
            v1::RunKind::Chat => Ok(Self::Chat),
            v1::RunKind::Completion => Ok(Self::Completion),
            v1::RunKind::Embedding => Ok(Self::Embedding),
            v1::RunKind::Rerank => Ok(Self::Rerank),
        }
    }
}

const NOT_16_BYTES: &str = "not 16 bytes long";

fn present(head: Option<v1::RequestHead>) -> Result<v1::RequestHead, Refusal> {
    head.ok_or(Refusal::Malformed { field: "head", problem: "missing" })
}

fn filled(field: &'static str, text: &str) -> Result<(), Refusal> {
    if text.is_empty() { Err(Refusal::Malformed { field, problem: "empty" }) } else { Ok(()) }
}

fn copy(id: &[u8; 16]) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(id)
}

/// 0 means unbounded on the wire, so a bound that has run out becomes the shortest one. Rounded up:
/// a Node does not end a request before its Edge would.
fn bound_to_wire(bound: Option<Duration>) -> u64 {
    const NANOS_IN_MS: u128 = 1_000_000;
    let ms = |left: Duration| left.as_nanos().div_ceil(NANOS_IN_MS).max(1);
    bound.map_or(0, |left| u64::try_from(ms(left)).unwrap_or(u64::MAX))
}

fn bound_from_wire(ms: u64) -> Option<Duration> {
    (ms != 0).then(|| Duration::from_millis(ms))
}
