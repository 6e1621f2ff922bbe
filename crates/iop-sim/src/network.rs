//! The simulated network, as an [`iop_net::net::Net`].
//!
//! Local mode speaks on loopback only, and turmoil's hosts have addresses of their own. So the hosts of
//! a simulation are one machine to the software on them: the host that turmoil calls 192.168.0.7 is
//! reached as 127.0.0.7, and sees its peers under such addresses.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use iop_net::net::{BoxFuture, Listener, Net};
use iop_net::socket::Socket;

use crate::ledger::Ledger;
use crate::pipe::{Kernel, Pipe};
use crate::wiretap::Wiretap;

/// The network as one host sees it.
#[derive(Clone)]
pub(crate) struct Network {
    host: &'static str,
    ledger: Ledger,
    kernel: Kernel,
    /// Whether no network and no process fails in this simulation.
    is_undisturbed: bool,
}

impl Network {
    /// Gives a host its network.
    pub(crate) fn of(host: &'static str, ledger: &Ledger, is_undisturbed: bool) -> Self {
        Self { host, ledger: ledger.clone(), kernel: Kernel::default(), is_undisturbed }
    }

    /// Returns what the host knows of its connections.
    pub(crate) fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    fn socket(&self, stream: turmoil::net::TcpStream, is_dialler: bool) -> io::Result<Socket> {
        let (local, peer) = (stream.local_addr()?, stream.peer_addr()?);
        let port = if is_dialler { peer.port() } else { local.port() };
        let tap = Wiretap::new(&self.ledger, self.host, peer, port, self.is_undisturbed);
        Ok(Socket::new(Pipe::new(stream, seen(peer), tap, &self.kernel)))
    }
}

impl Net for Network {
    fn resolve<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        Box::pin(async move {
            let address: IpAddr = host
                .parse()
                .map_err(|_| io::Error::new(io::ErrorKind::NotFound, "hosts here have no names"))?;
            Ok(vec![SocketAddr::new(address, port)])
        })
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Socket>> {
        Box::pin(async move {
            self.socket(turmoil::net::TcpStream::connect(real(address)).await?, true)
        })
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let any = (Ipv4Addr::UNSPECIFIED, address.port());
            let listener = Arc::new(turmoil::net::TcpListener::bind(any).await?);
            let network = self.clone();
            let accepting = Mutex::new(accept(Arc::clone(&listener)));
            Ok(Box::new(Door { address, network, listener, accepting }) as Box<dyn Listener>)
        })
    }
}

type Accepting = BoxFuture<'static, io::Result<(turmoil::net::TcpStream, SocketAddr)>>;

/// A bound port.
struct Door {
    address: SocketAddr,
    network: Network,
    listener: Arc<turmoil::net::TcpListener>,
    /// In a mutex because a listener is shared, and never locked: only `&mut` reaches it.
    accepting: Mutex<Accepting>,
}

fn accept(listener: Arc<turmoil::net::TcpListener>) -> Accepting {
    Box::pin(async move { listener.accept().await })
}

impl Listener for Door {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Socket, SocketAddr)>> {
        let accepting = self.accepting.get_mut().unwrap_or_else(PoisonError::into_inner);
        let accepted = ready!(accepting.as_mut().poll(cx));
        *accepting = accept(Arc::clone(&self.listener));
        let (stream, peer) = accepted?;
        Poll::Ready(self.network.socket(stream, false).map(|socket| (socket, seen(peer))))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

/// Returns the address under which the software knows a host.
pub(crate) fn seen(real: SocketAddr) -> SocketAddr {
    with_network(real, [127, 0])
}

fn real(seen: SocketAddr) -> SocketAddr {
    with_network(seen, [192, 168])
}

fn with_network(address: SocketAddr, network: [u8; 2]) -> SocketAddr {
    let IpAddr::V4(v4) = address.ip() else { return address };
    let [_, _, c, d] = v4.octets();
    SocketAddr::from((Ipv4Addr::new(network[0], network[1], c, d), address.port()))
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Network").field(&self.host).finish()
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Door").field(&self.address).finish()
    }
}
