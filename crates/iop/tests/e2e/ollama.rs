//! OpenAI clients on an Ollama: Edge and Node as processes, and a server that behaves as Ollama's
//! documentation says.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use iop_testkit::http;
use iop_testkit::ollama::{Call, DEFAULT_NUM_CTX, Load, Reply};
use iop_testkit::{ScriptedOllama, answer};
use serde_json::{Value, json};

use crate::support::{Apart, CHAT, Edge, Running, Up, streamed};

/// What clients call it; the server lists it with its tag.
const MODEL: &str = "llama3.2";
const LISTED: &str = "llama3.2:latest";
const EMBEDDER: &str = "embedder:latest";

struct Group {
    ollama: ScriptedOllama,
    group: Apart,
    _node: Running,
}

impl Group {
    /// Starts a group whose Ollama is configured with these further members.
    async fn start(members: &str) -> Self {
        let ollama = ScriptedOllama::start().await;
        ollama.set_models(&[LISTED, EMBEDDER]);
        let file = format!(
            "version: 1\nnodes:\n  box:\n    providers:\n      o: {{ adapter: ollama, endpoint: \
             '{}'{members} }}\n",
            ollama.endpoint()
        );
        let group = Apart::start(&file).await;
        let node = group.node("box").await;
        group.edge.serves(LISTED).await;
        Self { ollama, group, _node: node }
    }

    fn edge(&self) -> &Edge {
        &self.group.edge
    }

    /// Posts a body and reads the answer in one piece.
    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (head, body) = http::post(self.edge().clients, path, body).await.unwrap();
        (head.status, serde_json::from_slice(&body).unwrap())
    }

    /// Streams a chat: the events before `[DONE]`.
    async fn stream(&self, body: &Value) -> Vec<Value> {
        let mut client = self.edge().chat(body).await;
        assert_eq!(client.head().await.unwrap().status, 200);
        let mut events = Vec::new();
        while let Some(event) = client.json_event().await.unwrap() {
            events.push(event);
        }
        events
    }

    /// Path and body of every request that reached the server.
    fn asked(&self) -> Vec<(String, Value)> {
        let exchanges = self.ollama.provider().log().exchanges;
        let requests = exchanges.iter().map(|exchange| &exchange.request);
        requests.map(|request| (request.path().to_owned(), request.json())).collect()
    }
}

/// Members that make every request a run.
const FORCED: &str = ", context_size: 8192";

fn chat(members: Value) -> Value {
    let mut body = json!({"model": MODEL, "messages": [{"role": "user", "content": "hello"}]});
    let members = members.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(members);
    body
}

/// Joins a member of the deltas of a stream.
fn joined(events: &[Value], member: &str) -> String {
    let deltas = events.iter().map(|event| &event["choices"][0]["delta"]);
    deltas.filter_map(|delta| delta[member].as_str()).collect()
}

fn finish(events: &[Value]) -> Option<&str> {
    events.iter().find_map(|event| event["choices"][0]["finish_reason"].as_str())
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[tokio::test]
async fn a_chat_with_a_forced_context_is_a_run_and_its_client_notices_nothing() {
    let group = Group::start(FORCED).await;
    let events = group.stream(&streamed(MODEL)).await;
    assert_eq!(joined(&events, "content"), "a scripted answer");
    assert_eq!(finish(&events), Some("stop"));
    let usage = json!({"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14});
    assert_eq!(events.last().unwrap()["usage"], usage);
    assert!(events.iter().all(|event| event["model"] == MODEL), "{events:?}");

    let (status, answer) = group.post(CHAT, &chat(json!({}))).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["choices"][0]["message"]["content"], "a scripted answer");
    assert_eq!(answer["usage"], usage);
    let run = group.edge().run_where("a run", |run| run["form"] == "run").await;
    assert_eq!(run["usage"], json!({"input_tokens": 11, "output_tokens": 3, "source": "provider"}));
    let asked = group.asked();
    assert!(asked.iter().all(|(path, body)| path == "/api/chat" && body["model"] == LISTED));
}

#[tokio::test]
async fn tools_and_reasoning_have_the_shape_that_clients_of_openai_read() {
    let group = Group::start(FORCED).await;
    let call = |place: &str| Call { name: "weather".into(), arguments: json!({"place": place}) };
    group.ollama.set_reply(Reply {
        thinking: texts(&["let me ", "look"]),
        text: Vec::new(),
        calls: vec![call("Seoul"), call("Oslo")],
        ..Reply::default()
    });
    let tools = json!([{"type": "function", "function": {
        "name": "weather", "parameters": {"type": "object", "properties": {}}}}]);
    let body = chat(json!({"stream": true, "tools": tools, "reasoning_effort": "low"}));
    let events = group.stream(&body).await;
    assert_eq!(joined(&events, "reasoning_content"), "let me look");
    assert_eq!(finish(&events), Some("tool_calls"));
    let calls: Vec<&Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["tool_calls"].get(0))
        .collect();
    assert_eq!(calls.len(), 2, "{events:?}");
    assert_eq!((&calls[0]["index"], &calls[1]["index"]), (&json!(0), &json!(1)));
    assert_eq!(
        calls[1]["function"],
        json!({"name": "weather", "arguments": r#"{"place":"Oslo"}"#})
    );
    assert_ne!(calls[0]["id"], calls[1]["id"]);

    // The client answers the calls by their ids; the server is told the function's name.
    let id = &calls[1]["id"];
    group.ollama.set_reply(Reply::default());
    let history = json!({"think": false, "messages": [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": null, "tool_calls": [calls[1]]},
        {"role": "tool", "tool_call_id": id, "content": "2 C"},
    ]});
    let (status, answer) = group.post(CHAT, &chat(history)).await;
    assert_eq!(status, 200, "{answer}");
    let message = &answer["choices"][0]["message"];
    assert!(message.get("reasoning_content").is_none(), "{message}");
    let asked = group.asked();
    assert_eq!(asked[0].1["think"], "low");
    assert_eq!(asked[0].1["tools"], tools);
    let sent = &asked[1].1;
    assert_eq!(sent["think"], false);
    assert_eq!(sent["messages"][2]["tool_name"], "weather");
    let arguments = sent.pointer("/messages/1/tool_calls/0/function/arguments");
    assert_eq!(arguments, Some(&json!({"place": "Oslo"})));
}

#[tokio::test]
async fn completions_and_vectors_come_as_openai_writes_them() {
    let group = Group::start(FORCED).await;
    let completion = json!({"model": MODEL, "prompt": "once", "max_tokens": 3});
    let (status, answer) = group.post("/v1/completions", &completion).await;
    assert_eq!((status, &answer["choices"][0]["text"]), (200, &json!("a scripted answer")));

    let vectors =
        |format: &str| json!({"model": EMBEDDER, "input": ["a", "b"], "encoding_format": format});
    let (status, floats) = group.post("/v1/embeddings", &vectors("float")).await;
    assert_eq!(status, 200, "{floats}");
    let (_, packed) = group.post("/v1/embeddings", &vectors("base64")).await;
    for index in 0..2 {
        let vector = answer::embedding(index, 8);
        assert_eq!(floats["data"][index]["embedding"], json!(vector));
        let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
        assert_eq!(packed["data"][index]["embedding"], STANDARD.encode(bytes));
    }
    assert_eq!(floats["usage"], json!({"prompt_tokens": 11, "total_tokens": 11}));
    let paths: Vec<_> = group.asked().into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["/api/generate", "/api/embed", "/api/embed"]);

    group.ollama.set_reply(Reply { vectors_short: 1, ..Reply::default() });
    let (status, answer) = group.post("/v1/embeddings", &vectors("float")).await;
    assert_eq!((status, &answer["error"]["code"]), (502, &json!("provider_error")), "{answer}");
}

#[tokio::test]
async fn the_configured_context_size_wins_on_every_path_and_costs_one_load() {
    for (members, requested, num_ctx, sent) in [
        (", context_size: 8192", Some(4096), 8192, Some(8192)),
        (", context_size: 8192", None, 8192, Some(8192)),
        (", context_size: 0, keep_alive: 5m", Some(4096), 4096, Some(4096)),
        (", keep_alive: 5m", None, DEFAULT_NUM_CTX, None),
    ] {
        let group = Group::start(members).await;
        for path in [CHAT, "/v1/completions", "/v1/embeddings", CHAT] {
            let mut body = chat(json!({"prompt": "p", "input": "i", "keep_alive": -1}));
            if let Some(num_ctx) = requested {
                body["options"] = json!({ "num_ctx": num_ctx });
            }
            let (status, answer) = group.post(path, &body).await;
            assert_eq!(status, 200, "{path}: {answer}");
        }
        let once = Load { model: LISTED.to_owned(), num_ctx };
        assert_eq!(group.ollama.loads(), [once], "{members} {requested:?}");
        for (path, body) in group.asked() {
            assert!(path.starts_with("/api/"), "{path}");
            assert_eq!(body.pointer("/options/num_ctx").and_then(Value::as_u64), sent, "{path}");
            let keep_alive = if members.contains("keep_alive") { json!("5m") } else { json!(-1) };
            assert_eq!(body["keep_alive"], keep_alive);
        }
    }
}

#[tokio::test]
async fn with_nothing_forced_openais_paths_are_relayed_as_they_are() {
    let group = Group::start("").await;
    let events = group.stream(&streamed(MODEL)).await;
    assert_eq!(joined(&events, "content"), "piece-0 piece-1 piece-2 piece-3 piece-4 ");
    let run = group.edge().run_where("a tunnel", |run| run["form"] == "tunnel").await;
    assert_eq!(run["terminal"]["kind"], "completed");
    let (path, body) = group.asked().remove(0);
    assert_eq!((path.as_str(), &body["model"]), (CHAT, &json!(LISTED)));
}

#[tokio::test]
async fn an_error_line_after_200_is_one_typed_error_in_the_clients_stream() {
    let group = Group::start(FORCED).await;
    let error = Some("llama runner process has terminated".to_owned());
    group.ollama.set_reply(Reply { error, ..Reply::default() });
    let mut client = group.edge().chat(&streamed(MODEL)).await;
    let head = client.head().await.unwrap();
    assert_eq!(head.status, 200);
    let mut events = Vec::new();
    while let Some(event) = client.event().await.unwrap() {
        events.push(event.strip_prefix("data: ").unwrap().to_owned());
    }
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "provider_error", "{last}");
    let message = last["error"]["message"].as_str().unwrap();
    assert!(message.contains("has terminated"), "{message}");
    assert!(!events.iter().any(|event| event == "[DONE]"), "no success after an error: {events:?}");
    assert_eq!(group.edge().run(&head).await["terminal"]["code"], "provider_error");

    let (status, answer) = group.post(CHAT, &chat(json!({}))).await;
    assert_eq!((status, &answer["error"]["code"]), (502, &json!("provider_error")), "{answer}");
    group.ollama.set_reply(Reply { ends: false, ..Reply::default() });
    let (status, answer) = group.post(CHAT, &chat(json!({}))).await;
    assert_eq!((status, &answer["error"]["code"]), (502, &json!("truncated")), "{answer}");
    group.edge().idle().await;
}

#[tokio::test]
async fn what_ollama_cannot_do_is_400_by_name_and_never_reaches_it() {
    let group = Group::start(FORCED).await;
    let remote = json!([{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}]}]);
    let broken = json!([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}{\"b\":2}"}}]}]);
    for (members, named) in [
        (json!({"messages": remote}), "messages[0].content[0].image_url.url"),
        (json!({"messages": broken}), "messages[1].tool_calls[0].function.arguments"),
        (json!({"n": 3}), "`n`"),
        (json!({"tool_choice": "required"}), "`tool_choice`"),
    ] {
        let (status, answer) = group.post(CHAT, &chat(members)).await;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains(named), "{status} {answer}");
        assert_eq!(answer["error"]["code"], "invalid_request");
    }
    assert!(group.asked().is_empty());
}

#[tokio::test]
async fn iop_up_serves_an_ollama_and_a_name_without_a_tag_means_latest() {
    let ollama = ScriptedOllama::start().await;
    ollama.set_models(&["m:latest", "k:q4"]);
    let up = Up::start(&["--provider", &format!("o=ollama:{}", ollama.endpoint())]).await;
    up.edge.serves("m:latest").await;
    for (model, status) in [("m", 200), ("m:latest", 200), ("k:q4", 200), ("k", 404)] {
        let body = json!({"model": model, "messages": [{"role": "user", "content": "hi"}]});
        let (head, body) = http::post(up.edge.clients, CHAT, &body).await.unwrap();
        assert_eq!(head.status, status, "{model}: {}", String::from_utf8_lossy(&body));
    }
}
