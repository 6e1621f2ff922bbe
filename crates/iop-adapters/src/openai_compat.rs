//! Any server that speaks OpenAI's HTTP API: tunnels, and translated runs.
//!
//! Both forms go to the same paths over the same pool. A tunnel passes the client's request on, with
//! its credentials replaced by the provider's, and the answer as it comes. A run asks for a stream
//! with usage and reads the answer into events. Redirects are answers like others: none is followed.

mod discovery;
pub(crate) mod operations;
mod probe;
mod run;
mod tunnel;

use bytes::Bytes;
use iop_execution::{
    BoxFuture, CallError, Cancelled, Completion, Connections, DiscoverError, Discovery, Outlet,
    Probe, Provider, StartError, Tunnel,
};
use iop_types::{AdapterType, Capabilities, Event, Operation, RunRequest};

use crate::build::{BuildError, Tools};
use crate::server::Server;
use crate::settings::{ProviderSettings, Targets};

/// A server that speaks OpenAI's HTTP API.
pub(crate) struct OpenaiCompat {
    pub(crate) server: Server,
    pub(crate) targets: Targets,
    /// Whether every request is counted by somebody else.
    pub(crate) is_hosted: bool,
    capabilities: Capabilities,
}

impl OpenaiCompat {
    pub(crate) fn new(settings: &ProviderSettings, tools: &Tools) -> Result<Self, BuildError> {
        Self::with_tunnel(settings, tools, operations::tunnel())
    }

    /// Makes one whose tunnel may call these operations, for a server that offers more than others.
    pub(crate) fn with_tunnel(
        settings: &ProviderSettings,
        tools: &Tools,
        tunnel: Vec<Operation>,
    ) -> Result<Self, BuildError> {
        Ok(Self {
            server: Server::new(settings, tools)?,
            targets: settings.targets.clone(),
            is_hosted: settings.is_hosted,
            capabilities: Capabilities {
                tunnel,
                runs: operations::RUNS.to_vec(),
                implicit_latest: false,
            },
        })
    }
}

impl Provider for OpenaiCompat {
    fn adapter(&self) -> AdapterType {
        AdapterType::OpenaiCompat
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn start(&self) -> BoxFuture<'_, Result<(), StartError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async { self.server.close() })
    }

    fn connections(&self) -> Option<Connections> {
        Some(self.server.connections())
    }

    fn discover(&self) -> BoxFuture<'_, Result<Discovery, DiscoverError>> {
        Box::pin(self.list())
    }

    fn run<'a>(
        &'a self,
        request: RunRequest,
        input: Bytes,
        outlet: &'a mut dyn Outlet<Event>,
        cancelled: &'a mut Cancelled,
    ) -> BoxFuture<'a, Result<Completion, CallError>> {
        Box::pin(self.execute(request, input, outlet, cancelled))
    }

    fn tunnel(&self) -> Option<&dyn Tunnel> {
        Some(self)
    }

    fn probe(&self) -> Option<&dyn Probe> {
        Some(self)
    }
}
