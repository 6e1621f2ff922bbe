//! Ollama through its own API.
//!
//! Decided here: which targets there are and which are loaded ([`discovery`]).

mod commands;
mod discovery;

use bytes::Bytes;
use iop_execution::{
    BoxFuture, CallError, Cancelled, Commands, Completion, Connections, DiscoverError, Discovery,
    Outlet, Provider, StartError,
};
use iop_types::{AdapterType, Capabilities, ErrorCode, Event, Failure, RunRequest};

use crate::build::{BuildError, Tools};
use crate::server::Server;
use crate::settings::{ProviderSettings, Targets};

/// An Ollama server.
pub(crate) struct Ollama {
    server: Server,
    targets: Targets,
    capabilities: Capabilities,
}

impl Ollama {
    pub(crate) fn new(settings: &ProviderSettings, tools: &Tools) -> Result<Self, BuildError> {
        Ok(Self {
            server: Server::new(settings, tools)?,
            targets: settings.targets.clone(),
            capabilities: Capabilities { implicit_latest: true, ..Capabilities::default() },
        })
    }
}

impl Provider for Ollama {
    fn adapter(&self) -> AdapterType {
        AdapterType::Ollama
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

    fn commands(&self) -> Option<&dyn Commands> {
        Some(self)
    }

    fn connections(&self) -> Option<Connections> {
        Some(self.server.connections())
    }

    fn discover(&self) -> BoxFuture<'_, Result<Discovery, DiscoverError>> {
        Box::pin(self.list())
    }

    fn run<'a>(
        &'a self,
        _request: RunRequest,
        _input: Bytes,
        _outlet: &'a mut dyn Outlet<Event>,
        _cancelled: &'a mut Cancelled,
    ) -> BoxFuture<'a, Result<Completion, CallError>> {
        let failure = Failure::new(ErrorCode::InvalidRequest, "runs are not offered");
        Box::pin(std::future::ready(Err(CallError::Failed(failure))))
    }
}
