//! A provider that speaks HTTP/1.1 with its own hands and does what a [`Script`] says.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use iop_net::net::Net as _;
use iop_net::socket::Socket;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::sleep;

use crate::ledger::{Ledger, now};
use crate::network::Network;
use crate::plan::{Behaviour, Plan, SILENCE, Script};
use crate::record::{Records, Served};
use crate::world::{PROVIDER_PORT, PROVIDERS};

/// The one target of every provider.
pub(crate) const TARGET: &str = "tiny";
/// Precedes the number of the call in every prompt.
pub(crate) const MARK: &str = "call ";

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
        while let Some(request) = read_request(&mut socket, &mut buffer).await? {
            let Some(call) = self.beside_calls(&mut socket, &request).await? else { continue };
            let number = self.requests.replace(self.requests.get() + 1);
            let tag = format!("{}#{number}", self.name());
            let script =
                if self.is_calm.get() { calm() } else { self.plan.script(self.index, number) };
            self.ledger
                .note(self.name(), format!("{tag} gets call {call}: {:?}", script.behaviour));
            self.records.seen().served.push(Served {
                tag: tag.clone(),
                provider: self.name(),
                call,
                behaviour: script.behaviour,
                began: now(),
                progressed: now(),
                is_whole: false,
                ended: None,
            });
            let exchange = Exchange { provider: self, socket: &mut socket, tag: &tag };
            let played = exchange.play(&script, request.is_stream()).await;
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
            "/v1/chat/completions" => {
                let call = call_number(&request.body);
                if call.is_some() {
                    return Ok(call);
                }
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
    async fn play(mut self, script: &Script, is_stream: bool) -> io::Result<bool> {
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
        if is_stream { self.stream(script).await } else { self.whole(script).await }
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

    async fn whole(&mut self, script: &Script) -> io::Result<bool> {
        let text: Vec<_> =
            (0..script.pieces).map(|index| piece(self.tag, index, script.padding)).collect();
        let body = json!({
            "id": "x", "object": "chat.completion", "created": 1, "model": TARGET,
            "choices": [{ "index": 0, "finish_reason": "stop",
                "message": { "role": "assistant", "content": text.concat() } }],
            "usage": { "prompt_tokens": 1, "completion_tokens": script.pieces, "total_tokens": 1 },
        });
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
            served.progressed = now();
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

/// Finds the number that the client wrote into its prompt; a probe has none.
fn call_number(body: &[u8]) -> Option<usize> {
    let text = String::from_utf8_lossy(body);
    let (_, after) = text.split_once(MARK)?;
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

async fn read_request(socket: &mut Socket, buffer: &mut BytesMut) -> io::Result<Option<Request>> {
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Request::new(&mut headers);
        let parsed = head.parse(buffer).map_err(io::Error::other)?;
        if let httparse::Status::Complete(length) = parsed {
            let path = head.path.unwrap_or_default().to_owned();
            let body: usize = head
                .headers
                .iter()
                .find(|header| header.name.eq_ignore_ascii_case("content-length"))
                .and_then(|header| std::str::from_utf8(header.value).ok()?.parse().ok())
                .unwrap_or_default();
            if buffer.len() >= length + body {
                let _ = buffer.split_to(length);
                return Ok(Some(Request { path, body: buffer.split_to(body).to_vec() }));
            }
        }
        if socket.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
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
