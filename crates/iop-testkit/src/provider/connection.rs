//! One connection of the scripted provider: read a request, play its script, again.

use super::{Ended, Request, Shared};
use crate::PATIENCE;
use crate::answer;
use crate::framing::Framing;
use crate::script::{Cut, OnCancel, Script, Step};
use bytes::BytesMut;
use socket2::SockRef;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Serves the connection until one side ends it.
pub(super) async fn serve(stream: TcpStream, number: usize, shared: Arc<Shared>) {
    // Segments must leave as the script cuts them.
    let _ = stream.set_nodelay(true);
    let _closed = Closed { number, shared: &shared };
    // Declared after the guard, so that it is closed before the guard says so.
    let stream = stream;
    let (left, departure) = watch::channel(None);
    let conversation = Conversation {
        stream: &stream,
        number,
        shared: &shared,
        departure,
        buffer: BytesMut::new(),
        idle: None,
    };
    tokio::select! {
        () = conversation.run() => {}
        () = watch_peer(&stream, number, &shared, &left) => {}
    }
}

/// How the peer left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Fin,
    Reset,
}

/// Notes the peer's FIN and reset when they come, whatever lies unread before them.
///
/// Read readiness would be masked by unread bytes; the closed and error bits are not. Never ends.
async fn watch_peer(
    stream: &TcpStream,
    number: usize,
    shared: &Shared,
    left: &watch::Sender<Option<Left>>,
) {
    let noted = |how: Left| {
        shared.record(|log| {
            let connection = &mut log.connections[number];
            match how {
                Left::Fin => connection.fin_at = Some(Instant::now()),
                Left::Reset => connection.reset_at = Some(Instant::now()),
            }
        });
        left.send_replace(Some(how));
    };
    // `PRIORITY` also reports the peer's closed side.
    let _ = stream.ready(Interest::PRIORITY).await;
    let error = stream.take_error();
    if matches!(error, Ok(None)) {
        noted(Left::Fin);
        let _ = stream.ready(Interest::ERROR).await;
    }
    noted(Left::Reset);
    std::future::pending::<()>().await;
}

/// Notes that this side has closed, also when its task is aborted.
struct Closed<'a> {
    number: usize,
    shared: &'a Shared,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.shared.record(|log| {
            let now = Instant::now();
            let connection = &mut log.connections[self.number];
            connection.closed_at = Some(now);
            let how = match connection.left_at() {
                Some(_) => Ended::PeerLeft,
                None => Ended::Stopped,
            };
            for exchange in &mut log.exchanges {
                if exchange.connection == self.number && exchange.ended.is_none() {
                    exchange.ended = Some((now, how));
                }
            }
        });
    }
}

struct Conversation<'a> {
    stream: &'a TcpStream,
    number: usize,
    shared: &'a Shared,
    departure: watch::Receiver<Option<Left>>,
    buffer: BytesMut,
    idle: Option<Duration>,
}

/// Whether the connection serves another request.
enum Next {
    Again,
    Close,
}

impl Conversation<'_> {
    async fn run(mut self) {
        loop {
            let request = match self.idle {
                Some(idle) => {
                    let Ok(request) = tokio::time::timeout(idle, self.head()).await else { return };
                    request
                }
                None => self.head().await,
            };
            let Some(request) = request else { return };
            if let Next::Close = self.exchange(request).await {
                return;
            }
        }
    }

    /// Reads a head; `None` is the end of the connection.
    async fn head(&mut self) -> Option<Request> {
        loop {
            match Request::parse(&self.buffer) {
                Ok(Some((request, length))) => {
                    let _ = self.buffer.split_to(length);
                    return Some(request);
                }
                Ok(None) => {}
                Err(error) => return self.refuse(&format!("a head: {error}")).await,
            }
            match self.fill().await {
                Ok(0) | Err(_) if self.buffer.is_empty() => return None,
                Ok(0) | Err(_) => return self.refuse("a head that ends early").await,
                Ok(_) => {}
            }
        }
    }

    /// Answers one request.
    async fn exchange(&mut self, mut request: Request) -> Next {
        let began = self.shared.record(|log| log.begin(&request, self.number, Instant::now()));
        let framing = match Framing::of(&request.headers, Framing::Done) {
            Ok(framing) => framing,
            Err(malformed) => {
                self.refuse::<()>(&malformed.0).await;
                return Next::Close;
            }
        };
        let mut player = Player {
            conversation: self,
            exchange: began,
            framing,
            cut: Cut::Whole,
            on_cancel: OnCancel::Stop,
        };
        let early = player.conversation.shared.script_at_head(&request);
        let script = match early {
            Some(script) => script,
            None => {
                if player.read_body().await.is_err() {
                    return Next::Close;
                }
                if let Some(exchange) = began {
                    request.body = player.conversation.body_of(exchange);
                }
                player.conversation.shared.script(&request)
            }
        };
        let (next, ended) = player.play(&script).await;
        // What an early script left unread would be taken for the next request.
        let unread = player.framing != Framing::Done;
        if let Some(exchange) = began {
            self.shared.record(|log| log.exchanges[exchange].ended = Some((Instant::now(), ended)));
        }
        if unread { Next::Close } else { next }
    }

    fn body_of(&self, exchange: usize) -> bytes::Bytes {
        self.shared.state().log.exchanges[exchange].request.body.clone()
    }

    /// Notes something that is not HTTP/1.1, says so to the peer, and gives up.
    async fn refuse<T>(&self, what: &str) -> Option<T> {
        self.shared.record(|log| log.malformed.push(what.to_owned()));
        let script = answer::error(400, "invalid_request_error", "malformed", what);
        for step in script.steps() {
            if let Step::Bytes(bytes) = step {
                let _ = write_all(self.stream, bytes, |_| {}).await;
            }
        }
        None
    }

    /// Reads what is there into the buffer.
    async fn fill(&mut self) -> io::Result<usize> {
        loop {
            self.stream.readable().await?;
            match self.stream.try_read_buf(&mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }
}

/// Plays one script.
struct Player<'a, 'b> {
    conversation: &'a mut Conversation<'b>,
    exchange: Option<usize>,
    framing: Framing,
    cut: Cut,
    on_cancel: OnCancel,
}

impl Player<'_, '_> {
    async fn play(&mut self, script: &Script) -> (Next, Ended) {
        for step in script.steps() {
            let mut departure = self.conversation.departure.clone();
            let on_cancel = match step {
                // This side is leaving anyway; the peer's answer to that is no cancellation.
                Step::Fin | Step::Reset => OnCancel::Ignore,
                _ => self.on_cancel,
            };
            let performed = tokio::select! {
                biased;
                () = peer_left(&mut departure, on_cancel) => return (Next::Close, Ended::PeerLeft),
                performed = self.perform(step) => performed,
            };
            match performed {
                Ok(None) => {}
                Ok(Some(next)) => return (next, Ended::Played),
                Err(_) => return (Next::Close, Ended::WriteFailed),
            }
        }
        (Next::Again, Ended::Played)
    }

    /// Performs a step; `Some` ends the script.
    async fn perform(&mut self, step: &Step) -> io::Result<Option<Next>> {
        match step {
            Step::Wait(time) => tokio::time::sleep(*time).await,
            Step::Bytes(bytes) => self.write(bytes).await?,
            Step::ReadBody => self.read_body().await?,
            Step::Cut(cut) => self.cut = cut.clone(),
            Step::OnCancel(on_cancel) => self.on_cancel = *on_cancel,
            Step::Hold => {
                if let Ok(permit) = self.conversation.shared.holds.acquire().await {
                    permit.forget();
                }
            }
            Step::KeepAlive(time) => self.conversation.idle = Some(*time),
            Step::Fin => {
                let socket = SockRef::from(self.conversation.stream);
                socket.shutdown(std::net::Shutdown::Write)?;
                let peer_ends = async {
                    while !matches!(self.conversation.fill().await, Ok(0) | Err(_)) {
                        self.conversation.buffer.clear();
                    }
                };
                let _ = tokio::time::timeout(PATIENCE, peer_ends).await;
                return Ok(Some(Next::Close));
            }
            Step::Reset => {
                SockRef::from(self.conversation.stream).set_linger(Some(Duration::ZERO))?;
                return Ok(Some(Next::Close));
            }
        }
        Ok(None)
    }

    /// Reads the request body to its end into the log.
    async fn read_body(&mut self) -> io::Result<()> {
        let mut body = BytesMut::new();
        loop {
            match self.framing.take(&mut self.conversation.buffer) {
                Ok(Some(piece)) => body.extend_from_slice(&piece),
                Ok(None) if self.framing == Framing::Done => break,
                Ok(None) => {
                    if self.conversation.fill().await? == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(malformed) => {
                    self.conversation.refuse::<()>(&malformed.0).await;
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
        }
        if let Some(exchange) = self.exchange {
            self.conversation.shared.record(|log| {
                let exchange = &mut log.exchanges[exchange];
                exchange.request.body = body.freeze();
                exchange.body_at = Some(Instant::now());
            });
        }
        Ok(())
    }

    async fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let (shared, exchange) = (self.conversation.shared, self.exchange);
        for segment in self.cut.segments(bytes) {
            write_all(self.conversation.stream, segment, |written| {
                let Some(exchange) = exchange else { return };
                shared.record(|log| {
                    let exchange = &mut log.exchanges[exchange];
                    exchange.sent += written as u64;
                    exchange.first_byte_at.get_or_insert_with(Instant::now);
                });
            })
            .await?;
            // Lets the reader run between two segments, so that it sees them apart.
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

/// Ends when the peer's departure is to stop the script.
async fn peer_left(departure: &mut watch::Receiver<Option<Left>>, on_cancel: OnCancel) {
    let stops = |left: &Option<Left>| match on_cancel {
        OnCancel::Stop | OnCancel::StopAfter(_) => left.is_some(),
        OnCancel::Ignore => false,
    };
    if departure.wait_for(stops).await.is_err() {
        std::future::pending::<()>().await;
    }
    if let OnCancel::StopAfter(time) = on_cancel {
        let reset = departure.wait_for(|left| *left == Some(Left::Reset));
        let _ = tokio::time::timeout(time, reset).await;
    }
}

async fn write_all(
    stream: &TcpStream,
    mut bytes: &[u8],
    mut written: impl FnMut(usize),
) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(length) => {
                written(length);
                bytes = &bytes[length..];
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
