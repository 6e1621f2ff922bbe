//! One HTTP/1.1 request as the provider read it.

use bytes::Bytes;
use serde_json::Value;

/// Method, target, headers in their order, and the body without its framing.
#[derive(Clone, Debug)]
pub struct Request {
    /// The method.
    pub method: String,
    /// Path and query as they came.
    pub target: String,
    /// Header names (as they came) and values, in order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
}

impl Request {
    /// The target without its query.
    #[must_use]
    pub fn path(&self) -> &str {
        self.target.split_once('?').map_or(self.target.as_str(), |(path, _)| path)
    }

    /// The first header of this name, in any case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(candidate, _)| candidate.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The body as JSON, `null` where it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The `model` of a JSON body, empty where there is none.
    #[must_use]
    pub fn model(&self) -> String {
        self.json()["model"].as_str().unwrap_or_default().to_owned()
    }

    /// The text of the last message of a chat request, empty where there is none.
    #[must_use]
    pub fn last_message(&self) -> String {
        let body = self.json();
        let last = body["messages"].as_array().and_then(|messages| messages.last());
        last.and_then(|message| message["content"].as_str()).unwrap_or_default().to_owned()
    }

    /// Whether IOP asks this by itself whenever it likes.
    pub(super) fn is_model_list(&self) -> bool {
        self.method == "GET" && matches!(self.path(), "/v1/models" | "/api/tags" | "/api/ps")
    }

    /// Reads a head; `Ok(None)` means that it is not complete yet.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, httparse::Error> {
        let mut headers = [httparse::EMPTY_HEADER; 128];
        let mut head = httparse::Request::new(&mut headers);
        let length = match head.parse(bytes)? {
            httparse::Status::Complete(length) => length,
            httparse::Status::Partial => return Ok(None),
        };
        let request = Self {
            method: head.method.unwrap_or_default().to_owned(),
            target: head.path.unwrap_or_default().to_owned(),
            headers: head
                .headers
                .iter()
                .map(|header| {
                    let value = String::from_utf8_lossy(header.value).into_owned();
                    (header.name.to_owned(), value)
                })
                .collect(),
            body: Bytes::new(),
        };
        Ok(Some((request, length)))
    }
}
