//! Raw HTTP to the provider and back.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Method, header};
use iop_dialect::sse::{ProgressScan, is_event_stream};
use iop_execution::{Body, BodySource, CallError, Outlet};
use iop_net::http::{self as provider, Frame, Request};
use iop_types::{
    Capabilities, ErrorCode, Failure, Header, ResponseHead, TunnelFrame, TunnelRequest,
};

use super::exchange::Exchange;
use super::headers::{for_client, for_provider};

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

/// Passes the answer on as it comes.
pub(crate) async fn relay(
    mut exchange: Exchange<'_>,
    outlet: &mut dyn Outlet<TunnelFrame>,
) -> Result<(), CallError> {
    let head = exchange.head(outlet).await?;
    let mut scan = is_plain_event_stream(&head.headers).then(ProgressScan::new);
    let headers = for_client(&head.headers);
    if let Some(failure) = too_large(&headers, "head") {
        return Err(exchange.give_up(outlet, failure).await);
    }
    let head = ResponseHead { status: head.status.as_u16(), headers };
    exchange.emit(outlet, TunnelFrame::Head(head)).await?;
    while let Some(frame) = exchange.frame(outlet).await? {
        let frame = match frame {
            Frame::Data(data) => {
                let progress = scan.as_mut().is_none_or(|scan| scan.scan(&data));
                TunnelFrame::Body { data, progress }
            }
            Frame::Trailers(trailers) => {
                let trailers = for_client(&trailers);
                if let Some(failure) = too_large(&trailers, "trailers") {
                    return Err(exchange.give_up(outlet, failure).await);
                }
                TunnelFrame::Trailers(trailers)
            }
        };
        exchange.emit(outlet, frame).await?;
    }
    Ok(())
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

/// Says whether keep-alives can be told from progress: in any other body every byte is progress.
fn is_plain_event_stream(headers: &HeaderMap) -> bool {
    let is_plain = headers
        .get(header::CONTENT_ENCODING)
        .is_none_or(|coding| coding.as_bytes().eq_ignore_ascii_case(b"identity"));
    is_plain
        && headers
            .get(header::CONTENT_TYPE)
            .is_some_and(|content_type| is_event_stream(content_type.as_bytes()))
}
