//! Which headers pass between a client and a provider.
//!
//! The tables are those of [`iop_types::header`]. The Edge filters too; this side does not rely on it,
//! because here the next hop is somebody else's server. A provider's credential does not come back to
//! clients either: a header of an answer that repeats it is left out.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use iop_types::header::{is_hop_by_hop, passes_to_client, passes_to_provider};
use iop_types::{ErrorCode, Failure, Header};

use crate::settings::{ProviderSettings, Secret};

/// Headers that this side adds to every request: the configured ones and the provider's API key.
#[derive(Debug, Clone)]
pub(crate) struct Injected(HeaderMap);

impl Injected {
    /// Reads the settings.
    ///
    /// # Errors
    /// Names the header that cannot be sent.
    pub(crate) fn new(settings: &ProviderSettings) -> Result<Self, MalformedHeader> {
        let mut map = HeaderMap::new();
        for Header { name, value } in &settings.headers {
            let shown = || String::from_utf8_lossy(name).into_owned();
            let parsed =
                HeaderName::from_bytes(name).map_err(|_| MalformedHeader::Name(shown()))?;
            let is_framing = [header::HOST, header::CONTENT_LENGTH, header::EXPECT];
            let is_proxys = parsed.as_str().starts_with("proxy-");
            if is_hop_by_hop(parsed.as_str()) || is_proxys || is_framing.contains(&parsed) {
                return Err(MalformedHeader::Reserved(shown()));
            }
            if parsed == header::AUTHORIZATION && settings.secret.is_some() {
                return Err(MalformedHeader::TwoCredentials);
            }
            let mut value = HeaderValue::from_maybe_shared(value.clone())
                .map_err(|_| MalformedHeader::Value(shown()))?;
            value.set_sensitive(true);
            map.append(parsed, value);
        }
        if let Some(secret) = &settings.secret {
            let bearer = format!("Bearer {}", secret.expose());
            let mut value = HeaderValue::try_from(bearer).expect("a secret is printable ASCII");
            value.set_sensitive(true);
            map.insert(header::AUTHORIZATION, value);
        }
        Ok(Self(map))
    }

    /// Puts them into a request, in place of the request's own of the same names.
    pub(crate) fn add_to(&self, headers: &mut HeaderMap) {
        for name in self.0.keys() {
            headers.remove(name);
        }
        for (name, value) in &self.0 {
            headers.append(name, value.clone());
        }
    }
}

/// A configured header that cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MalformedHeader {
    /// Its name is not one.
    #[error("`{0}` in `headers` is not a header name")]
    Name(String),
    /// Its value holds a line end or another control character.
    #[error("`{0}` in `headers` has a value that cannot be sent: remove control characters")]
    Value(String),
    /// The connection sets it.
    #[error("`{0}` in `headers` is set by the connection itself: remove it")]
    Reserved(String),
    /// Two ways to prove the same thing.
    #[error("`authorization` in `headers` and `api_key` exclude each other: keep one")]
    TwoCredentials,
}

/// Returns the client's headers that the provider may see.
///
/// # Errors
/// A name or value that HTTP does not allow fails the call.
pub(crate) fn for_provider(headers: &[Header]) -> Result<HeaderMap, Failure> {
    let listed = listed_by_connection(headers);
    let mut map = HeaderMap::with_capacity(headers.len() + 4);
    for Header { name, value } in headers {
        let name = HeaderName::from_bytes(name).map_err(|_| malformed("name"))?;
        let value =
            HeaderValue::from_maybe_shared(value.clone()).map_err(|_| malformed("value"))?;
        if passes_to_provider(name.as_str()) && !listed.contains(&name) {
            map.append(name, value);
        }
    }
    Ok(map)
}

/// The secret that went out with a request, as far as it is told apart from ordinary text.
#[derive(Clone, Copy)]
pub(crate) struct Sent<'a>(Option<&'a [u8]>);

impl<'a> Sent<'a> {
    /// Shorter secrets are told only from whole values: they may occur anywhere.
    const LONG: usize = 8;

    pub(crate) fn new(secret: Option<&'a Secret>) -> Self {
        Self(secret.map(|secret| secret.expose().as_bytes()))
    }

    /// Says whether a value repeats it.
    fn is_in(self, value: &[u8]) -> bool {
        let Some(secret) = self.0 else { return false };
        match secret.len() {
            0 => false,
            long if long >= Self::LONG => value.windows(long).any(|part| part == secret),
            _ => value.strip_prefix(b"Bearer ").unwrap_or(value) == secret,
        }
    }
}

/// Returns the provider's headers that belong to its answer.
///
/// A length beside a transfer coding says nothing of the body (RFC 9112, 6.3) and goes: a client that
/// believed it would take a piece for the whole.
pub(crate) fn for_client(headers: &HeaderMap, sent: Sent<'_>) -> Vec<Header> {
    let listed: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| tokens(value.as_bytes()))
        .collect();
    let is_coded = headers.contains_key(header::TRANSFER_ENCODING);
    headers
        .iter()
        .filter(|(name, value)| {
            passes_to_client(name.as_str())
                && !listed.contains(name)
                && !sent.is_in(value.as_bytes())
        })
        .filter(|(name, _)| !(is_coded && *name == header::CONTENT_LENGTH))
        .map(|(name, value)| Header {
            name: name.as_str().to_owned().into(),
            value: value.as_bytes().to_vec().into(),
        })
        .collect()
}

fn listed_by_connection(headers: &[Header]) -> Vec<HeaderName> {
    headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case(b"connection"))
        .flat_map(|header| tokens(&header.value))
        .collect()
}

/// Reads the names of a comma-separated list; what is no name is skipped.
fn tokens(value: &[u8]) -> impl Iterator<Item = HeaderName> {
    value
        .split(|byte| *byte == b',')
        .filter_map(|token| HeaderName::from_bytes(token.trim_ascii()).ok())
}

fn malformed(what: &str) -> Failure {
    Failure::new(ErrorCode::InvalidRequest, format!("a request header has a malformed {what}"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use iop_types::AdapterType;

    use super::*;
    use crate::settings::Secret;

    fn headers(lines: &[(&str, &str)]) -> Vec<Header> {
        lines
            .iter()
            .map(|(name, value)| Header {
                name: Bytes::copy_from_slice(name.as_bytes()),
                value: Bytes::copy_from_slice(value.as_bytes()),
            })
            .collect()
    }

    fn names(map: &HeaderMap) -> Vec<&str> {
        map.keys().map(HeaderName::as_str).collect()
    }

    #[test]
    fn credentials_of_the_client_stay_here_however_they_are_spelled() {
        for name in ["authorization", "AUTHORIZATION", "X-Api-Key", "api-key", "Cookie"] {
            let map = for_provider(&headers(&[(name, "mine"), ("accept", "*/*")])).unwrap();
            assert_eq!(names(&map), ["accept"], "{name}");
        }
    }

    #[test]
    fn what_concerns_one_connection_is_not_relayed_in_either_direction() {
        let lines = [
            ("connection", "keep-alive, X-Hop, OpenAI-Beta"),
            ("keep-alive", "timeout=5"),
            ("x-hop", "1"),
            ("openai-beta", "1"),
            ("proxy-anything", "1"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("expect", "100-continue"),
            ("host", "edge"),
            ("content-length", "3"),
            ("x-other", "1"),
            ("anthropic-beta", "1"),
        ];
        let kept = for_provider(&headers(&lines)).unwrap();
        assert_eq!(names(&kept), ["anthropic-beta"]);

        let mut answer = HeaderMap::new();
        for (name, value) in lines {
            answer.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let names_of = |answer: &HeaderMap| -> Vec<String> {
            let relayed = for_client(answer, Sent(None));
            relayed.iter().map(|header| String::from_utf8_lossy(&header.name).into()).collect()
        };
        assert_eq!(names_of(&answer), ["expect", "host", "x-other", "anthropic-beta"]);

        // Beside a transfer coding the length was none; alone it is the body's.
        answer.remove(header::TRANSFER_ENCODING);
        assert!(names_of(&answer).contains(&"content-length".to_owned()));
    }

    fn settings(lines: &[(&str, &str)], secret: Option<&str>) -> ProviderSettings {
        let mut settings = ProviderSettings::new("lab".into(), AdapterType::OpenaiCompat);
        settings.headers = headers(lines);
        settings.secret = secret.map(|secret| Secret::new(secret).unwrap());
        settings
    }

    #[test]
    fn configured_headers_and_the_secret_replace_those_of_the_request() {
        let settings =
            settings(&[("user-agent", "home"), ("x-two", "1"), ("X-Two", "2")], Some("sk"));
        let mut map = for_provider(&headers(&[("user-agent", "client"), ("accept", "a")])).unwrap();
        Injected::new(&settings).unwrap().add_to(&mut map);
        assert_eq!(map.get_all("user-agent").iter().collect::<Vec<_>>(), ["home"]);
        assert_eq!(map.get_all("x-two").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(map["authorization"], "Bearer sk");
        assert_eq!(map["accept"], "a");
        assert!(!format!("{map:?}").contains("sk"), "credentials are not printed");
    }

    #[test]
    fn a_configured_header_that_cannot_be_sent_is_named() {
        fn fault(lines: &[(&str, &str)], secret: Option<&str>) -> MalformedHeader {
            Injected::new(&settings(lines, secret)).unwrap_err()
        }
        assert_eq!(fault(&[("x a", "1")], None), MalformedHeader::Name("x a".into()));
        assert_eq!(fault(&[("x-a", "1\n2")], None), MalformedHeader::Value("x-a".into()));
        for name in ["Host", "Content-Length", "Transfer-Encoding", "Connection", "Expect"] {
            assert_eq!(fault(&[(name, "1")], None), MalformedHeader::Reserved(name.into()));
        }
        let both = fault(&[("Authorization", "Basic x")], Some("sk"));
        assert_eq!(both, MalformedHeader::TwoCredentials);
    }

    #[test]
    fn a_header_that_repeats_the_credential_does_not_reach_a_client() {
        let mut answer = HeaderMap::new();
        for (name, value) in [
            ("x-debug", "sent Bearer sk-0123456789, got 401"),
            ("x-key", "sk-0123456789"),
            ("x-near", "sk-012345678"),
        ] {
            answer.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let kept = |secret: &str, answer: &HeaderMap| {
            let secret = Secret::new(secret).unwrap();
            for_client(answer, Sent::new(Some(&secret))).len()
        };
        assert_eq!(kept("sk-0123456789", &answer), 1);
        assert_eq!(kept("none", &answer), 3);
        // A short one is told from the whole value only: it may be part of anything.
        answer.insert("x-key", HeaderValue::from_static("Bearer 401"));
        assert_eq!(kept("401", &answer), 2);
    }

    #[test]
    fn repeated_headers_keep_all_their_values_in_order() {
        let map = for_provider(&headers(&[("accept", "1"), ("user-agent", "2"), ("accept", "3")]))
            .unwrap();
        let values: Vec<_> = map.get_all("accept").iter().collect();
        assert_eq!(values, ["1", "3"]);
    }

    #[test]
    fn a_header_that_would_break_the_framing_fails_the_call() {
        for line in [("x-a", "1\r\nx-b: 2"), ("x a", "1"), ("", "1")] {
            let failure = for_provider(&headers(&[line])).unwrap_err();
            assert_eq!(failure.code, ErrorCode::InvalidRequest);
        }
    }
}
