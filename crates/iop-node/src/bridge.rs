//! The one place where wire types meet the words: everything else of this crate speaks the latter.

use std::num::NonZeroU32;

use iop_adapters::Forced;
use iop_config::Endpoint;
use iop_net::link::{AnswerSender, RequestMessage};
use iop_types::{
    CommandId, CommandRequest, EdgeBootId, Header, Refusal, RunRequest, SessionId, TunnelRequest,
};
use iop_wire::v1;

use crate::outlet::{Events, Frames, Steps};

/// A request in words, beside the outlet that fits its form.
pub(crate) enum Request {
    /// A normalized run.
    Run(RunRequest, Events),
    /// A tunnel.
    Tunnel(TunnelRequest, Frames),
}

/// Reads a request, its stall field before anything else; a malformed one is refused on the spot.
pub(crate) fn read(message: RequestMessage, answers: AnswerSender) -> Option<Request> {
    match message {
        RequestMessage::Run(wire) => {
            let session = session(wire.head.as_ref());
            match RunRequest::try_from(wire) {
                Ok(request) => Some(Request::Run(request, Events::new(answers, session))),
                Err(refusal) => {
                    log(&refusal);
                    let _ = Events::new(answers, session).refuse(&refusal);
                    None
                }
            }
        }
        RequestMessage::Tunnel(wire) => {
            let session = session(wire.head.as_ref());
            match TunnelRequest::try_from(wire) {
                Ok(request) => Some(Request::Tunnel(request, Frames::new(answers, session))),
                Err(refusal) => {
                    log(&refusal);
                    let _ = Frames::new(answers, session).refuse(&refusal);
                    None
                }
            }
        }
    }
}

/// Reads a command; a malformed one is refused on the spot.
pub(crate) fn read_command(
    wire: v1::NodeCommandRequest,
    answers: AnswerSender,
) -> Option<(CommandRequest, Steps)> {
    // The link has seen to it that there is one.
    let id = CommandId::from_slice(&wire.command_id).ok()?;
    let steps = Steps::new(answers, id, SessionId::new(&wire.session_id).ok());
    match CommandRequest::try_from(wire) {
        Ok(request) => Some((request, steps)),
        Err(refusal) => {
            log(&refusal);
            let _ = steps.refuse(&refusal);
            None
        }
    }
}

/// Reads the Edge's process id.
pub(crate) fn boot_id(registered: &v1::Registered) -> Option<EdgeBootId> {
    EdgeBootId::from_slice(&registered.edge_boot_id).ok()
}

/// Reads configured headers.
pub(crate) fn headers(wire: &[v1::Header]) -> Vec<Header> {
    wire.iter()
        .map(|header| Header { name: header.name.clone(), value: header.value.clone() })
        .collect()
}

/// Says whether somebody else runs the server: what the Edge says, or else where its endpoint is.
pub(crate) fn is_hosted(entry: &v1::ProviderConfig) -> bool {
    let is_public = |endpoint: Endpoint| !endpoint.is_private();
    entry.hosted.unwrap_or_else(|| entry.endpoint.parse().is_ok_and(is_public))
}

/// Reads the options that are forced on every request.
pub(crate) fn forced(entry: &v1::ProviderConfig) -> Forced {
    Forced {
        num_ctx: NonZeroU32::new(entry.context_size),
        keep_alive: (!entry.keep_alive.is_empty()).then(|| entry.keep_alive.clone()),
    }
}

/// A value that cannot be carried is echoed by nobody; the request itself is refused for it.
fn session(head: Option<&v1::RequestHead>) -> Option<SessionId> {
    SessionId::new(&head?.session_id).ok()
}

fn log(refusal: &Refusal) {
    tracing::warn!(%refusal, "refused a request that the edge should not have sent");
}
