//! A proxy between a Node and its Edge that knows frames, and does to them what networks and crashes do.
//!
//! Two kinds of fault, which can be combined:
//!
//! * a *rule* sees every whole frame before it is passed on and says what becomes of it: it passes, the
//!   connection is cut behind it or within it, it is swallowed, said twice, or kept until
//!   [`FaultProxy::release`];
//! * [`Toxic`]s shape the bytes of a direction: latency, bandwidth, slicing, silence, a limit, a late
//!   close, a reset.
//!
//! What passed is recorded ([`FaultProxy::frames`]), so that a test can run a conversation once and
//! then cut it behind each of its frames in turn.
//!
//! ```no_run
//! # async fn example(edge: std::net::SocketAddr) {
//! use iop_testkit::proxy::{Fate, FaultProxy, Towards, Toxic};
//! use std::time::Duration;
//!
//! let proxy = FaultProxy::start(edge).await;
//! // The first link breaks behind the first body of a request; later ones are slow.
//! proxy.rule(|frame| match (frame.link, frame.kind) {
//!     (0, "RequestBody") => Fate::Cut,
//!     _ => Fate::Pass,
//! });
//! proxy.add(Towards::Edge, Toxic::Latency(Duration::from_millis(20)));
//! # }
//! ```

mod carry;
mod frames;
mod toxic;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use self::carry::{Break, carry};
use self::toxic::Toxics;
use crate::PATIENCE;

pub use self::frames::FrameSeen;
pub use self::toxic::Toxic;

/// A direction, named by its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Towards {
    /// What the Node says.
    Edge,
    /// What the Edge says.
    Node,
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is passed on.
    Pass,
    /// It is passed on and both ends are reset behind it.
    Cut,
    /// So many of its bytes are passed on and both ends are reset.
    CutWithin(usize),
    /// It is lost, and nobody is told.
    Swallow,
    /// It is passed on twice.
    Twice,
    /// It and all that follows in its direction waits until [`FaultProxy::release`].
    Hold,
}

type Rule = Box<dyn FnMut(&FrameSeen) -> Fate + Send>;

/// The proxy. Dropping it cuts every connection.
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    target: SocketAddr,
    rule: Mutex<Rule>,
    toxics: watch::Sender<Toxics>,
    /// Grows with every release.
    released: watch::Sender<u64>,
    order: watch::Sender<Option<Break>>,
    links: AtomicUsize,
    frames: watch::Sender<Vec<FrameSeen>>,
    broken: watch::Sender<usize>,
}

impl FaultProxy {
    /// Starts a proxy towards `target` that passes everything.
    ///
    /// # Panics
    /// Panics when no loopback port is free.
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            target,
            rule: Mutex::new(Box::new(|_| Fate::Pass)),
            toxics: watch::Sender::default(),
            released: watch::Sender::new(0),
            order: watch::Sender::new(None),
            links: AtomicUsize::new(0),
            frames: watch::Sender::default(),
            broken: watch::Sender::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, accepting }
    }

    /// Where a Node dials.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Decides the fate of every frame from now on; the newest rule alone counts.
    pub fn rule(&self, rule: impl FnMut(&FrameSeen) -> Fate + Send + 'static) {
        *self.shared.rule() = Box::new(rule);
    }

    /// Shapes a direction, of open connections too.
    pub fn add(&self, towards: Towards, toxic: Toxic) {
        self.shared.toxics.send_modify(|toxics| toxics.add(towards, toxic));
    }

    /// Takes all toxics away.
    pub fn clear(&self) {
        self.shared.toxics.send_replace(Toxics::default());
    }

    /// Lets everything go on that is held at this moment.
    pub fn release(&self) {
        self.shared.released.send_modify(|released| *released += 1);
    }

    /// Resets both ends of every open connection.
    pub fn cut(&self) {
        self.shared.order.send_replace(Some(Break::Both));
    }

    /// Ends the Node's side of every open connection. The Edge's stays open, and what the Node said
    /// last and is held still reaches it.
    pub fn lose_node(&self) {
        self.shared.order.send_replace(Some(Break::Node));
    }

    /// All frames that were passed on, swallowed or cut, in the order in which they came.
    #[must_use]
    pub fn frames(&self) -> Vec<FrameSeen> {
        self.shared.frames.borrow().clone()
    }

    /// How many connections were accepted.
    #[must_use]
    pub fn links(&self) -> usize {
        self.shared.links.load(Ordering::Relaxed)
    }

    /// How many connections this proxy has broken.
    #[must_use]
    pub fn broken(&self) -> usize {
        *self.shared.broken.borrow()
    }

    /// Waits until the frames that were seen satisfy `done`.
    ///
    /// # Panics
    /// Panics with the frames when that does not happen within [`PATIENCE`].
    pub async fn wait_until(&self, what: &str, mut done: impl FnMut(&[FrameSeen]) -> bool) {
        let mut frames = self.shared.frames.subscribe();
        let seen = tokio::time::timeout(PATIENCE, frames.wait_for(|frames| done(frames))).await;
        assert!(seen.is_ok(), "waited {PATIENCE:?} in vain until {what}: {:?}", self.frames());
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Shared {
    fn rule(&self) -> MutexGuard<'_, Rule> {
        self.rule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((node, _)) = listener.accept().await else { continue };
        let link = shared.links.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&shared);
        connections.spawn(async move { relay(link, node, &shared).await });
    }
}

/// Relays one connection until it ends, is broken by its rule or by an order.
async fn relay(link: usize, node: TcpStream, shared: &Shared) {
    let Ok(edge) = TcpStream::connect(shared.target).await else { return reset(&node) };
    let _ = (node.set_nodelay(true), edge.set_nodelay(true));
    let mut orders = shared.order.subscribe();
    let muted = AtomicBool::new(false);
    let mut up = std::pin::pin!(carry(link, Towards::Edge, &node, &edge, &muted, shared));
    let mut down = std::pin::pin!(carry(link, Towards::Node, &edge, &node, &muted, shared));
    let mut ended = [false; 2];
    let broken = loop {
        tokio::select! {
            _ = orders.changed() => {
                let order = *orders.borrow_and_update();
                if let Some(order) = order {
                    break order;
                }
            }
            carried = &mut up, if !ended[0] => match carried {
                Ok(()) => ended[0] = true,
                Err(broken) => break broken,
            },
            carried = &mut down, if !ended[1] => match carried {
                Ok(()) => ended[1] = true,
                Err(broken) => break broken,
            },
        }
        if ended == [true; 2] {
            return;
        }
    };
    shared.broken.send_modify(|broken| *broken += 1);
    match broken {
        Break::Both => {
            reset(&node);
            reset(&edge);
        }
        Break::Gently => {}
        Break::Node => {
            // Both directions are borrowed still: a shutdown ends this side now, the reset follows.
            muted.store(true, Ordering::Relaxed);
            reset(&node);
            let _ = SockRef::from(&node).shutdown(std::net::Shutdown::Both);
            // What is held may still arrive; then it is silent, until the Edge gives it up.
            let _ = up.await;
            while !matches!(discard(&edge).await, Ok(0) | Err(_)) {}
        }
    }
}

async fn discard(socket: &TcpStream) -> io::Result<usize> {
    socket.readable().await?;
    match socket.try_read(&mut [0; 4096]) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(1),
        read => read,
    }
}

/// Makes the coming close a reset.
fn reset(socket: &TcpStream) {
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}
