//! A provider that does what a test tells it and remembers what was done to it.
//!
//! It listens on a random loopback port and speaks HTTP/1.1 over raw sockets. Unprogrammed it
//! answers like a small OpenAI-compatible server: a model list, chat (streamed or not), completions
//! and embeddings. A test programs it by path or by any question about a request; the newest rule
//! that matches answers:
//!
//! ```no_run
//! # async fn example() {
//! use iop_testkit::{ScriptedProvider, answer};
//! use std::time::Duration;
//!
//! let provider = ScriptedProvider::start().await;
//! provider.on("/v1/chat/completions", |request| {
//!     answer::chat_stream(request, 600, Duration::from_millis(20))
//! });
//! // … let a client stream through IOP and leave …
//! provider
//!     .wait_until("the provider sees the client leave", |log| {
//!         log.connection_of(0).fin_at.is_some()
//!     })
//!     .await;
//! assert_eq!(provider.log().open_connections(), 0);
//! # }
//! ```
//!
//! The peer's departure is noticed at once whatever bytes lie unread, by FIN or by reset, and what
//! it does to the answer is part of the script ([`OnCancel`](crate::script::OnCancel)).
//!
//! Everything lives in tasks owned by the value: dropping or [stopping](ScriptedProvider::stop) it
//! closes the port and every connection.

mod connection;
mod log;
mod request;

pub use log::{Connection, Ended, Exchange, Log};
pub use request::Request;

use crate::PATIENCE;
use crate::answer;
use crate::script::Script;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

/// A scripted OpenAI-like HTTP server on loopback.
#[derive(Debug)]
pub struct ScriptedProvider {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl ScriptedProvider {
    /// Starts a provider on a free loopback port; it lists the one model `mock-model`.
    ///
    /// # Panics
    /// Panics when no loopback port can be bound.
    pub async fn start() -> Self {
        Self::start_on(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await
    }

    /// Starts a provider on this address, for a provider that comes back where it was.
    ///
    /// # Panics
    /// Panics when the address cannot be bound.
    pub async fn start_on(address: SocketAddr) -> Self {
        let listener = match TcpListener::bind(address).await {
            Ok(listener) => listener,
            Err(error) => panic!("cannot bind the scripted provider to {address}: {error}"),
        };
        let address = listener.local_addr().expect("a bound listener has an address");
        let shared = Arc::new(Shared::default());
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, accepting }
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The base URL without a path, as it stands in a configuration.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Replaces the list of models.
    pub fn set_models(&self, ids: &[&str]) {
        self.shared.state().models = ids.iter().map(ToString::to_string).collect();
    }

    /// Answers each request to this path (the query is not compared) as `script` says.
    pub fn on(&self, path: &str, script: impl Fn(&Request) -> Script + Send + Sync + 'static) {
        let path = path.to_owned();
        self.on_matching(move |request| request.path() == path, script);
    }

    /// Answers the next request to this path as `script` says; later ones are not concerned.
    pub fn once(&self, path: &str, script: impl Fn(&Request) -> Script + Send + Sync + 'static) {
        let path = path.to_owned();
        self.add(Rule {
            matches: Box::new(move |request| request.path() == path),
            script: Box::new(script),
            at_head: false,
            left: Some(1),
        });
    }

    /// Answers each request for which `matches` says yes.
    pub fn on_matching(
        &self,
        matches: impl Fn(&Request) -> bool + Send + Sync + 'static,
        script: impl Fn(&Request) -> Script + Send + Sync + 'static,
    ) {
        self.add(Rule {
            matches: Box::new(matches),
            script: Box::new(script),
            at_head: false,
            left: None,
        });
    }

    /// Answers requests to this path as soon as their head is there, with the body still unread.
    ///
    /// The body stays in the socket until the script says
    /// [`read_body`](crate::Script::read_body): this is how a provider refuses early, or holds an
    /// upload back.
    pub fn at_head(&self, path: &str, script: impl Fn(&Request) -> Script + Send + Sync + 'static) {
        let path = path.to_owned();
        self.add(Rule {
            matches: Box::new(move |request| request.path() == path),
            script: Box::new(script),
            at_head: true,
            left: None,
        });
    }

    /// Lets `count` scripts that wait at [`hold`](crate::Script::hold), now or later, go on.
    pub fn release(&self, count: usize) {
        self.shared.holds.add_permits(count);
    }

    /// Everything observed up to now.
    #[must_use]
    pub fn log(&self) -> Log {
        self.shared.state().log.clone()
    }

    /// Waits until the observations satisfy `condition` and returns them.
    ///
    /// # Panics
    /// Panics with the whole log when that takes longer than [`PATIENCE`].
    pub async fn wait_until(&self, what: &str, condition: impl Fn(&Log) -> bool) -> Log {
        let mut changes = self.shared.changes.subscribe();
        let waiting = async {
            loop {
                changes.mark_unchanged();
                let log = self.log();
                if condition(&log) {
                    return log;
                }
                changes.changed().await.expect("the sender lives in self");
            }
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(log) => log,
            Err(_) => panic!("waited {PATIENCE:?} in vain until {what}: {:#?}", self.log()),
        }
    }

    /// Waits until `count` requests other than for the model list have arrived completely.
    ///
    /// # Panics
    /// As [`wait_until`](Self::wait_until).
    pub async fn wait_for_requests(&self, count: usize) -> Log {
        self.wait_until(&format!("{count} requests have arrived"), |log| {
            log.exchanges.iter().filter(|exchange| exchange.body_at.is_some()).count() >= count
        })
        .await
    }

    /// Closes the port and all connections, as a provider that is killed does.
    pub async fn stop(mut self) -> Log {
        self.accepting.abort();
        // An aborted task always reports its cancellation here; its connections die with it.
        let _ = (&mut self.accepting).await;
        self.log()
    }

    fn add(&self, rule: Rule) {
        self.shared.state().rules.push(rule);
    }
}

impl Drop for ScriptedProvider {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

type Matcher = Box<dyn Fn(&Request) -> bool + Send + Sync>;
type Maker = Box<dyn Fn(&Request) -> Script + Send + Sync>;

struct Rule {
    matches: Matcher,
    script: Maker,
    at_head: bool,
    left: Option<usize>,
}

struct Shared {
    state: Mutex<State>,
    changes: watch::Sender<()>,
    holds: Semaphore,
}

struct State {
    models: Vec<String>,
    rules: Vec<Rule>,
    log: Log,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                models: vec!["mock-model".to_owned()],
                rules: Vec::new(),
                log: Log::default(),
            }),
            changes: watch::Sender::new(()),
            holds: Semaphore::new(0),
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("log", &self.state().log).finish_non_exhaustive()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A test's closure that panicked in here has failed its test already.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the log and wakes those who wait for it.
    fn record<T>(&self, change: impl FnOnce(&mut Log) -> T) -> T {
        let result = change(&mut self.state().log);
        self.changes.send_replace(());
        result
    }

    /// The script for a request whose body is still unread, if a rule wants to answer that early.
    fn script_at_head(&self, request: &Request) -> Option<Script> {
        self.programmed(request, true)
    }

    /// The script for a whole request.
    fn script(&self, request: &Request) -> Script {
        if let Some(script) = self.programmed(request, false) {
            return script;
        }
        if request.method == "GET" && request.path() == "/v1/models" {
            return answer::models(&self.state().models);
        }
        answer::usual(request)
    }

    fn programmed(&self, request: &Request, at_head: bool) -> Option<Script> {
        let mut state = self.state();
        let rule = state.rules.iter_mut().rev().find(|rule| {
            rule.at_head == at_head && rule.left != Some(0) && (rule.matches)(request)
        })?;
        if let Some(left) = &mut rule.left {
            *left -= 1;
        }
        Some((rule.script)(request))
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // Out of descriptors or aborted in the backlog: the next accept decides.
                let Ok((stream, peer)) = accepted else { continue };
                let number = shared.record(|log| log.open(peer, Instant::now()));
                connections.spawn(connection::serve(stream, number, Arc::clone(&shared)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}
