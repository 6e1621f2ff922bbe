//! Commands through real processes: `iop nodes`, `iop providers` and `iop ollama` at an Edge, a Node
//! and a server that answers as Ollama does.

use iop_testkit::script::Script;
use iop_testkit::{ScriptedProvider, answer};
use serde_json::{Value, json};

use crate::cli::{outcome, printed, refused};
use crate::support::{Apart, CHAT, Edge, Running, SEEN, Up, streamed};

const NDJSON: &[(&str, &str)] =
    &[("content-type", "application/x-ndjson"), ("transfer-encoding", "chunked")];
const PULL: &str = r#"{"model":"new:1b"}"#;

/// A server that has these models.
async fn ollama(models: &'static [&'static str]) -> ScriptedProvider {
    let server = ScriptedProvider::start().await;
    has(&server, models);
    server.on("/api/version", |_| answer::json(200, &json!({ "version": "0.12.3" })));
    server.on("/api/ps", |_| {
        let loaded = json!({ "name": "m:latest", "size": 2_019_393_189_u64, "context_length": 8192,
            "expires_at": "2026-11-30T12:00:00Z" });
        answer::json(200, &json!({ "models": [loaded] }))
    });
    server
}

fn has(server: &ScriptedProvider, models: &'static [&'static str]) {
    let models: Vec<Value> = models
        .iter()
        .map(|name| json!({ "name": name, "model": name, "size": 512, "details": {} }))
        .collect();
    server.on("/api/tags", move |_| answer::json(200, &json!({ "models": models })));
}

fn pulling() -> Script {
    Script::new()
        .read_body()
        .head(200, NDJSON)
        .chunk("{\"status\":\"pulling manifest\"}\n")
        .chunk("{\"status\":\"pulling \\u001b[2J\",\"digest\":\"sha256:a\",\"total\":10,\"completed\":5}\n")
}

fn flag(server: &ScriptedProvider) -> String {
    format!("ollama=ollama:{}", server.endpoint())
}

/// The file of an Edge in front of this server.
fn file(server: &ScriptedProvider, more: &str) -> String {
    format!(
        "version: 1\nnodes:\n  ws:\n    providers:\n      ollama:\n        adapter: ollama\n        endpoint: {}\n{more}",
        server.endpoint()
    )
}

fn admin(edge: &Edge) -> String {
    format!("http://{}", edge.admin)
}

async fn models(edge: &Edge) -> Vec<String> {
    let models = edge.admin("/api/v1/models").await;
    let models = models["models"].as_array().unwrap().iter();
    models.map(|model| model["model"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_group_shows_its_nodes_its_providers_and_what_their_servers_say() {
    let server = ollama(&["m:latest"]).await;
    let up = Up::start(&["--provider", &flag(&server)]).await;
    up.edge.serves("m:latest").await;
    let admin = admin(&up.edge);
    let ask = async |arguments: &[&str]| printed(&[arguments, &["--admin", &admin]].concat()).await;
    assert!(ask(&["nodes", "list"]).await.contains("local"), "the node is listed");
    let page = ask(&["nodes", "show", "local"]).await;
    assert!(page.contains("generation") && page.contains("reads"), "{page}");
    assert!(!page.contains("/api/pull"), "nothing is permitted that nobody allowed: {page}");
    let providers = ask(&["providers", "list"]).await;
    assert!(providers.contains("local/ollama") && providers.contains("ready"), "{providers}");
    let ps = ask(&["ollama", "local/ollama", "GET", "/api/ps"]).await;
    assert!(ps.contains("m:latest") && ps.contains("2.0 GB") && ps.contains("8192"), "{ps}");
    let version = ask(&["ollama", "local/ollama", "GET", "/api/version", "-o", "json"]).await;
    let version: Value = serde_json::from_str(&version).unwrap();
    assert_eq!(version, json!({ "version": "0.12.3" }));
    let whole: Value =
        serde_json::from_str(&ask(&["nodes", "show", "local", "-o", "json"]).await).unwrap();
    assert_eq!(whole["capabilities"]["node"], "local");
    assert_eq!(whole["transport"]["generation"], whole["node"]["link"]["generation"]);
}

#[tokio::test]
async fn what_is_pulled_can_be_used_when_the_pull_has_ended() {
    let server = ollama(&["m:latest"]).await;
    let up = Up::start(&["--provider", &flag(&server), "--manage-models"]).await;
    up.edge.serves("m:latest").await;
    let admin = admin(&up.edge);
    server.on("/api/pull", |_| pulling().chunk("{\"status\":\"success\"}\n").last_chunk());
    server.on("/api/delete", |_| answer::sized(200, "text/plain", ""));
    has(&server, &["m:latest", "new:1b"]);
    let pull = ["ollama", "local/ollama", "POST", "/api/pull", PULL, "--admin", &admin];
    let (code, out, err) = outcome(&pull).await;
    assert_eq!((code, out.as_str()), (0, ""), "{err}");
    assert_eq!(models(&up.edge).await, ["m:latest", "new:1b"], "at once, without waiting");
    // In lines, since this is no terminal, and nothing of it speaks to one.
    assert!(err.contains("pulling manifest\n") && err.contains("50 %\nsuccess\n"), "{err}");
    assert!(err.contains("\\u{1b}[2J") && !err.contains('\u{1b}'), "{err:?}");
    let (_, out, _) = outcome(&[&pull[..], &["-o", "json"]].concat()).await;
    let last: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!(last, json!({ "status": "success" }));
    has(&server, &["m:latest"]);
    printed(&["ollama", "local/ollama", "DELETE", "/api/delete", PULL, "--admin", &admin]).await;
    assert_eq!(models(&up.edge).await, ["m:latest"]);
}

#[tokio::test]
async fn a_command_that_cannot_be_is_refused_with_what_to_do() {
    let server = ollama(&["m:latest"]).await;
    let lab = ScriptedProvider::start().await;
    let lab_flag = format!("lab=openai_compat:{}", lab.endpoint());
    let up = Up::start(&["--provider", &flag(&server), "--provider", &lab_flag]).await;
    up.edge.serves("m:latest").await;
    let admin = admin(&up.edge);
    for (arguments, code, says) in [
        (&["local/ollama", "POST", "/api/chat", "{}"][..], 2, "GET /api/ps"),
        (&["local/ollama", "GET", "/api/../api/ps"][..], 2, "not among the operations"),
        (&["local/ollama", "GET", "/api%2fps"][..], 2, "not among the operations"),
        (&["local/ollama", "get", "/api/ps"][..], 2, "not among the operations"),
        (&["ollama", "GET", "/api/ps"][..], 2, "NODE/PROVIDER"),
        (&["local/ollama", "POST", "/api/show", "m"][..], 2, "JSON object"),
        (&["local/ollama", "POST", "/api/show", r#"{"Model":"m"}"#][..], 1, "`model`"),
        (&["local/ollama", "GET", "/api/ps", "{}"][..], 1, "takes no body"),
        (&["local/ollama", "POST", "/api/show"][..], 1, "needs a body"),
        (&["nope/ollama", "GET", "/api/ps"][..], 1, "the edge knows local"),
        (&["local/nope", "GET", "/api/ps"][..], 1, "it has lab, ollama"),
        (&["local/lab", "GET", "/api/ps"][..], 1, "adapter `openai_compat`"),
        (&["local/ollama", "POST", "/api/pull", PULL][..], 1, "`manage_models: true`"),
        (&["local/ollama", "POST", "/api/show", r#"{"model":"x"}"#][..], 1, "404"),
    ] {
        let whole = [&["ollama"][..], arguments, &["--admin", &admin]].concat();
        refused(&whole, code, &[says]).await;
    }
    refused(&["nodes", "show", "nope", "--admin", &admin], 1, &["the edge knows local"]).await;
    // The server saw its own looks, and the one command that there was to see.
    for exchange in server.log().exchanges {
        assert!(["/api/tags", "/api/ps", "/api/show"].contains(&exchange.request.path()));
    }
}

#[tokio::test]
async fn the_edge_s_word_alone_changes_nothing_on_a_node() {
    let server = ollama(&["m:latest"]).await;
    let group = Apart::start(&file(&server, "        manage_models: true\n")).await;
    let admin = admin(&group.edge);
    let pull = ["ollama", "ws/ollama", "POST", "/api/pull", PULL, "--admin", &admin];
    let mut node = group.node("ws").await;
    group.edge.serves("m:latest").await;
    refused(&pull, 1, &["forbidden", "`manage_models: true` in the file of this node"]).await;
    assert!(server.log().exchanges.iter().all(|one| one.request.path() != "/api/pull"));
    node.end().await;
    group.edge.wait_for_metric("iop_node_linked{node=\"ws\"}", 0.0).await;
    let _node = group.node_with("ws", "manage_models: true\n").await;
    group.edge.serves("m:latest").await;
    server.on("/api/pull", |_| pulling().chunk("{\"status\":\"success\"}\n").last_chunk());
    assert_eq!(outcome(&pull).await.0, 0);
}

#[tokio::test]
async fn a_pull_ends_at_the_server_when_its_asker_is_killed() {
    let server = ollama(&["m:latest"]).await;
    let up = Up::start(&["--provider", &flag(&server), "--manage-models"]).await;
    up.edge.serves("m:latest").await;
    server.on("/api/pull", |_| pulling().hold());
    let admin = admin(&up.edge);
    let pull = ["ollama", "local/ollama", "POST", "/api/pull", PULL, "--admin", &admin];
    let mut asker = Running::start("iop ollama", &pull);
    asker.wait_for_line("50 %").await;
    asker.end().await;
    let killed = std::time::Instant::now();
    let log = server
        .wait_until("the server sees the pull leave", |log| {
            let mut pulls = log.exchanges.iter().enumerate();
            pulls.any(|(at, exchange)| {
                exchange.request.path() == "/api/pull" && log.connection_of(at).left_at().is_some()
            })
        })
        .await;
    assert!(killed.elapsed() < SEEN, "{:?}", log.connections);
    up.edge.idle().await;
}

#[tokio::test]
async fn commands_are_answered_while_the_server_is_full_and_end_with_their_node() {
    let server = ollama(&["m:latest"]).await;
    let group =
        Apart::start(&file(&server, "        max_concurrency: 1\n        manage_models: true\n"))
            .await;
    let mut node = group.node_with("ws", "manage_models: true\n").await;
    group.edge.serves("m:latest").await;
    server.on(CHAT, |request| answer::stream_start(request).hold());
    server.on("/api/pull", |_| pulling().hold());
    let mut busy = group.edge.chat(&streamed("m:latest")).await;
    busy.head().await.unwrap();
    group.edge.wait_for_metric("iop_permits_in_use", 1.0).await;
    let admin = admin(&group.edge);
    let asked = ["ollama", "ws/ollama", "GET", "/api/version", "--admin", &admin];
    assert!(printed(&asked).await.contains("0.12.3"));
    let pull = ["ollama", "ws/ollama", "POST", "/api/pull", PULL, "--admin", &admin];
    let mut asker = Running::start("iop ollama", &pull);
    asker.wait_for_line("50 %").await;
    node.end().await;
    asker.wait_for_line("node_lost").await;
    let status = asker.wait_for_exit().await;
    assert_eq!(status.code(), Some(1));
}
