//! Starting an Edge, and what tests ask of it.

pub(crate) mod node;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use iop_config::EdgeConfig;
use iop_edge::{Edge, Timing, Tools};
use iop_net::net::TokioNet;
use iop_store::{DataDir, EdgeHistory};
use iop_testkit::PATIENCE;
use iop_testkit::http::{self, Client, Head};
use iop_types::{
    AdapterType, Capabilities, Operation, ProviderRevision, ProviderState, ProviderStatus, RunKind,
    Target,
};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) use self::node::{FakeNode, Taken};

pub(crate) const CHAT: &str = "/v1/chat/completions";

/// One content event of a stream.
pub(crate) const CONTENT: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"},\"finish_reason\":null}]}\n\n";
/// The event with the finish reason.
pub(crate) const FINISH: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
/// The usage chunk.
pub(crate) const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"total_tokens\":7}}\n\n";
/// The end of a stream.
pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// An Edge under test.
pub(crate) struct World {
    pub(crate) edge: Edge,
    pub(crate) clients: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) nodes: SocketAddr,
    _data: DataDir,
    _dir: TempDir,
}

impl World {
    /// Starts an Edge with this file, whose `listen` is replaced.
    pub(crate) async fn with(file: &str) -> Self {
        Self::timed(file, Timing::default()).await
    }

    pub(crate) async fn timed(file: &str, timing: Timing) -> Self {
        let mut file = EdgeConfig::parse(file, "edge.yaml").unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        file.listen = iop_config::Listen { clients: any, nodes: any, admin: any };
        let dir = TempDir::new().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        let history = EdgeHistory::open(&data, Duration::from_secs(86_400), jiff::Timestamp::now());
        let tools = Tools { net: Arc::new(TokioNet), history };
        let edge = Edge::start_timed(file, tools, timing).await.unwrap();
        let at = edge.addresses();
        Self { edge, clients: at.clients, admin: at.admin, nodes: at.nodes, _data: data, _dir: dir }
    }

    /// Starts an Edge with defaults.
    pub(crate) async fn new() -> Self {
        Self::with("version: 1\n").await
    }

    /// Links a Node that serves these.
    pub(crate) async fn node(&self, name: &str, providers: Vec<ProviderStatus>) -> FakeNode {
        FakeNode::join(self.nodes, name, providers).await
    }

    /// An Edge and a Node with one provider `p` that tunnels target `m`.
    pub(crate) async fn tunnelling(file: &str) -> (Self, FakeNode) {
        let world = Self::with(file).await;
        let node = world.node("box", vec![tunnel("p", &["m"], 8)]).await;
        (world, node)
    }

    /// An Edge and a Node with one provider `p` that runs target `m`.
    pub(crate) async fn running(file: &str) -> (Self, FakeNode) {
        let world = Self::with(file).await;
        let node = world.node("box", vec![run("p", &["m"], 8)]).await;
        (world, node)
    }

    /// A connection of a client.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.clients).await.unwrap()
    }

    /// A connection on which this was posted to the chat operation.
    pub(crate) async fn chat(&self, body: &Value) -> Client {
        let mut client = self.client().await;
        client.post(CHAT, body).await.unwrap();
        client
    }

    pub(crate) async fn admin(&self, path: &str) -> Value {
        let (head, body) = http::get(self.admin, path).await.unwrap();
        assert_eq!(head.status, 200, "{path}: {}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap()
    }

    /// Reads one number of `/metrics`; `series` is everything before the value.
    pub(crate) async fn metric(&self, series: &str) -> Option<f64> {
        let (_, body) = http::get(self.admin, "/metrics").await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map(|value| value.parse().unwrap())
    }

    /// Waits until the Edge counts nothing any more: requests, permits, streams, bytes.
    pub(crate) async fn idle(&self) {
        const ALL: [&str; 5] = [
            "iop_requests_in_flight",
            "iop_permits_in_use",
            "iop_queue_waiting",
            "iop_buffered_body_bytes",
            "iop_link_streams{node=\"box\"}",
        ];
        until("nothing is in flight", async || {
            for series in ALL {
                if self.metric(series).await.unwrap_or_default() != 0.0 {
                    return false;
                }
            }
            true
        })
        .await;
    }

    /// The newest run in history, once nothing is in flight and history has all that ended.
    pub(crate) async fn last_run(&self) -> Value {
        let mut last = Value::Null;
        until("every run is in history", async || {
            if self.metric("iop_requests_in_flight").await != Some(0.0) {
                return false;
            }
            let ended = self.sum("iop_requests_total{").await;
            let (head, body) = http::get(self.admin, "/api/v1/runs?limit=1000").await.unwrap();
            let Ok(list) = serde_json::from_slice::<Value>(&body) else { return false };
            let Some(runs) = list["runs"].as_array() else { return false };
            last = runs.first().cloned().unwrap_or_default();
            let recorded = runs.iter().filter(|run| run["terminal"].is_object()).count();
            head.status == 200 && recorded as f64 == ended
        })
        .await;
        last
    }

    /// Adds up all series of `/metrics` that begin like this.
    pub(crate) async fn sum(&self, prefix: &str) -> f64 {
        let (_, body) = http::get(self.admin, "/metrics").await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        let values = text.lines().filter(|line| line.starts_with(prefix));
        values.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    }
}

/// Waits for a state by looking again; it is looked at through the Edge's own listeners.
pub(crate) async fn until(what: &str, mut look: impl AsyncFnMut() -> bool) {
    let look = async {
        while !look().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, look).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Waits for something that must come.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("never: {what}"))
}

fn provider(key: &str, targets: &[&str], capacity: u32) -> ProviderStatus {
    ProviderStatus {
        provider: key.into(),
        adapter: AdapterType::OpenaiCompat,
        state: ProviderState::Ready,
        reason: String::new(),
        targets: targets.iter().map(|name| Target::from(*name)).collect(),
        loaded: Vec::new(),
        capacity,
        in_use: 0,
        zombies: 0,
        queued: None,
        revision: ProviderRevision(1),
        capabilities: Capabilities::default(),
    }
}

/// A provider that takes the OpenAI operations as they are.
pub(crate) fn tunnel(key: &str, targets: &[&str], capacity: u32) -> ProviderStatus {
    let paths = [CHAT, "/v1/completions", "/v1/embeddings", "/v1/audio/transcriptions"];
    let operations =
        paths.map(|path| Operation { method: "POST".to_owned(), path: path.to_owned() });
    let capabilities = Capabilities { tunnel: operations.into(), ..Capabilities::default() };
    ProviderStatus { capabilities, ..provider(key, targets, capacity) }
}

/// A provider that executes runs.
pub(crate) fn run(key: &str, targets: &[&str], capacity: u32) -> ProviderStatus {
    let runs = vec![RunKind::Chat, RunKind::Completion, RunKind::Embedding];
    let capabilities = Capabilities { runs, ..Capabilities::default() };
    let adapter = AdapterType::Mock;
    ProviderStatus { capabilities, adapter, ..provider(key, targets, capacity) }
}

/// A streamed chat for target `m`.
pub(crate) fn streamed() -> Value {
    json!({ "model": "m", "stream": true, "messages": [] })
}

/// A chat for target `m` that is answered at once.
pub(crate) fn unary() -> Value {
    json!({ "model": "m", "messages": [] })
}

/// Checks an error in OpenAI's shape and returns its message.
pub(crate) fn error(head: &Head, body: &Value, status: u16, code: &str) -> String {
    assert_eq!((head.status, &body["error"]["code"]), (status, &json!(code)), "{body}");
    assert!(head.header("x-request-id").is_some());
    assert_eq!(head.header("content-type"), Some("application/json"));
    body["error"]["message"].as_str().unwrap().to_owned()
}

/// Reads a whole error.
pub(crate) async fn refused(client: &mut Client, status: u16, code: &str) -> (Head, String) {
    let head = client.head().await.unwrap();
    let body = client.json().await.unwrap();
    let message = error(&head, &body, status, code);
    (head, message)
}
