//! How the command line asks an Edge: one plain HTTP request over a connection of its own.

use std::fmt::{self, Write as _};
use std::io;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

/// Where an Edge listens, as typed by a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base {
    host: String,
    port: u16,
    asked_as: &'static str,
}

impl Base {
    /// Reads `http://HOST[:PORT]`; `asked_as` is the flag that it came from.
    ///
    /// # Errors
    /// Names the flag and what it should look like.
    pub(crate) fn parse(url: &str, asked_as: &'static str) -> Result<Self, AskError> {
        let malformed = || AskError::Malformed { asked_as, url: url.to_owned() };
        let uri: http::Uri = url.parse().map_err(|_| malformed())?;
        let is_plain =
            uri.scheme_str() == Some("http") && matches!(uri.path(), "" | "/" | "/v1" | "/v1/");
        let host = uri.host().filter(|host| is_plain && !host.is_empty()).ok_or_else(malformed)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { host, port: uri.port_u16().unwrap_or(80), asked_as })
    }

    /// Asks for a JSON document.
    ///
    /// # Errors
    /// Nothing answered, or the answer was an error, or not what this version understands.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, AskError> {
        let body = self.get_bytes(path).await?;
        serde_json::from_slice(&body).map_err(|source| AskError::Unreadable { source })
    }

    /// Asks for a document as it is.
    ///
    /// # Errors
    /// Nothing answered, or the answer was an error.
    pub(crate) async fn get_bytes(&self, path: &str) -> Result<Bytes, AskError> {
        let response = self.send(Method::GET, path, Bytes::new()).await?;
        self.collect(response).await
    }

    /// Posts JSON and returns the response once its head is there.
    ///
    /// # Errors
    /// Nothing answered, or the answer was an error.
    pub(crate) async fn post(
        &self,
        path: &str,
        body: Vec<u8>,
    ) -> Result<http::Response<Incoming>, AskError> {
        let response = self.send(Method::POST, path, body.into()).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = self.collect_any(response).await?;
        Err(AskError::refused(status, &body))
    }

    /// Posts nothing and reads the JSON that comes back.
    ///
    /// # Errors
    /// Nothing answered, or the answer was an error, or not what this version understands.
    pub(crate) async fn post_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, AskError> {
        let response = self.post(path, Vec::new()).await?;
        let body = self.collect(response).await?;
        serde_json::from_slice(&body).map_err(|source| AskError::Unreadable { source })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<http::Response<Incoming>, AskError> {
        let socket = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(|source| AskError::Connect { base: self.clone(), source })?;
        let lost = |source| AskError::Lost { base: self.clone(), source };
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.map_err(lost)?;
        // Ends by itself when the response was read or dropped; shutdown need not wait for it.
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, format!("{}:{}", self.bracketed(), self.port))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|_| AskError::Malformed { asked_as: "path", url: path.to_owned() })?;
        sender.send_request(request).await.map_err(lost)
    }

    async fn collect(&self, response: http::Response<Incoming>) -> Result<Bytes, AskError> {
        let status = response.status();
        let body = self.collect_any(response).await?;
        if status.is_success() { Ok(body) } else { Err(AskError::refused(status, &body)) }
    }

    async fn collect_any(&self, response: http::Response<Incoming>) -> Result<Bytes, AskError> {
        let body = response.into_body().collect().await;
        let body = body.map_err(|source| AskError::Lost { base: self.clone(), source })?;
        Ok(body.to_bytes())
    }

    fn bracketed(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.bracketed(), self.port)
    }
}

/// Why an Edge could not be asked, with what to do about it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// The address cannot be read.
    #[error("{asked_as} `{url}` is not an address of an edge: write it like http://127.0.0.1:7402")]
    Malformed {
        /// Where it was given.
        asked_as: &'static str,
        /// What was given.
        url: String,
    },
    /// Nothing answers there.
    #[error("no edge answers at {base}: start one with `iop up`, or name another with {}", base.asked_as)]
    Connect {
        /// Where it should be.
        base: Base,
        /// What the operating system says.
        #[source]
        source: io::Error,
    },
    /// The connection broke.
    #[error("the edge at {base} broke off")]
    Lost {
        /// Where it is.
        base: Base,
        /// How it broke.
        #[source]
        source: hyper::Error,
    },
    /// The Edge answered with an error.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        status: StatusCode,
        /// The Edge's own words.
        message: String,
    },
    /// The answer is not what this version understands.
    #[error("the edge's answer cannot be read: is it of the same version as this command?")]
    Unreadable {
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

impl AskError {
    fn refused(status: StatusCode, body: &[u8]) -> Self {
        let mut message = words_of(body).unwrap_or_else(|| {
            format!("what answers there is no edge of this version, or not that listener of it ({status})")
        });
        if message.contains("this is the clients' listener") {
            message.push_str("; --admin is usually http://127.0.0.1:7402");
        }
        Self::Refused { status, message }
    }
}

/// Reads an error object of the Edge; `None` where the text is something else.
pub(crate) fn words_of(body: &[u8]) -> Option<String> {
    let body: serde_json::Value = serde_json::from_slice(body).ok()?;
    let error = &body["error"];
    let message = error["message"].as_str()?;
    Some(match error["code"].as_str() {
        Some(code) => format!("{code}: {message}"),
        None => message.to_owned(),
    })
}

/// Encodes what may not stand in a query or path as it is.
pub(crate) fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_slashes_and_blanks_travel_in_a_query() {
        assert_eq!(encoded("org/m 7b:q4&x"), "org%2Fm%207b:q4%26x");
    }

    #[test]
    fn an_address_is_a_plain_http_url_with_or_without_v1() {
        for url in ["http://127.0.0.1:7402", "http://127.0.0.1:7402/", "http://127.0.0.1:7402/v1"] {
            assert_eq!(Base::parse(url, "--admin").unwrap().to_string(), "http://127.0.0.1:7402");
        }
        assert_eq!(
            Base::parse("http://[::1]:7402", "--admin").unwrap().to_string(),
            "http://[::1]:7402"
        );
    }

    #[test]
    fn a_malformed_address_names_the_flag_and_a_good_one() {
        for url in ["127.0.0.1:7402", "https://127.0.0.1:7402", "", "http://", "http://h/other"] {
            let error = Base::parse(url, "--admin").unwrap_err().to_string();
            assert!(
                error.contains("--admin") && error.contains("http://127.0.0.1:7402"),
                "{error}"
            );
        }
    }
}
