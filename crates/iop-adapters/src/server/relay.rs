//! Raw HTTP to the provider and back.
//!
//! The answer's bytes pass as they come. They are looked at for what nobody else can know: which of an
//! event stream's are progress, where a stream says that it is done, and whether a JSON body that only
//! the end of the connection ends was cut there ([`Reading`]).

use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, StatusCode, header};
use iop_dialect::json_end::EndScan;
use iop_dialect::sse::{ProgressScan, is_event_stream};
use iop_execution::{Body, BodySource, CallError, Completion, Outlet};
use iop_net::http::{self as provider, Frame, Head, Request};
use iop_types::{
    Capabilities, ErrorCode, Failure, Header, ResponseHead, TunnelFrame, TunnelRequest,
};

use super::content_type;
use super::exchange::Exchange;
use super::headers::{Sent, for_client, for_provider};

/// Makes the server's request of the client's.
///
/// # Errors
/// The operation is not on the adapter's list, or a header cannot be sent.
pub(crate) fn relayed(
    capabilities: &Capabilities,
    request: &TunnelRequest,
    body: Body,
) -> Result<Request, Failure> {
    let TunnelRequest { method, path_and_query, headers, content_length, .. } = request;
    let path = path_of(request);
    // The Node's checks have asked already; no other caller shall get past it either.
    if !capabilities.allows(method, path) {
        let message = format!("the provider's adapter does not relay {method} {path}");
        return Err(Failure::new(ErrorCode::NotFound, message));
    }
    let method = Method::from_bytes(method.as_bytes())
        .map_err(|_| Failure::new(ErrorCode::InvalidRequest, "the method is malformed"))?;
    let headers = for_provider(headers)?;
    let body = match body {
        Body::Full(bytes) => provider::Body::Full(bytes),
        Body::Stream(source) => {
            provider::Body::Stream { source: Box::new(Arriving(source)), length: *content_length }
        }
    };
    Ok(Request { method, path: path_and_query.clone(), headers, body })
}

/// Returns the path of a tunnelled request without its query.
pub(crate) fn path_of(request: &TunnelRequest) -> &str {
    let target = request.path_and_query.as_str();
    target.split_once('?').map_or(target, |(path, _)| path)
}

/// Passes a body on that is still arriving.
struct Arriving(Box<dyn BodySource>);

impl provider::BodySource for Arriving {
    fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, provider::BodyLost>>> {
        self.0.poll_part(cx).map_err(|_| provider::BodyLost::CutOff)
    }
}

/// Passes the answer on as it comes, also what follows where it says that it is done, and without what
/// repeats the secret that went out.
pub(crate) async fn relay(
    sent: Sent<'_>,
    mut exchange: Exchange<'_>,
    outlet: &mut dyn Outlet<TunnelFrame>,
) -> Result<(), CallError> {
    let head = exchange.head(outlet).await?;
    let mut reading = Reading::of(&head);
    let mut is_done = false;
    let headers = for_client(&head.headers, sent);
    if let Some(failure) = too_large(&headers, "head") {
        return Err(exchange.give_up(outlet, failure).await);
    }
    let head = ResponseHead { status: head.status.as_u16(), headers };
    exchange.emit(outlet, TunnelFrame::Head(head)).await?;
    while let Some(frame) = exchange.frame(outlet).await? {
        let frame = match frame {
            Frame::Data(data) => {
                let progress = reading.scan(&data);
                TunnelFrame::Body { data, progress }
            }
            Frame::Trailers(trailers) => {
                let trailers = for_client(&trailers, sent);
                if let Some(failure) = too_large(&trailers, "trailers") {
                    return Err(exchange.give_up(outlet, failure).await);
                }
                TunnelFrame::Trailers(trailers)
            }
        };
        exchange.emit(outlet, frame).await?;
        if !is_done && reading.is_done() {
            is_done = true;
            outlet.note_done(Completion::default());
        }
    }
    match reading.cut() {
        None => Ok(()),
        Some(failure) => Err(exchange.give_up(outlet, failure).await),
    }
}

/// Most that the names and values of a head, or of trailers, may take: one frame of the link carries
/// them, and a header costs it a few bytes more.
const MAX_HEADERS: usize = 40 * 1024;
/// What a header costs beside its name and value, at most.
const HEADER_COST: usize = 16;

/// Says why these headers cannot be passed on.
fn too_large(headers: &[Header], part: &str) -> Option<Failure> {
    let cost = |header: &Header| header.name.len() + header.value.len() + HEADER_COST;
    let bytes: usize = headers.iter().map(cost).sum();
    (bytes > MAX_HEADERS).then(|| {
        let message = format!(
            "the provider's response {part} takes {bytes} bytes, more than the {MAX_HEADERS} that \
             are passed on"
        );
        Failure::new(ErrorCode::ProviderError, message)
    })
}

/// What is made of an answer's body.
enum Reading {
    /// Keep-alives are told from progress, and the stream may say that it is done. With a length it is not
    /// asked: a length is a promise, kept or broken, whatever the body says of itself.
    Stream { scan: ProgressScan, has_length: bool },
    /// JSON whose end nothing marks but the end of the connection, which may be a cut.
    Unmarked(EndScan),
    /// Every byte is progress, and HTTP says where the end is.
    Unread,
}

impl Reading {
    fn of(head: &Head) -> Self {
        let has_length = head.headers.contains_key(header::CONTENT_LENGTH);
        let is_marked = has_length || head.headers.contains_key(header::TRANSFER_ENCODING);
        let may_be_cut =
            !is_marked && head.status.is_success() && head.status != StatusCode::NO_CONTENT;
        // Compressed bytes say nothing.
        let Ok(essence) = content_type(head) else { return Self::Unread };
        if is_event_stream(essence) {
            Self::Stream { scan: ProgressScan::new(), has_length }
        } else if may_be_cut && essence.eq_ignore_ascii_case(b"application/json") {
            Self::Unmarked(EndScan::default())
        } else {
            Self::Unread
        }
    }

    /// Looks at the next bytes; says whether they are progress.
    fn scan(&mut self, data: &[u8]) -> bool {
        match self {
            Self::Stream { scan, .. } => scan.scan(data),
            Self::Unmarked(scan) => {
                scan.scan(data);
                true
            }
            Self::Unread => true,
        }
    }

    /// Says whether the provider has said that this was all.
    const fn is_done(&self) -> bool {
        match self {
            Self::Stream { scan, has_length } => scan.is_done() && !*has_length,
            Self::Unmarked(_) | Self::Unread => false,
        }
    }

    /// Says how a body that has ended is not whole.
    fn cut(&self) -> Option<Failure> {
        match self {
            Self::Unmarked(scan) if !scan.is_whole() => {
                let message = "the provider's answer is incomplete: its connection ended inside the \
                               JSON, which nothing else marks the end of";
                let failure = Failure::new(ErrorCode::Truncated, message);
                Some(Failure { connection_lost: true, ..failure })
            }
            Self::Unmarked(_) | Self::Stream { .. } | Self::Unread => None,
        }
    }
}
