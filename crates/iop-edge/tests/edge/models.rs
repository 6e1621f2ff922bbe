//! The model list.

use iop_testkit::http;
use serde_json::{Value, json};

use crate::support::{World, error, tunnel, until};

async fn get(world: &World, path: &str) -> (http::Head, Value) {
    let (head, body) = http::get(world.clients, path).await.unwrap();
    (head, serde_json::from_slice(&body).unwrap())
}

const ALIAS: &str = "version: 1
nodes: { box: { providers: { p: { adapter: openai_compat, endpoint: 'http://127.0.0.1:1' } } } }
routes: { fast: { candidates: [{ node: box, provider: p, target: org/m-7b:q4 }] } }
";

#[tokio::test]
async fn an_empty_group_lists_nothing_with_200() {
    let (head, list) = get(&World::new().await, "/v1/models").await;
    assert_eq!((head.status, list), (200, json!({ "object": "list", "data": [] })));
}

#[tokio::test]
async fn names_with_slashes_are_found_encoded_or_not_and_aliases_are_listed() {
    let world = World::with(ALIAS).await;
    let _node = world.node("box", vec![tunnel("p", &["org/m-7b:q4"], 1)]).await;
    let (_, list) = get(&world, "/v1/models").await;
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["fast", "org/m-7b:q4"]);
    for path in ["/v1/models/org/m-7b:q4", "/v1/models/org%2Fm-7b%3Aq4", "/v1/models/fast"] {
        let (head, model) = get(&world, path).await;
        assert_eq!((head.status, &model["object"]), (200, &json!("model")), "{path}");
        assert_eq!(model["availability"], "available");
    }
    let (head, body) = get(&world, "/v1/models/org/nope").await;
    error(&head, &body, 404, "model_not_found");
    assert_eq!(body["error"]["param"], "model");
}

#[tokio::test]
async fn a_model_whose_node_is_away_stays_listed_as_unavailable() {
    let (world, node) = World::tunnelling(ALIAS).await;
    node.die().await;
    until("its node is away", async || {
        let (_, model) = get(&world, "/v1/models/m").await;
        model["availability"] == "unavailable"
    })
    .await;
}

#[tokio::test]
async fn two_providers_of_one_target_are_one_model() {
    let world = World::new().await;
    let _left = world.node("left", vec![tunnel("p", &["m"], 1)]).await;
    let _right = world.node("right", vec![tunnel("p", &["m"], 1)]).await;
    let (_, list) = get(&world, "/v1/models").await;
    assert_eq!(list["data"].as_array().unwrap().len(), 1);
    let models = world.admin("/api/v1/models").await;
    assert_eq!(models["models"][0]["providers"].as_array().unwrap().len(), 2);
}
