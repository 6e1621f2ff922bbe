//! The HTTP server behind a provider: what every dialect shares.
//!
//! Decided here: that executing and asking use different connections, which headers pass and which
//! are put in, how a call is wound up ([`Exchange`]), what a failed one means to the Edge, and how a
//! tunnel relays. Paths, bodies and what answers mean are the dialects'. Redirects are answers like
//! others: none is followed.

mod exchange;
mod failure;
mod headers;
mod relay;
mod translate;

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use iop_execution::{CallError, Connections, DiscoverError, Outlet};
use iop_net::http::{Body, Call, Endpoint, Head, Options, Pool, Request};
use iop_net::memory::{Budget, Gathering};
use iop_types::{ErrorCode, Failure};

pub(crate) use self::exchange::Exchange;
pub(crate) use self::failure::{Redactor, failure_of};
pub use self::headers::MalformedHeader;
pub(crate) use self::relay::{relay, relayed};
pub(crate) use self::translate::{Reader, read_stream, read_whole};

use self::failure::refused;
use self::headers::{Injected, Sent};
use crate::build::{BuildError, Tools};
use crate::settings::{ProviderSettings, Secret};

/// An error body is read up to here; it is a sentence or two, or a page of HTML.
const MAX_ERROR: usize = 64 << 10;
/// An answer to a question that is read without being paid for. The lists of most servers are far
/// smaller, and a provider is asked few questions at once.
const SMALL: usize = 64 << 10;
/// How long an error body may take once its head is there.
const ERROR_PATIENCE: Duration = Duration::from_secs(2);

/// One server, its connections, and what is said to it with every request.
pub(crate) struct Server {
    /// Executes.
    pool: Pool,
    /// Asks about targets and health; keeps no connection.
    aside: Pool,
    injected: Injected,
    /// Pays for bodies that are held whole.
    memory: Budget,
    redactor: Redactor,
    secret: Option<Secret>,
}

impl Server {
    /// Reads the settings; opens no socket.
    ///
    /// # Errors
    /// Names the setting that keeps the server from ever being called.
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
            memory: tools.memory.clone(),
            redactor: Redactor::new(secrets_of(settings, url)),
            secret: settings.secret.clone(),
        })
    }

    /// Closes idle connections; calls under way finish.
    pub(crate) fn close(&self) {
        self.pool.close();
        self.aside.close();
    }

    /// Counts the connections for executing and asking together.
    pub(crate) fn connections(&self) -> Connections {
        let (pool, aside) = (self.pool.stats(), self.aside.stats());
        Connections { open: pool.open + aside.open, idle: pool.idle + aside.idle }
    }

    /// Removes what the server must not repeat to our clients.
    pub(crate) const fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    /// Returns the secret that every request goes out with, to be left out of answers.
    pub(crate) fn sent(&self) -> Sent<'_> {
        Sent::new(self.secret.as_ref())
    }

    /// Pays for bodies that are held whole.
    pub(crate) const fn memory(&self) -> &Budget {
        &self.memory
    }

    /// Reads the rest of an answer to a question, such as a list. Only one larger than [`SMALL`] is
    /// paid for, until its bytes are dropped: a node that is full still sees that its servers are there.
    pub(crate) async fn gather(
        &self,
        call: &mut Call,
        limit: usize,
    ) -> Result<Bytes, iop_net::http::CallError> {
        call.gather(limit, Gathering::beyond(SMALL, &self.memory)).await
    }

    /// Begins an execution that sends JSON and reads its answer as plain bytes. The body is a copy of
    /// the input, and is paid for as long as the call holds it.
    pub(crate) fn execute(&self, path: &str, body: Bytes) -> Call {
        self.pool.call(self.posted(path, self.memory.adopt(body)))
    }

    /// Begins a relayed request.
    pub(crate) fn forward(&self, mut request: Request) -> Call {
        self.injected.add_to(&mut request.headers);
        self.pool.call(request)
    }

    /// Begins a small question over a connection of its own.
    pub(crate) fn get(&self, path: &str) -> Call {
        let (path, headers, body) = (path.to_owned(), HeaderMap::new(), Body::empty());
        self.aside(Request { method: Method::GET, path, headers, body })
    }

    /// Begins any request over a connection of its own, which is not kept.
    pub(crate) fn aside(&self, mut request: Request) -> Call {
        self.injected.add_to(&mut request.headers);
        self.aside.call(request)
    }

    fn posted(&self, path: &str, body: Bytes) -> Request {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        self.injected.add_to(&mut headers);
        let (path, body) = (path.to_owned(), Body::Full(body));
        Request { method: Method::POST, path, headers, body }
    }

    /// Reads the server's reason for refusing an execution.
    pub(crate) async fn refusal<T>(
        &self,
        mut exchange: Exchange<'_>,
        head: &Head,
        outlet: &mut dyn Outlet<T>,
    ) -> CallError {
        let status = head.status.as_u16();
        match tokio::time::timeout(ERROR_PATIENCE, exchange.body(MAX_ERROR, outlet)).await {
            Ok(Err(CallError::Cancelled)) => CallError::Cancelled,
            Ok(Ok(body)) => {
                CallError::Failed(refused(status, &head.headers, &body, &self.redactor))
            }
            // The status says enough where the body does not arrive.
            Ok(Err(CallError::Failed(_) | CallError::Abandoned(_))) | Err(_) => {
                let failure = refused(status, &head.headers, b"", &self.redactor);
                exchange.give_up(outlet, failure).await
            }
        }
    }
}

/// Returns the content type of an answer without its parameters, or says why its body cannot be read.
pub(crate) fn content_type(head: &Head) -> Result<&[u8], Failure> {
    let value = |name| head.headers.get(name).map_or(&b""[..], HeaderValue::as_bytes);
    let coding = value(header::CONTENT_ENCODING);
    if !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity") {
        return Err(unexpected("content encoding", coding));
    }
    let essence = value(header::CONTENT_TYPE).split(|byte| *byte == b';').next();
    Ok(essence.unwrap_or_default().trim_ascii())
}

/// Says that a 2xx answer is not of the kind that was asked for.
pub(crate) fn unexpected(what: &str, found: &[u8]) -> Failure {
    let found = String::from_utf8_lossy(found);
    let message = format!("the provider answered with unexpected {what} `{found}`");
    Failure::new(ErrorCode::ProviderError, message)
}

/// Says why a question could not be answered. What is said here is for the operator, not for clients.
pub(crate) fn unreachable_by(error: &iop_net::http::CallError) -> DiscoverError {
    match error {
        iop_net::http::CallError::Egress { authority, address } => {
            DiscoverError::Forbidden(forbidden(authority, *address))
        }
        _ => DiscoverError::Unreachable(failure_of(error).message),
    }
}

/// Names the host that the allow-list lacks, and the address behind it where that is not the host.
fn forbidden(authority: &str, address: IpAddr) -> String {
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let behind = match host.parse() {
        Ok::<IpAddr, _>(_) => String::new(),
        Err(_) => format!(" ({address})"),
    };
    format!("`egress` of the node does not allow host `{host}`{behind}: add it in the node's file")
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
