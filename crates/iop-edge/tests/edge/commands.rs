//! Commands through the admin listener, at a Node that answers as its test says.

use bytes::Bytes;
use iop_net::link::{Answer, NodeCommand};
use iop_testkit::http::{self, Client};
use iop_types::{
    Command, CommandFrame, CommandId, CommandRequest, ErrorCode, Failure, Refusal, SessionId,
};
use iop_wire::answer::{command_frame, command_refusal};
use serde_json::{Value, json};

use crate::support::{FakeNode, World, error, refused, run, soon, streamed, until};

const COMMANDS: &str = "/api/v1/nodes/box/commands";

async fn world() -> (World, FakeNode) {
    World::running("version: 1\nnodes: { away: {}, box: {} }\n").await
}

/// A connection on which this was asked.
async fn asked(world: &World, command: &Value) -> Client {
    let mut client = Client::connect(world.admin).await.unwrap();
    client.post(COMMANDS, command).await.unwrap();
    client
}

fn pull() -> Value {
    json!({ "kind": "OLLAMA_API", "provider": "p", "method": "POST", "path": "/api/pull", "body": { "model": "m" } })
}

fn status() -> Value {
    json!({ "kind": "TRANSPORT_STATUS" })
}

/// A command as its Node has it.
struct Taken {
    request: CommandRequest,
    command: NodeCommand,
}

impl Taken {
    async fn next(node: &mut FakeNode) -> Self {
        let command = node.next_command().await;
        Self { request: command.request.clone().try_into().unwrap(), command }
    }

    fn put(&mut self, frame: CommandFrame) {
        let session = self.request.session_id.as_ref();
        let answer = Answer::Command(command_frame(self.request.id, frame, session));
        self.command.answers.send(answer).unwrap();
    }

    fn part(&mut self, text: &str) {
        self.put(CommandFrame::Part(Bytes::copy_from_slice(text.as_bytes())));
    }

    fn finish(self, frame: CommandFrame) {
        let session = self.request.session_id.as_ref();
        let answer = Answer::Command(command_frame(self.request.id, frame, session));
        let _ = self.command.answers.finish(answer);
    }

    fn refuse(self, refusal: &Refusal) {
        let answer = Answer::Command(command_refusal(self.request.id, refusal, None));
        let _ = self.command.answers.finish(answer);
    }

    /// Waits until the Edge says stop.
    async fn cancelled(&mut self) {
        soon("the command is cancelled", &mut self.command.cancelled).await.unwrap();
    }
}

#[tokio::test]
async fn a_command_reaches_its_node_and_the_answer_whoever_asked() {
    let (world, mut node) = world().await;
    let mut client = Client::connect(world.admin).await.unwrap();
    let body = r#"{"kind":"OLLAMA_API","provider":"p","method":"POST","path":"/api/show","body":{"model" : "m"}}"#;
    let head = format!(
        "POST {COMMANDS} HTTP/1.1\r\nhost: localhost\r\nx-session-id: s-1\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    client.send(head).await.unwrap();
    let mut taken = Taken::next(&mut node).await;
    let Command::OllamaApi(call) = &taken.request.command else { panic!("another kind") };
    assert_eq!((call.provider.as_str(), &call.body[..]), ("p", &br#"{"model" : "m"}"#[..]));
    assert_eq!(taken.request.session_id, SessionId::new("s-1").ok());
    let id = taken.request.id;
    taken.part("{\"a\":");
    taken.part("1}");
    taken.finish(CommandFrame::End);
    let head = client.head().await.unwrap();
    assert_eq!(head.status, 200);
    assert_eq!(head.header("content-type"), Some("application/json"));
    assert_eq!(head.header("x-command-id"), Some(id.to_string().as_str()));
    assert_eq!(head.header("x-session-id"), Some("s-1"));
    assert_eq!(client.body().await.unwrap(), r#"{"a":1}"#);
    world.idle().await;
}

#[tokio::test]
async fn a_pull_s_lines_come_as_they_are_said_and_its_failure_as_the_last() {
    let (world, mut node) = world().await;
    let mut client = asked(&world, &pull()).await;
    let mut taken = Taken::next(&mut node).await;
    taken.part("{\"status\":\"pulling manifest\"}\n");
    let head = client.head().await.unwrap();
    assert_eq!(head.header("content-type"), Some("application/x-ndjson"));
    assert_eq!(client.piece().await.unwrap().unwrap(), "{\"status\":\"pulling manifest\"}\n");
    taken.finish(CommandFrame::Error(Failure::new(ErrorCode::ProviderError, "no space left")));
    let rest = client.body().await.unwrap();
    let line: Value = serde_json::from_slice(&rest).unwrap();
    assert_eq!(line["error"]["code"], "provider_error");
    assert_eq!(line["error"]["message"], "no space left");
}

#[tokio::test]
async fn two_commands_get_their_own_answers_whoever_is_first() {
    let (world, mut node) = world().await;
    let mut first = asked(&world, &status()).await;
    let mut first_there = Taken::next(&mut node).await;
    let mut second = asked(&world, &status()).await;
    let mut second_there = Taken::next(&mut node).await;
    assert_ne!(first_there.request.id, second_there.request.id);
    second_there.part("{\"n\":2}");
    second_there.finish(CommandFrame::End);
    first_there.part("{\"n\":1}");
    first_there.finish(CommandFrame::End);
    for (client, text) in [(&mut first, "{\"n\":1}"), (&mut second, "{\"n\":2}")] {
        client.head().await.unwrap();
        assert_eq!(client.body().await.unwrap(), text);
    }
}

#[tokio::test]
async fn what_is_not_on_the_closed_list_reaches_no_node() {
    let (world, mut node) = world().await;
    let call = |method: &str, path: &str| json!({ "kind": "OLLAMA_API", "provider": "p", "method": method, "path": path });
    for (command, told) in [
        (json!({ "kind": "SHELL" }), "TRANSPORT_STATUS"),
        (json!({ "kind": "capabilities" }), "CAPABILITIES"),
        (json!({}), "kind"),
        (json!([]), "JSON object"),
        (call("POST", "/api/chat"), "client listener"),
        (call("POST", "/api/generate"), "GET /api/tags"),
        (call("GET", "/api/../api/tags"), "GET /api/tags"),
        (call("GET", "/api%2Ftags"), "GET /api/tags"),
        (call("GET", "/api/tags?x=1"), "GET /api/tags"),
        (call("GET", "/api/tags/"), "GET /api/tags"),
        (call("get", "/api/tags"), "GET /api/tags"),
        (json!({ "kind": "CAPABILITIES", "path": "/api/tags" }), "`path`"),
        (json!({ "kind": "CAPABILITIES", "id": "7" }), "UUID"),
    ] {
        let mut client = asked(&world, &command).await;
        let (_, message) = refused(&mut client, 400, "invalid_request").await;
        assert!(message.contains(told), "{command}: {message}");
    }
    let long = json!({ "kind": "OLLAMA_API", "provider": "p", "method": "POST", "path": "/api/show", "body": { "model": "x".repeat(40_000) } });
    refused(&mut asked(&world, &long).await, 413, "body_too_large").await;
    // The Node hears of the next one only.
    let mut client = asked(&world, &status()).await;
    Taken::next(&mut node).await.finish(CommandFrame::End);
    assert_eq!(client.head().await.unwrap().status, 200);
    assert!(!node.has_command());
}

#[tokio::test]
async fn an_unknown_name_is_answered_with_those_that_there_are() {
    let (world, node) = world().await;
    let ask = async |node: &str, command: &Value| {
        let path = format!("/api/v1/nodes/{node}/commands");
        let (head, body) = http::post(world.admin, &path, command).await.unwrap();
        (head, serde_json::from_slice::<Value>(&body).unwrap())
    };
    let (head, body) = ask("nope", &status()).await;
    assert!(error(&head, &body, 404, "not_found").contains("the edge knows box"));
    let (head, body) = ask("away", &status()).await;
    assert!(error(&head, &body, 503, "no_ready_provider").contains("linked are box"));
    let other =
        json!({ "kind": "OLLAMA_API", "provider": "q", "method": "GET", "path": "/api/ps" });
    let (head, body) = ask("box", &other).await;
    assert!(error(&head, &body, 404, "not_found").contains("it has p"));
    assert!(!node.has_command());
}

#[tokio::test]
async fn a_refusal_of_the_node_keeps_its_words() {
    let (world, mut node) = world().await;
    for (refusal, status, code, told) in [
        (
            Refusal::NotPermitted { what: "POST /api/pull".into(), remedy: "set the key".into() },
            403,
            "forbidden",
            "set the key",
        ),
        (Refusal::Unsupported { what: "that".into() }, 400, "invalid_request", "that"),
        (Refusal::UnknownProvider { provider: "p".into() }, 404, "not_found", "`p`"),
        (Refusal::Duplicate, 400, "invalid_request", "already at work"),
        (Refusal::Draining, 503, "no_ready_provider", "draining"),
    ] {
        let mut client = asked(&world, &pull()).await;
        Taken::next(&mut node).await.refuse(&refusal);
        let (_, message) = refused(&mut client, status, code).await;
        assert!(message.contains(told), "{message}");
    }
}

#[tokio::test]
async fn who_leaves_cancels_the_command_before_and_after_its_first_part() {
    let (world, mut node) = world().await;
    for speaks in [false, true] {
        let mut client = asked(&world, &pull()).await;
        let mut taken = Taken::next(&mut node).await;
        if speaks {
            taken.part("{\"status\":\"pulling\"}\n");
            client.head().await.unwrap();
            client.piece().await.unwrap();
        }
        drop(client);
        taken.cancelled().await;
        taken.finish(CommandFrame::Cancelled);
        world.idle().await;
    }
}

#[tokio::test]
async fn a_command_is_cancelled_by_its_own_id_and_nothing_else_with_it() {
    let (world, mut node) = world().await;
    let id = CommandId::from_slice(&[7; 16]).unwrap();
    let mut named = pull();
    named["id"] = json!(id);
    let mut client = asked(&world, &named).await;
    let mut taken = Taken::next(&mut node).await;
    assert_eq!(taken.request.id, id);
    let mut again = asked(&world, &named).await;
    let (_, message) = refused(&mut again, 400, "invalid_request").await;
    assert!(message.contains("is under way"), "{message}");
    let mut other = asked(&world, &status()).await;
    let mut other_there = Taken::next(&mut node).await;
    let mut request = world.chat(&json!({ "model": "m" })).await;
    let request_there = node.next().await;
    let mut admin = Client::connect(world.admin).await.unwrap();
    let cancel = format!("DELETE /api/v1/commands/{id} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    admin.send(&cancel).await.unwrap();
    assert_eq!(admin.head().await.unwrap().status, 200);
    assert_eq!(admin.json().await.unwrap(), json!({ "id": id, "cancelled": true }));
    taken.cancelled().await;
    taken.finish(CommandFrame::Cancelled);
    let head = client.head().await.unwrap();
    error(&head, &client.json().await.unwrap(), 499, "cancelled");
    until("its place is free", async || {
        admin.send(&cancel).await.unwrap();
        let status = admin.head().await.unwrap().status;
        admin.body().await.unwrap();
        status == 404
    })
    .await;
    // The other command and the request still run.
    other_there.part("{}");
    other_there.finish(CommandFrame::End);
    assert_eq!(other.head().await.unwrap().status, 200);
    drop(request_there);
    request.head().await.unwrap();
}

#[tokio::test]
async fn cancelling_a_request_leaves_commands_alone() {
    let (world, mut node) = world().await;
    let mut client = asked(&world, &pull()).await;
    let mut taken = Taken::next(&mut node).await;
    let request = world.chat(&streamed()).await;
    let request_there = node.next().await;
    drop(request);
    request_there.cancelled().await;
    taken.part("{\"status\":\"success\"}\n");
    taken.finish(CommandFrame::End);
    assert_eq!(client.head().await.unwrap().status, 200);
    assert_eq!(client.body().await.unwrap(), "{\"status\":\"success\"}\n");
}

#[tokio::test]
async fn the_end_of_the_link_ends_its_commands_with_the_reason() {
    let (world, mut node) = world().await;
    let mut waiting = asked(&world, &status()).await;
    let _waits = Taken::next(&mut node).await;
    let mut pulling = asked(&world, &pull()).await;
    let mut taken = Taken::next(&mut node).await;
    taken.part("{\"status\":\"pulling\"}\n");
    pulling.head().await.unwrap();
    pulling.piece().await.unwrap();
    node.die().await;
    let (_, message) = refused(&mut waiting, 502, "node_lost").await;
    assert!(message.contains("node `box`"), "{message}");
    let line: Value = serde_json::from_slice(&pulling.body().await.unwrap()).unwrap();
    assert_eq!(line["error"]["code"], "node_lost");
}

#[tokio::test]
async fn commands_are_answered_while_every_permit_is_out() {
    let world = World::new().await;
    let mut node = world.node("box", vec![run("p", &["m"], 1)]).await;
    let _request = world.chat(&json!({ "model": "m" })).await;
    let _taken = node.next().await;
    assert_eq!(world.metric("iop_permits_in_use").await, Some(1.0));
    let mut client = asked(&world, &status()).await;
    let mut taken = Taken::next(&mut node).await;
    taken.part("{}");
    taken.finish(CommandFrame::End);
    assert_eq!(client.head().await.unwrap().status, 200);
}

#[tokio::test]
async fn an_edge_that_stops_ends_its_commands() {
    let (mut world, mut node) = world().await;
    let mut client = asked(&world, &pull()).await;
    let mut taken = Taken::next(&mut node).await;
    taken.part("{\"status\":\"pulling\"}\n");
    client.head().await.unwrap();
    client.piece().await.unwrap();
    world.edge.stop();
    taken.cancelled().await;
    taken.finish(CommandFrame::Cancelled);
    let line: Value = serde_json::from_slice(&client.body().await.unwrap()).unwrap();
    assert_eq!(line["error"]["code"], "cancelled");
    soon("the edge has stopped", world.edge.stopped()).await;
}
