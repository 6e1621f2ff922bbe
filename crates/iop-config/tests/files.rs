//! What files mean.

use iop_config::{EdgeConfig, EgressRule, KeepAlive, NodeConfig, SecretSource, example, schema};
use iop_types::{AdapterType, NodeId, ProviderKey, ProviderRevision, Recovery, UsageMode};
use proptest::prelude::*;

const EDGE: &str = r#"
version: 1
nodes:
  workstation:
    providers:
      ollama:
        adapter: ollama
        endpoint: http://127.0.0.1:11434
        keep_alive: -1
      lab:
        adapter: vllm
        endpoint: http://10.0.0.9:8000/v1/
        targets: [a, b]
        max_concurrency: 2
        response_stall_timeout: 90s
        headers: { X-Title: home }
        usage: observed
      demo:
        adapter: mock
        script: { reply: [1, 2.5, null, { deep: true }] }
  laptop: {}
  bare: { providers: {} }
routes:
  chat:
    recovery: off
    hold_head: 0
    candidates:
      - { node: workstation, provider: vllm, target: a }
      - { node: laptop, provider: whatever, target: b, weight: 3 }
  "gpt-*":
    candidates: [{ node: workstation, provider: ollama, target: "*" }]
hosts: [Box.LAN]
"#;

fn config() -> EdgeConfig {
    EdgeConfig::parse(EDGE, "edge.yaml").expect("valid")
}

#[test]
fn the_smallest_file_is_the_default() {
    assert_eq!(EdgeConfig::parse("version: 1", "f"), Ok(EdgeConfig::default()));
    let node = NodeConfig::parse("version: 1\nnode: a", "f").expect("valid");
    assert_eq!(node, NodeConfig::new(NodeId::from("a")));
}

#[test]
fn what_is_left_out_has_its_default() {
    let config = config();
    let node = NodeId::from("workstation");
    let ollama = config.provider(&node, &ProviderKey::from("ollama")).expect("listed");
    assert_eq!(ollama.capacity().get(), 4);
    assert_eq!(ollama.response_stall_timeout.as_wire(), 300_000);
    assert_eq!(ollama.keep_alive.as_ref().map(KeepAlive::to_json).as_deref(), Some("-1"));
    assert!(ollama.serves_all() && !ollama.is_hosted());
    let lab = config.provider(&node, &ProviderKey::from("lab")).expect("listed");
    assert_eq!((lab.capacity().get(), lab.usage), (2, UsageMode::Observed));
    assert_eq!(
        lab.endpoint.as_ref().map(ToString::to_string).as_deref(),
        Some("http://10.0.0.9:8000/v1")
    );
    let demo = config.provider(&node, &ProviderKey::from("demo")).expect("listed");
    assert_eq!(demo.adapter, AdapterType::Mock);
    assert_eq!(demo.script.as_ref().expect("script")["reply"][3]["deep"], true);
    assert_eq!(config.hosts, ["box.lan"]);
}

#[test]
fn a_candidate_named_by_its_adapter_is_resolved_to_the_instance() {
    let config = config();
    let chat = &config.routes["chat"];
    assert_eq!(chat.candidates[0].provider.as_str(), "lab");
    assert_eq!(chat.candidates[1].provider.as_str(), "whatever", "laptop may still find it");
    assert_eq!((chat.recovery, chat.hold_head.is_zero()), (Recovery::Off, true));
}

#[test]
fn a_node_looks_for_servers_exactly_where_none_are_listed() {
    let config = config();
    for (node, discovers, providers) in
        [("workstation", false, 3), ("laptop", true, 0), ("bare", false, 0), ("stranger", true, 0)]
    {
        let view = config.node_view(&NodeId::from(node), 7);
        assert_eq!((view.discover, view.providers.len(), view.counter), (discovers, providers, 7));
        assert!(view.providers.iter().all(|entry| entry.revision == ProviderRevision(7)));
    }
}

#[test]
fn a_nodes_file_says_what_may_be_reached_and_where_secrets_are() {
    let text = "version: 1\nnode: w\negress: [127.0.0.1, 10.1.2.3/8, \"::1/128\", OpenRouter.AI.]\nsecrets: { a: { env: A_KEY }, b: { file: 'C:\\Program Data\\k' } }\n";
    let node = NodeConfig::parse(text, "node.yaml").expect("valid");
    let rules: Vec<_> = node.egress.iter().map(ToString::to_string).collect();
    assert_eq!(rules, ["127.0.0.1/32", "10.0.0.0/8", "::1/128", "openrouter.ai"]);
    assert!(matches!(node.egress[3], EgressRule::Host(_)));
    assert_eq!(node.secrets["a"], SecretSource::Env("A_KEY".to_owned()));
    assert_eq!(node.secrets["b"], SecretSource::File(r"C:\Program Data\k".to_owned()));
    let nothing = NodeConfig::parse("version: 1\nnode: w\negress: []\n", "f").expect("valid");
    assert!(nothing.egress.is_empty(), "an empty list allows nothing");
}

#[test]
fn the_effective_configuration_is_a_file_that_says_the_same() {
    for text in [EDGE.to_owned(), example::edge(), "version: 1".to_owned()] {
        let effective = EdgeConfig::parse(&text, "f").expect("valid").effective();
        let again = EdgeConfig::parse(&effective.to_string(), "effective").expect("valid");
        assert_eq!(again.effective(), effective);
        assert_eq!(effective["limits"]["json_body"], "32MiB");
    }
    let node = NodeConfig::parse(&example::node(), "f").expect("valid");
    assert_eq!(NodeConfig::parse(&node.effective().to_string(), "f"), Ok(node));
}

#[test]
fn the_schemas_are_strict_and_say_defaults_and_meanings() {
    for schema in [schema::edge(), schema::node()] {
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
        assert_eq!(schema["additionalProperties"], false);
        each_object(&schema, &mut |object| {
            assert_eq!(object["additionalProperties"], false, "{object}");
            for (key, property) in object["properties"].as_object().expect("an object") {
                let is_alternative =
                    object.get("required").is_some_and(|r| r.as_array().map(Vec::len) == Some(1))
                        && object["properties"].as_object().map(serde_json::Map::len) == Some(1);
                assert!(
                    property.get("description").is_some() || is_alternative,
                    "{key}: {property}"
                );
            }
        });
    }
    let edge = schema::edge();
    assert_eq!(edge["$defs"]["Limits"]["properties"]["json_body"]["default"], "32MiB");
    assert_eq!(edge["$defs"]["Queue"]["properties"]["timeout"]["default"], "30s");
    assert_eq!(edge["$defs"]["Provider"]["properties"]["response_stall_timeout"]["default"], "5m");
    assert_eq!(edge["required"], serde_json::json!(["version"]));
}

fn each_object(value: &serde_json::Value, check: &mut impl FnMut(&serde_json::Value)) {
    if value.get("properties").is_some_and(serde_json::Value::is_object)
        && value.get("type").is_some_and(|kind| kind == "object")
    {
        check(value);
    }
    match value {
        serde_json::Value::Object(members) => members.values().for_each(|v| each_object(v, check)),
        serde_json::Value::Array(items) => items.iter().for_each(|v| each_object(v, check)),
        _ => {}
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,200}") {
        let _ = EdgeConfig::parse(&text, "f");
        let _ = NodeConfig::parse(&text, "f");
    }

    #[test]
    fn no_damage_to_a_file_makes_the_parser_panic(at in 0..EDGE.len(), junk in "[\\[\\]{}:,&*!|>'\"%@`#\\-? \n\t0a]{0,4}") {
        prop_assume!(EDGE.is_char_boundary(at));
        let damaged = format!("{}{junk}{}", &EDGE[..at], &EDGE[at..]);
        let _ = EdgeConfig::parse(&damaged, "f");
        let _ = EdgeConfig::parse(&EDGE[..at], "f");
    }
}
