//! What a Node does with commands, watched from both sides.

use iop_node::Secrets;
use iop_testkit::script::Script;
use iop_testkit::{ScriptedProvider, answer};
use iop_types::{ApiCall, Command, CommandFrame, Operation};
use iop_wire::CommandAnswer;
use iop_wire::v1::{CancelReason, ProviderState, RefusalReason};
use serde_json::{Value, json};

use crate::support::{Rig, ended, provider};

const NDJSON: &[(&str, &str)] =
    &[("content-type", "application/x-ndjson"), ("transfer-encoding", "chunked")];

/// A server that lists these as Ollama does.
async fn ollama(models: &'static [&'static str]) -> ScriptedProvider {
    let server = ScriptedProvider::start().await;
    lists(&server, models);
    server.on("/api/ps", |_| answer::json(200, &json!({ "models": [] })));
    server
}

fn lists(server: &ScriptedProvider, models: &'static [&'static str]) {
    let models: Vec<Value> =
        models.iter().map(|name| json!({ "name": name, "model": name })).collect();
    server.on("/api/tags", move |_| answer::json(200, &json!({ "models": models })));
}

/// A Node with two providers: `ollama`, whose models may be managed or not, and `lab`.
async fn rig(server: &ScriptedProvider, lab: &ScriptedProvider, manages: bool) -> Rig {
    let mut entry = provider("ollama", "ollama", &server.endpoint());
    entry.manage_models = manages;
    let lab = provider("lab", "openai_compat", &lab.endpoint());
    let rig = Rig::start(vec![entry, lab], Secrets::default()).await;
    rig.wait_for_state("ollama", ProviderState::Ready).await;
    rig.wait_for_state("lab", ProviderState::Ready).await;
    rig
}

fn call(provider: &str, method: &str, path: &str, body: &'static str) -> Command {
    Command::OllamaApi(ApiCall {
        provider: provider.into(),
        operation: Operation { method: method.to_owned(), path: path.to_owned() },
        body: body.into(),
    })
}

fn pull() -> Command {
    call("ollama", "POST", "/api/pull", r#"{"model":"new"}"#)
}

#[tokio::test]
async fn a_node_says_what_it_can_do_and_how_it_sees_its_link() {
    let (server, lab) = (ollama(&["m"]).await, ScriptedProvider::start().await);
    let rig = rig(&server, &lab, false).await;
    let (text, last) = ended(rig.command(Command::Capabilities)).await;
    assert_eq!(last, CommandAnswer::Frame(CommandFrame::End));
    let told: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(told["node"], "box");
    assert_eq!(told["commands"], json!(["CAPABILITIES", "TRANSPORT_STATUS", "OLLAMA_API"]));
    let [lab_told, ollama_told] = told["providers"].as_array().unwrap().as_slice() else {
        panic!("{told}")
    };
    assert_eq!(lab_told["commands"], json!([]));
    let commands = ollama_told["commands"].as_array().unwrap();
    assert_eq!(commands.len(), 7);
    for command in commands {
        assert_eq!(command["permitted"] == true, command["manages"] == false, "{command}");
    }
    let (text, _) = ended(rig.command(Command::TransportStatus)).await;
    let told: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&told["link"]["streams"], &told["commands"]), (&json!(1), &json!(1)));
    assert!(told["link"]["received_bytes"].as_u64().unwrap() > 0, "{told}");
    assert!(told["link"]["credit_budget"].as_u64().unwrap() > 0, "{told}");
    assert!(told["edge_boot_id"].is_string(), "{told}");
    let listed: Vec<_> =
        told["providers"].as_array().unwrap().iter().map(|entry| &entry["provider"]).collect();
    assert_eq!(listed, ["lab", "ollama"]);
}

#[tokio::test]
async fn a_refused_command_opens_no_socket() {
    let (server, lab) = (ollama(&["m"]).await, ScriptedProvider::start().await);
    let rig = rig(&server, &lab, false).await;
    for (command, reason, told) in [
        (call("nope", "GET", "/api/ps", ""), RefusalReason::UnknownProvider, "nope"),
        (call("lab", "GET", "/api/ps", ""), RefusalReason::Unsupported, "openai_compat"),
        (call("ollama", "POST", "/api/chat", "{}"), RefusalReason::Unsupported, "/api/chat"),
        (call("ollama", "GET", "/api/../api/ps", ""), RefusalReason::Unsupported, ".."),
        (call("ollama", "GET", "/api%2fps", ""), RefusalReason::Unsupported, "%2f"),
        (call("", "GET", "/api/ps", ""), RefusalReason::Malformed, "adapter"),
        (pull(), RefusalReason::NotPermitted, "`manage_models: true` at provider `ollama`"),
    ] {
        let (text, last) = ended(rig.command(command.clone())).await;
        let CommandAnswer::Refused(refused) = last else { panic!("{command:?}: {last:?}") };
        assert_eq!((text.as_str(), refused.reason), ("", reason), "{command:?}");
        assert!(refused.message.contains(told), "{}", refused.message);
    }
    // The looks of the Node itself are the only requests there were.
    for exchange in server.log().exchanges {
        assert!(["/api/tags", "/api/ps"].contains(&exchange.request.path()));
    }
}

#[tokio::test]
async fn a_command_whose_server_is_gone_names_the_provider() {
    let (server, lab) = (ollama(&["m"]).await, ScriptedProvider::start().await);
    let rig = rig(&server, &lab, false).await;
    server.stop().await;
    let (_, last) = ended(rig.command(call("ollama", "GET", "/api/version", ""))).await;
    let CommandAnswer::Frame(CommandFrame::Error(failure)) = last else { panic!("{last:?}") };
    assert_eq!(failure.code, iop_types::ErrorCode::ConnectFailed);
    assert!(failure.message.starts_with("provider `ollama`: "), "{failure}");
}

#[tokio::test]
async fn a_target_that_was_pulled_is_reported_before_the_pull_has_ended() {
    let (server, lab) = (ollama(&["old"]).await, ScriptedProvider::start().await);
    let rig = rig(&server, &lab, true).await;
    assert_eq!(rig.known("ollama").targets, ["old"]);
    server.on("/api/pull", |_| {
        Script::new()
            .read_body()
            .head(200, NDJSON)
            .chunk("{\"status\":\"pulling manifest\"}\n")
            .chunk("{\"status\":\"success\"}\n")
            .last_chunk()
    });
    lists(&server, &["old", "new"]);
    let (text, last) = ended(rig.command(pull())).await;
    assert_eq!(last, CommandAnswer::Frame(CommandFrame::End));
    assert_eq!(text, "{\"status\":\"pulling manifest\"}\n{\"status\":\"success\"}\n");
    assert_eq!(rig.known("ollama").targets, ["old", "new"]);
}

#[tokio::test]
async fn a_pull_goes_on_while_others_come_and_go_and_ends_when_it_is_cancelled() {
    let (server, lab) = (ollama(&["m"]).await, ScriptedProvider::start().await);
    let rig = rig(&server, &lab, true).await;
    server.on("/api/pull", |_| {
        Script::new().read_body().head(200, NDJSON).chunk("{\"status\":\"pulling\"}\n").hold()
    });
    let mut pulling = rig.command(pull());
    let first = std::future::poll_fn(|cx| pulling.poll_recv(cx)).await.unwrap();
    assert!(!first.is_terminal());
    let (_, last) = ended(rig.command(Command::TransportStatus)).await;
    assert_eq!(last, CommandAnswer::Frame(CommandFrame::End));
    drop(rig.command(Command::Capabilities));
    pulling.cancel(CancelReason::Operator);
    let (_, last) = ended(pulling).await;
    assert_eq!(last, CommandAnswer::Frame(CommandFrame::Cancelled));
    let log = server.log();
    let at = log.exchanges.iter().position(|exchange| exchange.request.path() == "/api/pull");
    assert!(log.connection_of(at.unwrap()).left_at().is_some());
}

#[tokio::test]
async fn the_end_of_the_link_ends_its_commands_at_the_server() {
    let (server, lab) = (ollama(&["m"]).await, ScriptedProvider::start().await);
    let rig = rig(&server, &lab, true).await;
    server.on("/api/pull", |_| {
        Script::new().read_body().head(200, NDJSON).chunk("{\"status\":\"pulling\"}\n").hold()
    });
    let mut pulling = rig.command(pull());
    std::future::poll_fn(|cx| pulling.poll_recv(cx)).await.unwrap();
    rig.cut_wire();
    let lost = loop {
        if let Err(lost) = std::future::poll_fn(|cx| pulling.poll_recv(cx)).await {
            break lost;
        }
    };
    assert!(matches!(lost, iop_net::link::StreamError::LinkClosed(_)), "{lost}");
    server
        .wait_until("the server sees the pull leave", |log| {
            let mut pulls = log.exchanges.iter().enumerate();
            pulls.any(|(at, exchange)| {
                exchange.request.path() == "/api/pull" && log.connection_of(at).left_at().is_some()
            })
        })
        .await;
    // The next link takes commands as if nothing had been.
    rig.wait_until(|seen| seen.generations.len() == 2).await;
    let (_, last) = ended(rig.command(Command::Capabilities)).await;
    assert_eq!(last, CommandAnswer::Frame(CommandFrame::End));
}
