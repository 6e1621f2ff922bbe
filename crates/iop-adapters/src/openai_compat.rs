//! Any server that speaks OpenAI's HTTP API: tunnels, and translated runs.
//!
//! Both forms go to the same paths over the same pool. A tunnel passes the client's request on, with
//! its credentials replaced by the provider's, and the answer as it comes. A run asks for a stream
//! with usage and reads the answer into events. Redirects are answers like others: none is followed.

mod discovery;
mod exchange;
mod failure;
mod headers;
mod operations;
mod probe;
mod run;
mod tunnel;

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use iop_execution::{
    BodySource, BoxFuture, CallError, Cancelled, Completion, DiscoverError, Discovery, Outlet,
    Probe, Provider, StartError, Tunnel,
};
use iop_net::http::{self as provider, Endpoint, Options, Pool};
use iop_types::{AdapterType, Capabilities, Event, RunRequest};

use self::failure::Redactor;
use self::headers::Injected;
pub use self::headers::MalformedHeader;
use crate::build::{BuildError, Tools};
use crate::settings::{ProviderSettings, Targets};

/// A server that speaks OpenAI's HTTP API.
pub(crate) struct OpenaiCompat {
    /// Executes.
    pool: Pool,
    /// Asks about targets and health; keeps no connection.
    aside: Pool,
    injected: Injected,
    redactor: Redactor,
    targets: Targets,
    capabilities: Capabilities,
}

impl OpenaiCompat {
    pub(crate) fn new(settings: &ProviderSettings, tools: &Tools) -> Result<Self, BuildError> {
        let adapter = settings.adapter;
        let url = settings.endpoint.as_deref().ok_or(BuildError::NoEndpoint { adapter })?;
        let endpoint = Endpoint::parse(url)?;
        let options = Options::new(tools.egress.clone());
        let single = Options { idle: Duration::ZERO, ..options.clone() };
        Ok(Self {
            pool: Pool::new(tools.net.clone(), endpoint.clone(), options),
            aside: Pool::new(tools.net.clone(), endpoint, single),
            injected: Injected::new(settings)?,
            redactor: Redactor::new(secrets_of(settings, url)),
            targets: settings.targets.clone(),
            capabilities: Capabilities {
                tunnel: operations::tunnel(),
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
        Box::pin(async {
            self.pool.close();
            self.aside.close();
        })
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

/// What the provider could repeat to our clients and must not.
fn secrets_of(settings: &ProviderSettings, url: &str) -> Vec<String> {
    let secret = settings.secret.iter().map(|secret| secret.expose().to_owned());
    let headers =
        settings.headers.iter().map(|header| String::from_utf8_lossy(&header.value).into_owned());
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let values = query.split('&').filter_map(|pair| pair.split_once('=')).map(|(_, value)| value);
    secret
        .chain(headers)
        .chain(values.map(str::to_owned))
        .chain([query.to_owned(), url.to_owned()])
        .collect()
}

/// Passes a body on that is still arriving.
fn arriving(source: Box<dyn BodySource>, length: Option<u64>) -> provider::Body {
    provider::Body::Stream { source: Box::new(Arriving(source)), length }
}

struct Arriving(Box<dyn BodySource>);

impl provider::BodySource for Arriving {
    fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, provider::BodyLost>>> {
        self.0.poll_part(cx).map_err(|_| provider::BodyLost::CutOff)
    }
}
