//! The scripted Ollama, seen through the raw client.

use iop_testkit::ScriptedOllama;
use iop_testkit::http::{Client, get, post};
use iop_testkit::ollama::{DEFAULT_NUM_CTX, Load, Reply};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const MODEL: &str = "mock-model:latest";

async fn asked(ollama: &ScriptedOllama, path: &str, body: Value) -> (u16, Value) {
    let (head, body) = post(ollama.provider().address(), path, &body).await.expect("answer");
    (head.status, serde_json::from_slice(&body).unwrap_or_default())
}

async fn listed(ollama: &ScriptedOllama, path: &str) -> Value {
    let (_, body) = get(ollama.provider().address(), path).await.expect("answer");
    serde_json::from_slice(&body).expect("json")
}

fn chat(members: Value) -> Value {
    let mut body = json!({"model": "mock-model", "stream": false,
        "messages": [{"role": "user", "content": "hi"}]});
    let members = members.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(members);
    body
}

#[tokio::test]
async fn another_context_length_loads_anew_and_the_same_does_not() {
    let ollama = ScriptedOllama::start().await;
    for num_ctx in [8192, 8192, 4096] {
        asked(&ollama, "/api/chat", chat(json!({"options": {"num_ctx": num_ctx}}))).await;
    }
    asked(&ollama, "/api/embed", json!({"model": MODEL, "input": "x"})).await;
    asked(&ollama, "/v1/chat/completions", chat(json!({}))).await;
    let load = |num_ctx| Load { model: MODEL.to_owned(), num_ctx };
    assert_eq!(ollama.loads(), [load(8192), load(DEFAULT_NUM_CTX)]);
    let ps = listed(&ollama, "/api/ps").await;
    assert_eq!(ps["models"][0]["context_length"], DEFAULT_NUM_CTX);
}

#[tokio::test]
async fn a_load_takes_its_time_and_a_model_leaves_when_it_is_told_to() {
    let ollama = ScriptedOllama::start().await;
    ollama.set_load_delay(Duration::from_millis(80));
    let began = Instant::now();
    asked(&ollama, "/api/chat", chat(json!({"keep_alive": -1}))).await;
    assert!(began.elapsed() >= Duration::from_millis(80));
    assert_eq!(ollama.loaded(), [MODEL]);
    let (_, answer) =
        asked(&ollama, "/api/chat", json!({"model": MODEL, "keep_alive": 0, "stream": false}))
            .await;
    assert_eq!(answer["done_reason"], "unload");
    assert!(ollama.loaded().is_empty());
}

#[tokio::test]
async fn bodies_are_read_as_go_reads_them() {
    let ollama = ScriptedOllama::start().await;
    let (status, _) = asked(
        &ollama,
        "/api/chat",
        json!({"MODEL": MODEL, "Stream": false,
        "messages": [{"role": "user", "content": "hi"}], "Options": {"num_ctx": 77}}),
    )
    .await;
    assert_eq!((status, ollama.loads()[0].num_ctx), (200, 77));
    let arguments = json!([{"role": "assistant", "tool_calls": [
        {"function": {"name": "f", "arguments": "{}"}}]}]);
    for (members, told) in [
        (json!({"keep_alive": "-1"}), "missing unit"),
        (json!({"messages": arguments}), "cannot unmarshal string"),
        (json!({"messages": [{"role": "user", "images": ["data:image/png;base64,aa"]}]}), "byte 4"),
        (json!({"think": "much"}), "invalid think value"),
        (json!({"options": {"num_ctx": "8k"}}), "must be of type integer"),
    ] {
        let (status, answer) = asked(&ollama, "/api/chat", chat(members)).await;
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(status == 400 && error.contains(told), "{status} {answer}");
    }
    let (status, answer) = asked(&ollama, "/api/chat", chat(json!({"model": "gone"}))).await;
    assert_eq!((status, answer), (404, json!({"error": "model 'gone' not found"})));
}

#[tokio::test]
async fn streams_are_lines_whose_last_says_done_or_what_went_wrong() {
    let ollama = ScriptedOllama::start().await;
    let stream = async || {
        let mut client = Client::connect(ollama.provider().address()).await.expect("listens");
        client.post("/api/generate", &json!({"model": MODEL, "prompt": "p"})).await.expect("sent");
        let head = client.head().await.expect("head");
        assert_eq!(head.header("content-type"), Some("application/x-ndjson"));
        let body = client.body().await.expect("body");
        let text = String::from_utf8(body.to_vec()).expect("text");
        text.lines().map(|line| serde_json::from_str(line).expect("json")).collect::<Vec<Value>>()
    };
    let lines = stream().await;
    let text: String = lines.iter().filter_map(|line| line["response"].as_str()).collect();
    assert_eq!((text.as_str(), lines.len()), ("a scripted answer", 4));
    assert_eq!((&lines[3]["done"], &lines[3]["eval_count"]), (&json!(true), &json!(3)));
    ollama.set_reply(Reply { error: Some("boom".into()), ..Reply::default() });
    assert_eq!(stream().await.last(), Some(&json!({"error": "boom"})));
}

#[tokio::test]
async fn models_are_pulled_copied_shown_and_deleted() {
    let ollama = ScriptedOllama::start().await;
    let address = ollama.provider().address();
    let (_, pulled) = post(address, "/api/pull", &json!({"model": "new"})).await.expect("answer");
    let pulled = String::from_utf8_lossy(&pulled).into_owned();
    assert!(
        pulled.contains("\"completed\"") && pulled.ends_with("{\"status\":\"success\"}\n"),
        "{pulled}"
    );
    let (_, missing) =
        post(address, "/api/pull", &json!({"model": "missing"})).await.expect("answer");
    assert!(String::from_utf8_lossy(&missing).contains("\"error\""));
    let (status, _) =
        asked(&ollama, "/api/copy", json!({"source": "new", "destination": "copy"})).await;
    assert_eq!(status, 200);
    assert_eq!(ollama.names(), ["copy:latest", MODEL, "new:latest"]);
    let (_, shown) = asked(&ollama, "/api/show", json!({"model": "copy"})).await;
    assert_eq!(shown["model_info"]["llama.context_length"], 131_072);
    let mut client = Client::connect(address).await.expect("listens");
    let body = r#"{"model":"copy"}"#;
    client.request("DELETE", "/api/delete", &[], body).await.expect("sent");
    assert_eq!(client.head().await.expect("head").status, 200);
    assert_eq!(ollama.names(), [MODEL, "new:latest"]);
    let tags = listed(&ollama, "/api/tags").await;
    assert_eq!(tags["models"].as_array().map(Vec::len), Some(2));
}
