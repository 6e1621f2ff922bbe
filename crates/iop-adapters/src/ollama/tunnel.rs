//! Tunnels: the client's request with the operator's options in it, the answer as it comes.

use bytes::{Bytes, BytesMut};
use iop_execution::{Body, BodySource, BoxFuture, CallError, Cancelled, Outlet, Tunnel};
use iop_net::http::{Body as ProviderBody, Request};
use iop_types::{ErrorCode, Failure, TunnelFrame, TunnelRequest};

use super::contexts::Context;
use super::{Ollama, operations};
use crate::server::{Exchange, relay, relayed};

/// The largest body that options are spliced into: as much as a Node takes of a run's input.
const MAX_BODY: usize = 64 << 20;

impl Tunnel for Ollama {
    fn tunnel<'a>(
        &'a self,
        request: TunnelRequest,
        body: Body,
        outlet: &'a mut dyn Outlet<TunnelFrame>,
        cancelled: &'a mut Cancelled,
    ) -> BoxFuture<'a, Result<(), CallError>> {
        Box::pin(async move {
            let request = self.prepared(&request, body, cancelled).await?;
            relay(
                self.server.sent(),
                Exchange::new(self.server.forward(request), cancelled),
                outlet,
            )
            .await
        })
    }
}

impl Ollama {
    async fn prepared(
        &self,
        request: &TunnelRequest,
        body: Body,
        cancelled: &mut Cancelled,
    ) -> Result<Request, CallError> {
        let target = request.path_and_query.as_str();
        let path = target.split_once('?').map_or(target, |(path, _)| path);
        if operations::is_inference(path) {
            let context = match &body {
                // These can ask for nothing.
                _ if !operations::carries_options(path) => Context::Default,
                Body::Full(body) => Context::of_body(body),
                Body::Stream(_) => Context::Unread,
            };
            self.contexts.note(&request.head.target, context);
        }
        if self.forced.is_nothing() || !operations::carries_options(path) {
            return relayed(&self.capabilities, request, body).map_err(CallError::Failed);
        }
        // The operation is checked before its body is waited for.
        let nothing = Body::Full(Bytes::new());
        let relayed = relayed(&self.capabilities, request, nothing).map_err(CallError::Failed)?;
        let body = self.forced.splice(&whole(body, cancelled).await?).map_err(|error| {
            CallError::Failed(Failure::new(ErrorCode::InvalidRequest, error.to_string()))
        })?;
        Ok(Request { body: ProviderBody::Full(body), ..relayed })
    }
}

/// Waits for a whole body. Nothing was sent yet, so that nothing has to be wound up.
async fn whole(body: Body, cancelled: &mut Cancelled) -> Result<Bytes, CallError> {
    let mut source = match body {
        Body::Full(bytes) => return Ok(bytes),
        Body::Stream(source) => source,
    };
    let mut whole = BytesMut::new();
    loop {
        let part = tokio::select! {
            biased;
            () = &mut *cancelled => return Err(CallError::Cancelled),
            part = next(&mut *source) => part,
        };
        match part {
            None => return Ok(whole.freeze()),
            Some(Ok(part)) if whole.len() + part.len() <= MAX_BODY => {
                whole.extend_from_slice(&part);
            }
            Some(Ok(_)) => {
                let limit = MAX_BODY >> 20;
                let message = format!("the body exceeds {limit} MiB, into which options are put");
                return Err(CallError::Failed(Failure::new(ErrorCode::BodyTooLarge, message)));
            }
            Some(Err(lost)) => {
                let failure = Failure::new(ErrorCode::ClientGone, lost.to_string());
                return Err(CallError::Failed(failure));
            }
        }
    }
}

async fn next(source: &mut dyn BodySource) -> Option<Result<Bytes, iop_execution::BodyLost>> {
    std::future::poll_fn(|cx| source.poll_part(cx)).await
}
