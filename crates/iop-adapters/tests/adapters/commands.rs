//! Commands: the closed list of Ollama's own operations, against a scripted server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use iop_execution::{CallError, Cancelled, Outlet, Provider};
use iop_testkit::script::{OnCancel, Script};
use iop_testkit::{ScriptedProvider, answer};
use iop_types::{AdapterType, CommandFrame, ErrorCode, OllamaOperation, Operation};
use serde_json::json;

use crate::support::{Items, Outcome, built, settings, watch};

const NDJSON: &[(&str, &str)] =
    &[("content-type", "application/x-ndjson"), ("transfer-encoding", "chunked")];

fn ollama(server: &ScriptedProvider) -> Arc<dyn Provider> {
    let mut settings = settings(&server.endpoint());
    settings.adapter = AdapterType::Ollama;
    built(&settings)
}

async fn call(
    server: &ScriptedProvider,
    method: &str,
    path: &str,
    body: &str,
) -> Outcome<CommandFrame, ()> {
    call_until(server, method, path, body, std::future::pending()).await
}

async fn call_until(
    server: &ScriptedProvider,
    method: &str,
    path: &str,
    body: &str,
    stop: impl Future<Output = ()>,
) -> Outcome<CommandFrame, ()> {
    let provider = ollama(server);
    let operation = Operation { method: method.to_owned(), path: path.to_owned() };
    let body = Bytes::copy_from_slice(body.as_bytes());
    let call = async |outlet: &mut dyn Outlet<CommandFrame>, cancelled: &mut Cancelled| {
        let commands = provider.commands().expect("the adapter takes commands");
        commands.call(operation, body, outlet, cancelled).await
    };
    watch(Items::default(), call, stop).await
}

fn text<R>(outcome: &Outcome<CommandFrame, R>) -> String {
    let mut text = Vec::new();
    for frame in &outcome.items {
        let CommandFrame::Part(part) = frame else {
            panic!("an adapter puts parts, not {frame:?}")
        };
        text.extend_from_slice(part);
    }
    String::from_utf8(text).expect("the server sent text")
}

#[tokio::test]
async fn whatever_is_not_on_the_list_opens_no_socket() {
    let server = ScriptedProvider::start().await;
    for (method, path) in [
        ("POST", "/api/chat"),
        ("POST", "/api/generate"),
        ("POST", "/api/embed"),
        ("POST", "/api/embeddings"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/api/push"),
        ("POST", "/api/create"),
        ("POST", "/api/blobs/sha256:0"),
        ("HEAD", "/api/tags"),
        ("POST", "/api/tags"),
        ("GET", "/api/show"),
        ("get", "/api/tags"),
        ("GET ", "/api/tags"),
        ("GET", "/api/tags/"),
        ("GET", "/api//tags"),
        ("GET", "/api/tags?x=1"),
        ("GET", "/api/tags#x"),
        ("GET", "/api/../api/tags"),
        ("GET", "/api/./tags"),
        ("GET", "/api%2Ftags"),
        ("GET", "/%61pi/tags"),
        ("GET", "/API/tags"),
        ("GET", "api/tags"),
        ("GET", "http://elsewhere/api/tags"),
        ("GET", "/api/tags\r\nx: y"),
        ("GET", ""),
    ] {
        let outcome = call(&server, method, path, "").await;
        assert_eq!(outcome.failure().code, ErrorCode::InvalidRequest, "{method} {path}");
        assert!(outcome.items.is_empty());
    }
    assert_eq!(server.log().connections.len(), 0);
}

#[tokio::test]
async fn a_body_that_is_not_understood_opens_no_socket() {
    let server = ScriptedProvider::start().await;
    for (method, path, body) in [
        ("GET", "/api/tags", "{}"),
        ("POST", "/api/show", ""),
        ("POST", "/api/show", "[\"m\"]"),
        ("POST", "/api/show", r#"{"model":"a","model":"b"}"#),
        ("POST", "/api/show", r#"{"Model":"a"}"#),
        ("POST", "/api/show", r#"{"model":"a","system":"x"}"#),
        ("POST", "/api/pull", r#"{"model":"a","stream":false}"#),
        ("POST", "/api/pull", r#"{"model":"a","insecure":true}"#),
        ("POST", "/api/copy", r#"{"source":"a"}"#),
        ("DELETE", "/api/delete", r#"{"model":""}"#),
    ] {
        let outcome = call(&server, method, path, body).await;
        assert_eq!(outcome.failure().code, ErrorCode::InvalidRequest, "{path} {body}");
        assert!(outcome.failure().message.contains(path), "{}", outcome.failure().message);
    }
    assert_eq!(server.log().connections.len(), 0);
}

#[tokio::test]
async fn an_answer_comes_as_the_server_wrote_it_and_no_connection_is_kept() {
    let server = ScriptedProvider::start().await;
    let body = "{ \"models\": [ {\"name\":\"é\"} ] }\n";
    server.on("/api/ps", move |_| answer::sized(200, "application/json; charset=utf-8", body));
    let outcome = call(&server, "GET", "/api/ps", "").await;
    assert_eq!(outcome.result, Ok(()));
    assert_eq!(text(&outcome), body);
    server.wait_until("nothing stays open", |log| log.open_connections() == 0).await;
}

#[tokio::test]
async fn a_large_answer_comes_in_parts() {
    let server = ScriptedProvider::start().await;
    let body = json!({ "vocabulary": "x".repeat(100_000) });
    let sent = body.clone();
    server.on("/api/show", move |_| answer::json(200, &sent));
    let outcome = call(&server, "POST", "/api/show", r#"{"model":"m","verbose":true}"#).await;
    assert_eq!(text(&outcome), body.to_string());
    assert!(outcome.items.len() > 5, "{} parts", outcome.items.len());
}

#[tokio::test]
async fn what_the_server_gets_is_written_anew() {
    let server = ScriptedProvider::start().await;
    for path in ["/api/show", "/api/copy", "/api/delete"] {
        server.on(path, |_| answer::sized(200, "application/json", "{}"));
    }
    let pulled = || Script::new().head(200, NDJSON).chunk("{\"status\":\"success\"}\n");
    server.on("/api/pull", move |_| pulled().last_chunk());
    for (operation, body) in [
        (OllamaOperation::Show, r#" {"m\u006fdel":"a"} "#),
        (OllamaOperation::Pull, r#"{"model":"a"}"#),
        (OllamaOperation::Copy, r#"{"destination":"b","source":"a"}"#),
        (OllamaOperation::Delete, r#"{"model":"a"}"#),
    ] {
        let outcome = call(&server, operation.method(), operation.path(), body).await;
        assert_eq!(outcome.result, Ok(()), "{operation}");
    }
    let log = server.log();
    let sent: Vec<_> = log
        .exchanges
        .iter()
        .map(|exchange| {
            let body = String::from_utf8(exchange.request.body.to_vec()).unwrap();
            (exchange.request.method.as_str(), exchange.request.path(), body)
        })
        .collect();
    let expected = [
        ("POST", "/api/show", r#"{"model":"a"}"#),
        ("POST", "/api/pull", r#"{"model":"a","stream":true}"#),
        ("POST", "/api/copy", r#"{"source":"a","destination":"b"}"#),
        ("DELETE", "/api/delete", r#"{"model":"a"}"#),
    ];
    assert_eq!(sent, expected.map(|(method, path, body)| (method, path, body.to_owned())));
    assert!(
        log.exchanges.iter().all(|exchange| {
            exchange.request.header("content-type") == Some("application/json")
        })
    );
}

#[tokio::test]
async fn an_empty_answer_of_copy_and_delete_is_an_empty_object() {
    let server = ScriptedProvider::start().await;
    server.on("/api/delete", |_| answer::sized(200, "text/plain", ""));
    let outcome = call(&server, "DELETE", "/api/delete", r#"{"model":"m"}"#).await;
    assert_eq!((outcome.result.clone(), text(&outcome).as_str()), (Ok(()), "{}"));
}

#[tokio::test]
async fn an_error_of_the_server_keeps_its_status_and_words() {
    let server = ScriptedProvider::start().await;
    server.on("/api/show", |_| answer::json(404, &json!({ "error": "model 'm' not found" })));
    let outcome = call(&server, "POST", "/api/show", r#"{"model":"m"}"#).await;
    let failure = outcome.failure();
    assert_eq!((failure.code, failure.provider_status), (ErrorCode::ProviderError, Some(404)));
    assert!(failure.message.contains("model 'm' not found"), "{}", failure.message);
}

#[tokio::test]
async fn an_answer_that_is_no_json_object_is_not_passed_on() {
    let server = ScriptedProvider::start().await;
    server.once("/api/tags", |_| answer::sized(200, "text/html", "<html>"));
    server.once("/api/tags", |_| answer::sized(200, "application/json", "[1]"));
    server.once("/api/tags", |_| answer::sized(200, "application/json", "{\"a\":"));
    server.once("/api/tags", |_| answer::short(200, "application/json", "{\"a\":1}", 2));
    for _ in 0..4 {
        let outcome = call(&server, "GET", "/api/tags", "").await;
        assert!(outcome.items.is_empty());
        outcome.failure();
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_to_be_so() {
    let server = ScriptedProvider::start().await;
    let provider = ollama(&server);
    server.stop().await;
    let operation = Operation { method: "GET".into(), path: "/api/ps".into() };
    let call = async |outlet: &mut dyn Outlet<CommandFrame>, cancelled: &mut Cancelled| {
        let commands = provider.commands().expect("the adapter takes commands");
        commands.call(operation, Bytes::new(), outlet, cancelled).await
    };
    let outcome = watch(Items::default(), call, std::future::pending()).await;
    assert_eq!(outcome.failure().code, ErrorCode::ConnectFailed);
}

#[tokio::test]
async fn progress_of_a_pull_comes_line_by_line_whatever_the_segments() {
    let server = ScriptedProvider::start().await;
    server.on("/api/pull", |_| {
        Script::new()
            .read_body()
            .head(200, NDJSON)
            .chunk("{\"status\":\"pulling manifest\"}\n{\"status\":\"pul")
            .chunk("ling a\",\"digest\":\"sha256:a\",\"total\":9,\"completed\":3}\r\n\n")
            .chunk("{\"status\":\"success\"}")
            .last_chunk()
    });
    let outcome = call(&server, "POST", "/api/pull", r#"{"model":"m"}"#).await;
    assert_eq!(outcome.result, Ok(()));
    let lines: Vec<_> = outcome
        .items
        .iter()
        .map(|frame| match frame {
            CommandFrame::Part(part) => std::str::from_utf8(part).unwrap(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        lines,
        [
            "{\"status\":\"pulling manifest\"}\n",
            "{\"status\":\"pulling a\",\"digest\":\"sha256:a\",\"total\":9,\"completed\":3}\n",
            "{\"status\":\"success\"}\n",
        ]
    );
}

#[tokio::test]
async fn a_pull_that_does_not_say_success_failed() {
    let server = ScriptedProvider::start().await;
    let begun = || Script::new().read_body().head(200, NDJSON).chunk("{\"status\":\"pulling\"}\n");
    server.once("/api/pull", move |_| begun().last_chunk());
    server
        .once("/api/pull", move |_| begun().chunk("{\"error\":\"no space left\"}\n").last_chunk());
    server.once("/api/pull", move |_| begun().chunk("not json\n").last_chunk());
    server.once("/api/pull", move |_| begun().chunk("[1]\n").last_chunk());
    server.once("/api/pull", move |_| begun().chunk("x".repeat(70_000)).chunk("\n").last_chunk());
    server.once("/api/pull", move |_| begun().reset());
    for (code, told) in [
        (ErrorCode::Truncated, "without saying that it succeeded"),
        (ErrorCode::ProviderError, "no space left"),
        (ErrorCode::ProviderError, "no JSON object"),
        (ErrorCode::ProviderError, "no JSON object"),
        (ErrorCode::ProviderError, "larger than the cap"),
        (ErrorCode::Truncated, "incomplete"),
    ]
    .into_iter()
    // The rule that was added last answers first.
    .rev()
    {
        let outcome = call(&server, "POST", "/api/pull", r#"{"model":"m"}"#).await;
        let failure = outcome.failure();
        assert_eq!(failure.code, code, "{}", failure.message);
        assert!(failure.message.contains(told), "{}", failure.message);
        assert_eq!(text(&outcome), "{\"status\":\"pulling\"}\n");
    }
}

#[tokio::test]
async fn a_cancelled_pull_is_seen_by_the_server_at_once() {
    let server = ScriptedProvider::start().await;
    server.on("/api/pull", |_| {
        Script::new()
            .read_body()
            .head(200, NDJSON)
            .chunk("{\"status\":\"pulling\"}\n")
            .on_cancel(OnCancel::StopAfter(Duration::from_millis(50)))
            .hold()
    });
    let stop = async {
        server.wait_until("the pull goes on", |log| log.in_flight() == 1).await;
    };
    let outcome = call_until(&server, "POST", "/api/pull", r#"{"model":"m"}"#, stop).await;
    assert_eq!(outcome.result, Err(CallError::Cancelled));
    let log = server.log();
    assert!(log.connection_of(0).left_at().is_some());
    assert_eq!(log.in_flight(), 0, "it returned only when the server had ended");
}

#[tokio::test]
async fn a_reader_that_is_behind_holds_the_server_back() {
    let server = ScriptedProvider::start().await;
    server.on("/api/pull", |_| {
        let mut script = Script::new().read_body().head(200, NDJSON);
        for _ in 0..200 {
            script = script.chunk(format!("{{\"status\":\"{}\"}}\n", "x".repeat(60_000)));
        }
        script.chunk("{\"status\":\"success\"}\n").last_chunk()
    });
    let provider = ollama(&server);
    let items = Items::with_room(2);
    let seen = items.clone();
    let operation = Operation { method: "POST".into(), path: "/api/pull".into() };
    let call = async |outlet: &mut dyn Outlet<CommandFrame>, cancelled: &mut Cancelled| {
        let commands = provider.commands().expect("the adapter takes commands");
        commands.call(operation, Bytes::from_static(b"{\"model\":\"m\"}"), outlet, cancelled).await
    };
    let stop = async {
        server.wait_until("the pull goes on", |log| log.in_flight() == 1).await;
        while seen.len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    let outcome = watch(items, call, stop).await;
    assert_eq!((outcome.items.len(), outcome.result), (2, Err(CallError::Cancelled)));
    let sent = server.log().exchanges[0].sent;
    assert!(sent < 200 * 60_000, "{sent} bytes were taken off the server");
}
