//! From a host name to a connection: every address is tried, the allow-list is asked for each.
//! An `https` provider is verified by its name, whichever of its addresses was dialled.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::{CallError, Endpoint, Options};
use crate::net::Net;
use crate::socket::Socket;

/// How long an address may stay silent before the next one is tried beside it (RFC 8305, section 5).
const STAGGER: Duration = Duration::from_millis(250);

/// Connects to the first address of the endpoint that answers, within the time limit.
pub(super) async fn dial(
    net: &dyn Net,
    endpoint: &Endpoint,
    options: &Options,
) -> Result<Socket, CallError> {
    let authority = || Arc::clone(endpoint.authority());
    let limit = options.connect_timeout;
    let dialling = async {
        let resolved = match endpoint.host().parse() {
            Ok(ip) => vec![SocketAddr::new(ip, endpoint.port())],
            Err(_) => net
                .resolve(endpoint.host(), endpoint.port())
                .await
                .map_err(|source| CallError::Resolve { authority: authority(), source })?,
        };
        let Some(&first) = resolved.first() else {
            let source = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
            return Err(CallError::Resolve { authority: authority(), source });
        };
        let allowed: Vec<_> = resolved
            .into_iter()
            .filter(|address| options.egress.allows(endpoint.host(), address.ip()))
            .collect();
        if allowed.is_empty() {
            return Err(CallError::Egress { authority: authority(), address: first.ip() });
        }
        let socket = race(net, &interleaved(allowed))
            .await
            .map_err(|source| CallError::Connect { authority: authority(), source })?;
        if !endpoint.is_secure() {
            return Ok(socket);
        }
        let secured = options.trust.connect(socket, endpoint.host()).await;
        secured.map_err(|source| CallError::Tls { authority: authority(), source })
    };
    match tokio::time::timeout(limit, dialling).await {
        Ok(outcome) => outcome,
        Err(_) => Err(CallError::ConnectTimeout { authority: authority(), limit }),
    }
}

/// Tries the addresses in order, the next one after a failure or [`STAGGER`]; the first that connects
/// wins and the others are given up. Fails with the first failure.
async fn race(net: &dyn Net, addresses: &[SocketAddr]) -> io::Result<Socket> {
    let mut waiting = addresses.iter();
    let mut attempts = FuturesUnordered::new();
    let mut failure = None;
    loop {
        match waiting.next() {
            Some(address) => attempts.push(net.connect(*address)),
            None if attempts.is_empty() => {
                return Err(failure.unwrap_or_else(|| io::ErrorKind::NotFound.into()));
            }
            None => {}
        }
        let stagger = async {
            if waiting.len() == 0 {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(STAGGER).await;
        };
        tokio::select! {
            biased;
            Some(attempt) = attempts.next() => match attempt {
                Ok(socket) => return Ok(socket),
                Err(error) => failure = failure.or(Some(error)),
            },
            () = stagger => {}
        }
    }
}

/// Alternates the families, beginning with the resolver's favourite, so that a family without a
/// route costs one [`STAGGER`] and not one per address.
fn interleaved(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let favourite = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == favourite);
    let mut merged = Vec::with_capacity(first.len() + second.len());
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    loop {
        match (first.next(), second.next()) {
            (None, None) => return merged,
            (a, b) => merged.extend(a.into_iter().chain(b)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_alternate_and_keep_their_own_order() {
        let parse = |list: &[&str]| list.iter().map(|a| a.parse().unwrap()).collect::<Vec<_>>();
        assert_eq!(
            interleaved(parse(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1", "2.2.2.2:1"])),
            parse(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1", "[::3]:1"]),
        );
    }
}
