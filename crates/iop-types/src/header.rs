//! Which headers cross between a client and a provider: one table for each direction.
//!
//! Towards a provider a list says what passes, because what nobody thought of may be a credential, or a
//! word that the server behind trusts. Towards a client a list says what does not, because what nobody
//! thought of is the provider's answer, and limits, costs and ids of many services are in it. Edge and
//! Node hold both: neither relies on the other.
//!
//! Names are in lower case, as [`Header`](crate::Header) has them.

/// What a provider is told of a client's request.
///
/// Its length and `host` are written by the Node, and so are the provider's own credential and its
/// configured `headers`, which is the way to send anything else. `accept-encoding` is `identity` wherever
/// the answer is looked into; what is only passed on (`usage: observed`) comes as the client wants it.
pub const TO_PROVIDER: [&str; 10] = [
    "accept",
    "accept-encoding",
    "anthropic-beta",
    "anthropic-version",
    "content-type",
    "idempotency-key",
    "openai-beta",
    "traceparent",
    "tracestate",
    "user-agent",
];

/// What belongs to one connection (RFC 9110, 7.6.1), and what old proxies made of it. Names that a
/// `connection` header lists belong to it as well.
pub const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What a provider says of its own host, software and clients. A browser or an HTTP library would take
/// it for this Edge's: cookies, other ways to reach it, whom it lets in and how.
pub const ABOUT_ITS_HOST: [&str; 8] = [
    "alt-svc",
    "clear-site-data",
    "server",
    "set-cookie",
    "set-cookie2",
    "strict-transport-security",
    "via",
    "www-authenticate",
];

/// Beginnings of names that the same holds for; `x-iop-` is ours.
pub const ABOUT_ITS_HOST_BEGIN: [&str; 3] = ["access-control-", "proxy-", "x-iop-"];

/// Says whether a provider may see this header of a client, if no `connection` header lists it.
pub fn passes_to_provider(name: &str) -> bool {
    TO_PROVIDER.binary_search(&name).is_ok()
}

/// Says whether a header belongs to one connection.
pub fn is_hop_by_hop(name: &str) -> bool {
    HOP_BY_HOP.binary_search(&name).is_ok()
}

/// Says whether a client may see this header of a provider, if no `connection` header lists it.
pub fn passes_to_client(name: &str) -> bool {
    !is_hop_by_hop(name)
        && ABOUT_ITS_HOST.binary_search(&name).is_err()
        && !ABOUT_ITS_HOST_BEGIN.iter().any(|begin| name.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted_and_in_lower_case_as_they_are_searched() {
        for table in [&TO_PROVIDER[..], &HOP_BY_HOP, &ABOUT_ITS_HOST] {
            assert!(table.is_sorted(), "{table:?}");
            assert!(table.iter().all(|name| *name == name.to_ascii_lowercase()));
        }
    }

    #[test]
    fn no_credential_and_nothing_about_the_way_here_passes_to_a_provider() {
        for name in [
            "authorization",
            "x-api-key",
            "api-key",
            "x-goog-api-key",
            "cookie",
            "x-amz-security-token",
            "openai-organization",
            "openai-project",
            "forwarded",
            "x-forwarded-for",
            "x-real-ip",
            "x-iop-model",
            "host",
            "content-length",
            "x-stainless-os",
        ] {
            assert!(!passes_to_provider(name), "{name}");
        }
        assert!(passes_to_provider("openai-beta"));
    }

    #[test]
    fn limits_and_ids_pass_to_a_client_and_what_is_of_the_providers_host_does_not() {
        for name in [
            "content-type",
            "content-length",
            "retry-after",
            "x-ratelimit-remaining-requests",
            "anthropic-ratelimit-tokens-remaining",
            "openai-processing-ms",
            "x-request-id",
            "location",
            "date",
        ] {
            assert!(passes_to_client(name), "{name}");
        }
        for name in ["set-cookie", "server", "www-authenticate", "proxy-authenticate", "x-iop-a"] {
            assert!(!passes_to_client(name), "{name}");
        }
    }
}
