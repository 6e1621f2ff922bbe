//! What an Edge says of itself: its metrics, its admin answers, its history.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use iop_testkit::http::{self, Client, Head};
use iop_testkit::{IopProcess, PATIENCE};
use serde_json::Value;

use super::{CHAT, eventually};

/// Where an Edge is reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub(crate) clients: SocketAddr,
    pub(crate) nodes: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Edge {
    /// Reads the addresses off the log of the process.
    pub(crate) async fn found_in(process: &IopProcess) -> Self {
        let line = process.wait_for_line("edge serves").await;
        let at = |name: &str| {
            let field = line.split_whitespace().find_map(|field| field.strip_prefix(name));
            field.unwrap_or_else(|| panic!("no {name} in {line}")).parse().unwrap()
        };
        Self { clients: at("clients="), nodes: at("nodes="), admin: at("admin=") }
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

    /// All series of `/metrics` with their values.
    pub(crate) async fn metrics(&self) -> BTreeMap<String, f64> {
        let (_, body) = http::get(self.admin, "/metrics").await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        let series = text.lines().filter(|line| !line.starts_with('#'));
        series
            .map(|line| {
                let (name, value) = line.rsplit_once(' ').unwrap();
                (name.to_owned(), value.parse().unwrap())
            })
            .collect()
    }

    /// One series; 0 where it does not exist.
    pub(crate) async fn metric(&self, series: &str) -> f64 {
        self.metrics().await.get(series).copied().unwrap_or_default()
    }

    /// Waits until a series has this value.
    pub(crate) async fn wait_for_metric(&self, series: &str, value: f64) {
        self.until(&format!("{series} is {value}"), async |edge| {
            edge.metric(series).await.total_cmp(&value).is_eq()
        })
        .await;
    }

    /// Waits until `holds` says yes; a failure shows all that the Edge says of itself.
    pub(crate) async fn until(&self, what: &str, mut holds: impl AsyncFnMut(&Self) -> bool) {
        if eventually(async || holds(self).await.then_some(())).await.is_some() {
            return;
        }
        let mut told = String::new();
        for path in ["/metrics", "/api/v1/nodes", "/api/v1/providers", "/api/v1/runs?limit=5"] {
            let answer = http::get(self.admin, path).await;
            let text = answer.map(|(_, body)| String::from_utf8_lossy(&body).into_owned());
            told += &format!("{path}: {}\n", text.unwrap_or_else(|error| error.to_string()));
        }
        panic!("waited {PATIENCE:?} in vain until {what}; the edge says:\n{told}");
    }

    /// Waits until clients can use this model.
    pub(crate) async fn serves(&self, model: &str) {
        self.until(&format!("model {model} is available"), async |edge| {
            let models = edge.admin("/api/v1/models").await;
            let mut models = models["models"].as_array().unwrap().iter();
            models.any(|entry| entry["model"] == model && entry["available"] == true)
        })
        .await;
    }

    /// Waits until a Node has a link.
    pub(crate) async fn linked(&self, node: &str) {
        self.wait_for_metric(&format!("iop_node_linked{{node=\"{node}\"}}"), 1.0).await;
    }

    /// The link of a Node, `null` where there is none.
    pub(crate) async fn link(&self, node: &str) -> Value {
        let nodes = self.admin("/api/v1/nodes").await;
        let mut nodes = nodes["nodes"].as_array().unwrap().iter();
        let entry = nodes.find(|entry| entry["node"] == node);
        entry.map(|entry| entry["link"].clone()).unwrap_or_default()
    }

    /// The generation of a Node's link, 0 where there is none.
    pub(crate) async fn generation(&self, node: &str) -> u64 {
        self.link(node).await["generation"].as_u64().unwrap_or_default()
    }

    /// Waits until nothing is counted any more: requests, places, permits, streams, bytes.
    pub(crate) async fn idle(&self) {
        self.until("nothing is counted any more", async |edge| {
            edge.metrics().await.iter().all(|(series, value)| {
                let counted = COUNTED.iter().any(|name| series.starts_with(name));
                !counted || value.total_cmp(&0.0).is_eq()
            })
        })
        .await;
    }

    /// What history keeps of the request with this answer, once it has ended.
    pub(crate) async fn run(&self, head: &Head) -> Value {
        let id = head.header("x-request-id").expect("every answer has an x-request-id");
        self.run_where(&format!("request {id}"), |run| run["request_id"] == id).await
    }

    /// The newest ended run that `is_it` picks.
    pub(crate) async fn run_where(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let mut found = Value::Null;
        self.until(&format!("history has the end of {what}"), async |edge| {
            let runs = edge.admin("/api/v1/runs?limit=1000").await;
            let mut runs = runs["runs"].as_array().unwrap().iter();
            let ended = |run: &&Value| run["terminal"].is_object() && is_it(run);
            found = runs.find(ended).cloned().unwrap_or_default();
            found.is_object()
        })
        .await;
        found
    }
}

/// Series that are zero when nothing is going on.
const COUNTED: [&str; 7] = [
    "iop_requests_in_flight",
    "iop_permits_in_use",
    "iop_queue_waiting",
    "iop_buffered_body_bytes",
    "iop_provider_in_use",
    "iop_link_streams",
    "iop_link_buffered_bytes",
];
