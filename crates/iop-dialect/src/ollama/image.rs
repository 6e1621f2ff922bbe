//! Images: URLs in OpenAI's objects, bare base64 in Ollama's.

use super::error::RequestError;
use super::object::{Writing, items, quoted, text};

/// Reads `images`, Ollama's own member, as the list of base64 that it is; a data URL in it gives its
/// own. A client that knows the member gets the same answer to a remote address as any other.
pub(super) fn images(at: &str, raw: &str) -> Result<String, RequestError> {
    let mut written = Writing::array();
    for (index, image) in items(at, raw)?.iter().enumerate() {
        let at = format!("{at}[{index}]");
        let image = text(at.clone(), image.get())?;
        let base64 = if is_base64(&image) { &image } else { base64_of(&at, &image)? };
        written.push(&quoted(base64));
    }
    Ok(written.finish())
}

/// Takes the base64 out of a data URL.
///
/// Ollama fetches nothing, and neither does this side: a remote image is the client's to fetch.
pub(super) fn base64_of<'a>(at: &str, url: &'a str) -> Result<&'a str, RequestError> {
    let refuse = |problem: &str| Err(RequestError::at(at, problem));
    let is_data = url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"));
    if !is_data {
        return refuse(
            "is a remote address, which Ollama does not fetch: send the image itself as a data URL \
             with base64",
        );
    }
    let Some((kind, data)) = url.split_once(',') else {
        return refuse("is a data URL without data: send data:image/png;base64,…");
    };
    if !kind.to_ascii_lowercase().ends_with(";base64") {
        return refuse("is a data URL without base64: send data:image/png;base64,…");
    }
    if !is_base64(data) {
        return refuse("holds no base64 of the standard alphabet with its padding");
    }
    Ok(data)
}

/// Says whether Go's standard decoder takes it.
fn is_base64(data: &str) -> bool {
    let digits = data.trim_end_matches('=');
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    let padding = data.len() - digits.len();
    !digits.is_empty()
        && padding <= 2
        && data.len().is_multiple_of(4)
        && digits.bytes().all(is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fc_064_a_data_url_gives_its_bare_base64() {
        for url in [
            "data:image/png;base64,iVBORw0KGgo=",
            "data:;base64,iVBORw0KGgo=",
            "DATA:image/svg+xml;charset=utf-8;BASE64,iVBORw0KGgo=",
        ] {
            assert_eq!(base64_of("x", url), Ok("iVBORw0KGgo="));
        }
    }

    #[test]
    fn what_holds_no_image_is_refused_by_name() {
        for (url, told) in [
            ("https://example.org/cat.png", "remote address"),
            ("file:///etc/passwd", "remote address"),
            ("iVBORw0KGgo=", "remote address"),
            ("data:image/png;base64", "without data"),
            ("data:image/svg+xml,<svg/>", "without base64"),
            ("data:image/png;base64,", "holds no base64"),
            ("data:image/png;base64,iVBOR", "holds no base64"),
            ("data:image/png;base64,iVBORw0KGg-_", "holds no base64"),
            ("däta:", "remote address"),
        ] {
            let error = base64_of("messages[0].content[1].image_url.url", url).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(told), "{error}");
            assert!(error.starts_with("`messages[0].content[1].image_url.url`"), "{error}");
        }
    }
}
