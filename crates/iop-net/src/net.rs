//! Dialling and listening, behind a trait so that whole Edges and Nodes can run in a simulation.
//!
//! [`TokioNet`] is the real network. Every [`Socket`] that leaves this module has `TCP_NODELAY` set:
//! small chunks must not wait for the peer's delayed acknowledgement.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::socket::Socket;

/// A future in a box, for traits that must stay dyn-compatible.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A network: names, outgoing connections, listeners.
pub trait Net: fmt::Debug + Send + Sync + 'static {
    /// Resolves a host name or an address literal, in the resolver's order of preference.
    ///
    /// Nothing is cached: a name that moved is followed by the next connection.
    fn resolve<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>>;

    /// Connects to one address. Dropping the future gives the attempt up.
    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Socket>>;

    /// Starts listening.
    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>>;
}

/// A bound address that yields connections.
pub trait Listener: fmt::Debug + Send + Sync + 'static {
    /// Yields the next connection. Cancel safe. An error concerns one connection or a lack of
    /// resources, never the listener itself.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Socket, SocketAddr)>>;

    /// Returns the bound address.
    ///
    /// # Errors
    /// Fails when the operating system cannot tell.
    fn local_addr(&self) -> io::Result<SocketAddr>;
}

impl dyn Listener {
    /// As [`poll_accept`](Listener::poll_accept). Cancel safe.
    ///
    /// # Errors
    /// One connection failed, or resources are short; the listener goes on.
    pub async fn accept(&mut self) -> io::Result<(Socket, SocketAddr)> {
        std::future::poll_fn(|cx| self.poll_accept(cx)).await
    }
}

impl Listener for Box<dyn Listener> {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Socket, SocketAddr)>> {
        (**self).poll_accept(cx)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        (**self).local_addr()
    }
}

/// The real network.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokioNet;

impl Net for TokioNet {
    fn resolve<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Socket>> {
        Box::pin(async move { Socket::from_tcp(tokio::net::TcpStream::connect(address).await?) })
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let listener = tokio::net::TcpListener::bind(address).await?;
            Ok(Box::new(listener) as Box<dyn Listener>)
        })
    }
}

impl Listener for tokio::net::TcpListener {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Socket, SocketAddr)>> {
        let (stream, peer) = ready!(Self::poll_accept(self, cx))?;
        Poll::Ready(Socket::from_tcp(stream).map(|socket| (socket, peer)))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_ends_of_a_connection_send_small_writes_at_once() {
        let net = TokioNet;
        let mut listener = net.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (near, far) = tokio::join!(net.connect(address), listener.accept());
        assert!(near.unwrap().as_tcp().unwrap().nodelay().unwrap());
        assert!(far.unwrap().0.as_tcp().unwrap().nodelay().unwrap());
    }
}
