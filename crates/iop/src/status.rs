//! `iop status`: the Edge, its Nodes and their providers at a glance.

use serde::Deserialize;
use serde_json::Value;

use crate::cli::{Asking, Output};
use crate::client::{AskError, Base};
use crate::table::{few, millis, shown, table};

/// Runs `iop status` and returns what it prints.
///
/// # Errors
/// The Edge could not be asked.
pub(crate) async fn run(asking: &Asking) -> Result<String, AskError> {
    let base = Base::parse(&asking.admin, "--admin")?;
    match asking.output {
        Output::Json => {
            let status: Value = base.get("/api/v1/status").await?;
            let nodes: Value = base.get("/api/v1/nodes").await?;
            let providers: Value = base.get("/api/v1/providers").await?;
            let whole = serde_json::json!({
                "status": status,
                "nodes": nodes["nodes"],
                "providers": providers["providers"],
            });
            Ok(format!("{whole:#}\n"))
        }
        Output::Table => {
            let status: Status = base.get("/api/v1/status").await?;
            let nodes: Nodes = base.get("/api/v1/nodes").await?;
            let providers: Providers = base.get("/api/v1/providers").await?;
            Ok(show(&status, &nodes.nodes, &providers.providers))
        }
    }
}

#[derive(Deserialize)]
struct Status {
    version: String,
    group: String,
    state: String,
    uptime_s: u64,
    not_ready_because: Option<String>,
    listen: Listen,
    in_flight: u64,
    waiting: u64,
    models: u64,
    buffered_bodies: Buffered,
    history: History,
}

#[derive(Deserialize)]
struct Buffered {
    limit_bytes: u64,
    used_bytes: u64,
    peak_bytes: u64,
    refused: u64,
}

#[derive(Deserialize)]
struct Listen {
    clients: String,
    nodes: String,
}

#[derive(Deserialize)]
struct History {
    degraded: Option<String>,
}

#[derive(Deserialize)]
struct Nodes {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    node: String,
    link: Option<Link>,
}

#[derive(Deserialize)]
struct Link {
    generation: u64,
    address: String,
    version: String,
    draining: bool,
    streams: u32,
    heartbeat_rtt_ms: Option<f64>,
    answer_credit: Credit,
    body_credit: Credit,
}

/// How much of a link's budget is in use.
#[derive(Deserialize)]
pub(crate) struct Credit {
    limit_bytes: u64,
    reserved_bytes: u64,
    peak_bytes: u64,
}

#[derive(Deserialize)]
struct Providers {
    providers: Vec<Provider>,
}

#[derive(Deserialize)]
struct Provider {
    node: String,
    provider: String,
    adapter: Option<String>,
    state: String,
    #[serde(default)]
    reason: String,
    ready: bool,
    targets: Vec<String>,
    capacity: u32,
    in_use: u32,
    zombies: u32,
    queued: Option<u32>,
    #[serde(default)]
    health: Vec<TargetHealth>,
}

#[derive(Deserialize)]
struct TargetHealth {
    target: String,
    health: Option<String>,
    health_observation_seq: Option<u64>,
    observed_ms_ago: Option<u64>,
    left_out_ms: Option<u64>,
    next_trial_in_ms: Option<u64>,
    on_trial: bool,
    cooling_ms: Option<u64>,
}

fn show(status: &Status, nodes: &[Node], providers: &[Provider]) -> String {
    let memory = &status.buffered_bodies;
    let mut text = format!(
        "Edge {} of group `{}`: {}, up {}\n\
         Clients   http://{}/v1, {} in flight, {} waiting\n\
         Memory    {} of {} for whole bodies (peak {}{})\n\
         Models    {}{}\n",
        status.version,
        status.group,
        status.state,
        millis(status.uptime_s.saturating_mul(1_000)),
        status.listen.clients,
        status.in_flight,
        status.waiting,
        bytes(memory.used_bytes),
        bytes(memory.limit_bytes),
        bytes(memory.peak_bytes),
        match memory.refused {
            0 => String::new(),
            times => format!(", {times} refused"),
        },
        status.models,
        status.not_ready_because.as_ref().map_or_else(String::new, |why| format!(" ({why})")),
    );
    if let Some(reason) = &status.history.degraded {
        text.push_str(&format!("History   degraded: {reason}\n"));
    }
    text.push('\n');
    if nodes.is_empty() {
        text.push_str(&format!("No node has linked yet: nodes dial {}\n", status.listen.nodes));
        return text;
    }
    let rows: Vec<_> = nodes.iter().map(node_row).collect();
    text.push_str(&table(NODE_HEADINGS, &rows));
    for node in nodes {
        if let Some(link) = &node.link {
            text.push_str(&format!("{}: {}\n", shown(&node.node), credits(link)));
        }
    }
    if !providers.is_empty() {
        text.push('\n');
        let rows: Vec<_> = providers.iter().map(|provider| provider_row(provider, nodes)).collect();
        text.push_str(&table(PROVIDER_HEADINGS, &rows));
        text.push_str(&health_lines(providers));
    }
    text
}

/// Lays out what `/api/v1/nodes` answers.
///
/// # Errors
/// It is not what this version understands.
pub(crate) fn node_table(answer: &Value) -> Result<String, AskError> {
    let Nodes { nodes } = read(answer)?;
    let rows: Vec<_> = nodes.iter().map(node_row).collect();
    Ok(table(NODE_HEADINGS, &rows))
}

/// Lays out what `/api/v1/providers` answers, beside the nodes that have them.
///
/// # Errors
/// It is not what this version understands.
pub(crate) fn provider_table(answer: &Value, nodes: &Value) -> Result<String, AskError> {
    let (Providers { providers }, Nodes { nodes }) = (read(answer)?, read(nodes)?);
    let rows: Vec<_> = providers.iter().map(|provider| provider_row(provider, &nodes)).collect();
    Ok(table(PROVIDER_HEADINGS, &rows) + &health_lines(&providers))
}

fn read<T: serde::de::DeserializeOwned>(answer: &Value) -> Result<T, AskError> {
    T::deserialize(answer).map_err(|source| AskError::Unreadable { source })
}

/// How many models of a provider a table names: a row should fit a terminal.
const NAMED: usize = 3;

const NODE_HEADINGS: [&str; 7] =
    ["NODE", "STATE", "GENERATION", "ADDRESS", "STREAMS", "RTT", "VERSION"];
const PROVIDER_HEADINGS: [&str; 5] =
    ["PROVIDER", "ADAPTER", "STATE", "IN USE", "MODELS, OR WHY NOT"];

fn node_row(node: &Node) -> [String; 7] {
    let none = || "-".to_owned();
    match &node.link {
        None => {
            let mut row = std::array::from_fn(|_| none());
            row[0] = node.node.clone();
            row[1] = "offline".to_owned();
            row
        }
        Some(link) => [
            node.node.clone(),
            if link.draining { "draining" } else { "linked" }.to_owned(),
            link.generation.to_string(),
            link.address.clone(),
            link.streams.to_string(),
            link.heartbeat_rtt_ms.map_or_else(none, |rtt| format!("{rtt:.1} ms")),
            link.version.clone(),
        ],
    }
}

fn provider_row(provider: &Provider, nodes: &[Node]) -> [String; 5] {
    let is_linked = nodes.iter().any(|node| node.node == provider.node && node.link.is_some());
    let zombies = match provider.zombies {
        0 => String::new(),
        1 => ", 1 zombie".to_owned(),
        count => format!(", {count} zombies"),
    };
    let queued = match provider.queued {
        None | Some(0) => String::new(),
        Some(count) => format!(" (+{count} wait in the server)"),
    };
    [
        format!("{}/{}", provider.node, provider.provider),
        provider.adapter.clone().unwrap_or_else(|| "-".to_owned()),
        match (is_linked, provider.ready, provider.state.as_str()) {
            (false, ..) => "offline".to_owned(),
            // Ready for more than its Node takes.
            (true, false, "ready") => "draining".to_owned(),
            (true, true, state) => format!("{state}{}", left_out(provider)),
            (true, false, state) => state.to_owned(),
        },
        format!("{}/{}{zombies}{queued}", provider.in_use, provider.capacity),
        match (is_linked, provider.ready) {
            (false, _) => "its node is offline".to_owned(),
            (true, true) => few(&provider.targets, NAMED),
            (true, false) => provider.reason.clone(),
        },
    ]
}

/// Says how many of a provider's targets are left out.
fn left_out(provider: &Provider) -> String {
    let count = provider.health.iter().filter(|health| health.left_out_ms.is_some()).count();
    match count {
        0 => String::new(),
        all if all == provider.targets.len() => ", left out".to_owned(),
        some => format!(", {some} of {} left out", provider.targets.len()),
    }
}

/// One line for each target of whose health something is known, of providers that are there.
fn health_lines(providers: &[Provider]) -> String {
    let targets = providers.iter().filter(|provider| provider.ready).flat_map(|provider| {
        provider.health.iter().map(move |health| {
            let place = format!("{}/{}", provider.node, provider.provider);
            format!("{} {}: {}\n", shown(&place), shown(&health.target), health.tell())
        })
    });
    targets.collect()
}

impl TargetHealth {
    /// Says what was seen and what follows from it.
    fn tell(&self) -> String {
        let mut parts = Vec::new();
        if let (Some(health), Some(seq)) = (&self.health, self.health_observation_seq) {
            let ago = millis(self.observed_ms_ago.unwrap_or_default());
            parts.push(format!("{} {ago} ago (observation {seq})", shown(health)));
        }
        if let Some(since) = self.left_out_ms {
            parts.push(format!("left out since {} ago", millis(since)));
            parts.push(match self.next_trial_in_ms {
                _ if self.on_trial => "one request tries it".to_owned(),
                Some(wait) if wait > 0 => format!("next trial in {}", millis(wait)),
                Some(_) | None => "the next request may try it".to_owned(),
            });
        }
        if let Some(left) = self.cooling_ms {
            parts.push(format!("asked to be left alone for {}", millis(left)));
        }
        parts.join(", ")
    }
}

/// What both directions of a link have of their budgets.
fn credits(link: &Link) -> String {
    let (bodies, answers) = (credit(&link.body_credit), credit(&link.answer_credit));
    format!("credit for bodies {bodies}, for answers {answers}")
}

/// What is reserved of a link's budget, and the budget; a peak stands beside it in `iop nodes show`.
fn credit(credit: &Credit) -> String {
    format!("{} of {}", bytes(credit.reserved_bytes), bytes(credit.limit_bytes))
}

/// As [`credit`], with the most that ever was.
pub(crate) fn credit_in_full(credit: &Credit) -> String {
    let peak = bytes(credit.peak_bytes);
    let (reserved, limit) = (bytes(credit.reserved_bytes), bytes(credit.limit_bytes));
    format!("{reserved} (peak {peak}) of {limit}")
}

/// Shows a number of bytes.
pub(crate) fn bytes(count: u64) -> String {
    match count {
        0..1_024 => format!("{count} B"),
        1_024..1_048_576 => format!("{} KiB", count / 1_024),
        _ => format!("{} MiB", count / 1_048_576),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_target_that_is_left_out_says_since_when_and_until_when() {
        let mut provider = json!({
            "node": "box", "provider": "ollama", "adapter": "ollama", "state": "ready", "ready": true,
            "targets": ["m"], "capacity": 4, "in_use": 0, "zombies": 0, "queued": null,
            "health": [{
                "target": "m", "health": "unavailable", "health_observation_seq": 3,
                "observed_ms_ago": 2_000, "left_out_ms": 12_000, "next_trial_in_ms": 18_000,
                "on_trial": false,
            }],
        });
        let told =
            |provider: &Value| health_lines(&[Provider::deserialize(provider.clone()).unwrap()]);
        assert_eq!(
            told(&provider),
            "box/ollama m: unavailable 2.0 s ago (observation 3), left out since 12.0 s ago, next \
             trial in 18.0 s\n"
        );
        provider["health"] = json!([{ "target": "m", "on_trial": false, "cooling_ms": 5_000 }]);
        assert_eq!(told(&provider), "box/ollama m: asked to be left alone for 5.0 s\n");
        provider["ready"] = json!(false);
        assert_eq!(told(&provider), "", "one that is gone has other troubles");
    }

    #[test]
    fn the_table_shows_zombies_as_in_use_and_who_is_left_out() {
        let row = |change: &dyn Fn(&mut Value)| {
            let mut provider = json!({
                "node": "box", "provider": "p", "adapter": "ollama", "state": "ready", "ready": true,
                "targets": ["m", "n"], "capacity": 8, "in_use": 1, "zombies": 1, "queued": null,
                "health": [{ "target": "m", "on_trial": false, "left_out_ms": 48_600 }],
            });
            change(&mut provider);
            let link =
                |amount| json!({ "limit_bytes": amount, "reserved_bytes": 0, "peak_bytes": 0 });
            let node = json!({ "node": "box", "link": {
                "generation": 1, "address": "127.0.0.1:1", "version": "0", "draining": false,
                "streams": 0, "heartbeat_rtt_ms": null,
                "answer_credit": link(1), "body_credit": link(1),
            }});
            let provider = Provider::deserialize(provider).unwrap();
            let [.., state, in_use, _] =
                provider_row(&provider, &[Node::deserialize(node).unwrap()]);
            (state, in_use)
        };
        let told = |state: &str, in_use: &str| (state.to_owned(), in_use.to_owned());
        assert_eq!(row(&|_| {}), told("ready, 1 of 2 left out", "1/8, 1 zombie"));
        let both = |provider: &mut Value| {
            provider["targets"] = json!(["m"]);
            provider["in_use"] = 2.into();
            provider["zombies"] = 2.into();
        };
        assert_eq!(row(&both), told("ready, left out", "2/8, 2 zombies"));
    }

    #[test]
    fn two_nodes_fit_a_hundred_columns_and_the_budgets_of_their_links_are_shown() {
        let credit = |reserved| json!({ "limit_bytes": 64 << 20, "reserved_bytes": reserved, "peak_bytes": 65_536 });
        let link = json!({
            "generation": 41, "address": "192.168.100.200:54321", "version": "0.1.0",
            "draining": true, "streams": 1000, "heartbeat_rtt_ms": 12.3,
            "answer_credit": credit(67_108_864), "body_credit": credit(65_536),
        });
        let nodes: Vec<_> = ["workstation-01", "workstation-02"]
            .map(|name| Node::deserialize(json!({ "node": name, "link": link.clone() })).unwrap())
            .into();
        let status = json!({
            "version": "0.1.0", "group": "home", "state": "ready", "uptime_s": 9,
            "not_ready_because": null, "listen": { "clients": "127.0.0.1:7400", "nodes": "127.0.0.1:7401" },
            "in_flight": 0, "waiting": 0, "models": 1, "history": { "degraded": null },
            "buffered_bodies": { "limit_bytes": 536_870_912, "used_bytes": 0, "peak_bytes": 0, "refused": 0 },
        });
        let text = show(&Status::deserialize(status).unwrap(), &nodes, &[]);
        let budgets =
            "workstation-02: credit for bodies 64 KiB of 64 MiB, for answers 64 MiB of 64 MiB\n";
        assert!(text.contains(budgets), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
}
