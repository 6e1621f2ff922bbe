//! One connection of the load: sends a request, reads and checks its answer.

use super::tally::{Outcome, Tally};
use crate::monotonic::now_ns;
use crate::stamp::Reader;
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use memchr::memmem;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// A target that fails this often in a row is not asked again by this worker.
const MOST_FAILURES: u32 = 3;

pub(super) struct Worker {
    target: SocketAddr,
    body: Bytes,
    /// The chunks that a stream must have; none where the answer is not streamed.
    chunks: Option<u64>,
    limit: Duration,
    tally: Rc<RefCell<Tally>>,
    connection: Option<SendRequest<Full<Bytes>>>,
    failures: u32,
}

impl Worker {
    pub(super) fn new(
        target: SocketAddr,
        body: Bytes,
        chunks: Option<u64>,
        limit: Duration,
        tally: Rc<RefCell<Tally>>,
    ) -> Self {
        Self { target, body, chunks, limit, tally, connection: None, failures: 0 }
    }

    /// Sends request after request until `end` has passed.
    pub(super) async fn repeat_until(&mut self, end: Instant) {
        while Instant::now() < end && self.failures < MOST_FAILURES {
            self.exchange().await;
        }
    }

    /// Sends one request, checks its answer and counts it.
    pub(super) async fn exchange(&mut self) {
        let began = Instant::now();
        let result = match tokio::time::timeout(self.limit, self.attempt()).await {
            Ok(result) => result,
            Err(_) => Err(format!("no whole answer within {:?}", self.limit)),
        };
        let mut tally = self.tally.borrow_mut();
        match result {
            Ok(outcome) => {
                self.failures = 0;
                tally.finished(outcome, began.elapsed());
            }
            Err(why) => {
                self.failures += 1;
                self.connection = None;
                tally.failed(why);
            }
        }
    }

    async fn attempt(&mut self) -> Result<Outcome, String> {
        let request = Request::post("/v1/chat/completions")
            .header(header::HOST, self.target.to_string())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, "iop-bench")
            .body(Full::new(self.body.clone()))
            .map_err(|error| error.to_string())?;
        let began = Instant::now();
        let connection = self.connection().await?;
        connection.ready().await.map_err(|error| format!("connection: {error}"))?;
        let answer = connection
            .send_request(request)
            .await
            .map_err(|error| format!("no head of an answer: {error}"))?;
        if answer.status() != StatusCode::OK {
            let status = answer.status();
            let body = answer.into_body().collect().await.map_err(|error| error.to_string())?;
            let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
            return Err(format!("{status}: {body}"));
        }
        match self.chunks {
            None => whole(answer.into_body()).await,
            Some(chunks) => self.stream(answer.into_body(), chunks, began).await,
        }
    }

    async fn stream(
        &self,
        mut body: Incoming,
        chunks: u64,
        began: Instant,
    ) -> Result<Outcome, String> {
        let (mut reader, mut expected, mut in_order) = (Reader::default(), 0, true);
        while let Some(frame) = body.frame().await {
            let frame = match frame {
                Ok(frame) => frame,
                // The connection is of no more use, but what is counted is the stream's fate.
                Err(error) => return Err(format!("short after {expected} chunks: {error}")),
            };
            let Some(data) = frame.data_ref() else { continue };
            let now = now_ns();
            let mut tally = self.tally.borrow_mut();
            reader.read(data, |stamp| {
                in_order &= stamp.index == expected;
                if expected == 0 {
                    tally.first_chunk(began.elapsed());
                }
                expected += 1;
                tally.chunk(now.saturating_sub(stamp.made_ns));
            });
        }
        Ok(match (in_order, expected == chunks && reader.is_done()) {
            (false, _) => Outcome::Disordered,
            (true, false) => Outcome::Short,
            (true, true) => Outcome::Good,
        })
    }

    async fn connection(&mut self) -> Result<&mut SendRequest<Full<Bytes>>, String> {
        let usable = self.connection.as_ref().is_some_and(|connection| !connection.is_closed());
        if !usable {
            let stream =
                TcpStream::connect(self.target).await.map_err(|e| format!("connect: {e}"))?;
            stream.set_nodelay(true).map_err(|error| error.to_string())?;
            let (sender, connection) = http1::handshake(TokioIo::new(stream))
                .await
                .map_err(|error| format!("handshake: {error}"))?;
            // Detached: it ends when its sender is dropped, and reports its failures there.
            tokio::task::spawn_local(connection);
            self.connection = Some(sender);
        }
        Ok(self.connection.as_mut().expect("a connection was just made"))
    }
}

async fn whole(body: Incoming) -> Result<Outcome, String> {
    let body = body.collect().await.map_err(|error| format!("short answer: {error}"))?.to_bytes();
    let complete = body.len() > 1024 && memmem::find(&body, b"finish_reason").is_some();
    Ok(if complete { Outcome::Good } else { Outcome::Short })
}
