//! Where a provider is: what a credential is bound to, so that no other server ever receives it.

use std::fmt;
use std::sync::Arc;

use http::Uri;

/// Scheme, host and port of a provider's endpoint, in one form: lower case, the port always written.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin(Arc<str>);

impl Origin {
    /// Takes the origin of an endpoint.
    ///
    /// # Errors
    /// Fails when `endpoint` is no URL with `http` or `https` and a host, or holds a user name.
    pub fn of(endpoint: &str) -> Result<Self, NoOrigin> {
        let uri: Uri = endpoint.parse().map_err(|_| NoOrigin)?;
        let authority = uri.authority().ok_or(NoOrigin)?;
        let (scheme, usual_port) = match uri.scheme_str() {
            Some("http") => ("http", 80),
            Some("https") => ("https", 443),
            _ => return Err(NoOrigin),
        };
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(NoOrigin);
        }
        let port = match authority.port() {
            Some(port) => port.as_u16(),
            None => usual_port,
        };
        let host = authority.host().to_ascii_lowercase();
        Ok(Self(format!("{scheme}://{host}:{port}").into()))
    }

    /// Returns the origin as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An endpoint that a credential cannot be bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("endpoint is not an `http` or `https` URL with a host and without a user name")]
pub struct NoOrigin;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_origin_are_equal() {
        let origin = Origin::of("https://api.example.com/v1").expect("an origin");
        assert_eq!(origin.as_str(), "https://api.example.com:443");
        assert_eq!(Origin::of("HTTPS://API.example.com:443"), Ok(origin.clone()));
        assert_eq!(Origin::of(origin.as_str()), Ok(origin));
    }

    #[test]
    fn scheme_host_and_port_all_count() {
        let origin = Origin::of("http://10.0.0.1:8000").expect("an origin");
        for other in ["https://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.1:8001"] {
            assert_ne!(Origin::of(other), Ok(origin.clone()), "{other}");
        }
    }

    #[test]
    fn what_is_no_origin_is_refused() {
        for endpoint in ["", "/v1", "example.com", "ftp://example.com", "http://user@example.com/"]
        {
            assert_eq!(Origin::of(endpoint), Err(NoOrigin), "{endpoint}");
        }
    }
}
