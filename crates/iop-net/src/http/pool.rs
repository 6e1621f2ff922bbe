//! The connections to one provider.
//!
//! Idle connections wait in a stack: the one used last is used next, so that a small load keeps few
//! connections warm. They are closed after [`Options::idle`], which must be shorter than the
//! provider's own keep-alive, and at once when the provider ends them first.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ::http::HeaderValue;
use tokio::time::Instant;

use super::dial::dial;
use super::lane::Lane;
use super::{Call, CallError, Endpoint, Request};
use crate::egress::Egress;
use crate::net::Net;
use crate::socket::Socket;
use crate::tls::Trust;

/// How a pool treats its provider.
#[derive(Debug, Clone)]
pub struct Options {
    /// Addresses that may be dialled.
    pub egress: Egress,
    /// What certificates an `https` provider is verified against.
    pub trust: Trust,
    /// Time for resolving, connecting and the handshake of TLS.
    pub connect_timeout: Duration,
    /// How long an unused connection is kept: at most 4 s, zero keeps none.
    pub idle: Duration,
    /// How many unused connections are kept.
    pub max_idle: usize,
}

impl Options {
    /// Uses the defaults with this allow-list.
    pub fn new(egress: Egress) -> Self {
        Self {
            egress,
            trust: Trust::native(),
            connect_timeout: Duration::from_secs(5),
            idle: LONGEST_IDLE,
            // The largest default concurrency of a provider.
            max_idle: 256,
        }
    }
}

/// Ollama and uvicorn (vLLM) close an unused connection after 5 s.
const LONGEST_IDLE: Duration = Duration::from_secs(4);

/// Connections of a pool, as counted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// Sockets open, idle ones included.
    pub open: usize,
    /// Sockets that wait for a call.
    pub idle: usize,
}

/// Calls one provider. A cheap handle.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

pub(super) struct Inner {
    net: Arc<dyn Net>,
    endpoint: Endpoint,
    host: HeaderValue,
    options: Options,
    open: Arc<AtomicUsize>,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    lanes: Vec<Lane>,
    is_swept: bool,
    is_closed: bool,
}

impl Pool {
    /// Makes a pool that dials nothing before the first call.
    pub fn new(net: Arc<dyn Net>, endpoint: Endpoint, mut options: Options) -> Self {
        options.idle = options.idle.min(LONGEST_IDLE);
        let host = HeaderValue::from_str(endpoint.host_header())
            .expect("an authority holds no control characters");
        let open = Arc::default();
        Self(Arc::new(Inner { net, endpoint, host, options, open, idle: Mutex::default() }))
    }

    /// Returns the provider's address.
    pub fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    /// Begins a call. Nothing happens until it is polled.
    pub fn call(&self, request: Request) -> Call {
        Call::new(Arc::clone(&self.0), request)
    }

    /// Counts connections.
    pub fn stats(&self) -> PoolStats {
        let idle = self.0.lock().lanes.len();
        PoolStats { open: self.0.open.load(Ordering::Relaxed), idle }
    }

    /// Closes unused connections, and those in use when their calls end. Calls are still possible.
    pub fn close(&self) {
        let lanes = {
            let mut idle = self.0.lock();
            idle.is_closed = true;
            std::mem::take(&mut idle.lanes)
        };
        drop(lanes);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({})", self.0.endpoint.authority())
    }
}

impl Inner {
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(super) fn host(&self) -> &HeaderValue {
        &self.host
    }

    pub(super) async fn dial(&self) -> Result<Connection, CallError> {
        let socket = dial(&*self.net, &self.endpoint, &self.options).await?;
        self.open.fetch_add(1, Ordering::Relaxed);
        Ok(Connection { socket, open: Arc::clone(&self.open) })
    }

    /// Takes the connection that was used last, if it seems to live.
    pub(super) fn checkout(&self) -> Option<Lane> {
        loop {
            let lane = self.lock().lanes.pop()?;
            // The kernel is asked each time: servers do close right behind an answer, without having
            // said so, and a request that reaches them then is lost.
            if lane.idle_since.elapsed() < self.options.idle && !lane.line().is_readable() {
                lane.line().reuse();
                return Some(lane);
            }
        }
    }

    /// Takes a connection back after a call that ended cleanly on both sides.
    pub(super) fn checkin(self: &Arc<Self>, mut lane: Lane) {
        lane.idle_since = Instant::now();
        let mut idle = self.lock();
        if idle.is_closed
            || idle.lanes.len() >= self.options.max_idle
            || self.options.idle.is_zero()
        {
            drop(idle);
            return;
        }
        idle.lanes.push(lane);
        if !idle.is_swept {
            idle.is_swept = true;
            // Nobody waits for it: it holds no connection and ends by itself when none is idle.
            tokio::spawn(sweep(Arc::downgrade(self), self.options.idle));
        }
    }

    /// Closes what is too old or was ended by the provider. Says whether anything is left.
    fn sweep(&self) -> bool {
        let mut idle = self.lock();
        let keep = self.options.idle;
        let (kept, closed): (Vec<_>, Vec<_>) = std::mem::take(&mut idle.lanes)
            .into_iter()
            .partition(|lane| lane.idle_since.elapsed() < keep && !lane.line().is_readable());
        idle.lanes = kept;
        idle.is_swept = !idle.lanes.is_empty();
        let goes_on = idle.is_swept;
        drop(idle);
        drop(closed);
        goes_on
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks after the idle connections of a pool while there are any.
async fn sweep(pool: Weak<Inner>, idle: Duration) {
    // Often enough to close in good time, seldom enough to cost nothing.
    let pause = (idle / 4).max(Duration::from_millis(10));
    loop {
        tokio::time::sleep(pause).await;
        let Some(pool) = pool.upgrade() else { return };
        if !pool.sweep() {
            return;
        }
    }
}

/// A socket of a pool, counted while it is open.
pub(super) struct Connection {
    pub(super) socket: Socket,
    open: Arc<AtomicUsize>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}
