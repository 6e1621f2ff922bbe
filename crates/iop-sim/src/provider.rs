//! A provider that speaks HTTP/1.1 with its own hands and does what a [`Script`] says.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use iop_net::net::Net as _;
use iop_net::socket::Socket;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::sleep;

use crate::ledger::{Ledger, now};
use crate::network::Network;
use crate::plan::{Behaviour, Plan, SILENCE, Script};
use crate::question;
use crate::record::{Records, Served};
use crate::world::{PROVIDER_PORT, PROVIDERS};

/// The one target of every provider.
pub(crate) const TARGET: &str = "tiny";

/// One provider.
#[derive(Clone)]
pub(crate) struct Provider {
    pub(crate) index: usize,
    pub(crate) network: Network,
    pub(crate) plan: Rc<Plan>,
    pub(crate) records: Records,
    pub(crate) ledger: Ledger,
    /// Requests so far, over all starts.
    pub(crate) requests: Rc<Cell<usize>>,
    /// Connections so far, over all starts.
    pub(crate) connections: Rc<Cell<usize>>,
    /// From now on every answer is whole and quick.
    pub(crate) is_calm: Rc<Cell<bool>>,
}

impl Provider {
    /// Serves until its host is stopped.
    pub(crate) async fn run(self) -> turmoil::Result {
        let mut listener = self.network.listen(([127, 0, 0, 1], PROVIDER_PORT).into()).await?;
        loop {
            let (socket, _) = listener.accept().await?;
            let provider = self.clone();
            tokio::task::spawn_local(async move {
                // A caller that leaves in the middle of anything is everyday life here.
                let _ = provider.serve(socket).await;
            });
        }
    }

    fn name(&self) -> &'static str {
        PROVIDERS[self.index]
    }

    async fn serve(&self, mut socket: Socket) -> io::Result<()> {
        let mut buffer = BytesMut::new();
        let connection = self.connections.replace(self.connections.get() + 1);
        let pause = self.plan.reading_pause(self.index, connection);
        while let Some(request) = read_request(&mut socket, &mut buffer, pause).await? {
            let Some(call) = self.beside_calls(&mut socket, &request).await? else { continue };
            let number = self.requests.replace(self.requests.get() + 1);
            let tag = format!("{}#{number}", self.name());
            let script =
                if self.is_calm.get() { calm() } else { self.plan.script(self.index, number) };
            self.ledger
                .note(self.name(), format!("{tag} gets call {call}: {:?}", script.behaviour));
            if !question::is_as_sent(&self.plan, call, &request.body) {
                let breach = format!("{tag} got another request than call {call} sent");
                self.ledger.violation(self.name(), breach);
            }
            self.records.seen().served.push(Served {
                tag: tag.clone(),
                provider: self.name(),
                call,
                behaviour: script.behaviour,
                began: now(),
                progress: Vec::new(),
                is_whole: false,
                ended: None,
            });
            let exchange = Exchange { provider: self, socket: &mut socket, tag: &tag };
            let played = exchange.play(&script, &request).await;
            let how = match &played {
                Ok(true) => "is answered",
                Ok(false) => "is left as scripted",
                Err(_) => "is given up",
            };
            self.ledger.note(self.name(), format!("{tag} {how}"));
            if let Some(served) = self.records.seen().served(&tag) {
                served.ended = Some(now());
            }
            if !played? {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Provider {
    /// Answers what is no call of a client; else returns the call's number.
    async fn beside_calls(
        &self,
        socket: &mut Socket,
        request: &Request,
    ) -> io::Result<Option<usize>> {
        let (status, body) = match request.path.as_str() {
            "/v1/models" => {
                (200, json!({ "object": "list", "data": [{ "id": TARGET, "object": "model" }] }))
            }
            "/health" => (200, json!({})),
            "/v1/chat/completions" | "/v1/embeddings" | "/v1/audio/transcriptions" => {
                let call = question::call_number(&request.body);
                if call.is_some() {
                    return Ok(call);
                }
                self.records.seen().probes.push((self.name(), now()));
                self.ledger.note(self.name(), "is asked for one token, to see whether it lives");
                (200, json!({ "choices": [{ "index": 0, "message": { "content": "." } }] }))
            }
            _ => (404, json!({})),
        };
        respond(socket, status, &body).await?;
        Ok(None)
    }
}

/// A whole answer, long enough to meet others.
fn calm() -> Script {
    Script {
        behaviour: Behaviour::Plain,
        thinks: Duration::from_secs(1),
        pieces: 3,
        good: 0,
        pause: Duration::ZERO,
        padding: 0,
    }
}

/// One request under way.
struct Exchange<'a> {
    provider: &'a Provider,
    socket: &'a mut Socket,
    tag: &'a str,
}

impl Exchange<'_> {
    /// Plays a script; false when the connection must not be used again.
    async fn play(mut self, script: &Script, request: &Request) -> io::Result<bool> {
        self.wait(script, script.thinks).await?;
        match script.behaviour {
            Behaviour::SilentBeforeHead => return self.fall_silent().await,
            Behaviour::ResetAtOnce => return Ok(self.reset()),
            Behaviour::Status(status) => {
                let error =
                    json!({ "error": { "message": "scripted", "type": "scripted", "code": null } });
                respond(self.socket, status, &error).await?;
                return Ok(true);
            }
            _ => {}
        }
        match request.is_stream() {
            true => self.stream(script).await,
            false => self.whole(script, &request.path).await,
        }
    }

    async fn stream(&mut self, script: &Script) -> io::Result<bool> {
        let misbehaves = !matches!(script.behaviour, Behaviour::Plain | Behaviour::IgnoresCancel);
        let pieces = if misbehaves { script.good } else { script.pieces };
        self.socket.write_all(STREAM_HEAD.as_bytes()).await?;
        self.progressed();
        for index in 0..pieces {
            self.wait(script, script.pause).await?;
            let text = piece(self.tag, index, script.padding);
            self.event(&chunk(&json!({ "content": text }), &Value::Null)).await?;
        }
        match script.behaviour {
            Behaviour::ResetMidway => return Ok(self.reset()),
            Behaviour::CutShort => return Ok(false),
            Behaviour::SilentMidway => return self.fall_silent().await,
            Behaviour::OnlyComments => {
                let until = now() + SILENCE;
                while now() < until {
                    self.wait(script, COMMENT_PAUSE).await?;
                    self.chunk(": still here\n\n").await?;
                }
                return Ok(self.reset());
            }
            Behaviour::ErrorEvent => {
                self.event(&json!({ "error": { "message": "scripted", "type": "scripted" } }))
                    .await?;
            }
            Behaviour::NeverFinishes => {}
            _ => {
                self.event(&chunk(&json!({}), &json!("stop"))).await?;
                self.chunk("data: [DONE]\n\n").await?;
            }
        }
        self.socket.write_all(b"0\r\n\r\n").await?;
        if !misbehaves {
            self.is_whole();
        }
        Ok(true)
    }

    async fn whole(&mut self, script: &Script, path: &str) -> io::Result<bool> {
        let text: Vec<_> =
            (0..script.pieces).map(|index| piece(self.tag, index, script.padding)).collect();
        let text = text.concat();
        let body = match path {
            "/v1/embeddings" => json!({
                "object": "list", "model": TARGET, "text": text,
                "data": [{ "object": "embedding", "index": 0, "embedding": [0.6, 0.8] }],
                "usage": { "prompt_tokens": 1, "total_tokens": 1 },
            }),
            "/v1/audio/transcriptions" => json!({ "text": text }),
            _ => json!({
                "id": "x", "object": "chat.completion", "created": 1, "model": TARGET,
                "choices": [{ "index": 0, "finish_reason": "stop",
                    "message": { "role": "assistant", "content": text } }],
                "usage": { "prompt_tokens": 1, "completion_tokens": script.pieces, "total_tokens": 1 },
            }),
        };
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.socket.write_all(head.as_bytes()).await?;
        let (first, rest) = body.split_at(body.len() / 2);
        self.socket.write_all(first.as_bytes()).await?;
        self.progressed();
        match script.behaviour {
            Behaviour::ResetMidway => return Ok(self.reset()),
            Behaviour::CutShort => return Ok(false),
            Behaviour::SilentMidway | Behaviour::OnlyComments => return self.fall_silent().await,
            _ => self.wait(script, script.pause).await?,
        }
        self.socket.write_all(rest.as_bytes()).await?;
        self.is_whole();
        Ok(true)
    }

    /// Waits; a server that watches its caller stops when the caller leaves.
    async fn wait(&self, script: &Script, time: Duration) -> io::Result<()> {
        if script.behaviour == Behaviour::IgnoresCancel {
            sleep(time).await;
            return Ok(());
        }
        tokio::select! {
            biased;
            () = self.socket.closed() => Err(io::ErrorKind::ConnectionAborted.into()),
            () = sleep(time) => Ok(()),
        }
    }

    /// Does nothing until the caller leaves; a hung server is killed at last.
    async fn fall_silent(&self) -> io::Result<bool> {
        let _ = tokio::time::timeout(SILENCE, self.socket.closed()).await;
        Ok(self.reset())
    }

    fn reset(&self) -> bool {
        self.socket.reset_on_close();
        false
    }

    fn is_whole(&self) {
        if let Some(served) = self.provider.records.seen().served(self.tag) {
            served.is_whole = true;
        }
    }

    fn progressed(&self) {
        if let Some(served) = self.provider.records.seen().served(self.tag) {
            served.progress.push(now());
        }
    }

    async fn event(&mut self, data: &Value) -> io::Result<()> {
        self.chunk(&format!("data: {data}\n\n")).await?;
        self.progressed();
        Ok(())
    }

    async fn chunk(&mut self, text: &str) -> io::Result<()> {
        let chunk = format!("{:x}\r\n{text}\r\n", text.len());
        self.socket.write_all(chunk.as_bytes()).await
    }
}

const COMMENT_PAUSE: Duration = Duration::from_millis(500);
const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// One piece of text: who wrote it, and its place.
fn piece(tag: &str, index: usize, padding: usize) -> String {
    format!("{tag}:{index}{} ", ".".repeat(padding))
}

fn chunk(delta: &Value, finish: &Value) -> Value {
    json!({
        "id": "x", "object": "chat.completion.chunk", "created": 1, "model": TARGET,
        "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }],
    })
}

/// A request as far as this provider reads it.
struct Request {
    path: String,
    body: Vec<u8>,
}

impl Request {
    fn is_stream(&self) -> bool {
        serde_json::from_slice::<Value>(&self.body).is_ok_and(|body| body["stream"] == true)
    }
}

/// Reads a request whole, `pause` before each read; `None` where the caller leaves before its end.
async fn read_request(
    socket: &mut Socket,
    buffer: &mut BytesMut,
    pause: Duration,
) -> io::Result<Option<Request>> {
    let mut reader = Reader { socket, buffer, pause };
    let (path, length) = loop {
        if let Some(head) = reader.head()? {
            break head;
        }
        if !reader.more().await? {
            return Ok(None);
        }
    };
    let mut body = Vec::new();
    match length {
        Some(length) => {
            if !reader.take(length, &mut body).await? {
                return Ok(None);
            }
        }
        None => loop {
            let Some(length) = reader.chunk_length().await? else { return Ok(None) };
            let mut end = Vec::new();
            if !reader.take(length, &mut body).await? || !reader.take(2, &mut end).await? {
                return Ok(None);
            }
            if length == 0 {
                break;
            }
        },
    }
    Ok(Some(Request { path, body }))
}

/// What comes on a connection.
struct Reader<'a> {
    socket: &'a mut Socket,
    buffer: &'a mut BytesMut,
    pause: Duration,
}

impl Reader<'_> {
    /// Takes path and length of the body off, once the head is whole; no length where it is chunked.
    fn head(&mut self) -> io::Result<Option<(String, Option<usize>)>> {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Request::new(&mut headers);
        let parsed = head.parse(self.buffer).map_err(io::Error::other)?;
        let httparse::Status::Complete(taken) = parsed else { return Ok(None) };
        let path = head.path.unwrap_or_default().to_owned();
        let header = |name: &str| {
            let mut headers = head.headers.iter();
            headers.find(|header| header.name.eq_ignore_ascii_case(name)).map(|it| it.value)
        };
        let length = match (header("content-length"), header("transfer-encoding")) {
            (Some(length), None) => {
                let length = std::str::from_utf8(length).ok().and_then(|it| it.parse().ok());
                Some(length.ok_or(io::ErrorKind::InvalidData)?)
            }
            (None, Some(_)) => None,
            (None, None) => Some(0),
            (Some(_), Some(_)) => return Err(io::ErrorKind::InvalidData.into()),
        };
        self.buffer.advance(taken);
        Ok(Some((path, length)))
    }

    /// Reads the line before a chunk.
    async fn chunk_length(&mut self) -> io::Result<Option<usize>> {
        loop {
            match httparse::parse_chunk_size(self.buffer) {
                Ok(httparse::Status::Complete((taken, length))) => {
                    self.buffer.advance(taken);
                    return usize::try_from(length).map(Some).map_err(io::Error::other);
                }
                Ok(httparse::Status::Partial) => {}
                Err(_) => return Err(io::ErrorKind::InvalidData.into()),
            }
            if !self.more().await? {
                return Ok(None);
            }
        }
    }

    async fn take(&mut self, length: usize, to: &mut Vec<u8>) -> io::Result<bool> {
        while self.buffer.len() < length {
            if !self.more().await? {
                return Ok(false);
            }
        }
        to.extend_from_slice(&self.buffer.split_to(length));
        Ok(true)
    }

    async fn more(&mut self) -> io::Result<bool> {
        if !self.pause.is_zero() {
            sleep(self.pause).await;
        }
        Ok(self.socket.read_buf(self.buffer).await? > 0)
    }
}

async fn respond(socket: &mut Socket, status: u16, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    let answer = format!(
        "HTTP/1.1 {status} Scripted\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(answer.as_bytes()).await
}
