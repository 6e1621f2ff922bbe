//! A host and a port: where a machine is dialled.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// `HOST:PORT`; the host is an address or a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPort {
    host: String,
    port: u16,
}

impl HostPort {
    /// Returns the host: a name in lower case, or an address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port; never 0.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Returns the address, where the host is one.
    pub fn address(&self) -> Option<SocketAddr> {
        self.host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, self.port))
    }
}

impl From<SocketAddr> for HostPort {
    fn from(address: SocketAddr) -> Self {
        Self { host: address.ip().to_string(), port: address.port() }
    }
}

impl FromStr for HostPort {
    type Err = HostPortError;

    fn from_str(text: &str) -> Result<Self, HostPortError> {
        let refuse = || HostPortError { text: text.to_owned() };
        if let Ok(address) = text.parse::<SocketAddr>() {
            return if address.port() == 0 { Err(refuse()) } else { Ok(address.into()) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(refuse)?;
        let is_label = |label: &str| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        let name = host.strip_suffix('.').unwrap_or(host);
        // A name whose last label is a number would be read as an address by some resolvers.
        let ends_in_number =
            name.rsplit('.').next().is_some_and(|l| l.bytes().all(|b| b.is_ascii_digit()));
        if name.len() > 253 || ends_in_number || !name.split('.').all(is_label) {
            return Err(refuse());
        }
        let is_number = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        let port = port.parse().ok().filter(|port| *port != 0 && is_number).ok_or_else(refuse)?;
        Ok(Self { host: name.to_ascii_lowercase(), port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl serde::Serialize for HostPort {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for HostPort {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Text that is no host with a port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not HOST:PORT: write an address or a name and a port, like edge.lan:7401")]
pub struct HostPortError {
    text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_come_apart_and_together_again() {
        for (text, host, port, shown) in [
            ("127.0.0.1:7401", "127.0.0.1", 7401, "127.0.0.1:7401"),
            ("[2001:db8::1]:7401", "2001:db8::1", 7401, "[2001:db8::1]:7401"),
            ("Edge.Lan.:1", "edge.lan", 1, "edge.lan:1"),
        ] {
            let address: HostPort = text.parse().expect(text);
            assert_eq!((address.host(), address.port()), (host, port));
            assert_eq!(address.to_string(), shown);
        }
        assert_eq!("edge.lan:1".parse::<HostPort>().expect("name").address(), None);
    }

    #[test]
    fn what_names_no_port_or_no_host_is_refused() {
        for text in [
            "",
            "edge",
            "edge:",
            "edge:0",
            ":7401",
            "edge:+1",
            "edge:70000",
            "a b:1",
            "http://edge:1",
            "127.0.0.1:0",
            "1.2.3:4",
            "::1:7401x",
            "edge/x:1",
        ] {
            let error = text.parse::<HostPort>().expect_err(text);
            assert!(error.to_string().contains("HOST:PORT"));
        }
    }
}
