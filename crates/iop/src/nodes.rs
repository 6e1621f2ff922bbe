//! `iop nodes` and `iop providers`: what the group consists of.

use std::fmt::Write as _;

use http_body_util::BodyExt as _;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cli::{Asking, Nodes, Output, Providers};
use crate::client::{AskError, Base, encoded};
use crate::status::{Credit, bytes, credit_in_full, node_table, provider_table};
use crate::table::shown;

/// Runs `iop nodes` and returns what it prints.
///
/// # Errors
/// The Edge could not be asked, or knows no such Node.
pub(crate) async fn run(nodes: &Nodes) -> Result<String, AskError> {
    match nodes {
        Nodes::List { asking } => {
            let answer: Value = base(asking)?.get("/api/v1/nodes").await?;
            print(asking, &answer, |answer| match answer["nodes"].as_array().map(Vec::len) {
                None | Some(0) => {
                    eprintln!("No node has linked yet, and the edge's file names none.");
                    Ok(String::new())
                }
                Some(_) => node_table(answer),
            })
        }
        Nodes::Show { name, asking } => show(name, asking).await,
    }
}

/// Runs `iop providers` and returns what it prints.
///
/// # Errors
/// The Edge could not be asked.
pub(crate) async fn providers(providers: &Providers) -> Result<String, AskError> {
    let Providers::List { asking } = providers;
    let base = base(asking)?;
    let answer: Value = base.get("/api/v1/providers").await?;
    let nodes: Value = base.get("/api/v1/nodes").await?;
    print(asking, &answer, |answer| match answer["providers"].as_array().map(Vec::len) {
        None | Some(0) => {
            eprintln!("No providers yet: `iop status` says which nodes are linked.");
            Ok(String::new())
        }
        Some(_) => provider_table(answer, &nodes),
    })
}

fn base(asking: &Asking) -> Result<Base, AskError> {
    Base::parse(&asking.admin, "--admin")
}

fn print(
    asking: &Asking,
    answer: &Value,
    lay_out: impl FnOnce(&Value) -> Result<String, AskError>,
) -> Result<String, AskError> {
    match asking.output {
        Output::Json => Ok(format!("{answer:#}\n")),
        Output::Table => lay_out(answer),
    }
}

/// What the Edge knows of a Node, and what the Node says of itself while it is there to be asked.
async fn show(name: &str, asking: &Asking) -> Result<String, AskError> {
    let base = base(asking)?;
    let path = format!("/api/v1/nodes/{}", encoded(name));
    let node: Value = base.get(&path).await?;
    let mut whole = json!({ "node": node });
    if node["linked"] == true {
        let (capabilities, transport) = tokio::join!(
            command(&base, &path, "CAPABILITIES"),
            command(&base, &path, "TRANSPORT_STATUS")
        );
        for (name, answer) in [("capabilities", capabilities), ("transport", transport)] {
            match answer {
                Ok(answer) => whole[name] = answer,
                // The rest is worth showing.
                Err(error) => eprintln!("warning: {name}: {}", shown(&crate::chain(&error))),
            }
        }
    }
    match asking.output {
        Output::Json => Ok(format!("{whole:#}\n")),
        Output::Table => {
            let whole = serde_json::from_value(whole);
            Ok(page(&whole.map_err(|source| AskError::Unreadable { source })?))
        }
    }
}

async fn command(base: &Base, path: &str, kind: &str) -> Result<Value, AskError> {
    let asked = json!({ "kind": kind }).to_string().into_bytes();
    let response = base.post(&format!("{path}/commands"), asked).await?;
    let body = response.into_body().collect().await;
    let body = body.map_err(|source| AskError::Lost { base: base.clone(), source })?;
    serde_json::from_slice(&body.to_bytes()).map_err(|source| AskError::Unreadable { source })
}

#[derive(Deserialize)]
struct Whole {
    node: Node,
    capabilities: Option<Capabilities>,
    transport: Option<Transport>,
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
    platform: String,
    since: String,
    draining: bool,
    streams: u32,
    heartbeat_rtt_ms: Option<f64>,
    body_credit: Credit,
    answer_credit: Credit,
}

#[derive(Deserialize)]
struct Capabilities {
    adapters: Vec<String>,
    providers: Vec<Provider>,
}

#[derive(Deserialize)]
struct Provider {
    provider: String,
    adapter: String,
    state: String,
    capacity: u32,
    runs: Vec<String>,
    tunnel: Vec<Operation>,
    commands: Vec<Command>,
}

#[derive(Deserialize)]
struct Operation {
    path: String,
}

#[derive(Deserialize)]
struct Command {
    manages: bool,
    permitted: bool,
}

#[derive(Deserialize)]
struct Transport {
    calls: u64,
    link: Option<NodesLink>,
    providers: Vec<Connections>,
}

#[derive(Deserialize)]
struct NodesLink {
    sent_bytes: u64,
    received_bytes: u64,
    granted_bytes: u64,
    credit_budget: u64,
    late_frames: u64,
}

#[derive(Deserialize)]
struct Connections {
    provider: String,
    open: u64,
    idle: u64,
}

fn page(whole: &Whole) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<12}{}", shown(value));
    };
    line("node", &whole.node.node);
    match &whole.node.link {
        None => line("state", "offline"),
        Some(link) => {
            let state = if link.draining { "draining" } else { "linked" };
            line("state", &format!("{state} since {}", link.since));
            line("generation", &link.generation.to_string());
            line("address", &link.address);
            line("version", &format!("{} on {}", link.version, link.platform));
            let rtt =
                link.heartbeat_rtt_ms.map_or_else(String::new, |ms| format!(", rtt {ms:.1} ms"));
            line("link", &format!("{} streams{rtt}", link.streams));
            line("credit out", &credit_in_full(&link.body_credit));
            line("credit in", &credit_in_full(&link.answer_credit));
        }
    }
    if let Some(Transport { calls, link: Some(link), .. }) = &whole.transport {
        line("at work", &format!("{calls} calls"));
        line("sent", &bytes(link.sent_bytes));
        line("received", &bytes(link.received_bytes));
        let (granted, budget) = (bytes(link.granted_bytes), bytes(link.credit_budget));
        line("credit", &format!("{granted} of {budget} granted"));
        line("late", &format!("{} frames", link.late_frames));
    }
    if let Some(capabilities) = &whole.capabilities {
        line("adapters", &capabilities.adapters.join(", "));
        if capabilities.providers.is_empty() {
            text.push_str("\nNo providers yet.\n");
            return text;
        }
        text.push('\n');
        let rows: Vec<_> = capabilities
            .providers
            .iter()
            .map(|provider| row(provider, whole.transport.as_ref()))
            .collect();
        let headings = ["PROVIDER", "ADAPTER", "STATE", "CAPACITY", "CONNECTIONS"];
        text.push_str(&crate::table::table(headings, &rows));
        for provider in &capabilities.providers {
            text.push_str(&abilities(provider));
        }
    }
    text
}

fn row(provider: &Provider, transport: Option<&Transport>) -> [String; 5] {
    let dash = || "-".to_owned();
    let connections = transport
        .and_then(|transport| {
            transport.providers.iter().find(|other| other.provider == provider.provider)
        })
        .map_or_else(dash, |found| format!("{} open, {} idle", found.open, found.idle));
    [
        provider.provider.clone(),
        provider.adapter.clone(),
        provider.state.clone(),
        provider.capacity.to_string(),
        connections,
    ]
}

/// Says what a provider can do, in lines below the table, which would be too wide with it.
fn abilities(provider: &Provider) -> String {
    let runs = if provider.runs.is_empty() { "-".to_owned() } else { provider.runs.join(", ") };
    let (name, tunnel) = (shown(&provider.provider), relayed(&provider.tunnel));
    let commands = permitted(&provider.commands);
    let runs = shown(&runs);
    format!("{name} runs: {runs}; commands: {commands}\n{name} relays: {tunnel}\n")
}

/// How wide the list of relayed operations becomes at most, so that a line fits 80 columns: all of them
/// are in `-o json`.
const TUNNEL_WIDTH: usize = 54;

/// Names what is relayed by the last parts of the paths, OpenAI's first, as many as fit.
fn relayed(operations: &[Operation]) -> String {
    let is_openai = |path: &&str| path.starts_with("/v1/");
    let paths = || operations.iter().map(|operation| operation.path.as_str());
    let ordered = paths().filter(is_openai).chain(paths().filter(|path| !is_openai(path)));
    let mut names: Vec<&str> = Vec::new();
    for path in ordered {
        let path = path.trim_end_matches('/');
        let path = path.strip_suffix("/completions").filter(|rest| *rest != "/v1").unwrap_or(path);
        let name = path.rsplit('/').next().unwrap_or(path);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut text = String::new();
    for (at, name) in names.iter().enumerate() {
        let name = shown(name);
        let gap = if text.is_empty() { "" } else { ", " };
        let more = format!(", +{}", names.len() - at);
        let reserve = if at + 1 == names.len() { 0 } else { more.len() };
        let width = text.chars().count() + gap.len() + name.chars().count() + reserve;
        if width > TUNNEL_WIDTH {
            text.push_str(if gap.is_empty() { &more[2..] } else { &more });
            return text;
        }
        text.push_str(gap);
        text.push_str(&name);
    }
    if text.is_empty() { "-".to_owned() } else { text }
}

/// Says which kinds of commands the provider takes: those that look, and those that change it.
fn permitted(commands: &[Command]) -> &'static str {
    let takes =
        |manages| commands.iter().any(|command| command.permitted && command.manages == manages);
    match (takes(false), takes(true)) {
        (true, true) => "reads, manages",
        (true, false) => "reads",
        (false, true) => "manages",
        (false, false) => "-",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_shows_what_is_known_and_nothing_of_a_node_that_is_away() {
        let away = json!({ "node": { "node": "ws", "linked": false } });
        let text = page(&serde_json::from_value(away).unwrap());
        assert_eq!(text, "node        ws\nstate       offline\n");
    }

    #[test]
    fn what_a_node_says_of_itself_is_printed_escaped() {
        let whole = json!({
            "node": { "node": "ws", "linked": true, "link": {
                "generation": 3, "address": "127.0.0.1:9", "version": "1\u{1b}[2J", "platform": "os",
                "since": "2026-01-31", "draining": false, "streams": 2,
                "body_credit": { "limit_bytes": 67_108_864, "reserved_bytes": 0, "peak_bytes": 65_536 },
                "answer_credit": { "limit_bytes": 67_108_864, "reserved_bytes": 4_096, "peak_bytes": 4_096 },
            } },
            "capabilities": { "adapters": ["ollama"], "providers": [{
                "provider": "o", "adapter": "ollama", "state": "ready", "capacity": 4,
                "runs": ["chat", "completion", "embeddings"],
                "tunnel": (0..40).map(|at| json!({ "method": "GET", "path": format!("/v1/name-{at}") }))
                    .collect::<Vec<_>>(),
                "commands": [
                    { "method": "GET", "path": "/api/ps", "manages": false, "permitted": true },
                    { "method": "POST", "path": "/api/pull", "manages": true, "permitted": false },
                ],
            }] },
            "transport": { "calls": 1, "providers": [{ "provider": "o", "open": 2, "idle": 1 }] },
        });
        let text = page(&serde_json::from_value(whole).unwrap());
        assert!(!text.contains('\u{1b}') && text.contains("\\u{1b}"), "{text}");
        assert!(text.contains("reads\n") && !text.contains("manages"), "{text}");
        assert!(text.contains("2 open, 1 idle"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("credit out  0 B (peak 64 KiB) of 64 MiB\n"), "{text}");
        assert!(text.contains("credit in   4 KiB (peak 4 KiB) of 64 MiB\n"), "{text}");
    }

    #[test]
    fn relayed_operations_are_named_by_their_last_parts_and_cut_at_the_width() {
        let named = |paths: &[&str]| {
            let operations: Vec<_> =
                paths.iter().map(|path| Operation { path: (*path).to_owned() }).collect();
            relayed(&operations)
        };
        assert_eq!(named(&[]), "-");
        let few = ["/tokenize", "/v1/chat/completions", "/v1/completions", "/v1/audio/speech"];
        assert_eq!(named(&few), "chat, completions, speech, tokenize");
        let many: Vec<_> = (10..40).map(|at| format!("/v1/name-{at}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        let text = named(&many);
        assert!(text.starts_with("name-10, name-11, ") && text.ends_with(", +25"), "{text}");
        assert!(text.len() <= TUNNEL_WIDTH, "{text}");
        assert_eq!(named(&[&"x".repeat(70)]), "+1");
    }

    #[test]
    fn commands_are_told_by_what_they_may_do() {
        let command = |manages, permitted| Command { manages, permitted };
        assert_eq!(permitted(&[command(false, true), command(true, true)]), "reads, manages");
        assert_eq!(permitted(&[command(false, true), command(true, false)]), "reads");
        assert_eq!(permitted(&[]), "-");
    }
}
