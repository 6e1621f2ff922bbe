//! Ollama through its own API.
//!
//! Runs go to `/api/chat`, `/api/generate` and `/api/embed`: only these can say how large a context
//! is and how long a model stays loaded. What becomes of a request and of an answer is
//! [`iop_dialect::ollama`]'s; here are the paths, the exchange, and the operator's forced options:
//!
//! ```text
//!                     nothing is forced            context_size or keep_alive is
//! /v1/chat/… and so   tunnel, every byte as it is  no tunnel: run, by the native path
//! /api/chat and so    tunnel, every byte as it is  tunnel, the options spliced in
//! ```
//!
//! So no request reaches the server by a path that cannot carry what is forced on it. The Edge
//! chooses by the declared operations alone.

mod commands;
mod contexts;
mod discovery;
mod operations;
mod probe;
mod run;
mod tunnel;

use bytes::Bytes;
use iop_dialect::ollama::Forced;
use iop_execution::{
    BoxFuture, CallError, Cancelled, Commands, Completion, Connections, DiscoverError, Discovery,
    Outlet, Probe, Provider, StartError, Tunnel,
};
use iop_types::{AdapterType, Capabilities, Event, RunRequest};

use self::contexts::Contexts;
use crate::build::{BuildError, Tools};
use crate::server::Server;
use crate::settings::{ProviderSettings, Targets};

/// An Ollama server.
pub(crate) struct Ollama {
    server: Server,
    targets: Targets,
    forced: Forced,
    /// What targets were last asked for with.
    contexts: Contexts,
    /// Whether every request is counted by somebody else.
    is_hosted: bool,
    capabilities: Capabilities,
}

impl Ollama {
    pub(crate) fn new(settings: &ProviderSettings, tools: &Tools) -> Result<Self, BuildError> {
        Ok(Self {
            server: Server::new(settings, tools)?,
            targets: settings.targets.clone(),
            forced: settings.forced.clone(),
            contexts: Contexts::default(),
            is_hosted: settings.is_hosted,
            capabilities: Capabilities {
                tunnel: operations::tunnel(!settings.forced.is_nothing()),
                runs: operations::RUNS.to_vec(),
                implicit_latest: true,
            },
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
