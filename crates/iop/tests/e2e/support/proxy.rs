//! A TCP relay between a Node and its Edge that can be cut, held and slowed down.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use iop_testkit::kernel::{self, TcpState};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Every byte.
    All,
    /// So many bytes, both directions together; then both ends are reset.
    ResetAfter(usize),
    /// So many bytes from the Node to the Edge; what follows waits until all may pass.
    HoldAfter(usize),
    /// All that comes, at so many bytes a second in either direction.
    Slowly(u32),
}

/// The relay.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    target: SocketAddr,
    pass: watch::Sender<Pass>,
    /// What connections that are open are told.
    order: watch::Sender<Order>,
    accepted: AtomicUsize,
    most_at_once: AtomicUsize,
    passed: AtomicUsize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Reset,
    LoseNode,
}

impl Proxy {
    /// Starts a relay to `target`.
    pub(crate) async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            target,
            pass: watch::Sender::new(Pass::All),
            order: watch::Sender::new(Order::Reset),
            accepted: AtomicUsize::new(0),
            most_at_once: AtomicUsize::new(0),
            passed: AtomicUsize::new(0),
        });
        let accepting = tokio::spawn(accept(listener, address, Arc::clone(&shared)));
        Self { address, shared, accepting }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says what becomes of later connections; one that is held goes on when all may pass.
    pub(crate) fn set(&self, pass: Pass) {
        self.shared.pass.send_replace(pass);
    }

    /// Resets every open connection at both ends.
    pub(crate) fn reset(&self) {
        self.shared.order.send_replace(Order::Reset);
    }

    /// Resets the Node's end of every open connection; the Edge's stays open and silent.
    pub(crate) fn lose_node(&self) {
        self.shared.order.send_replace(Order::LoseNode);
    }

    /// How many bytes were relayed, in both directions together.
    pub(crate) fn passed(&self) -> usize {
        self.shared.passed.load(Ordering::Relaxed)
    }

    /// How many connections were relayed.
    pub(crate) fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// How many connections a Node had at once at most, by the kernel's count at each new one.
    pub(crate) fn most_at_once(&self) -> usize {
        self.shared.most_at_once.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, address: SocketAddr, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((node, _)) = listener.accept().await else { continue };
        // The kernel knows of a close before the next dial even where this relay has not read it.
        let sockets = kernel::accepted_on(address.port());
        let open = sockets.iter().filter(|socket| socket.state == TcpState::Established).count();
        shared.most_at_once.fetch_max(open, Ordering::Relaxed);
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        let orders = shared.order.subscribe();
        let shared = Arc::clone(&shared);
        connections.spawn(async move { relay(node, orders, &shared).await });
    }
}

async fn relay(mut node: TcpStream, mut orders: watch::Receiver<Order>, shared: &Shared) {
    let pass = *shared.pass.borrow();
    let socket = TcpSocket::new_v4().unwrap();
    if let Pass::Slowly(_) = pass {
        // A slow line holds little: what does not fit waits with its sender.
        socket.set_recv_buffer_size(4096).unwrap();
        SockRef::from(&node).set_recv_buffer_size(4096).unwrap();
    }
    let Ok(mut edge) = socket.connect(shared.target).await else { return reset(&node) };
    let _ = (node.set_nodelay(true), edge.set_nodelay(true));
    let passed = AtomicUsize::new(0);
    let told = {
        let (from_node, to_node) = node.split();
        let (from_edge, to_edge) = edge.split();
        let both = async {
            tokio::try_join!(
                carry(
                    from_node,
                    to_edge,
                    pass,
                    &passed,
                    &shared.passed,
                    Some(shared.pass.subscribe())
                ),
                carry(from_edge, to_node, pass, &passed, &shared.passed, None),
            )
        };
        tokio::select! {
            carried = both => match carried {
                Ok(_) => return,
                Err(_) => Order::Reset,
            },
            _ = orders.changed() => *orders.borrow_and_update(),
        }
    };
    reset(&node);
    match told {
        Order::Reset => reset(&edge),
        Order::LoseNode => {
            drop(node);
            // Silent, until the Edge itself gives the connection up.
            while !matches!(edge.read(&mut [0; 4096]).await, Ok(0) | Err(_)) {}
        }
    }
}

/// Carries one direction to its end. `held` tells the direction that may be held when it may go on.
async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    pass: Pass,
    passed: &AtomicUsize,
    total: &AtomicUsize,
    mut held: Option<watch::Receiver<Pass>>,
) -> io::Result<()> {
    let mut own = 0;
    let mut buffer = [0; 2048];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        if let (Pass::HoldAfter(limit), Some(held)) = (pass, &mut held)
            && own >= limit
        {
            let _ = held.wait_for(|pass| *pass == Pass::All).await;
        }
        own += length;
        let before = passed.fetch_add(length, Ordering::Relaxed);
        let allowed = match pass {
            Pass::ResetAfter(limit) => limit.saturating_sub(before).min(length),
            Pass::Slowly(rate) => {
                tokio::time::sleep(time_for(length, rate)).await;
                length
            }
            Pass::All | Pass::HoldAfter(_) => length,
        };
        to.write_all(&buffer[..allowed]).await?;
        total.fetch_add(allowed, Ordering::Relaxed);
        if allowed < length {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
    }
}

/// How long a line takes for so many bytes at so many bytes a second.
pub(crate) fn time_for(bytes: usize, rate: u32) -> Duration {
    let bytes = u32::try_from(bytes).expect("tests send less than 4 GiB");
    Duration::from_secs(1) * bytes / rate
}

/// Makes the coming close a reset.
fn reset(socket: &TcpStream) {
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}
