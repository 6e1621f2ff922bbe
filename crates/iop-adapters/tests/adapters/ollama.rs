//! The Ollama adapter against a server that behaves as Ollama's documentation says.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use iop_adapters::{Forced, ProviderSettings, Targets, recognise};
use iop_execution::{Body, CallError, Completion, DiscoverError, Discovery, Provider};
use iop_testkit::ollama::{Call, DEFAULT_NUM_CTX, Load, Reply};
use iop_testkit::script::Script;
use iop_testkit::{ScriptedOllama, answer};
use iop_types::{
    AdapterType, ErrorCode, Event, EventKind, Finish, Part, RunKind, Target, TunnelRequest, Usage,
};
use serde_json::{Value, json};

use crate::support::{Outcome, built, run, run_until, streamed, tools, tunnel, tunnel_request};

/// The target of the test's requests.
const MODEL: &str = "served-model:latest";

async fn server() -> ScriptedOllama {
    let ollama = ScriptedOllama::start().await;
    ollama.set_models(&[MODEL, "embedder"]);
    ollama
}

fn settings(ollama: &ScriptedOllama, forced: Forced) -> ProviderSettings {
    let mut settings = ProviderSettings::new("lab".into(), AdapterType::Ollama);
    settings.endpoint = Some(ollama.endpoint());
    settings.forced = forced;
    settings
}

fn adapter(ollama: &ScriptedOllama) -> Arc<dyn Provider> {
    built(&settings(ollama, Forced::default()))
}

fn forced(num_ctx: u32, keep_alive: Option<&str>) -> Forced {
    let num_ctx = NonZeroU32::new(num_ctx);
    Forced { num_ctx, keep_alive: keep_alive.map(str::to_owned) }
}

fn chat(members: Value) -> String {
    let mut body = json!({"model": "client", "messages": [{"role": "user", "content": "hi"}]});
    merge(&mut body, &members);
    body.to_string()
}

fn merge(body: &mut Value, members: &Value) {
    let members = members.as_object().expect("the test writes an object");
    body.as_object_mut().expect("the test writes an object").extend(members.clone());
}

async fn chatted(reply: Reply) -> Outcome<Event, Completion> {
    let ollama = server().await;
    ollama.set_reply(reply);
    run(&*adapter(&ollama), RunKind::Chat, &chat(json!({}))).await
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn finish(reason: &str) -> Vec<Finish> {
    vec![Finish { choice: 0, reason: reason.to_owned() }]
}

/// The body of the request with this index.
fn asked(ollama: &ScriptedOllama, index: usize) -> (String, Value) {
    let request = &ollama.provider().log().exchanges[index].request;
    (request.path().to_owned(), request.json())
}

#[tokio::test]
async fn a_chat_goes_to_the_native_path_and_its_lines_are_events() {
    let ollama = server().await;
    let input = chat(json!({"temperature": 0.5, "stream": false, "x_vendor": [1]}));
    let outcome = run(&*adapter(&ollama), RunKind::Chat, &input).await;
    assert_eq!(outcome.items[0].kind, EventKind::Start);
    assert_eq!(outcome.text(), "a scripted answer");
    let completion = outcome.result.unwrap();
    assert_eq!(completion.finish, finish("stop"));
    assert_eq!(completion.usage, Some(Usage { input_tokens: 11, output_tokens: 3 }));
    let (path, body) = asked(&ollama, 0);
    assert_eq!(path, "/api/chat");
    assert_eq!(
        body,
        json!({"model": "served-model", "stream": true, "options": {"temperature": 0.5},
            "messages": [{"role": "user", "content": "hi"}], "x_vendor": [1]})
    );
}

#[tokio::test]
async fn thinking_and_parallel_calls_arrive_as_such() {
    let call = |place: &str| Call { name: "weather".into(), arguments: json!({"place": place}) };
    let outcome = chatted(Reply {
        thinking: texts(&["hm", "m"]),
        text: Vec::new(),
        calls: vec![call("Seoul"), call("Oslo")],
        ..Reply::default()
    })
    .await;
    let thoughts: String = outcome
        .items
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::ReasoningDelta { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(thoughts, "hmm");
    let calls: Vec<_> = outcome
        .items
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Delta { part: Part::ToolCall { index, arguments, .. }, .. } => {
                Some((*index, arguments.as_str()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(calls, [(0, r#"{"place":"Seoul"}"#), (1, r#"{"place":"Oslo"}"#)]);
    assert_eq!(outcome.result.unwrap().finish, finish("tool_calls"));
}

#[tokio::test]
async fn an_error_line_and_a_missing_end_fail_the_run_after_what_came_before() {
    let error = Some("llama runner process has terminated".to_owned());
    let outcome = chatted(Reply { error, ..Reply::default() }).await;
    assert_eq!(outcome.text(), "a scripted answer");
    assert_eq!(outcome.failure().code, ErrorCode::ProviderError);
    assert!(outcome.failure().message.contains("has terminated"), "{}", outcome.failure());

    let outcome = chatted(Reply { ends: false, ..Reply::default() }).await;
    assert_eq!(outcome.text(), "a scripted answer");
    assert_eq!(outcome.failure().code, ErrorCode::Truncated);
}

#[tokio::test]
async fn an_answer_that_said_done_is_whole_however_its_body_ends() {
    let said = || {
        let head = [("content-type", "application/x-ndjson"), ("transfer-encoding", "chunked")];
        Script::new().head(200, &head).chunk(concat!(
            "{\"message\":{\"content\":\"all\"},\"done\":false}\n",
            "{\"done\":true,\"done_reason\":\"length\"}\n",
        ))
    };
    let ends: [fn(Script) -> Script; 3] =
        [Script::fin, Script::reset, |script| script.chunk("more\n").last_chunk()];
    for end in ends {
        let ollama = server().await;
        ollama.provider().once("/api/chat", move |_| end(said()));
        let outcome = run(&*adapter(&ollama), RunKind::Chat, &chat(json!({}))).await;
        assert_eq!(outcome.text(), "all");
        assert_eq!(outcome.result.unwrap().finish, finish("length"));
    }
}

#[tokio::test]
async fn a_request_that_cannot_be_carried_opens_no_connection() {
    let ollama = server().await;
    let adapter = adapter(&ollama);
    let remote = json!({"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}]}]});
    let broken = json!({"messages": [{"role": "assistant", "tool_calls": [
        {"id": "c", "function": {"name": "f", "arguments": "{\"a\":1}{\"b\":2}"}}]}]});
    for (input, named) in [
        (chat(remote), "`messages[0].content[0].image_url.url`"),
        (chat(broken), "`messages[0].tool_calls[0].function.arguments`"),
        (chat(json!({"n": 2})), "`n`"),
        (chat(json!({"Options": {"num_ctx": 1}})), "`Options`"),
        ("no json".to_owned(), "not JSON"),
    ] {
        let outcome = run(&*adapter, RunKind::Chat, &input).await;
        assert_eq!(outcome.failure().code, ErrorCode::InvalidRequest);
        assert!(outcome.failure().message.contains(named), "{}", outcome.failure());
    }
    let outcome = run(&*adapter, RunKind::Rerank, "{}").await;
    assert_eq!(outcome.failure().code, ErrorCode::InvalidRequest);
    assert_eq!(ollama.provider().log().connections.len(), 0);
}

#[tokio::test]
async fn completions_and_embeddings_have_native_paths_of_their_own() {
    let ollama = server().await;
    let adapter = adapter(&ollama);
    let outcome =
        run(&*adapter, RunKind::Completion, r#"{"model":"c","prompt":"once","suffix":"."}"#).await;
    assert_eq!(outcome.text(), "a scripted answer");
    assert_eq!(outcome.result.unwrap().finish, finish("stop"));
    let outcome =
        run(&*adapter, RunKind::Embedding, r#"{"model":"c","input":["a","b"],"dimensions":2}"#)
            .await;
    let vectors: Vec<_> = outcome
        .items
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Delta { choice, part: Part::Embedding(vector) } => {
                Some((*choice, vector.clone()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(vectors, [(0, answer::embedding(0, 2)), (1, answer::embedding(1, 2))]);
    assert_eq!(outcome.result.unwrap().usage, Some(Usage { input_tokens: 11, output_tokens: 0 }));
    assert_eq!(asked(&ollama, 0).0, "/api/generate");
    assert_eq!(asked(&ollama, 1).0, "/api/embed");

    ollama.set_reply(Reply { vectors_short: 1, ..Reply::default() });
    let outcome = run(&*adapter, RunKind::Embedding, r#"{"model":"c","input":["a","b"]}"#).await;
    assert!(outcome.failure().message.contains("1 vectors for 2 inputs"), "{}", outcome.failure());
}

#[tokio::test]
async fn a_context_size_is_forced_in_every_kind_of_run_and_loads_once() {
    for (configured, requested, loaded_with, sent) in [
        (8192, Some(4096), 8192, Some(8192)),
        (8192, None, 8192, Some(8192)),
        (0, Some(4096), 4096, Some(4096)),
        (0, None, DEFAULT_NUM_CTX, None),
    ] {
        let ollama = server().await;
        let adapter = built(&settings(&ollama, forced(configured, None)));
        let mut members = json!({"prompt": "p", "input": "i"});
        if let Some(num_ctx) = requested {
            members["options"] = json!({ "num_ctx": num_ctx });
        }
        for kind in [RunKind::Chat, RunKind::Completion, RunKind::Embedding, RunKind::Chat] {
            run(&*adapter, kind, &chat(members.clone())).await.result.unwrap();
        }
        let once = Load { model: MODEL.to_owned(), num_ctx: loaded_with };
        assert_eq!(ollama.loads(), [once], "{configured} {requested:?}");
        for exchange in &ollama.provider().log().exchanges {
            let body = exchange.request.json();
            assert_eq!(body.pointer("/options/num_ctx").and_then(Value::as_u64), sent);
        }
    }
}

#[tokio::test]
async fn with_a_forced_option_no_tunnel_leads_past_it() {
    let ollama = server().await;
    let free = adapter(&ollama);
    let held = built(&settings(&ollama, forced(8192, None)));
    let kept = built(&settings(&ollama, forced(0, Some("-1"))));
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
    ] {
        assert!(free.capabilities().allows("POST", path), "{path}");
        assert!(!held.capabilities().allows("POST", path), "{path}");
        assert!(!kept.capabilities().allows("POST", path), "{path}");
        let request = tunnel_request(path, &[]);
        let body = Body::Full(Bytes::from_static(b"{\"model\":\"served-model\"}"));
        let outcome = tunnel(&*held, request, body).await;
        assert_eq!(outcome.failure().code, ErrorCode::NotFound);
    }
    for path in
        ["/api/pull", "/api/delete", "/api/create", "/api/push", "/api/blobs/x", "/api/copy"]
    {
        assert!(!free.capabilities().allows("POST", path), "{path}");
    }
    assert!(free.capabilities().implicit_latest);
    assert_eq!(ollama.provider().log().connections.len(), 0);
}

#[tokio::test]
async fn native_bodies_get_the_forced_options_and_keep_every_other_byte() {
    let ollama = server().await;
    let held = built(&settings(&ollama, forced(8192, Some("\"5m\""))));
    let body = "{ \"model\":\"served-model\", \"prompt\":\"p\",\"messages\":[],\"input\":\"i\",\n\"options\":{\"num_ctx\": 1,\"seed\":1e0},\"keep_alive\":-1,\"stream\":false }";
    let expected = "{ \"model\":\"served-model\", \"prompt\":\"p\",\"messages\":[],\"input\":\"i\",\n\"options\":{\"num_ctx\": 8192,\"seed\":1e0},\"keep_alive\":\"5m\",\"stream\":false }";
    for path in ["/api/chat", "/api/generate", "/api/embed", "/api/embeddings"] {
        let whole = Body::Full(Bytes::from_static(body.as_bytes()));
        let outcome = tunnel(&*held, tunnel_request(path, &[]), whole).await;
        assert_eq!(outcome.head().status, 200, "{path}");
        // The same while the body is still arriving.
        let (sender, arriving) = streamed();
        for byte in body.as_bytes().chunks(7) {
            sender.send(Bytes::copy_from_slice(byte)).unwrap();
        }
        drop(sender);
        let outcome = tunnel(&*held, tunnel_request(path, &[]), arriving).await;
        assert_eq!(outcome.head().status, 200, "{path}");
    }
    let log = ollama.provider().log();
    assert_eq!(log.exchanges.len(), 8);
    for exchange in &log.exchanges {
        assert_eq!(exchange.request.body, expected);
        let length = expected.len().to_string();
        assert_eq!(exchange.request.header("content-length"), Some(length.as_str()));
    }
    assert_eq!(ollama.loads(), [Load { model: MODEL.to_owned(), num_ctx: 8192 }]);
}

#[tokio::test]
async fn a_raw_body_that_could_be_read_in_two_ways_is_refused_and_free_ones_pass_as_they_are() {
    let ollama = server().await;
    let held = built(&settings(&ollama, forced(8192, None)));
    for body in [
        r#"{"model":"served-model","Options":{"num_ctx":1}}"#,
        r#"{"model":"served-model","options":{"NUM_CTX":1}}"#,
        r#"{"model":"served-model","options":{},"options":{"num_ctx":1}}"#,
        "no json",
    ] {
        let whole = Body::Full(Bytes::from_static(body.as_bytes()));
        let outcome = tunnel(&*held, tunnel_request("/api/chat", &[]), whole).await;
        assert_eq!(outcome.failure().code, ErrorCode::InvalidRequest, "{body}");
    }
    assert_eq!(ollama.provider().log().connections.len(), 0);

    let free = adapter(&ollama);
    let body = "{ \"Model\" : \"served-model\",\"options\":{\"num_ctx\":4096},\"stream\":false}";
    let whole = Body::Full(Bytes::from_static(body.as_bytes()));
    let outcome = tunnel(&*free, tunnel_request("/api/chat", &[]), whole).await;
    assert_eq!(outcome.head().status, 200);
    assert_eq!(ollama.provider().log().exchanges[0].request.body, body);
}

#[tokio::test]
async fn reading_paths_pass_and_answers_are_the_servers_bytes() {
    let ollama = server().await;
    let get = |path: &str| TunnelRequest { method: "GET".to_owned(), ..tunnel_request(path, &[]) };
    let held = built(&settings(&ollama, forced(8192, None)));
    for adapter in [adapter(&ollama), held] {
        let outcome = tunnel(&*adapter, get("/api/version"), Body::Full(Bytes::new())).await;
        assert_eq!(outcome.body(), r#"{"version":"0.13.5"}"#);
        let body = Body::Full(Bytes::from_static(b"{\"model\":\"gone\"}"));
        let outcome = tunnel(&*adapter, tunnel_request("/api/show", &[]), body).await;
        assert_eq!(outcome.head().status, 404);
        assert_eq!(outcome.body(), r#"{"error":"model 'gone' not found"}"#);
    }
}

#[tokio::test]
async fn targets_are_the_tags_and_what_is_loaded_is_told() {
    let ollama = server().await;
    ollama.set_models(&["m:latest", "m:q4", "org/embed:v1"]);
    let names = |names: &[&str]| names.iter().map(|name| Target::from(*name)).collect::<Vec<_>>();
    let discovered = async |targets: &[&str]| {
        let mut settings = settings(&ollama, Forced::default());
        settings.targets = Targets::from_list(targets.iter().copied());
        built(&settings).discover().await
    };
    let all = names(&["m:latest", "m:q4", "org/embed:v1"]);
    let nothing = Discovery { targets: all.clone(), ..Discovery::default() };
    assert_eq!(discovered(&["*"]).await, Ok(nothing));

    let whole = Body::Full(Bytes::from_static(b"{\"model\":\"m\",\"prompt\":\"p\"}"));
    tunnel(&*adapter(&ollama), tunnel_request("/api/generate", &[]), whole).await.result.unwrap();
    assert_eq!(discovered(&["*"]).await.unwrap().loaded, names(&["m:latest"]));
    // A name without a tag means `:latest`, and no other.
    assert_eq!(discovered(&["m", "gone"]).await.unwrap().targets, names(&["m:latest"]));
    let narrow = discovered(&["m:q4"]).await.unwrap();
    assert_eq!((narrow.targets, narrow.loaded), (names(&["m:q4"]), Vec::new()));
}

#[tokio::test]
async fn an_ollama_that_nobody_configured_is_recognised_by_its_greeting() {
    let ollama = server().await;
    assert_eq!(recognise(&ollama.endpoint(), &tools()).await, Some(AdapterType::Ollama));
    ollama.set_models(&[]);
    assert_eq!(recognise(&ollama.endpoint(), &tools()).await, Some(AdapterType::Ollama));
    // Others list their models in the same way.
    ollama.provider().on("/", |_| answer::sized(200, "text/html", "<html>llama.cpp</html>"));
    assert_eq!(recognise(&ollama.endpoint(), &tools()).await, Some(AdapterType::OpenaiCompat));
}

#[tokio::test]
async fn a_server_without_ps_is_served_and_one_without_tags_is_no_ollama() {
    let ollama = server().await;
    ollama.provider().once("/api/ps", |_| answer::sized(404, "text/plain", "404 page not found"));
    let discovery = adapter(&ollama).discover().await.unwrap();
    assert_eq!((discovery.targets.len(), discovery.loaded.len()), (2, 0));
    ollama.provider().once("/api/tags", |_| answer::json(200, &json!({"data": []})));
    ollama.provider().once("/api/tags", |_| answer::sized(404, "text/html", "<html>"));
    ollama.provider().once("/api/tags", |_| answer::json(401, &json!({"error": "unauthorized"})));
    for told in ["api_key", "404", "models[].name"] {
        let error = adapter(&ollama).discover().await.unwrap_err();
        assert!(
            matches!(&error, DiscoverError::Unusable(reason) if reason.contains(told)),
            "{error}"
        );
    }
    ollama.provider().once("/api/tags", |_| Script::new().reset());
    let error = adapter(&ollama).discover().await.unwrap_err();
    assert!(matches!(error, DiscoverError::Unreachable(_)), "{error}");
}

#[tokio::test]
async fn what_the_server_refuses_comes_back_with_its_status_and_words() {
    let ollama = server().await;
    let adapter = adapter(&ollama);
    ollama.set_models(&["other"]);
    let outcome = run(&*adapter, RunKind::Chat, &chat(json!({}))).await;
    assert_eq!(outcome.failure().provider_status, Some(404));
    assert!(
        outcome.failure().message.contains("model 'served-model' not found"),
        "{}",
        outcome.failure()
    );
    ollama.set_models(&[MODEL]);
    let outcome = run(&*adapter, RunKind::Chat, &chat(json!({"keep_alive": "-1"}))).await;
    assert_eq!(outcome.failure().provider_status, Some(400));
    assert!(outcome.failure().message.contains("missing unit"), "{}", outcome.failure());
    // A server from before the path was there.
    ollama
        .provider()
        .once("/api/embed", |_| answer::sized(404, "text/plain", "404 page not found"));
    let outcome = run(&*adapter, RunKind::Embedding, r#"{"model":"c","input":"a"}"#).await;
    assert!(outcome.failure().message.contains("no POST /api/embed"), "{}", outcome.failure());
    ollama.provider().once("/api/chat", |_| answer::sized(200, "text/html", "<html>"));
    let outcome = run(&*adapter, RunKind::Chat, &chat(json!({}))).await;
    assert!(
        outcome.failure().message.contains("content type `text/html`"),
        "{}",
        outcome.failure()
    );
}

#[tokio::test]
async fn a_cancelled_run_returns_when_the_server_has_ended() {
    let ollama = server().await;
    let pace = Duration::from_secs(60);
    ollama.set_reply(Reply { pace, ..Reply::default() });
    let arrived = async { drop(ollama.provider().wait_for_requests(1).await) };
    let outcome = run_until(&*adapter(&ollama), RunKind::Chat, &chat(json!({})), arrived).await;
    assert!(matches!(outcome.result, Err(CallError::Cancelled)), "{:?}", outcome.result);
    let log =
        ollama.provider().wait_until("nothing stays open", |log| log.open_connections() == 0).await;
    assert!(log.connection_of(0).fin_at.is_some(), "the server saw the end");
}
