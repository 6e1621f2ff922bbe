//! The rig checks others, so it is checked here: its provider answers as asked, and its load
//! notices every fault.

use iop_testkit::http::{Client, Error};
use iop_testkit::{IopProcess, ScriptedProvider, answer, process::Stream};
use serde_json::{Value, json};
use std::net::SocketAddr;

const BENCH: &str = env!("CARGO_BIN_EXE_iop-bench");
const CHAT: &str = "/v1/chat/completions";

async fn provider() -> (IopProcess, SocketAddr) {
    let process = IopProcess::start(BENCH, &["provider", "--models", "a,b"]);
    let line = process.wait_for_line("listening on").await;
    let address = line.rsplit('/').next().and_then(|address| address.parse().ok());
    (process, address.expect("the line ends with the address"))
}

fn chat(prompt: &str, stream: bool) -> Value {
    json!({
        "model": "a", "stream": stream, "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": prompt}],
    })
}

async fn load(arguments: &[String]) -> (bool, Value) {
    let mut load = IopProcess::start(BENCH, arguments);
    let status = load.wait_for_exit().await;
    let report = load
        .wait_for("the report", |lines| {
            let out = lines.iter().find(|(stream, _)| *stream == Stream::Out)?;
            serde_json::from_str(&out.1).ok()
        })
        .await;
    (status.success(), report)
}

#[tokio::test]
async fn the_provider_streams_whole_and_broken_answers_as_the_prompt_asks() {
    let (_process, address) = provider().await;
    let mut client = Client::connect(address).await.expect("connects");

    client.post(CHAT, &chat("[[bench chunks=3]]", true)).await.expect("sent");
    assert_eq!(client.head().await.expect("head").status, 200);
    let mut events = Vec::new();
    while let Some(event) = client.json_event().await.expect("event") {
        events.push(event);
    }
    assert_eq!(events.len(), 6, "role, three chunks, finish, usage: {events:#?}");
    assert_eq!(events[4]["choices"][0]["finish_reason"], "stop");
    assert_eq!(events[5]["usage"]["completion_tokens"], 3);
    assert!(client.piece().await.expect("a clean end").is_none());

    client.post(CHAT, &chat("[[bench status=429]]", true)).await.expect("sent");
    assert_eq!(client.head().await.expect("head").status, 429);
    assert_eq!(client.json().await.expect("json")["error"]["type"], "rate_limit_error");

    client.post(CHAT, &chat("[[bench size=10]]", false)).await.expect("sent");
    client.head().await.expect("head");
    let text = client.json().await.expect("json")["choices"][0]["message"]["content"].clone();
    assert_eq!(text.as_str().map(str::len), Some(10));

    client.post(CHAT, &chat("[[bench chunks=9 cut=2]]", true)).await.expect("sent");
    client.head().await.expect("head");
    let (body, end) = client.body_and_end().await;
    assert!(matches!(end, Err(Error::Truncated)), "{end:?}");
    assert!(String::from_utf8_lossy(&body).contains("@#0000001:"));
}

#[tokio::test]
async fn the_load_is_content_with_its_own_provider() {
    let (_process, address) = provider().await;
    let (good, report) =
        load(&["load".into(), "--once".into(), format!("--target={address}")]).await;
    assert!(good, "{report}");
    for cell in ["unary", "stream", "paced"] {
        let arguments = [
            "load".into(),
            format!("--target={address}"),
            format!("--cell={cell}"),
            "--connections=4".into(),
            "--warmup=0.1".into(),
            "--seconds=0.3".into(),
        ];
        let (good, report) = load(&arguments).await;
        assert!(good, "{cell}: {report}");
    }
}

#[tokio::test]
async fn the_load_notices_streams_that_are_short_disordered_or_broken() {
    let provider = ScriptedProvider::start().await;
    let arguments =
        ["load".to_owned(), "--once".to_owned(), format!("--target={}", provider.address())];
    let mark = |index: u64| format!("{{\"content\":\"@#{index:07}:{:020} \"}}", 1);
    let faults = async |name: &str, marks: Vec<u64>, whole: bool| {
        provider.on(CHAT, move |request| {
            if request.json()["stream"] != true {
                return answer::chat(request, &"long enough ".repeat(100));
            }
            let mut script = answer::stream_start(request);
            for index in &marks {
                script = script.event(mark(*index));
            }
            if whole { answer::stream_end(script, request, 1) } else { script.fin() }
        });
        let (good, report) = load(&arguments).await;
        assert!(!good, "{name}: {report}");
        report[name].as_u64()
    };
    assert_eq!(faults("short", vec![0, 1, 2], true).await, Some(1));
    assert_eq!(faults("disordered", vec![0, 2, 1], true).await, Some(1));
    assert_eq!(faults("disordered", vec![0, 0], true).await, Some(1));
    assert_eq!(faults("errors", vec![0, 1], false).await, Some(1));
}

#[tokio::test]
async fn neither_provider_nor_load_leaves_the_loopback() {
    for arguments in [["provider", "--listen=0.0.0.0:0"], ["load", "--target=192.0.2.1:80"]] {
        let mut process = IopProcess::start(BENCH, &arguments);
        process.wait_for_line("not a loopback address").await;
        assert!(!process.wait_for_exit().await.success());
    }
}
