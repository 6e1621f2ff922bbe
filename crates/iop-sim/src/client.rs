//! The clients: one connection and one call each, over hyper.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use iop_net::net::Net as _;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::ledger::{Ledger, now};
use crate::network::Network;
use crate::plan::{Call, Manner};
use crate::provider::MARK;
use crate::record::{CallEnd, CallSeen, Records};

/// How long a client that stops reading stays away: longer than the Edge bears it.
const NEVER_READS: Duration = Duration::from_secs(25);

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
        let form = if call.is_stream { "stream" } else { "whole" };
        self.ledger.note(&who, format!("asks {} for a {form}, {:?}", call.model, call.manner));
        let mut seen = CallSeen::default();
        let asking = self.ask(call, &mut seen);
        let end = match call.manner {
            Manner::Leaves(after) => timeout(after, asking).await.unwrap_or(CallEnd::Left),
            _ => timeout(self.bound, asking).await.unwrap_or(CallEnd::Never),
        };
        seen.end = end;
        seen.ended = now();
        self.ledger.note(
            &who,
            format!("{:?}, status {:?}, {} bytes", seen.end, seen.status, seen.body.len()),
        );
        self.records.seen().calls[call.number] = Some(seen);
    }

    async fn ask(&self, call: &Call, seen: &mut CallSeen) -> CallEnd {
        let prompt = format!("{} {MARK}{}", self.canary, call.number);
        let body = json!({
            "model": call.model, "stream": call.is_stream,
            "messages": [{ "role": "user", "content": prompt }],
        });
        let id = format!("call-{}", call.number);
        match self.exchange(&id, &body, call.manner, seen).await {
            Ok(()) => CallEnd::Clean,
            Err(_) => CallEnd::Broken,
        }
    }

    async fn exchange(
        &self,
        id: &str,
        body: &Value,
        manner: Manner,
        seen: &mut CallSeen,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let request = Request::post("/v1/chat/completions")
            .header("host", "127.0.0.1")
            .header("content-type", "application/json")
            .header("x-request-id", id)
            .body(Full::new(Bytes::from(body.to_string())))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(self.dial().await?)).await?;
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
        let address = SocketAddr::new(self.edge.ip(), port);
        let socket = self.network.connect(address).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
        let _connection = AbortOnDrop(tokio::task::spawn_local(async move {
            let _ = connection.await;
        }));
        let request =
            Request::get(path).header("host", "127.0.0.1").body(Full::<Bytes>::default())?;
        let body = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
        Ok(serde_json::from_slice(&body)?)
    }

    async fn dial(&self) -> std::io::Result<iop_net::socket::Socket> {
        self.network.connect(self.edge).await
    }
}

/// A task that ends with its owner, and with it the connection that it drives.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
