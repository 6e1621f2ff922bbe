//! Values at the borders of what a frame, a header or a process holds: an answer or an error for one
//! request, never the end of the link that carries all of them.

use iop_testkit::http::{self, Client};
use iop_testkit::script::Script;
use iop_testkit::{ScriptedProvider, answer};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::support::{Apart, CHAT, Edge, IOP, MODEL, Running, Up, ports, streamed, unary};

/// Checks that the one link of this Edge is the one that it was.
async fn same_link(edge: &Edge, node: &str) {
    assert_eq!(edge.generation(node).await, 1, "the link broke");
    edge.idle().await;
}

#[tokio::test]
async fn a_head_or_trailers_of_any_size_pass_or_fail_alone() {
    let provider = ScriptedProvider::start().await;
    let up = Up::serving(&provider, 2).await;
    let mut passed = Vec::new();
    for bytes in [1, 8 << 10, 30 << 10, 60 << 10, 64 << 10, 65 << 10, 80 << 10, 300 << 10, 2 << 20]
    {
        let filler = "h".repeat(bytes);
        let headers = [
            ("content-type", "application/json"),
            ("content-length", "2"),
            ("x-filler", filler.as_str()),
        ];
        let script = Script::new().head(200, &headers).bytes("{}");
        provider.once(CHAT, move |_| script.clone());
        let (head, body) = http::post(up.edge.clients, CHAT, &unary(MODEL)).await.unwrap();
        match head.status {
            200 => {
                assert_eq!(head.header("x-filler").map(str::len), Some(bytes));
                passed.push(bytes);
            }
            502 => {
                let body = String::from_utf8_lossy(&body);
                assert!(body.contains("provider_error"), "{bytes}: {body}");
            }
            status => panic!("{status} for a head of {bytes} bytes"),
        }
        same_link(&up.edge, "local").await;

        let trailers = Script::new()
            .head(
                200,
                &[
                    ("content-type", "application/json"),
                    ("transfer-encoding", "chunked"),
                    ("trailer", "x-filler"),
                ],
            )
            .chunk("{}")
            .bytes(format!("0\r\nx-filler: {filler}\r\n\r\n"));
        provider.once(CHAT, move |_| trailers.clone());
        let mut client = up.edge.client().await;
        let headers = [("content-type", "application/json"), ("te", "trailers")];
        client.request("POST", CHAT, &headers, unary(MODEL).to_string()).await.unwrap();
        assert_eq!(client.head().await.unwrap().status, 200, "trailers of {bytes} bytes");
        // The end may be an abort where they are too many; what is there is the provider's.
        let (body, _) = client.body_and_end().await;
        assert_eq!(body, "{}", "trailers of {bytes} bytes");
        same_link(&up.edge, "local").await;
    }
    assert!(passed.contains(&(30 << 10)), "{passed:?}");
}

#[tokio::test]
async fn a_request_head_of_any_size_passes_or_is_refused_by_its_status() {
    let provider = ScriptedProvider::start().await;
    let up = Up::serving(&provider, 2).await;
    for bytes in [1, 20 << 10, 60 << 10, 70 << 10, 200 << 10] {
        let filler = "h".repeat(bytes);
        for (target, header) in
            [(CHAT.to_owned(), filler.as_str()), (format!("{CHAT}?q={filler}"), "x")]
        {
            let mut client = up.edge.client().await;
            let headers = [("content-type", "application/json"), ("x-filler", header)];
            let before = provider.log().exchanges.len();
            let _ = client.request("POST", &target, &headers, unary(MODEL).to_string()).await;
            let status = client.head().await.unwrap().status;
            let reached = provider.log().exchanges.len() - before;
            match status {
                200 => assert_eq!(reached, 1),
                400 | 414 | 431 => assert_eq!(reached, 0),
                status => panic!("{status} for {bytes} bytes in {}", &target[..CHAT.len()]),
            }
            same_link(&up.edge, "local").await;
        }
    }
}

#[tokio::test]
async fn a_run_event_passes_whole_up_to_its_limit_and_above_it_ends_its_run() {
    let file = "version: 1
limits: { run_event: 3500KiB }
nodes:
  one:
    providers:
      m:
        adapter: mock
        script:
          targets: [large, larger]
          by_target:
            large: { text: TEXT, repeat: 6, chunk_chars: 3000000 }
            larger: { text: TEXT, repeat: 8, chunk_chars: 4000000 }
"
    .replace("TEXT", &"x".repeat(500_000));
    let group = Apart::start(&file).await;
    let _node = group.node("one").await;
    group.edge.serves("large").await;
    let mut client = group.edge.chat(&streamed("large")).await;
    assert_eq!(client.head().await.unwrap().status, 200);
    let mut text = 0;
    while let Some(event) = client.json_event().await.unwrap() {
        assert!(event["error"].is_null(), "{event}");
        text += event["choices"][0]["delta"]["content"].as_str().unwrap_or_default().len();
    }
    assert_eq!(text, 3_000_000);
    let mut client = group.edge.chat(&streamed("larger")).await;
    let head = client.head().await.unwrap();
    let told = String::from_utf8_lossy(&client.body().await.unwrap()).into_owned();
    assert!(
        told.contains("provider_error") && !told.contains("[DONE]"),
        "{}",
        &told[..200.min(told.len())]
    );
    assert_eq!(group.edge.run(&head).await["terminal"]["code"], "provider_error");
    same_link(&group.edge, "one").await;
}

#[tokio::test]
async fn a_model_may_have_any_name() {
    let names = ["org/model:7b", "ü \"q\" \\ 'x'", "a{b}=c,d\n", "模型", "..", "%2F", "?x=1#y"];
    let provider = ScriptedProvider::start().await;
    provider.set_models(&names);
    let up = Up::serving_any(&provider).await;
    for name in names {
        up.edge.serves(name).await;
        let (head, body) = http::post(up.edge.clients, CHAT, &unary(name)).await.unwrap();
        assert_eq!(head.status, 200, "{name}");
        let answer: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(answer["model"], name);
        let encoded: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let (head, body) =
            http::get(up.edge.clients, &format!("/v1/models/{encoded}")).await.unwrap();
        let model: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((head.status, &model["id"]), (200, &json!(name)));
    }
    // Every line of the metrics is still a series and a number.
    assert!(!up.edge.metrics().await.is_empty());
}

/// `iop up` over a shell that limits its descriptors first, and everything that it needs.
struct Limited {
    process: Running,
    edge: Edge,
    provider: ScriptedProvider,
    _dir: TempDir,
}

impl Limited {
    async fn start(ulimit: &str) -> Self {
        let provider = ScriptedProvider::start().await;
        provider
            .on(CHAT, |_| Script::new().hold().chain(answer::sized(200, "application/json", "{}")));
        let dir = TempDir::new().unwrap();
        let mut command = Command::new("/bin/sh");
        let script = format!("ulimit {ulimit}; exec \"$0\" \"$@\"");
        command.args(["-c", &script, IOP, "--log", "info", "up", "--max-concurrency", "200"]);
        command.arg("--data-dir").arg(dir.path()).args(ports());
        command.arg("--provider").arg(format!("p=openai_compat:{}", provider.endpoint()));
        let process = Running::start_command(&format!("iop up after ulimit {ulimit}"), command);
        let edge = Edge::found_in(&process).await;
        process.wait_for_line("Models ").await;
        edge.serves(MODEL).await;
        Self { process, edge, provider, _dir: dir }
    }

    /// Connections on which a chat was posted.
    async fn clients(&self, count: usize) -> Vec<Client> {
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(self.edge.chat(&unary(MODEL)).await);
        }
        clients
    }

    /// Lets the provider answer and returns each client's status.
    async fn statuses(&self, clients: Vec<Client>) -> Vec<u16> {
        self.provider.release(clients.len() + 1_000);
        let mut statuses = Vec::new();
        for mut client in clients {
            statuses.push(client.head().await.unwrap().status);
            client.body().await.unwrap();
        }
        statuses
    }

    /// Stops it and asserts that it ends well.
    async fn end(mut self) {
        self.edge.idle().await;
        assert!(!self.process.output().contains("panicked"));
        self.process.terminate();
        assert!(self.process.wait_for_exit().await.success());
    }
}

#[tokio::test]
async fn a_low_soft_limit_of_descriptors_is_raised_to_what_is_allowed() {
    let limited = Limited::start("-S -n 70").await;
    let clients = limited.clients(120).await;
    limited.provider.wait_for_requests(120).await;
    assert_eq!(limited.statuses(clients).await, [200; 120]);
    limited.end().await;
}

#[tokio::test]
async fn a_process_that_runs_out_of_descriptors_answers_with_errors_and_recovers() {
    let limited = Limited::start("-n 90").await;
    let clients = limited.clients(120).await;
    limited.process.wait_for_line("Too many open files").await;
    let statuses = limited.statuses(clients).await;
    assert!(statuses.iter().all(|status| [200, 502, 503].contains(status)), "{statuses:?}");
    // The Node may have taken the provider for absent meanwhile, and looks again by itself.
    limited
        .edge
        .until("all is as before", async |edge| {
            let (head, _) = http::post(edge.clients, CHAT, &unary(MODEL)).await.unwrap();
            head.status == 200
        })
        .await;
    limited.end().await;
}
