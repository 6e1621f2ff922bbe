//! vLLM and SGLang: OpenAI's API and what these engines offer beside it.
//!
//! Calls go the way of [`OpenaiCompat`], which this adapter holds: the same pool, headers, tunnel and
//! translation. Its own are three things: a longer allow-list ([`operations`]), a look that takes the
//! engine's word on its health and its queue ([`discovery`]), and a probe that asks each engine in the
//! way that proves most.
//!
//! Which of the two engines it is shows in what the server says of itself, and is never configured;
//! a server that says nothing of the kind is served all the same.

mod discovery;
mod operations;
mod queue;

use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use iop_execution::{
    Body, BoxFuture, CallError, Cancelled, Completion, Connections, DiscoverError, Discovery, Look,
    Outlet, Probe, ProbeOutcome, Provider, StartError, Tunnel,
};
use iop_types::{AdapterType, Capabilities, Event, RunRequest, TunnelFrame, TunnelRequest};

use crate::build::{BuildError, Tools};
use crate::openai_compat::OpenaiCompat;
use crate::probe::Limit;
use crate::settings::ProviderSettings;

/// A server that runs vLLM or SGLang.
pub(crate) struct Vllm {
    api: OpenaiCompat,
    /// As the last look showed it.
    engine: Mutex<Option<Engine>>,
}

/// What runs behind the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    Vllm,
    Sglang,
}

impl Engine {
    /// Reads the owner of a listed model, where both engines write their name.
    pub(crate) fn of_owner(owner: &str) -> Option<Self> {
        match owner {
            "vllm" => Some(Self::Vllm),
            "sglang" => Some(Self::Sglang),
            _ => None,
        }
    }

    /// Where the engine is asked for its health, and whether a good answer proves it. vLLM's own check
    /// notices a dead engine without generating; SGLang's plain one may only say that its HTTP server
    /// lives, so that it is asked for one token where that is allowed.
    const fn health(self, may_generate: bool) -> (&'static str, bool) {
        match self {
            Self::Vllm => ("/health", true),
            Self::Sglang if may_generate => ("/health_generate", true),
            Self::Sglang => ("/health", false),
        }
    }
}

impl Vllm {
    pub(crate) fn new(settings: &ProviderSettings, tools: &Tools) -> Result<Self, BuildError> {
        let api = OpenaiCompat::with_tunnel(settings, tools, operations::tunnel())?;
        Ok(Self { api, engine: Mutex::new(None) })
    }

    fn engine(&self) -> MutexGuard<'_, Option<Engine>> {
        self.engine.lock().expect("no code panics while it holds the engine")
    }
}

impl Provider for Vllm {
    fn adapter(&self) -> AdapterType {
        AdapterType::Vllm
    }

    fn capabilities(&self) -> &Capabilities {
        self.api.capabilities()
    }

    fn connections(&self) -> Option<Connections> {
        self.api.connections()
    }

    fn start(&self) -> BoxFuture<'_, Result<(), StartError>> {
        self.api.start()
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        self.api.stop()
    }

    fn discover(&self) -> BoxFuture<'_, Result<Discovery, DiscoverError>> {
        Box::pin(self.look())
    }

    fn run<'a>(
        &'a self,
        request: RunRequest,
        input: Bytes,
        outlet: &'a mut dyn Outlet<Event>,
        cancelled: &'a mut Cancelled,
    ) -> BoxFuture<'a, Result<Completion, CallError>> {
        self.api.run(request, input, outlet, cancelled)
    }

    fn tunnel(&self) -> Option<&dyn Tunnel> {
        Some(self)
    }

    fn probe(&self) -> Option<&dyn Probe> {
        Some(self)
    }
}

impl Tunnel for Vllm {
    fn tunnel<'a>(
        &'a self,
        request: TunnelRequest,
        body: Body,
        outlet: &'a mut dyn Outlet<TunnelFrame>,
        cancelled: &'a mut Cancelled,
    ) -> BoxFuture<'a, Result<(), CallError>> {
        Tunnel::tunnel(&self.api, request, body, outlet, cancelled)
    }
}

impl Probe for Vllm {
    fn probe(&self, look: Look) -> BoxFuture<'_, ProbeOutcome> {
        let engine = self.engine().unwrap_or(Engine::Vllm);
        let may_generate = look.may_generate && !self.api.is_hosted;
        Box::pin(async move {
            let limit = Limit::within(look.within);
            let (path, is_proof) = engine.health(may_generate);
            self.api.examine(Some(path), is_proof, &look, limit).await.conclude()
        })
    }
}
