//! The clients: one connection and one call each, over hyper.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join;
use futures_util::stream;
use http::{Method, Request, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use iop_net::net::Net as _;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::ledger::{Ledger, now};
use crate::network::Network;
use crate::plan::{Call, Manner, Wish};
use crate::question;
use crate::record::{CallEnd, CallSeen, Cancelled, Records};
use crate::world::ADMIN_PORT;

/// How long a client that stops reading stays away: longer than the Edge bears it.
const NEVER_READS: Duration = Duration::from_secs(25);
/// What a client reads ahead of itself: with much more, one that reads slowly takes nothing for longer
/// than the Edge bears, and then a lot.
const READ_BUFFER: usize = 8 * 1024;
/// How long an operator waits for an answer.
const OPERATOR_WAITS: Duration = Duration::from_secs(10);
/// What a client sends at once of a recording.
const UPLOAD_PIECE: usize = 8 * 1024;

/// The clients of one host.
#[derive(Clone)]
pub(crate) struct Clients {
    pub(crate) edge: SocketAddr,
    pub(crate) network: Network,
    pub(crate) records: Records,
    pub(crate) ledger: Ledger,
    pub(crate) canary: String,
    /// Every call ends within this.
    pub(crate) bound: Duration,
}

impl Clients {
    /// Makes one call and notes what came of it.
    pub(crate) async fn call(&self, call: &Call) {
        sleep(call.at.saturating_sub(now())).await;
        let who = format!("call {}", call.number);
        let Call { model, wish, bytes, manner, .. } = call;
        self.ledger.note(&who, format!("asks {model}: {wish:?}, {bytes} bytes, {manner:?}"));
        let mut seen = CallSeen::default();
        let asking = self.ask(call, &mut seen);
        let end = match call.manner {
            Manner::Leaves(after) => timeout(after, asking).await.unwrap_or(CallEnd::Left),
            Manner::IsCancelled(after) => {
                let asking = timeout(self.bound, asking);
                let (end, cancelled) = join(asking, self.cancel(call.number, after)).await;
                seen.cancelled = cancelled;
                end.unwrap_or(CallEnd::Never)
            }
            Manner::Patient | Manner::ReadsSlowly(_) | Manner::StopsReading => {
                timeout(self.bound, asking).await.unwrap_or(CallEnd::Never)
            }
        };
        seen.end = end;
        seen.ended = now();
        self.ledger.note(
            &who,
            format!("{:?}, status {:?}, {} bytes", seen.end, seen.status, seen.body.len()),
        );
        self.records.seen().calls[call.number] = Some(seen);
    }

    /// Cancels a call by the id of its run, as an operator does.
    async fn cancel(&self, number: usize, after: Duration) -> Option<Cancelled> {
        sleep(after).await;
        let run_id = {
            let seen = self.records.seen();
            let request_id = format!("call-{number}");
            seen.runs.iter().find(|run| run.request_id == request_id)?.run_id
        };
        let path = format!("/api/v1/runs/{run_id}/cancel");
        let asking = timeout(OPERATOR_WAITS, self.admin(Method::POST, ADMIN_PORT, &path));
        let Ok(Ok((status, _))) = asking.await else { return None };
        self.ledger.note("operator", format!("cancels call {number}: {status}"));
        Some(Cancelled { at: now(), was_under_way: status == StatusCode::OK })
    }

    async fn ask(&self, call: &Call, seen: &mut CallSeen) -> CallEnd {
        match self.exchange(call, seen).await {
            Ok(()) => CallEnd::Clean,
            Err(_) => CallEnd::Broken,
        }
    }

    async fn exchange(
        &self,
        call: &Call,
        seen: &mut CallSeen,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let Call { wish, manner, number, .. } = *call;
        let body = question::body(&self.canary, call);
        let mut request = Request::post(question::path(wish))
            .header("host", "127.0.0.1")
            .header("content-type", question::content_type(wish))
            .header("x-request-id", format!("call-{number}"));
        if number.is_multiple_of(2) {
            // Others say nothing of the length of what they stream.
            request = request.header("content-length", body.len());
        }
        let request = request.body(paced(body, wish))?;
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(READ_BUFFER)
            .handshake(TokioIo::new(self.dial().await?))
            .await?;
        let _connection = AbortOnDrop(tokio::task::spawn_local(async move {
            let _ = connection.await;
        }));
        let answer = sender.send_request(request).await?;
        seen.status = Some(answer.status().as_u16());
        if manner == Manner::StopsReading {
            sleep(NEVER_READS).await;
        }
        let mut body = answer.into_body();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame?.into_data() {
                seen.first_byte.get_or_insert_with(now);
                seen.body.push_str(&String::from_utf8_lossy(&data));
            }
            if let Manner::ReadsSlowly(pause) = manner {
                sleep(pause).await;
            }
        }
        Ok(())
    }

    /// Reads one page of the admin listener.
    pub(crate) async fn page(
        &self,
        port: u16,
        path: &str,
    ) -> Result<Value, Box<dyn std::error::Error>> {
        Ok(self.admin(Method::GET, port, path).await?.1)
    }

    async fn admin(
        &self,
        method: Method,
        port: u16,
        path: &str,
    ) -> Result<(StatusCode, Value), Box<dyn std::error::Error>> {
        let address = SocketAddr::new(self.edge.ip(), port);
        let socket = self.network.connect(address).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
        let _connection = AbortOnDrop(tokio::task::spawn_local(async move {
            let _ = connection.await;
        }));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "127.0.0.1")
            .body(Full::<Bytes>::default())?;
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        Ok((status, serde_json::from_slice(&body)?))
    }

    async fn dial(&self) -> std::io::Result<iop_net::socket::Socket> {
        self.network.connect(self.edge).await
    }
}

/// A body as a client sends it: whole, or a recording as it is made.
fn paced(body: Bytes, wish: Wish) -> UnsyncBoxBody<Bytes, Infallible> {
    let Wish::Transcript { pause, rest } = wish else { return Full::new(body).boxed_unsync() };
    let half = body.len() / 2;
    let pieces = stream::unfold((body, false), move |(mut left, has_rested)| async move {
        if left.is_empty() {
            return None;
        }
        let rests = !has_rested && left.len() <= half;
        sleep(if rests { rest } else { pause }).await;
        let piece = left.split_to(left.len().min(UPLOAD_PIECE));
        Some((Ok(Frame::data(piece)), (left, has_rested || rests)))
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// A task that ends with its owner, and with it the connection that it drives.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
