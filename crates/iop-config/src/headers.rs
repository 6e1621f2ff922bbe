//! Which headers may be configured.

/// Parts of a name that mark a secret.
const SECRET_PARTS: [&str; 8] =
    ["authorization", "api-key", "apikey", "api_key", "token", "secret", "password", "cookie"];

/// Beginnings of a value that mark a secret, in lower case: authentication schemes, and the key
/// prefixes of well-known services.
const SECRET_VALUES: [&str; 9] =
    ["bearer ", "basic ", "digest ", "sk-", "xai-", "hf_", "gsk_", "ghp_", "aiza"];

/// Headers that the Node's own HTTP client owns.
const OWNED: [&str; 12] = [
    "connection",
    "content-encoding",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "accept-encoding",
];

/// Says what is wrong with a configured header. The value is never repeated.
pub(crate) fn objection(name: &str, value: &str) -> Option<&'static str> {
    let lower = name.to_ascii_lowercase();
    let lower_value = value.trim_start().to_ascii_lowercase();
    if !is_token(name) {
        Some("is no header name: write letters, digits and hyphens")
    } else if SECRET_PARTS.iter().any(|part| lower.contains(part))
        || SECRET_VALUES.iter().any(|start| lower_value.starts_with(start))
    {
        Some(
            "looks like a credential, and a secret is never written inline: write \
             `api_key: { node_secret: NAME }` and put the secret into the Node's own file",
        )
    } else if OWNED.contains(&lower.as_str()) {
        Some("is set by the Node itself and cannot be configured: remove it")
    } else if !value.bytes().all(|byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f)) {
        Some("has a value with control characters: write one line of text")
    } else {
        None
    }
}

/// Says why a header cannot carry a credential.
pub(crate) fn no_carrier(name: &str) -> Option<&'static str> {
    if !is_token(name) {
        Some("is no header name: write letters, digits and hyphens")
    } else if OWNED.contains(&name.to_ascii_lowercase().as_str()) {
        Some("is set by the Node itself and can carry no key: name the server's own header")
    } else {
        None
    }
}

/// Says whether a text is a token as HTTP has it: a header's name, or one word of its value.
pub(crate) fn is_token(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_headers_pass() {
        for (name, value) in [("X-Title", "home"), ("http-referer", "http://localhost"), ("a", "")]
        {
            assert_eq!(objection(name, value), None, "{name}");
        }
    }

    #[test]
    fn secrets_are_recognised_by_name_and_by_value() {
        for (name, value) in [
            ("Authorization", "x"),
            ("proxy-authorization", "x"),
            ("X-Api-Key", "x"),
            ("api-key", "x"),
            ("x-goog-api-key", "x"),
            ("Cookie", "x"),
            ("X-Auth-Token", "x"),
            ("x-other", "Bearer abc"),
            ("x-other", " sk-abc"),
        ] {
            let text = objection(name, value).expect(name);
            assert!(text.contains("never written inline"), "{name}");
        }
    }

    #[test]
    fn headers_that_frame_a_message_are_refused() {
        for name in ["Host", "content-length", "Transfer-Encoding", "connection"] {
            assert!(
                objection(name, "x").is_some_and(|text| text.contains("Node itself")),
                "{name}"
            );
        }
        assert!(objection("x y", "x").is_some());
        assert!(objection("x", "a\r\nb").is_some());
    }
}
