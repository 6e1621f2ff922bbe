//! Which Host and Origin a listener answers, and what CORS tells a browser.
//!
//! A page in a browser on this machine can reach loopback ports. Two headers give it away: a Host
//! that is a foreign name means that the name was re-bound to this address, and an Origin means that
//! a page asks. Programs that are no browsers send a Host of ours and no Origin.

use std::net::IpAddr;

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HOST, ORIGIN, VARY,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};

/// The rules of one listener.
#[derive(Debug, Clone, Default)]
pub(crate) struct Guard {
    hosts: Vec<String>,
    origins: Vec<String>,
}

/// Why a request is not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// HTTP/1.1 demands a Host.
    #[error("the request has no Host header")]
    NoHost,
    /// Two of these contradict each other, or one of them is hidden from somebody in between.
    #[error("the request has more than one {0} header: send it once")]
    Several(&'static str),
    /// The Host is not a name of this Edge.
    #[error(
        "host `{0}` is not a name of this edge: use 127.0.0.1 or localhost, or add the name to \
         `hosts` in the edge's file"
    )]
    Host(String),
    /// A page of this origin may not ask.
    #[error("origin `{0}` is not allowed: add it to `cors` in the edge's file to let its pages in")]
    Origin(String),
}

/// An Origin that was let in; its answers carry the CORS headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Allowed(Option<HeaderValue>);

impl Guard {
    /// Answers to `hosts` beside the loopback names, and to pages of `origins`; an origin of `*`
    /// lets every page in.
    pub(crate) fn new(hosts: &[String], origins: &[String]) -> Self {
        Self {
            hosts: hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
            origins: origins.to_vec(),
        }
    }

    /// Judges one request.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub(crate) fn check(
        &self,
        version: Version,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Allowed, Refusal> {
        let authority = self.check_host(version, uri, headers)?;
        let Some(origin) = single(headers, &ORIGIN, "Origin")? else { return Ok(Allowed(None)) };
        let text = origin.to_str().unwrap_or("(not text)");
        if self.origins.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(text)) {
            return Ok(Allowed(Some(origin.clone())));
        }
        // A page that this very listener served needs no CORS headers.
        if authority.is_some_and(|host| is_same_origin(text, &host)) {
            return Ok(Allowed(None));
        }
        Err(Refusal::Origin(shown(text)))
    }

    fn check_host(
        &self,
        version: Version,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Option<Authority>, Refusal> {
        // HTTP/2 carries it in the request's own authority, as does an absolute-form target.
        let from_header = match single(headers, &HOST, "Host")? {
            None => None,
            Some(value) => match value.as_bytes().try_into() {
                Ok(authority) => Some(authority),
                Err(_) => {
                    return Err(Refusal::Host(shown(value.to_str().unwrap_or("(not text)"))));
                }
            },
        };
        let mut any = None;
        for authority in [uri.authority().cloned(), from_header].into_iter().flatten() {
            if !self.is_ours(authority.host()) {
                return Err(Refusal::Host(shown(authority.as_str())));
            }
            any = Some(authority);
        }
        match any {
            None if version >= Version::HTTP_11 => Err(Refusal::NoHost),
            any => Ok(any),
        }
    }

    fn is_ours(&self, host: &str) -> bool {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if let Ok(address) = bare.parse::<IpAddr>()
            && address.to_canonical().is_loopback()
        {
            return true;
        }
        let bare = bare.strip_suffix('.').unwrap_or(bare).to_ascii_lowercase();
        bare == "localhost" || bare.ends_with(".localhost") || self.hosts.contains(&bare)
    }
}

impl Allowed {
    /// Adds what lets the page read the answer.
    pub(crate) fn mark(&self, headers: &mut HeaderMap) {
        let Some(origin) = &self.0 else { return };
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.insert(
            ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static("x-request-id, x-session-id, retry-after, x-should-retry"),
        );
        headers.append(VARY, HeaderValue::from_static("origin"));
    }

    /// Says whether this is the question that a browser asks before the request itself, from a page
    /// that is let in; then `answer` gets what it wants to know.
    pub(crate) fn preflight(
        &self,
        method: &Method,
        asked: &HeaderMap,
        answer: &mut HeaderMap,
    ) -> bool {
        let is_preflight = method == Method::OPTIONS
            && self.0.is_some()
            && asked.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        if is_preflight {
            answer.insert(
                ACCESS_CONTROL_ALLOW_METHODS,
                HeaderValue::from_static("GET, HEAD, POST, OPTIONS"),
            );
            if let Some(names) = asked.get(ACCESS_CONTROL_REQUEST_HEADERS) {
                answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
            }
            // Browsers cap it at 10 min to 24 h; an hour spares a question per request.
            answer.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("3600"));
            answer.append(VARY, HeaderValue::from_static("access-control-request-headers"));
        }
        is_preflight
    }
}

/// Reads a header that a request may carry once.
fn single<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
    shown: &'static str,
) -> Result<Option<&'a HeaderValue>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    match values.next() {
        None => Ok(first),
        Some(_) => Err(Refusal::Several(shown)),
    }
}

/// Plain HTTP is what this listener speaks.
fn is_same_origin(origin: &str, authority: &Authority) -> bool {
    origin.strip_prefix("http://").is_some_and(|host| host.eq_ignore_ascii_case(authority.as_str()))
}

/// Cuts what a stranger sent down to what fits into a message.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(host: Option<&'static str>, origin: Option<&'static str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(host) = host {
            headers.insert(HOST, HeaderValue::from_static(host));
        }
        if let Some(origin) = origin {
            headers.insert(ORIGIN, HeaderValue::from_static(origin));
        }
        headers
    }

    fn check(guard: &Guard, headers: &HeaderMap) -> Result<Allowed, Refusal> {
        guard.check(Version::HTTP_11, &Uri::from_static("/v1/models"), headers)
    }

    #[test]
    fn loopback_names_are_ours_in_any_spelling() {
        for host in [
            "127.0.0.1:7400",
            "127.8.9.1",
            "localhost",
            "LocalHost:1",
            "localhost.:80",
            "app.localhost",
            "[::1]:7400",
            "[::ffff:127.0.0.1]",
        ] {
            let verdict = check(&Guard::default(), &request(Some(host), None));
            assert_eq!(verdict, Ok(Allowed(None)), "{host}");
        }
    }

    #[test]
    fn a_rebound_name_is_refused_and_named() {
        for host in ["evil.example", "127.0.0.1.evil.example", "192.168.0.4:7400", "localhost.evil"]
        {
            let verdict = check(&Guard::default(), &request(Some(host), None));
            assert_eq!(verdict, Err(Refusal::Host(host.to_owned())));
        }
        let guard = Guard::new(&["Edge.Home".to_owned()], &[]);
        assert!(check(&guard, &request(Some("edge.home:7400"), None)).is_ok());
    }

    #[test]
    fn the_authority_of_http_2_counts_as_host() {
        let guard = Guard::default();
        let foreign = Uri::from_static("http://evil.example/v1/models");
        assert_eq!(
            guard.check(Version::HTTP_2, &foreign, &request(None, None)),
            Err(Refusal::Host("evil.example".to_owned()))
        );
        // Both are judged: neither hides the other.
        let ours = Uri::from_static("http://127.0.0.1:7400/v1/models");
        assert!(guard.check(Version::HTTP_2, &ours, &request(None, None)).is_ok());
        assert!(
            guard.check(Version::HTTP_11, &ours, &request(Some("evil.example"), None)).is_err()
        );
    }

    #[test]
    fn only_http_1_0_may_come_without_a_host() {
        let guard = Guard::default();
        let path = Uri::from_static("/health");
        assert!(guard.check(Version::HTTP_10, &path, &HeaderMap::new()).is_ok());
        assert_eq!(guard.check(Version::HTTP_11, &path, &HeaderMap::new()), Err(Refusal::NoHost));
    }

    #[test]
    fn two_hosts_or_two_origins_are_a_malformed_request_even_when_they_agree() {
        let guard = Guard::new(&[], &["*".to_owned()]);
        for second in ["localhost", "evil.example"] {
            let mut twice = request(Some("localhost"), None);
            twice.append(HOST, HeaderValue::from_static(second));
            assert_eq!(check(&guard, &twice), Err(Refusal::Several("Host")));
        }
        let mut twice = request(Some("localhost"), Some("http://localhost"));
        twice.append(ORIGIN, HeaderValue::from_static("http://localhost"));
        assert_eq!(check(&guard, &twice), Err(Refusal::Several("Origin")));
    }

    #[test]
    fn a_foreign_page_is_refused_unless_cors_names_it() {
        let headers = request(Some("127.0.0.1:7400"), Some("https://app.example"));
        assert_eq!(
            check(&Guard::default(), &headers),
            Err(Refusal::Origin("https://app.example".to_owned()))
        );
        let guard = Guard::new(&[], &["https://app.example".to_owned()]);
        let allowed = check(&guard, &headers).unwrap();
        let mut answer = HeaderMap::new();
        allowed.mark(&mut answer);
        assert_eq!(answer[ACCESS_CONTROL_ALLOW_ORIGIN], "https://app.example");
        assert_eq!(answer[VARY], "origin");
        let null = request(Some("127.0.0.1:7400"), Some("null"));
        assert!(check(&guard, &null).is_err());
    }

    #[test]
    fn a_page_of_this_listener_may_ask_and_gets_no_cors_headers() {
        let same = request(Some("localhost:7400"), Some("http://localhost:7400"));
        assert_eq!(check(&Guard::default(), &same), Ok(Allowed(None)));
        let other_port = request(Some("localhost:7400"), Some("http://localhost:3000"));
        assert!(check(&Guard::default(), &other_port).is_err());
    }

    #[test]
    fn a_preflight_gets_the_headers_it_asked_for_only_where_cors_is_on() {
        let mut asked = request(Some("localhost"), Some("https://app.example"));
        asked.insert(ACCESS_CONTROL_REQUEST_METHOD, HeaderValue::from_static("POST"));
        asked.insert(
            ACCESS_CONTROL_REQUEST_HEADERS,
            HeaderValue::from_static("authorization,content-type,x-stainless-os"),
        );
        let on = check(&Guard::new(&[], &["https://app.example".to_owned()]), &asked).unwrap();
        let mut answer = HeaderMap::new();
        assert!(on.preflight(&Method::OPTIONS, &asked, &mut answer));
        assert_eq!(
            answer[ACCESS_CONTROL_ALLOW_HEADERS],
            "authorization,content-type,x-stainless-os"
        );
        assert!(!on.preflight(&Method::POST, &asked, &mut HeaderMap::new()));
        let mut answer = HeaderMap::new();
        assert!(!Allowed(None).preflight(&Method::OPTIONS, &asked, &mut answer));
        assert!(answer.is_empty());
    }
}
