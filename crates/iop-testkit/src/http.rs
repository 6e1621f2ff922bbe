//! A raw HTTP/1.1 client: it sends the bytes it is given and reads an answer piece by piece.
//!
//! It is what a test needs to misbehave precisely: half a head, a body that stalls, a FIN in the
//! middle, a reset, pipelined requests, a reader that stops reading.

use crate::PATIENCE;
use crate::framing::Framing;
use bytes::{Bytes, BytesMut};
use serde_json::Value;
use socket2::SockRef;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// One connection of the raw client.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    buffer: BytesMut,
    framing: Framing,
    events: BytesMut,
    patience: Duration,
}

/// The head of an answer.
#[derive(Clone, Debug)]
pub struct Head {
    /// The status code.
    pub status: u16,
    /// Header names (as they came) and values, in order.
    pub headers: Vec<(String, String)>,
}

/// Why an answer could not be read.
#[derive(Debug)]
pub enum Error {
    /// The socket failed; a reset is [`io::ErrorKind::ConnectionReset`].
    Io(io::Error),
    /// The connection ended before the answer did.
    Truncated,
    /// The answer breaks HTTP/1.1.
    Malformed(String),
    /// Nothing came within the client's patience.
    Silent(Duration),
}

impl Client {
    /// Connects to this address.
    ///
    /// # Errors
    /// Fails as the connect does.
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::over(TcpStream::connect(address).await?)
    }

    /// Connects with a receive buffer of about this size, for a reader that is to fall behind soon.
    ///
    /// # Errors
    /// Fails as the connect does.
    pub async fn connect_with_small_buffer(address: SocketAddr, bytes: u32) -> io::Result<Self> {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.set_recv_buffer_size(bytes)?;
        Self::over(socket.connect(address).await?)
    }

    fn over(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            buffer: BytesMut::new(),
            framing: Framing::Done,
            events: BytesMut::new(),
            patience: PATIENCE,
        })
    }

    /// Sets how long a read waits for the next byte (default [`PATIENCE`]).
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// This end's address.
    ///
    /// # Panics
    /// Panics when the socket has none.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.stream.local_addr().expect("a connected socket has an address")
    }

    /// Takes one byte off the socket, for a reader that is hardly one; later reads begin with it.
    ///
    /// # Errors
    /// Fails when the connection has ended, or nothing comes.
    pub async fn trickle(&mut self) -> Result<(), Error> {
        let byte = tokio::time::timeout(self.patience, self.stream.read_u8()).await;
        let byte = byte.map_err(|_| Error::Silent(self.patience))?.map_err(Error::Io)?;
        self.buffer.extend_from_slice(&[byte]);
        Ok(())
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// Fails as the write does.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref()).await
    }

    /// Sends a request with `host`, these headers and, where there is a body, its length.
    ///
    /// # Errors
    /// Fails as the write does.
    pub async fn request(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> io::Result<()> {
        let body = body.as_ref();
        let host = self.stream.peer_addr()?;
        let mut head = format!("{method} {target} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            let _ = write!(head, "host: {host}\r\n");
        }
        for (name, value) in headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        if !body.is_empty() {
            let _ = write!(head, "content-length: {}\r\n", body.len());
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        self.send(bytes).await
    }

    /// Posts JSON.
    ///
    /// # Errors
    /// Fails as the write does.
    pub async fn post(&mut self, target: &str, body: &Value) -> io::Result<()> {
        let headers = [("content-type", "application/json")];
        self.request("POST", target, &headers, body.to_string()).await
    }

    /// Reads the head of the next answer; interim answers (1xx) are passed over.
    ///
    /// # Errors
    /// Fails when the connection ends, fails, is silent or does not speak HTTP/1.1.
    pub async fn head(&mut self) -> Result<Head, Error> {
        loop {
            if let Some((head, length)) = parse_head(&self.buffer)? {
                let _ = self.buffer.split_to(length);
                if (100..200).contains(&head.status) {
                    continue;
                }
                self.framing = match head.status {
                    204 | 304 => Framing::Done,
                    _ => Framing::of(&head.headers, Framing::ToEnd)?,
                };
                self.events.clear();
                return Ok(head);
            }
            if self.fill().await? == 0 {
                return Err(Error::Truncated);
            }
        }
    }

    /// Reads the next piece of the body as it comes; `None` is its clean end.
    ///
    /// # Errors
    /// Fails when the connection ends or fails before the body does.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            if let Some(piece) = self.framing.take(&mut self.buffer)? {
                return Ok(Some(piece));
            }
            if self.framing == Framing::Done {
                return Ok(None);
            }
            if self.fill().await? == 0 {
                return match self.framing {
                    Framing::ToEnd | Framing::Done => {
                        self.framing = Framing::Done;
                        Ok(None)
                    }
                    Framing::Sized(_) | Framing::Chunked(_) => Err(Error::Truncated),
                };
            }
        }
    }

    /// Reads the rest of the body.
    ///
    /// # Errors
    /// As [`piece`](Self::piece); use [`body_and_end`](Self::body_and_end) to keep what came before.
    pub async fn body(&mut self) -> Result<Bytes, Error> {
        let (body, end) = self.body_and_end().await;
        end.map(|()| body)
    }

    /// Reads the rest of the body and says how it ended.
    pub async fn body_and_end(&mut self) -> (Bytes, Result<(), Error>) {
        let mut body = BytesMut::new();
        loop {
            match self.piece().await {
                Ok(Some(piece)) => body.extend_from_slice(&piece),
                Ok(None) => return (body.freeze(), Ok(())),
                Err(error) => return (body.freeze(), Err(error)),
            }
        }
    }

    /// Reads the rest of the body as JSON.
    ///
    /// # Errors
    /// As [`piece`](Self::piece), or when it is not JSON.
    pub async fn json(&mut self) -> Result<Value, Error> {
        let body = self.body().await?;
        serde_json::from_slice(&body).map_err(|error| {
            Error::Malformed(format!("{error} in {}", String::from_utf8_lossy(&body)))
        })
    }

    /// Reads the next block of an event stream (its lines without the blank one), comments too.
    ///
    /// # Errors
    /// As [`piece`](Self::piece). A last block without its blank line counts as a block.
    pub async fn event(&mut self) -> Result<Option<String>, Error> {
        loop {
            if let Some(end) = self.events.windows(2).position(|pair| pair == b"\n\n") {
                let block = self.events.split_to(end + 2);
                return Ok(Some(String::from_utf8_lossy(&block[..end]).into_owned()));
            }
            match self.piece().await? {
                Some(piece) => self.events.extend_from_slice(&piece),
                None if self.events.is_empty() => return Ok(None),
                None => {
                    let rest = self.events.split();
                    return Ok(Some(String::from_utf8_lossy(&rest).into_owned()));
                }
            }
        }
    }

    /// Reads the `data` of the next event as JSON; `None` at `[DONE]` or the end. Comments are
    /// passed over.
    ///
    /// # Errors
    /// As [`event`](Self::event), or when the data is not JSON.
    pub async fn json_event(&mut self) -> Result<Option<Value>, Error> {
        while let Some(block) = self.event().await? {
            let Some(data) = block.lines().find_map(|line| line.strip_prefix("data:")) else {
                continue;
            };
            let data = data.trim();
            if data == "[DONE]" {
                return Ok(None);
            }
            return match serde_json::from_str(data) {
                Ok(value) => Ok(Some(value)),
                Err(error) => Err(Error::Malformed(format!("{error} in {data}"))),
            };
        }
        Ok(None)
    }

    /// Waits until the peer has closed its side, discarding what it still sends.
    ///
    /// # Errors
    /// Fails when the peer resets or stays silent instead.
    pub async fn wait_for_end(&mut self) -> Result<(), Error> {
        loop {
            self.buffer.clear();
            if self.fill().await? == 0 {
                return Ok(());
            }
        }
    }

    /// Closes the sending side (FIN) and keeps the receiving side open.
    ///
    /// # Errors
    /// Fails as the shutdown does.
    pub async fn finish_sending(&mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }

    /// Closes the connection with a reset.
    ///
    /// # Panics
    /// Panics when the socket refuses the option.
    pub fn reset(self) {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).expect("linger can be set");
    }

    async fn fill(&mut self) -> Result<usize, Error> {
        // Without room of its own an empty buffer would be read into 64 bytes at a time.
        self.buffer.reserve(16 * 1024);
        match tokio::time::timeout(self.patience, self.stream.read_buf(&mut self.buffer)).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(Error::Silent(self.patience)),
        }
    }
}

/// Asks for `target` on a connection of its own and reads the whole answer.
///
/// # Errors
/// Fails when there is no whole answer.
pub async fn get(address: SocketAddr, target: &str) -> Result<(Head, Bytes), Error> {
    let mut client = Client::connect(address).await?;
    client.request("GET", target, &[("connection", "close")], "").await?;
    let head = client.head().await?;
    Ok((head, client.body().await?))
}

/// Posts JSON on a connection of its own and reads the whole answer.
///
/// # Errors
/// Fails when there is no whole answer.
pub async fn post(address: SocketAddr, target: &str, body: &Value) -> Result<(Head, Bytes), Error> {
    let mut client = Client::connect(address).await?;
    client.post(target, body).await?;
    let head = client.head().await?;
    Ok((head, client.body().await?))
}

impl Head {
    /// The first header of this name, in any case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(candidate, _)| candidate.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

impl Error {
    /// Whether the peer ended or reset the connection before the answer was whole.
    #[must_use]
    pub fn is_early_end(&self) -> bool {
        match self {
            Self::Truncated => true,
            Self::Io(error) => error.kind() == io::ErrorKind::ConnectionReset,
            Self::Malformed(_) | Self::Silent(_) => false,
        }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => write!(f, "the connection failed: {error}"),
            Self::Truncated => f.write_str("the connection ended before the answer did"),
            Self::Malformed(what) => write!(f, "the answer is malformed: {what}"),
            Self::Silent(time) => write!(f, "nothing came within {time:?}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<crate::framing::Malformed> for Error {
    fn from(malformed: crate::framing::Malformed) -> Self {
        Self::Malformed(malformed.0)
    }
}

fn parse_head(bytes: &[u8]) -> Result<Option<(Head, usize)>, Error> {
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut answer = httparse::Response::new(&mut headers);
    match answer.parse(bytes) {
        Ok(httparse::Status::Partial) => Ok(None),
        Ok(httparse::Status::Complete(length)) => {
            let headers = answer.headers.iter().map(|header| {
                (header.name.to_owned(), String::from_utf8_lossy(header.value).into_owned())
            });
            let head = Head { status: answer.code.unwrap_or_default(), headers: headers.collect() };
            Ok(Some((head, length)))
        }
        Err(error) => Err(Error::Malformed(format!("head: {error}"))),
    }
}
