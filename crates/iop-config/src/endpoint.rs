//! Where a provider's HTTP server is.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use iop_types::host::{Host, HostError, Reserved, is_metadata_name, reserved};

/// A provider's base URL: `http[s]://HOST[:PORT][/PATH]`, checked.
///
/// How an operation's path is joined to it is the HTTP client's matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    scheme: Scheme,
    host: String,
    port: u16,
    path: String,
}

/// How a provider is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

impl Scheme {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    const fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl Endpoint {
    /// Returns the host: a name in lower case, or an address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the address, where the host is one.
    pub fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// Returns the port: that of the scheme (80 or 443) where none was written.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Returns the path without a slash at its end; empty where none was written.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Says whether the server is surely on this machine or in a private network.
    ///
    /// A name other than `localhost` is not resolved here and counts as public.
    pub fn is_private(&self) -> bool {
        match self.address() {
            Some(IpAddr::V4(ip)) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
            Some(IpAddr::V6(ip)) => {
                ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local()
            }
            None => self.host == "localhost" || self.host.ends_with(".localhost"),
        }
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(EndpointError::NoScheme);
        };
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(EndpointError::Scheme),
        };
        if rest.contains(['?', '#']) {
            return Err(EndpointError::QueryOrFragment);
        }
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        if authority.contains('@') {
            return Err(EndpointError::UserInfo);
        }
        let (host, port) = split_port(authority)?;
        let port = port.unwrap_or(scheme.port());
        if !path.bytes().all(|byte| byte.is_ascii_graphic() && !br#""<>\^`{|}"#.contains(&byte)) {
            return Err(EndpointError::Path);
        }
        Ok(Self { scheme, host, port, path: path.trim_end_matches('/').to_owned() })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.scheme.as_str();
        if self.host.contains(':') {
            write!(f, "{scheme}://[{}]", self.host)?;
        } else {
            write!(f, "{scheme}://{}", self.host)?;
        }
        if self.port != self.scheme.port() {
            write!(f, ":{}", self.port)?;
        }
        f.write_str(&self.path)
    }
}

/// Splits `host[:port]`, taking the brackets off an IPv6 address.
fn split_port(authority: &str) -> Result<(String, Option<u16>), EndpointError> {
    let end = match authority.strip_prefix('[') {
        Some(rest) => rest.find(']').ok_or(EndpointError::Host)? + 2,
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, port) = authority.split_at(end);
    let host: Host = host.parse().map_err(|error| match error {
        HostError::Malformed => EndpointError::Host,
        HostError::Numeric => EndpointError::Numeric,
    })?;
    let is_never = match &host {
        Host::Address(address) => reserved(*address) == Some(Reserved::Never),
        Host::Name(name) => is_metadata_name(name),
    };
    if is_never {
        return Err(EndpointError::Never);
    }
    let port = match port.strip_prefix(':') {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(digits.parse().ok().filter(|port| *port != 0).ok_or(EndpointError::Port)?)
        }
        Some(_) => return Err(EndpointError::Port),
        None if port.is_empty() => None,
        None => return Err(EndpointError::Port),
    };
    Ok((host.to_string(), port))
}

/// Text that is no endpoint. No message repeats the text: it may hold a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Not a URL.
    #[error("an endpoint starts with http:// or https://, like http://127.0.0.1:8000")]
    NoScheme,
    /// Another scheme.
    #[error("only http and https endpoints are known, like http://127.0.0.1:8000")]
    Scheme,
    /// A name or password in the URL.
    #[error(
        "an endpoint holds no user name or password: name a secret of the Node with `api_key: {{ node_secret: NAME }}`"
    )]
    UserInfo,
    /// A query or fragment.
    #[error("an endpoint has no query and no fragment: write only http://HOST:PORT/PATH")]
    QueryOrFragment,
    /// An empty or malformed host.
    #[error(
        "the endpoint's host is missing or malformed: write a name, an IPv4 address or [an IPv6 address]"
    )]
    Host,
    /// A number that some programs read as an address.
    #[error("the endpoint's host is an address in another spelling: write it like 127.0.0.1")]
    Numeric,
    /// An address or name at which no model server is.
    #[error(
        "the endpoint's host is a metadata service, or an address that stands for many or for none: no node dials it"
    )]
    Never,
    /// A malformed port.
    #[error("the endpoint's port is not a number from 1 to 65535")]
    Port,
    /// A path that cannot be sent as it is.
    #[error("the endpoint's path holds characters that must be percent-encoded")]
    Path,
}

impl serde::Serialize for Endpoint {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Endpoint {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_comes_apart_and_together_again() {
        for (text, host, port, path, shown) in [
            ("http://127.0.0.1:8000", "127.0.0.1", 8000, "", "http://127.0.0.1:8000"),
            ("HTTP://LocalHost/", "localhost", 80, "", "http://localhost"),
            ("http://[::1]:30000/v1/", "::1", 30000, "/v1", "http://[::1]:30000/v1"),
            ("http://gpu.lan/api/v1", "gpu.lan", 80, "/api/v1", "http://gpu.lan/api/v1"),
            ("http://gpu.lan:443", "gpu.lan", 443, "", "http://gpu.lan:443"),
            ("HTTPS://api.Example/v1/", "api.example", 443, "/v1", "https://api.example/v1"),
            ("https://[::1]:80", "::1", 80, "", "https://[::1]:80"),
        ] {
            let endpoint: Endpoint = text.parse().expect(text);
            assert_eq!((endpoint.host(), endpoint.port(), endpoint.path()), (host, port, path));
            assert_eq!(endpoint.to_string(), shown);
            assert_eq!(shown.parse(), Ok(endpoint));
        }
    }

    #[test]
    fn what_is_no_http_base_is_refused_without_repeating_it() {
        for (text, error) in [
            ("127.0.0.1:8000", EndpointError::NoScheme),
            ("https://SECRET@h", EndpointError::UserInfo),
            ("unix:///SECRET", EndpointError::Scheme),
            ("http://SECRET@h", EndpointError::UserInfo),
            ("http://u:SECRET@h/", EndpointError::UserInfo),
            ("http://h/?key=SECRET", EndpointError::QueryOrFragment),
            ("http://h#SECRET", EndpointError::QueryOrFragment),
            ("http://", EndpointError::Host),
            ("http:///v1", EndpointError::Host),
            ("http://[::1", EndpointError::Host),
            ("http://b\u{fc}cher", EndpointError::Host),
            ("http://h%2e", EndpointError::Host),
            ("http://2130706433", EndpointError::Numeric),
            ("http://0x7f.0.0.1", EndpointError::Numeric),
            ("http://169.254.169.254/latest", EndpointError::Never),
            ("http://[64:ff9b::a9fe:a9fe]", EndpointError::Never),
            ("http://0.0.0.0:8000", EndpointError::Never),
            ("http://Metadata.google.internal.", EndpointError::Never),
            ("http://h:0", EndpointError::Port),
            ("http://h:", EndpointError::Port),
            ("http://h:+80", EndpointError::Port),
            ("http://h:65536", EndpointError::Port),
            ("http://[::1]8080", EndpointError::Port),
            ("http://h/a b", EndpointError::Path),
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(error), "{text}");
            assert!(!error.to_string().contains("SECRET"));
        }
    }

    #[test]
    fn loopback_and_private_addresses_are_told_from_public_ones() {
        let is_private = |text: &str| text.parse::<Endpoint>().expect(text).is_private();
        assert!(is_private("http://127.0.0.1"));
        assert!(is_private("http://localhost:1234"));
        assert!(is_private("http://192.168.1.9"));
        assert!(is_private("http://[::1]"));
        assert!(!is_private("http://8.8.8.8"));
        assert!(!is_private("http://openrouter.ai"));
    }
}
