//! Where a provider listens, and how paths are joined to it.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ::http::uri::{PathAndQuery, Uri};
use iop_types::{Host, HostError};

/// The base URL of a provider, in parts.
///
/// Paths are given as clients write them, starting with `/v1/` or naming something else
/// (`/health`). A base that ends in a version segment replaces the path's own `/v1`, so that each of
/// `http://h`, `http://h/` and `http://h/v1` leads to `/v1/models`, and `http://h/v1beta` to
/// `/v1beta/models`.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    is_secure: bool,
    host: Arc<str>,
    port: u16,
    authority: Arc<str>,
    /// Path of the base before its version segment, without a closing slash.
    prefix: String,
    /// The base's own version segment, with its leading slash.
    version: Option<String>,
    query: Option<String>,
}

impl Endpoint {
    /// Reads a base URL.
    ///
    /// # Errors
    /// Says what is wrong without repeating the URL: it may hold secrets.
    pub fn parse(url: &str) -> Result<Self, EndpointError> {
        let url = url.trim();
        // A URL parser drops it silently; whoever wrote it meant something.
        if url.contains('#') {
            return Err(EndpointError::Fragment);
        }
        let uri: Uri = url.parse().map_err(|_| EndpointError::Malformed)?;
        let is_secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(_) | None => return Err(EndpointError::Scheme),
        };
        let authority = uri.authority().ok_or(EndpointError::Malformed)?;
        if authority.as_str().contains('@') {
            return Err(EndpointError::Credentials);
        }
        let host: Host = authority.host().parse().map_err(|error| match error {
            HostError::Malformed => EndpointError::Malformed,
            HostError::Numeric => EndpointError::Numeric,
        })?;
        let host = host.to_string();
        let port = match authority.as_str()[authority.host().len()..].strip_prefix(':') {
            None => default_port(is_secure),
            Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or(EndpointError::Port)?,
        };
        let path = uri.path().trim_end_matches('/');
        let (prefix, version) = match path.rfind('/') {
            Some(at) if is_version(&path[at + 1..]) => (&path[..at], Some(path[at..].to_owned())),
            Some(_) | None => (path, None),
        };
        let shown = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        Ok(Self {
            is_secure,
            authority: format!("{shown}:{port}").into(),
            host: host.into(),
            port,
            prefix: prefix.trim_end_matches('/').to_owned(),
            version,
            query: uri.query().map(str::to_owned),
        })
    }

    /// Says whether the provider is spoken to over TLS.
    pub fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// Returns what a request names as its host: the port only where it is not the scheme's own.
    pub(super) fn host_header(&self) -> &str {
        let is_default = self.port == default_port(self.is_secure);
        match self.authority.rsplit_once(':') {
            Some((host, _)) if is_default => host,
            Some(_) | None => &self.authority,
        }
    }

    /// Returns `host:port`, safe to show.
    pub fn authority(&self) -> &Arc<str> {
        &self.authority
    }

    /// Returns the host in its one spelling: a name in lower case and without a dot at its end, or an
    /// address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Says whether the host is this machine by its very name.
    pub fn is_loopback(&self) -> bool {
        self.host.eq_ignore_ascii_case("localhost")
            || self.host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
    }

    /// Joins a path, with its query if it has one, to the base.
    ///
    /// # Errors
    /// Fails when `path` does not start with a slash or holds bytes that no URL may hold.
    pub(super) fn join(&self, path: &str) -> Result<PathAndQuery, &'static str> {
        if !path.starts_with('/') {
            return Err("its path does not start with a slash");
        }
        let rest = match (&self.version, path.strip_prefix("/v1")) {
            (Some(_), Some(rest)) if rest.is_empty() || rest.starts_with(['/', '?']) => Some(rest),
            _ => None,
        };
        let joined = match (&self.version, rest, &self.query) {
            // Most endpoints are a bare host: the path is sent as it came.
            (_, None, None) if self.prefix.is_empty() => path.parse::<PathAndQuery>(),
            (Some(version), Some(rest), query) => {
                with_query(format!("{}{version}{rest}", self.prefix), query.as_deref()).try_into()
            }
            (_, _, query) => {
                with_query(format!("{}{path}", self.prefix), query.as_deref()).try_into()
            }
        };
        joined.map_err(|_| "its path holds bytes that a URL may not hold")
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", self.authority)
    }
}

const fn default_port(is_secure: bool) -> u16 {
    if is_secure { 443 } else { 80 }
}

/// `v1`, `v1beta`, `v2`: a `v`, a digit, letters and digits.
fn is_version(segment: &str) -> bool {
    let mut bytes = segment.bytes();
    bytes.next() == Some(b'v')
        && bytes.next().is_some_and(|b| b.is_ascii_digit())
        && bytes.all(|b| b.is_ascii_alphanumeric())
}

fn with_query(mut path: String, query: Option<&str>) -> String {
    if let Some(query) = query {
        path.push(if path.contains('?') { '&' } else { '?' });
        path.push_str(query);
    }
    path
}

/// What is wrong with a base URL. Never repeats it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// It is not a URL.
    #[error("endpoint is not a URL such as http://127.0.0.1:8000")]
    Malformed,
    /// It has another scheme, or none.
    #[error("endpoint must start with http:// or https://")]
    Scheme,
    /// It holds a user name or password.
    #[error("endpoint holds credentials; give them as `api_key` or in `headers`")]
    Credentials,
    /// It has a fragment.
    #[error("endpoint has a fragment: remove what follows `#`")]
    Fragment,
    /// Its host is a number that some programs read as an address.
    #[error("endpoint has an address in another spelling: write it like 127.0.0.1")]
    Numeric,
    /// Its port is not a number from 1 to 65535.
    #[error("endpoint has a port that is not between 1 and 65535")]
    Port,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(base: &str, path: &str) -> String {
        Endpoint::parse(base).unwrap().join(path).unwrap().as_str().to_owned()
    }

    #[test]
    fn a_version_in_the_base_is_never_doubled() {
        for base in ["http://h", "http://h/", "http://h/v1", "http://h/v1/"] {
            assert_eq!(join(base, "/v1/chat/completions"), "/v1/chat/completions", "{base}");
            assert_eq!(join(base, "/v1/models"), "/v1/models", "{base}");
        }
        assert_eq!(join("http://h/api/v1", "/v1/chat/completions"), "/api/v1/chat/completions");
        assert_eq!(join("http://h/api", "/v1/chat/completions"), "/api/v1/chat/completions");
        assert_eq!(join("http://h/v1beta", "/v1/embeddings"), "/v1beta/embeddings");
        assert_eq!(join("http://h/v1beta/", "/v1/models"), "/v1beta/models");
    }

    #[test]
    fn a_path_outside_the_version_stands_beside_it() {
        assert_eq!(join("http://h/v1", "/health"), "/health");
        assert_eq!(join("http://h/api/v1", "/health"), "/api/health");
        assert_eq!(join("http://h/v1", "/v1beta/models"), "/v1beta/models");
        assert_eq!(join("http://h/v1", "/v1"), "/v1");
    }

    #[test]
    fn a_query_is_kept_byte_for_byte_and_joined_to_the_bases() {
        assert_eq!(join("http://h", "/v1/x?a=1&a=2&b=%20"), "/v1/x?a=1&a=2&b=%20");
        assert_eq!(join("http://h/v2", "/v1?a=%20"), "/v2?a=%20");
        assert_eq!(join("http://h/v1?api-version=3", "/v1/x"), "/v1/x?api-version=3");
        assert_eq!(join("http://h?api-version=3", "/v1/x?a=1"), "/v1/x?a=1&api-version=3");
    }

    #[test]
    fn hosts_ports_and_addresses_are_read() {
        let named = Endpoint::parse("http://LocalHost:1234/v1").unwrap();
        assert_eq!((named.host(), named.port(), named.is_loopback()), ("localhost", 1234, true));
        let v6 = Endpoint::parse("http://[::1]:8000").unwrap();
        assert_eq!((v6.host(), &**v6.authority(), v6.is_loopback()), ("::1", "[::1]:8000", true));
        let far = Endpoint::parse("http://models.example").unwrap();
        assert_eq!((&**far.authority(), far.is_loopback()), ("models.example:80", false));
        let dotted = Endpoint::parse("http://Models.example.").unwrap();
        assert_eq!(dotted.host(), "models.example");
        let dressed = Endpoint::parse("http://[::ffff:127.0.0.1]:1").unwrap();
        assert_eq!((&**dressed.authority(), dressed.is_loopback()), ("127.0.0.1:1", true));
    }

    #[test]
    fn a_request_names_the_port_only_where_it_is_not_the_schemes_own() {
        for (url, secure, authority, host) in [
            ("http://h", false, "h:80", "h"),
            ("http://h:443", false, "h:443", "h:443"),
            ("https://h/v1", true, "h:443", "h"),
            ("https://h:80", true, "h:80", "h:80"),
            ("https://[::1]", true, "[::1]:443", "[::1]"),
        ] {
            let endpoint = Endpoint::parse(url).unwrap();
            assert_eq!((endpoint.is_secure(), &**endpoint.authority()), (secure, authority));
            assert_eq!(endpoint.host_header(), host);
        }
    }

    #[test]
    fn an_endpoint_that_cannot_work_is_refused_with_the_remedy() {
        for (url, error) in [
            ("127.0.0.1:8000", EndpointError::Scheme),
            ("ftp://h", EndpointError::Scheme),
            ("/v1", EndpointError::Scheme),
            ("http://", EndpointError::Malformed),
            ("http://u:p@h", EndpointError::Credentials),
            ("http://h:0", EndpointError::Port),
            ("http://h:70000", EndpointError::Port),
            ("http://h h", EndpointError::Malformed),
            ("http://h#f", EndpointError::Fragment),
            ("http://b\u{fc}cher", EndpointError::Malformed),
            ("http://[::1%25eth0]", EndpointError::Malformed),
            ("http://2130706433", EndpointError::Numeric),
            ("http://0x7f.1:80", EndpointError::Numeric),
            ("http://0177.0.0.1", EndpointError::Numeric),
        ] {
            assert_eq!(Endpoint::parse(url), Err(error), "{url}");
        }
    }

    #[test]
    fn nothing_but_the_authority_is_ever_shown() {
        let endpoint = Endpoint::parse("http://h:1/secret?key=SECRET").unwrap();
        assert_eq!(format!("{endpoint:?}"), "Endpoint(h:1)");
    }
}
