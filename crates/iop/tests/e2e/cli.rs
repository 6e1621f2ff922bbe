//! The command line as a user meets it: refusals, and the commands that ask an Edge.

use std::net::TcpListener;

use iop_testkit::{PATIENCE, ScriptedProvider};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::support::{IOP, MODEL, Running, Up, ports, streamed, unary};

/// Runs a command to its end and returns its exit code and what it said on both streams.
pub(crate) async fn outcome(arguments: &[&str]) -> (i32, String, String) {
    let command = Command::new(IOP).args(arguments).env_clear().kill_on_drop(true).output();
    let ended = tokio::time::timeout(PATIENCE, command).await;
    let output = ended.unwrap_or_else(|_| panic!("iop {arguments:?} does not end")).unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().expect("no signal ended it");
    (code, text(output.stdout), text(output.stderr))
}

/// Runs a command that succeeds and returns what it printed.
pub(crate) async fn printed(arguments: &[&str]) -> String {
    let (code, out, err) = outcome(arguments).await;
    assert_eq!(code, 0, "iop {arguments:?}: {err}");
    out
}

/// Asserts that a command is refused with this code, says all of this on stderr, and nothing else.
pub(crate) async fn refused(arguments: &[&str], code: i32, says: &[&str]) {
    let (status, out, err) = outcome(arguments).await;
    assert_eq!(status, code, "{arguments:?}: {err}");
    assert_eq!(out, "", "{arguments:?}");
    for text in says {
        assert!(err.contains(text), "{arguments:?} does not say `{text}`: {err}");
    }
    assert!(!err.contains("panicked"), "{err}");
}

#[tokio::test]
async fn what_cannot_be_started_is_refused_with_what_to_do() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().display().to_string();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let up = |more: &[&'static str]| {
        let mut all = vec!["up", "--data-dir", data.as_str()];
        all.extend(ports());
        all.extend(more);
        all
    };
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap().to_string();

    for key in ["listen", "node-listen", "admin-listen"] {
        let flag = format!("--{key}");
        let mut arguments = vec!["up", "--demo", "--data-dir", &data, &flag, &taken];
        for pair in ports().chunks(2).filter(|pair| pair[0] != flag) {
            arguments.extend(pair);
        }
        let named = format!("`{flag}`");
        refused(
            &arguments,
            1,
            &["cannot listen on", &taken, "stop the process that holds it", &named],
        )
        .await;
    }
    let open = ["up", "--demo", "--data-dir", &data, "--listen", "0.0.0.0:0"];
    refused(&open, 1, &["`listen.clients`", "not a loopback address", "managed mode"]).await;
    let name = "a=nope:http://127.0.0.1:1";
    refused(&up(&["--provider", name]), 2, &["no adapter `nope`", "openai_compat"]).await;
    let twice = ["--provider", "a=openai_compat:http://127.0.0.1:1"];
    refused(&up(&[twice, twice].concat()), 2, &["`a` twice", "its own name"]).await;
    refused(&up(&["--demo", "--provider", twice[1]]), 2, &["cannot be used with"]).await;
    refused(&["up", "--nonsense"], 2, &["--nonsense"]).await;
    for workers in ["0", "100000", "many"] {
        refused(&["status", "--workers", workers], 2, &["--workers", workers]).await;
    }

    let bad = file("bad.yaml", "version: 1\nnodez: {}\n");
    let edge = ["edge", "--config", &bad];
    refused(&edge, 1, &["bad.yaml:2:1", "`nodez`", "did you mean `nodes`"]).await;
    let script = "{ adapter: mock, script: { answer: { chunk_delay_ms: soon } } }";
    let script = format!("version: 1\nnodes: {{ box: {{ providers: {{ demo: {script} }} }} }}\n");
    let script = file("script.yaml", &script);
    let says = ["script.yaml", "nodes.box.providers.demo", "chunk_delay_ms"];
    refused(&["config", "check", &script], 1, &says).await;
    refused(&["edge", "--config", &script], 1, &says).await;
    let missing = dir.path().join("missing.yaml").display().to_string();
    refused(&["edge", "--config", &missing], 1, &["missing.yaml", "cannot be read"]).await;
    let far = file("far.yaml", "version: 1\nnode: x\nedge: 10.0.0.1:7401\n");
    let node = ["node", "run", "--config", &far];
    refused(&node, 1, &["`edge`", "not a loopback address", "managed mode"]).await;
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = ["status", "--admin", &format!("http://{free}")];
    refused(&nobody, 1, &["no edge answers", "iop up"]).await;
}

#[tokio::test]
async fn a_data_directory_has_one_owner() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().display().to_string();
    let mut arguments = vec!["up", "--demo", "--data-dir", &data];
    arguments.extend(ports());
    let mut first = Running::start("first iop up", &arguments);
    first.wait_for_line("Endpoint").await;
    refused(&arguments, 1, &["data directory", "in use by another iop process"]).await;
    first.end().await;
    // A killed owner leaves nothing that a person has to remove.
    let second = Running::start("second iop up", &arguments);
    second.wait_for_line("Endpoint").await;
}

#[tokio::test]
async fn the_commands_that_ask_an_edge_tell_what_it_did() {
    let provider = ScriptedProvider::start().await;
    let up = Up::serving(&provider, 3).await;
    let admin = format!("http://{}", up.edge.admin);
    let endpoint = format!("http://{}", up.edge.clients);

    let said = printed(&["chat", "hello", "--endpoint", &endpoint]).await;
    assert_eq!(said, "piece-0 piece-1 piece-2 piece-3 piece-4 \n");
    let mut client = up.edge.client().await;
    client
        .request(
            "POST",
            "/v1/chat/completions",
            &[("content-type", "application/json"), ("x-session-id", "s 1")],
            unary("no-such-model").to_string(),
        )
        .await
        .unwrap();
    let head = client.head().await.unwrap();
    assert_eq!((head.status, head.header("x-session-id")), (404, Some("s 1")));
    let mut client = up.edge.chat(&streamed(MODEL)).await;
    let head = client.head().await.unwrap();
    client.body().await.unwrap();
    let run = up.edge.run(&head).await;

    let json = async |arguments: &[&str]| -> Value {
        let asked = [arguments, &["-o", "json", "--admin", &admin]].concat();
        serde_json::from_str(&printed(&asked).await).unwrap()
    };
    let runs = json(&["runs", "list"]).await;
    let runs = runs["runs"].as_array().unwrap();
    assert_eq!(runs[0], run, "newest first, and the same as the admin listener says");
    let usage = json!({"input_tokens": 16, "output_tokens": 5, "source": "provider"});
    assert_eq!((&run["usage"], &run["terminal"]["kind"]), (&usage, &json!("completed")));
    let id = run["run_id"].as_str().unwrap();
    assert_eq!(json(&["runs", "show", id]).await, run);
    let status = json(&["status"]).await;
    assert_eq!(status["status"]["in_flight"], 0);
    let memory = &status["status"]["buffered_bodies"];
    assert_eq!((&memory["limit_bytes"], &memory["used_bytes"]), (&json!(512 << 20), &json!(0)));
    assert!(memory["peak_bytes"].as_u64().unwrap() > 0 && memory["refused"] == 0, "{memory}");
    for direction in ["answer_credit", "body_credit"] {
        let credit = &status["nodes"][0]["link"][direction];
        assert_eq!(
            (&credit["limit_bytes"], &credit["reserved_bytes"]),
            (&json!(64 << 20), &json!(0))
        );
        assert!(credit["peak_bytes"].as_u64().unwrap() > 0, "{credit}");
    }
    assert_eq!(status["providers"][0]["capacity"], 3);
    assert_eq!(json(&["models"]).await["models"][0]["model"], MODEL);

    let table = printed(&["runs", "list", "--admin", &admin]).await;
    assert!(
        table.contains("RUN") && table.contains(&id[..13]) && table.contains("16+5"),
        "{table}"
    );
    let page = printed(&["runs", "show", id, "--admin", &admin]).await;
    assert!(page.contains("script") && page.contains(MODEL), "{page}");
    assert!(printed(&["models", "--admin", &admin]).await.contains(MODEL));
    let page = printed(&["status", "--admin", &admin]).await;
    for told in [
        "script",
        "of 512 MiB for whole bodies (peak ",
        "credit for bodies 0 B of 64 MiB, for answers 0 B of 64 MiB",
    ] {
        assert!(page.contains(told), "`{told}` is missing in:\n{page}");
    }
    refused(&["runs", "show", "nonsense", "--admin", &admin], 1, &["nonsense"]).await;
    let other = ["clients' listener", "--admin is usually http://127.0.0.1:7402"];
    refused(&["status", "--admin", &endpoint], 1, &other).await;
    let chat = ["chat", "hello", "--model", "nope", "--endpoint", &endpoint];
    refused(&chat, 1, &["nope"]).await;
}

#[tokio::test]
async fn an_example_is_a_file_that_is_checked_and_started_with() {
    let dir = TempDir::new().unwrap();
    for kind in ["edge", "node"] {
        let path = dir.path().join(kind).display().to_string();
        std::fs::write(&path, printed(&["config", "example", kind]).await).unwrap();
        let told = printed(&["config", "check", &path]).await;
        assert!(told.contains(&format!("valid {kind} file")), "{told}");
        let schema: Value =
            serde_json::from_str(&printed(&["config", "schema", kind]).await).unwrap();
        assert!(schema["properties"]["version"].is_object(), "{schema}");
    }
    let script = printed(&["completions", "bash"]).await;
    assert!(script.contains("complete -F"), "{script}");
}
