//! Tunnels: the client's request with our credentials, the answer as it comes.

use iop_execution::{Body, BoxFuture, CallError, Cancelled, Outlet, Tunnel};
use iop_types::{TunnelFrame, TunnelRequest};

use super::OpenaiCompat;
use crate::server::{Exchange, relay, relayed};

impl Tunnel for OpenaiCompat {
    fn tunnel<'a>(
        &'a self,
        request: TunnelRequest,
        body: Body,
        outlet: &'a mut dyn Outlet<TunnelFrame>,
        cancelled: &'a mut Cancelled,
    ) -> BoxFuture<'a, Result<(), CallError>> {
        Box::pin(async move {
            let request = relayed(&self.capabilities, &request, body).map_err(CallError::Failed)?;
            relay(
                self.server.sent(),
                Exchange::new(self.server.forward(request), cancelled),
                outlet,
            )
            .await
        })
    }
}
