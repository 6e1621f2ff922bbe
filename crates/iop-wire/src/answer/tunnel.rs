//! Frames of a tunnel.

use iop_types::{Failure, Refusal, ResponseHead, SessionId, TunnelFrame};

use super::{AnswerError, Refused, echo};
use crate::header;
use crate::v1::provider_tunnel_frame::Kind;
use crate::v1::{self, tunnel_error};

/// One frame of a tunnel, as the Edge reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TunnelAnswer {
    /// The tunnel got on or ended.
    Frame(TunnelFrame),
    /// The Node did not start it.
    Refused(Refused),
}

/// Writes a frame; `session` is echoed where it belongs.
pub fn tunnel_frame(frame: TunnelFrame, session: Option<&SessionId>) -> v1::ProviderTunnelFrame {
    let (session_id, kind) = match frame {
        TunnelFrame::Head(head) => {
            let headers = headers(head.headers);
            (echo(session), Kind::Head(v1::TunnelHead { status: head.status.into(), headers }))
        }
        TunnelFrame::Body { data, progress } => {
            (String::new(), Kind::Body(v1::TunnelBody { data, progress }))
        }
        TunnelFrame::Trailers(trailers) => {
            (String::new(), Kind::Trailers(v1::TunnelTrailers { headers: headers(trailers) }))
        }
        TunnelFrame::End => (echo(session), Kind::End(v1::TunnelEnd {})),
        TunnelFrame::Error(failure) => {
            let error = Some(tunnel_error::Error::Failure(failure.into()));
            (echo(session), Kind::Error(v1::TunnelError { error }))
        }
        TunnelFrame::Cancelled => (echo(session), Kind::Cancelled(v1::Cancelled {})),
    };
    v1::ProviderTunnelFrame { session_id, kind: Some(kind) }
}

/// Writes the refusal of a tunnel.
pub fn tunnel_refusal(refusal: &Refusal, session: Option<&SessionId>) -> v1::ProviderTunnelFrame {
    let error = Some(tunnel_error::Error::Refused(refusal.into()));
    v1::ProviderTunnelFrame {
        session_id: echo(session),
        kind: Some(Kind::Error(v1::TunnelError { error })),
    }
}

impl v1::ProviderTunnelFrame {
    /// Says whether this frame ends the tunnel.
    pub const fn is_terminal(&self) -> bool {
        match &self.kind {
            Some(Kind::End(_) | Kind::Error(_) | Kind::Cancelled(_)) => true,
            Some(Kind::Head(_) | Kind::Body(_) | Kind::Trailers(_)) | None => false,
        }
    }
}

impl TryFrom<v1::ProviderTunnelFrame> for TunnelAnswer {
    type Error = AnswerError;

    fn try_from(wire: v1::ProviderTunnelFrame) -> Result<Self, AnswerError> {
        let frame = match wire.kind {
            Some(Kind::Head(head)) => {
                // An informational head (1xx) announces an answer and is none; 101 would end HTTP.
                let status = u16::try_from(head.status)
                    .ok()
                    .filter(|status| (200..1000).contains(status))
                    .ok_or(AnswerError { field: "status", problem: "no status of an answer" })?;
                TunnelFrame::Head(ResponseHead { status, headers: header::borrowed(head.headers) })
            }
            Some(Kind::Body(body)) => {
                TunnelFrame::Body { data: body.data, progress: body.progress }
            }
            Some(Kind::Trailers(trailers)) => {
                TunnelFrame::Trailers(header::borrowed(trailers.headers))
            }
            Some(Kind::End(_)) => TunnelFrame::End,
            Some(Kind::Error(error)) => match error.error {
                Some(tunnel_error::Error::Failure(failure)) => {
                    TunnelFrame::Error(Failure::from(failure))
                }
                Some(tunnel_error::Error::Refused(refusal)) => {
                    return Ok(Self::Refused(refusal.into()));
                }
                None => return Err(AnswerError { field: "error", problem: UNKNOWN }),
            },
            Some(Kind::Cancelled(_)) => TunnelFrame::Cancelled,
            None => return Err(AnswerError { field: "kind", problem: UNKNOWN }),
        };
        Ok(Self::Frame(frame))
    }
}

const UNKNOWN: &str = "missing or not known to this version";

fn headers(headers: Vec<iop_types::Header>) -> Vec<v1::Header> {
    headers.into_iter().map(v1::Header::from).collect()
}
