//! Which headers cross the Edge, in both directions: those of the tables in [`iop_types::header`].
//!
//! Framing is made anew on each side, and event streams are marked so that proxies pass them at once.

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue};
use iop_types::Header;
use iop_types::header::{passes_to_client, passes_to_provider};

/// Set on event streams, so that proxies in front of the Edge pass each event at once.
pub(crate) const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Picks the headers that a provider gets. `identity` asks for an answer that is not compressed,
/// because it will be looked into.
pub(crate) fn for_provider(client: &HeaderMap, identity: bool) -> Vec<Header> {
    let mut headers: Vec<_> = client
        .iter()
        .filter(|(name, _)| passes_to_provider(name.as_str()))
        .filter(|(name, _)| !(identity && *name == ACCEPT_ENCODING))
        .filter(|(name, _)| !is_named_by_connection(name, client))
        .map(|(name, value)| Header {
            name: static_or_copied(name),
            value: Bytes::copy_from_slice(value.as_bytes()),
        })
        .collect();
    if identity {
        headers.push(Header::from_static("accept-encoding", "identity"));
    }
    headers
}

/// Picks the headers of a provider's answer that the client gets.
///
/// A header that HTTP does not allow is dropped; the provider's HTTP client has refused such an
/// answer before.
pub(crate) fn for_client(provider: &[Header]) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(provider.len() + 4);
    for header in provider {
        let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(&header.name),
            HeaderValue::from_maybe_shared(header.value.clone()),
        ) else {
            continue;
        };
        if !passes_to_client(name.as_str()) {
            continue;
        }
        headers.append(name, value);
    }
    if is_event_stream(&headers) {
        headers.entry(ACCEL_BUFFERING).or_insert(HeaderValue::from_static("no"));
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, no-transform"));
    }
    headers
}

/// Says whether the headers announce server-sent events.
pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    media_type_is(headers, "text/event-stream")
}

/// Says whether the headers announce JSON.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    media_type_is(headers, "application/json")
}

fn media_type_is(headers: &HeaderMap, wanted: &str) -> bool {
    headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|value| {
        value.split(';').next().is_some_and(|media| media.trim().eq_ignore_ascii_case(wanted))
    })
}

fn is_named_by_connection(name: &HeaderName, headers: &HeaderMap) -> bool {
    headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok()).any(|value| {
        value.split(',').any(|listed| listed.trim().eq_ignore_ascii_case(name.as_str()))
    })
}

fn static_or_copied(name: &HeaderName) -> Bytes {
    // The usual names need no allocation.
    match name.as_str() {
        "accept" => Bytes::from_static(b"accept"),
        "content-type" => Bytes::from_static(b"content-type"),
        "user-agent" => Bytes::from_static(b"user-agent"),
        other => Bytes::copy_from_slice(other.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_LENGTH;

    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    fn text(headers: &[Header]) -> Vec<(String, String)> {
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        headers.iter().map(|header| (text(&header.name), text(&header.value))).collect()
    }

    #[test]
    fn nothing_of_the_hop_and_no_credential_of_the_client_reaches_a_provider() {
        let client = map(&[
            ("authorization", "Bearer edge-token"),
            ("cookie", "a=b"),
            ("x-api-key", "k"),
            ("api-key", "k"),
            ("proxy-authorization", "Basic x"),
            ("connection", "keep-alive"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("expect", "100-continue"),
            ("host", "127.0.0.1"),
            ("origin", "http://x"),
            ("openai-organization", "org"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-iop-model", "m"),
            ("x-custom", "1"),
            ("content-type", "multipart/form-data; boundary=x"),
            ("openai-beta", "assistants=v2"),
        ]);
        let kept =
            [("content-type", "multipart/form-data; boundary=x"), ("openai-beta", "assistants=v2")];
        assert_eq!(
            text(&for_provider(&client, false)),
            kept.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }

    #[test]
    fn a_header_that_the_client_ties_to_its_connection_stays_there_though_it_is_listed() {
        let client =
            map(&[("connection", "close, OpenAI-Beta"), ("openai-beta", "1"), ("accept", "*/*")]);
        assert_eq!(text(&for_provider(&client, false)), [("accept".to_owned(), "*/*".to_owned())]);
    }

    #[test]
    fn a_looked_into_answer_is_asked_for_uncompressed() {
        let client = map(&[("accept-encoding", "gzip, br")]);
        for (identity, told) in [(true, "identity"), (false, "gzip, br")] {
            let expected = [("accept-encoding".to_owned(), told.to_owned())];
            assert_eq!(text(&for_provider(&client, identity)), expected);
        }
    }

    #[test]
    fn an_answer_keeps_all_but_what_belongs_to_the_hop() {
        let provider = [
            Header::from_static("content-type", "application/json"),
            Header::from_static("content-length", "12"),
            Header::from_static("connection", "keep-alive"),
            Header::from_static("keep-alive", "timeout=5"),
            Header::from_static("transfer-encoding", "chunked"),
            Header::from_static("access-control-allow-origin", "*"),
            Header::from_static("set-cookie", "__cf_bm=1; Domain=.example"),
            Header::from_static("alt-svc", "h3=\":443\""),
            Header::from_static("server", "uvicorn"),
            Header::from_static("www-authenticate", "Bearer"),
            Header::from_static("x-ratelimit-remaining-requests", "0"),
        ];
        let kept = for_client(&provider);
        assert_eq!(kept.len(), 3);
        assert_eq!(kept[CONTENT_LENGTH], "12");
    }

    #[test]
    fn event_streams_tell_proxies_not_to_hold_them_unless_the_provider_did() {
        let plain = for_client(&[Header::from_static("content-type", "Text/Event-Stream; x=y")]);
        assert_eq!(plain[ACCEL_BUFFERING], "no");
        assert_eq!(plain[CACHE_CONTROL], "no-cache, no-transform");
        let own = for_client(&[
            Header::from_static("content-type", "text/event-stream"),
            Header::from_static("cache-control", "no-store"),
        ]);
        assert_eq!(own[CACHE_CONTROL], "no-store");
        let json = for_client(&[Header::from_static("content-type", "application/json")]);
        assert!(!json.contains_key(CACHE_CONTROL));
    }

    #[test]
    fn repeated_headers_of_an_answer_stay_repeated() {
        let provider = [Header::from_static("x-a", "1"), Header::from_static("x-a", "2")];
        assert_eq!(for_client(&provider).get_all("x-a").iter().count(), 2);
    }
}
