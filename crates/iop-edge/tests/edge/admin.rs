//! The admin listener, its description, and what keeps an Edge from starting.

use std::net::SocketAddr;
use std::sync::Arc;

use iop_config::{EdgeConfig, Listen};
use iop_edge::{Edge, StartError, Tools};
use iop_net::net::TokioNet;
use iop_store::EdgeHistory;
use iop_testkit::http;
use serde_json::{Value, json};

use crate::support::{CONTENT, DONE, FINISH, World, error, run, streamed, tunnel, unary};

/// Asks for a path and returns status and JSON.
async fn get(world: &World, path: &str) -> (u16, Value) {
    let (head, body) = http::get(world.admin, path).await.unwrap();
    (head.status, serde_json::from_slice(&body).unwrap_or_default())
}

#[tokio::test]
async fn the_description_lists_every_path_and_fits_every_answer() {
    let world = World::with(
        "version: 1\nnodes: { away: {}, box: { providers: { p: { adapter: mock }, q: { adapter: mock } } } }\n\
         routes: { alias: { candidates: [{ node: box, provider: p, target: m }] } }\n",
    )
    .await;
    let (_, description) = get(&world, "/api/v1/openapi.json").await;
    let check = async |path: &str, described: &str, status: u16| {
        let (found, body) = get(&world, path).await;
        assert_eq!(found, status, "{path}: {body}");
        let content = &description["paths"][described]["get"]["responses"][status.to_string()];
        let schema = &content["content"]["application/json"]["schema"];
        assert!(schema.is_object(), "{described} with {status} is not described");
        let problems = misfits(&description, schema, &body, path);
        assert!(problems.is_empty(), "{problems:#?}\n{body:#}");
        body
    };
    // Before anything happened, then with all that can be there.
    check("/ready", "/ready", 503).await;
    check("/api/v1/status", "/api/v1/status", 200).await;
    let mut node = world.node("box", vec![tunnel("p", &["m"], 1), run("q", &["r"], 1)]).await;
    let mut client = world.chat(&streamed()).await;
    node.next().await.stream(&[CONTENT, FINISH, DONE]).await;
    client.head().await.unwrap();
    client.body().await.unwrap();
    let mut client = world.chat(&json!({ "model": "r" })).await;
    node.next().await.fail(iop_types::Failure::new(iop_types::ErrorCode::ProviderError, "no"));
    client.head().await.unwrap();
    drop(world.chat(&json!({ "model": "nope" })).await);
    let last = world.last_run().await;
    for path in [
        "/health",
        "/ready",
        "/api/v1/status",
        "/api/v1/nodes",
        "/api/v1/providers",
        "/api/v1/models",
    ] {
        check(path, path, 200).await;
    }
    let runs = check("/api/v1/runs?limit=2&route=r&node=box", "/api/v1/runs", 200).await;
    assert_eq!(runs["runs"].as_array().unwrap().len(), 1);
    check("/api/v1/runs", "/api/v1/runs", 200).await;
    check("/api/v1/runs?code=nope", "/api/v1/runs", 400).await;
    check("/api/v1/runs?colour=red", "/api/v1/runs", 400).await;
    check("/api/v1/runs?limit=0", "/api/v1/runs", 400).await;
    let id = last["run_id"].as_str().unwrap();
    let shown = check(&format!("/api/v1/runs/{id}"), "/api/v1/runs/{id}", 200).await;
    assert_eq!(shown, last);
    check("/api/v1/runs/ffffffff", "/api/v1/runs/{id}", 404).await;
    // Nothing is described that is not there.
    check("/api/v1/nodes/box", "/api/v1/nodes/{node}", 200).await;
    check("/api/v1/nodes/away", "/api/v1/nodes/{node}", 200).await;
    let unknown = check("/api/v1/nodes/nope", "/api/v1/nodes/{node}", 404).await;
    assert!(unknown["error"]["message"].as_str().unwrap().contains("away, box"), "{unknown}");
    for (path, methods) in description["paths"].as_object().unwrap() {
        let asked = path.replace("{id}", id).replace("{node}", "box");
        let (status, _) = get(&world, &asked).await;
        let expected = if methods["get"].is_object() { 200 } else { 405 };
        assert_eq!(status, expected, "{path}");
    }
    let (head, body) = http::get(world.admin, "/api/v1/nope").await.unwrap();
    error(&head, &serde_json::from_slice(&body).unwrap(), 404, "not_found");
}

/// Checks a value against the part of JSON schema that the description uses.
pub(crate) fn misfits(root: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let schema = root.pointer(reference.strip_prefix('#').unwrap()).unwrap();
        return misfits(root, schema, value, at);
    }
    let mut problems = Vec::new();
    let types: Vec<&str> = match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect(),
    };
    let is = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("type {other}"),
    };
    if !types.iter().any(|name| is(name)) {
        problems.push(format!("{at} is not {types:?}: {value}"));
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        problems.push(format!("{at} is none of {words:?}: {value}"));
    }
    if schema["format"] == "date-time" && !value.as_str().is_some_and(|text| text.ends_with('Z')) {
        problems.push(format!("{at} is no time: {value}"));
    }
    if let (Some(properties), Some(members)) = (schema["properties"].as_object(), value.as_object())
    {
        for name in schema["required"].as_array().into_iter().flatten() {
            if !members.contains_key(name.as_str().unwrap()) {
                problems.push(format!("{at}.{name} is missing"));
            }
        }
        for (name, member) in members {
            match properties.get(name) {
                Some(schema) => {
                    problems.extend(misfits(root, schema, member, &format!("{at}.{name}")));
                }
                None => problems.push(format!("{at}.{name} is not described")),
            }
        }
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        problems.extend(misfits(root, &schema["items"], item, &format!("{at}[{index}]")));
    }
    problems
}

#[tokio::test]
async fn metrics_tell_what_is_going_on_without_ids() {
    let (world, mut node) = World::tunnelling("version: 1\n").await;
    let mut client = world.chat(&unary()).await;
    let taken = node.next().await;
    assert_eq!(world.metric("iop_requests_in_flight").await, Some(1.0));
    assert_eq!(world.metric("iop_permits_in_use").await, Some(1.0));
    assert_eq!(world.metric("iop_link_streams{node=\"box\"}").await, Some(1.0));
    let run_id = taken.head().work.run_id.to_string();
    let (head, body) = http::get(world.admin, "/metrics").await.unwrap();
    assert!(head.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    let text = String::from_utf8(body.to_vec()).unwrap();
    assert!(text.ends_with("# EOF\n"));
    assert!(!text.contains(&run_id));
    taken.unary(200, "{}").await;
    client.head().await.unwrap();
    world.idle().await;
    assert_eq!(
        world.metric("iop_requests_total{surface=\"openai.chat\",outcome=\"ok\"}").await,
        Some(1.0)
    );
    assert_eq!(
        world.metric("iop_attempts_total{form=\"tunnel\",outcome=\"completed\"}").await,
        Some(1.0)
    );
}

async fn start(listen: Listen) -> Result<Edge, StartError> {
    let file = EdgeConfig { listen, ..EdgeConfig::default() };
    Edge::start(file, Tools { net: Arc::new(TokioNet), history: EdgeHistory::disabled("test") })
        .await
}

#[tokio::test]
async fn an_address_that_is_taken_or_reachable_from_elsewhere_keeps_the_edge_from_starting() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut first = start(Listen { clients: any, nodes: any, admin: any }).await.unwrap();
    let taken = first.addresses();
    for (key, listen) in [
        ("clients", Listen { clients: taken.nodes, nodes: any, admin: any }),
        ("nodes", Listen { clients: any, nodes: taken.admin, admin: any }),
        ("admin", Listen { clients: any, nodes: any, admin: taken.clients }),
    ] {
        let Err(refused) = start(listen).await else { panic!("{key} was taken") };
        let message = refused.to_string();
        assert!(message.contains(&format!("listen.{key}")), "{message}");
        assert!(message.contains("set another address"), "{message}");
    }
    let open = SocketAddr::from(([0, 0, 0, 0], 0));
    let Err(refused) = start(Listen { clients: open, nodes: any, admin: any }).await else {
        panic!("everybody could reach it")
    };
    assert!(refused.to_string().contains("managed mode"), "{refused}");
    first.stop();
    first.stopped().await;
}

#[tokio::test]
async fn an_edge_without_history_serves_and_says_so() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let edge = start(Listen { clients: any, nodes: any, admin: any }).await.unwrap();
    let (head, body) = http::get(edge.addresses().admin, "/api/v1/runs").await.unwrap();
    assert_eq!(head.status, 503);
    assert!(String::from_utf8_lossy(&body).contains("history cannot be read"));
    let (_, body) = http::get(edge.addresses().admin, "/metrics").await.unwrap();
    assert!(String::from_utf8_lossy(&body).contains("iop_history_degraded 1.0"));
    let (head, _) = http::get(edge.addresses().clients, "/v1/models").await.unwrap();
    assert_eq!(head.status, 200);
}
