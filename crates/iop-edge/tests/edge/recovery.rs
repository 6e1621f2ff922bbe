//! Failures of which the client never hears, and those that it hears of as they are.

use std::time::Duration;

use iop_edge::Timing;
use iop_testkit::http::Client;
use iop_types::{
    ErrorCode, EventKind, Failure, Form, HealthEvidence, Ownership, ProviderState, ProviderStatus,
    Stall, StallPhase, TunnelFrame,
};
use iop_wire::v1::CancelReason;
use serde_json::{Value, json};

use crate::support::{CONTENT, DONE, FINISH, FakeNode, Taken, World, refused, run, tunnel, until};

/// Routes over two providers of which the first is always asked first.
fn routes(more: &str) -> String {
    let mut file = "version: 1\nnodes: { box: { providers: { p: { adapter: mock }, q: { adapter: mock } } } }\nroutes:\n".to_owned();
    for (name, policy) in [
        ("r", String::new()),
        ("off", "recovery: off, ".to_owned()),
        ("connect", "recovery: connect_only, ".to_owned()),
        ("brief", "hold_head: 50ms, ".to_owned()),
    ] {
        file.push_str(&format!(
            "  {name}: {{ policy: ordered, {policy}{more}candidates: [\
             {{ node: box, provider: p, target: m }}, {{ node: box, provider: q, target: m }}] }}\n"
        ));
    }
    file
}

async fn pair(form: Form) -> (World, FakeNode) {
    let world = World::with(&routes("")).await;
    let node = world.node("box", both(form)).await;
    (world, node)
}

fn both(form: Form) -> Vec<ProviderStatus> {
    let provider = match form {
        Form::Tunnel => tunnel,
        Form::Run => run,
    };
    vec![provider("p", &["m"], 4), provider("q", &["m"], 4)]
}

fn to(route: &str) -> Value {
    json!({ "model": route, "stream": true, "messages": [] })
}

/// The next request, which must be for this provider.
async fn at(node: &mut FakeNode, provider: &str) -> Taken {
    let taken = node.next().await;
    assert_eq!(taken.head().provider.as_str(), provider);
    taken
}

/// Answers with a first piece, after which nothing can be replaced.
async fn say_hi(taken: &mut Taken, form: Form) {
    match form {
        Form::Tunnel => {
            taken.begin_stream().await;
            taken.data(CONTENT).await;
        }
        Form::Run => taken.text("hi").await,
    }
}

fn lost() -> Failure {
    let closed = "the provider closed the connection before it answered";
    Failure { connection_lost: true, ..Failure::new(ErrorCode::ProviderError, closed) }
}

fn stalled(ownership: Ownership) -> Failure {
    let stall = Stall {
        timeout: Duration::from_secs(3),
        silent: Duration::from_millis(3_004),
        phase: StallPhase::BeforeHead,
        ownership,
        health: HealthEvidence::Unavailable,
        observation_seq: Some(7),
    };
    Failure { stall: Some(stall), ..Failure::new(ErrorCode::ResponseStalled, "silent for 3 s") }
}

/// What history says of each attempt: provider, why, end, verdict.
fn attempts(run: &Value) -> Vec<(String, String, String, bool)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = run["attempts"].as_array().unwrap().iter();
    all.map(|attempt| {
        let end = &attempt["terminal"];
        let end = if end["code"].is_string() { &end["code"] } else { &end["kind"] };
        let verdict = attempt["recovery_eligible"].as_bool().unwrap();
        (text(&attempt["provider"]), text(&attempt["why"]), text(end), verdict)
    })
    .collect()
}

async fn whole_text(client: &mut Client) -> String {
    assert_eq!(client.head().await.unwrap().status, 200);
    String::from_utf8(client.body().await.unwrap().to_vec()).unwrap()
}

const WHOLE: &[&str] = &[CONTENT, FINISH, DONE];

#[tokio::test]
async fn a_failure_before_the_head_is_met_by_the_other_candidate() {
    let (world, mut node) = pair(Form::Tunnel).await;
    let failures = [
        (Failure::new(ErrorCode::ConnectFailed, "refused"), "connect_failed", "connect_failed"),
        (lost(), "connection_lost", "provider_error"),
        (stalled(Ownership::Confirmed), "response_stalled", "response_stalled"),
    ];
    for (failure, why, code) in failures {
        let mut client = world.chat(&to("r")).await;
        at(&mut node, "p").await.fail(failure);
        at(&mut node, "q").await.stream(WHOLE).await;
        assert_eq!(whole_text(&mut client).await, WHOLE.concat());
        let run = world.last_run().await;
        let expected = [
            ("p".to_owned(), "ordered".to_owned(), code.to_owned(), true),
            ("q".to_owned(), why.to_owned(), "completed".to_owned(), false),
        ];
        assert_eq!(attempts(&run), expected);
        assert_eq!(run["terminal"], json!({ "kind": "completed" }));
        let counted = format!("iop_retries_total{{reason=\"{why}\"}}");
        assert_eq!(world.metric(&counted).await, Some(1.0));
    }
    world.idle().await;
}

#[tokio::test]
async fn a_refusal_of_a_provider_is_met_by_the_other_candidate_and_never_seen() {
    let (world, mut node) = pair(Form::Tunnel).await;
    for status in [429, 502, 503, 504] {
        let mut client = world.chat(&to("r")).await;
        at(&mut node, "p").await.unary(status, "{\"error\":{\"message\":\"busy\"}}").await;
        at(&mut node, "q").await.stream(WHOLE).await;
        assert_eq!(whole_text(&mut client).await, WHOLE.concat());
        let run = world.last_run().await;
        assert_eq!(run["attempts"][1]["why"], format!("provider_{status}"));
        assert_eq!(run["attempts"][0]["terminal"]["code"], "provider_error");
    }
    world.idle().await;
}

#[tokio::test]
async fn a_refusal_in_a_run_is_met_by_the_other_candidate() {
    let (world, mut node) = pair(Form::Run).await;
    for stream in [true, false] {
        let mut client =
            world.chat(&json!({ "model": "r", "stream": stream, "messages": [] })).await;
        at(&mut node, "p").await.fail(Failure {
            provider_status: Some(503),
            ..Failure::new(ErrorCode::ProviderError, "loading")
        });
        let mut second = at(&mut node, "q").await;
        second.text("hello").await;
        second.complete(None);
        assert!(whole_text(&mut client).await.contains("hello"));
    }
    world.idle().await;
}

#[tokio::test]
async fn the_last_refusal_is_the_clients_with_status_headers_and_body() {
    let (world, mut node) = pair(Form::Tunnel).await;
    let mut client = world.chat(&to("r")).await;
    at(&mut node, "p").await.unary(503, "{\"first\":1}").await;
    let mut second = at(&mut node, "q").await;
    second.respond(429, &[("content-type", "text/plain"), ("retry-after", "7")]).await;
    second.data("slow down").await;
    second.end();
    let head = client.head().await.unwrap();
    assert_eq!((head.status, head.header("retry-after")), (429, Some("7")));
    assert_eq!(head.header("content-type"), Some("text/plain"));
    assert_eq!(&client.body().await.unwrap()[..], b"slow down");
    let run = world.last_run().await;
    assert_eq!(run["terminal"]["code"], "provider_error");
    world.idle().await;
}

#[tokio::test]
async fn a_refusal_whose_replacement_goes_away_is_the_clients_as_it_came() {
    let (world, mut node) = pair(Form::Tunnel).await;
    let mut client = world.chat(&to("r")).await;
    let mut first = at(&mut node, "p").await;
    first.respond(503, &[("content-type", "text/plain"), ("retry-after", "3")]).await;
    first.data("loading the model").await;
    let gone = ProviderStatus { state: ProviderState::Failed, ..tunnel("q", &["m"], 4) };
    node.report(gone);
    until("the edge knows", async || {
        world.metric("iop_provider_ready{node=\"box\",provider=\"q\"}").await == Some(0.0)
    })
    .await;
    first.end();
    let head = client.head().await.unwrap();
    assert_eq!((head.status, head.header("retry-after")), (503, Some("3")));
    assert_eq!(&client.body().await.unwrap()[..], b"loading the model");
    let run = world.last_run().await;
    assert_eq!(attempts(&run).len(), 1);
    world.idle().await;
}

#[tokio::test]
async fn a_refusal_that_is_long_or_alone_passes_as_it_comes() {
    let (world, mut node) = pair(Form::Tunnel).await;
    let mut client = world.chat(&to("r")).await;
    let mut first = at(&mut node, "p").await;
    first.respond(503, &[("content-type", "text/html")]).await;
    first.data("x".repeat(10_000)).await;
    first.data("y".repeat(10_000)).await;
    assert_eq!(client.head().await.unwrap().status, 503);
    first.end();
    assert_eq!(client.body().await.unwrap().len(), 20_000);

    node.report(ProviderStatus { state: ProviderState::Failed, ..tunnel("q", &["m"], 4) });
    until("the edge knows", async || {
        world.metric("iop_provider_ready{node=\"box\",provider=\"q\"}").await == Some(0.0)
    })
    .await;
    let mut client = world.chat(&to("r")).await;
    let mut only = at(&mut node, "p").await;
    only.respond(503, &[("content-type", "text/plain")]).await;
    assert_eq!(client.head().await.unwrap().status, 503, "before its body");
    only.end();
    client.body().await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn an_early_loss_behind_a_held_head_is_met_by_the_other_candidate() {
    for form in [Form::Tunnel, Form::Run] {
        let (world, mut node) = pair(form).await;
        let mut client = world.chat(&to("r")).await;
        let mut first = at(&mut node, "p").await;
        match form {
            Form::Tunnel => {
                first.begin_stream().await;
                let comment = bytes::Bytes::from_static(b": waiting\n\n");
                let frame = TunnelFrame::Body { data: comment, progress: false };
                first.frame(frame).await.unwrap();
            }
            Form::Run => first.event(EventKind::Start).await,
        }
        first.fail(lost());
        let mut second = at(&mut node, "q").await;
        match form {
            Form::Tunnel => second.stream(WHOLE).await,
            Form::Run => {
                second.event(EventKind::Start).await;
                second.text("hello").await;
                second.complete(None);
            }
        }
        let text = whole_text(&mut client).await;
        assert!(!text.contains(": waiting"), "{text}");
        assert!(text.ends_with(DONE), "{text}");
        let run = world.last_run().await;
        assert_eq!(run["attempts"][1]["why"], "connection_lost");
        assert!(run["attempts"][0].get("first_token_ms").is_none());
        world.idle().await;
    }
}

#[tokio::test]
async fn after_the_first_byte_nothing_is_tried_again_and_no_text_repeats() {
    for form in [Form::Tunnel, Form::Run] {
        let (world, mut node) = pair(form).await;
        let mut client = world.chat(&to("r")).await;
        let mut first = at(&mut node, "p").await;
        say_hi(&mut first, form).await;
        client.head().await.unwrap();
        assert!(client.event().await.unwrap().unwrap().contains("hi"));
        first.fail(lost());
        let (rest, end) = client.body_and_end().await;
        match form {
            Form::Tunnel => assert!(rest.is_empty() && end.unwrap_err().is_early_end()),
            Form::Run => {
                end.unwrap();
                let rest = String::from_utf8_lossy(&rest).into_owned();
                assert_eq!(rest.matches("\"error\"").count(), 1, "{rest}");
                assert!(!rest.contains("[DONE]") && !rest.contains("\"hi\""), "{rest}");
            }
        }
        let run = world.last_run().await;
        assert_eq!(attempts(&run).len(), 1);
        assert_eq!(run["attempts"][0]["recovery_eligible"], false);
        assert!(!node.has_request());
        world.idle().await;
    }
}

#[tokio::test]
async fn a_node_that_dies_before_the_head_is_met_by_another_node() {
    let world = World::with(
        "version: 1\nnodes: { box: { providers: { p: { adapter: mock } } }, far: { providers: { q: { adapter: mock } } } }\n\
         routes: { r: { policy: ordered, candidates: [{ node: box, provider: p, target: m }, { node: far, provider: q, target: m }] } }\n",
    )
    .await;
    let mut first = world.node("box", vec![tunnel("p", &["m"], 4)]).await;
    let mut second = world.node("far", vec![tunnel("q", &["m"], 4)]).await;
    let mut client = world.chat(&to("r")).await;
    let taken = first.next().await;
    first.die().await;
    drop(taken);
    second.next().await.stream(WHOLE).await;
    assert_eq!(whole_text(&mut client).await, WHOLE.concat());
    let run = world.last_run().await;
    assert_eq!(run["attempts"][0]["terminal"]["code"], "node_lost");
    assert_eq!(
        (&run["attempts"][1]["why"], &run["attempts"][1]["node"]),
        (&json!("node_lost"), &json!("far"))
    );
}

#[tokio::test]
async fn a_stall_that_was_not_seen_to_return_is_the_end_and_history_has_all_of_it() {
    let (world, mut node) = pair(Form::Tunnel).await;
    let mut client = world.chat(&to("r")).await;
    at(&mut node, "p").await.fail(stalled(Ownership::Unconfirmed));
    let (head, message) = refused(&mut client, 504, "response_stalled").await;
    assert_eq!(head.header("x-should-retry"), Some("false"));
    let said = "silent for 3 s; not tried elsewhere: the call may still be at work at box/p";
    assert_eq!(message, said);
    let run = world.last_run().await;
    let expected = json!({
        "kind": "failed", "code": "response_stalled", "message": said,
        "retryable": false, "stall_timeout_ms": 3_000, "silent_ms": 3_004, "phase": "before_head",
        "ownership": "unconfirmed", "provider_health": "unavailable",
        "liveness_classification": "provider_unhealthy", "health_observation_seq": 7
    });
    assert_eq!((&run["terminal"], &run["attempts"][0]["terminal"]), (&expected, &expected));
    world.idle().await;
}

#[tokio::test]
async fn a_stall_that_returned_and_was_not_recovered_says_that_it_may_be_tried_again() {
    let (world, mut node) = pair(Form::Tunnel).await;
    let mut client = world.chat(&to("off")).await;
    at(&mut node, "p").await.fail(stalled(Ownership::Confirmed));
    let (head, _) = refused(&mut client, 504, "response_stalled").await;
    assert_eq!(head.header("x-should-retry"), Some("true"));
    assert!(head.header("retry-after").is_some());
    assert_eq!(world.last_run().await["terminal"]["retryable"], true);
}

#[tokio::test]
async fn a_route_decides_how_far_it_goes() {
    let (world, mut node) = pair(Form::Tunnel).await;
    let mut client = world.chat(&to("off")).await;
    at(&mut node, "p").await.fail(Failure::new(ErrorCode::ConnectFailed, "refused"));
    refused(&mut client, 502, "connect_failed").await;

    let mut client = world.chat(&to("connect")).await;
    at(&mut node, "p").await.fail(lost());
    refused(&mut client, 502, "provider_error").await;
    let mut client = world.chat(&to("connect")).await;
    at(&mut node, "p").await.fail(Failure::new(ErrorCode::ConnectFailed, "refused"));
    at(&mut node, "q").await.stream(WHOLE).await;
    assert_eq!(whole_text(&mut client).await, WHOLE.concat());
    // A failure right behind a head has a status where nothing is tried again too.
    let mut client = world.chat(&to("off")).await;
    let mut taken = at(&mut node, "p").await;
    taken.begin_stream().await;
    taken.fail(lost());
    refused(&mut client, 502, "provider_error").await;
    world.idle().await;
}

#[tokio::test]
async fn an_operation_that_may_not_happen_twice_is_not_tried_again() {
    let (world, mut node) = pair(Form::Tunnel).await;
    let mut client = world.client().await;
    let form = "--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nr\r\n--b--\r\n";
    let headers = [("content-type", "multipart/form-data; boundary=b")];
    client.request("POST", "/v1/audio/transcriptions", &headers, form).await.unwrap();
    at(&mut node, "p").await.fail(Failure::new(ErrorCode::ConnectFailed, "refused"));
    refused(&mut client, 502, "connect_failed").await;
    world.idle().await;
}

#[tokio::test]
async fn a_head_is_held_for_a_while_and_our_keep_alives_begin_behind_it() {
    let timing = Timing { keep_alive: Duration::from_millis(20), ..Timing::default() };
    let world = World::timed(&routes(""), timing).await;
    let mut node = world.node("box", both(Form::Run)).await;
    let mut client = world.chat(&to("brief")).await;
    let mut first = at(&mut node, "p").await;
    first.event(EventKind::Start).await;
    assert_eq!(client.head().await.unwrap().status, 200);
    for _ in 0..2 {
        assert_eq!(client.event().await.unwrap().unwrap(), ": keep-alive");
    }
    // What was released is not replaced.
    first.fail(lost());
    let body = String::from_utf8(client.body().await.unwrap().to_vec()).unwrap();
    assert!(body.contains("\"error\"") && !body.contains("[DONE]"), "{body}");
    assert!(!node.has_request());
    world.idle().await;
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_for_another_attempt_gets_none() {
    let world = World::with(&routes("")).await;
    let mut node = world.node("box", vec![tunnel("p", &["m"], 1), tunnel("q", &["m"], 1)]).await;
    let mut first = world.chat(&to("r")).await;
    let at_p = at(&mut node, "p").await;
    let mut second = world.chat(&to("r")).await;
    let at_q = at(&mut node, "q").await;
    at_p.fail(Failure::new(ErrorCode::ConnectFailed, "refused"));
    until("it waits", async || world.metric("iop_queue_waiting").await == Some(1.0)).await;
    first.set_patience(Duration::from_millis(1));
    assert!(first.head().await.is_err(), "nothing of the failure is the client's");
    drop(first);
    until("it has left", async || world.metric("iop_queue_waiting").await == Some(0.0)).await;
    at_q.stream(WHOLE).await;
    assert_eq!(whole_text(&mut second).await, WHOLE.concat());
    world.idle().await;
    assert!(!node.has_request(), "nobody was there to be tried for");
}

/// Cancels a run as an operator does.
async fn cancel(world: &World, run: &str) -> (u16, Value) {
    let mut admin = Client::connect(world.admin).await.unwrap();
    admin.request("POST", &format!("/api/v1/runs/{run}/cancel"), &[], "").await.unwrap();
    let head = admin.head().await.unwrap();
    (head.status, admin.json().await.unwrap())
}

async fn run_at_work(world: &World) -> String {
    let mut id = String::new();
    until("the run is shown", async || {
        let runs = world.admin("/api/v1/runs?limit=1").await;
        let newest = &runs["runs"][0];
        id = newest["run_id"].as_str().unwrap_or_default().to_owned();
        newest["run_id"].is_string() && newest["terminal"].is_null()
    })
    .await;
    id
}

#[tokio::test]
async fn an_operator_ends_a_run_that_waits_or_has_no_head() {
    let world = World::with(&routes("")).await;
    let mut node = world.node("box", vec![tunnel("p", &["m"], 1)]).await;
    for (is_queued, is_held) in [(false, false), (false, true), (true, false)] {
        let blocking = match is_queued {
            true => {
                let client = world.chat(&to("r")).await;
                Some((client, node.next().await))
            }
            false => None,
        };
        let mut client = world.chat(&to("r")).await;
        if is_queued {
            until("it waits", async || world.metric("iop_queue_waiting").await == Some(1.0)).await;
        }
        let taken = if is_queued { None } else { Some(node.next().await) };
        let taken = match taken {
            Some(mut taken) => {
                if is_held {
                    taken.begin_stream().await;
                }
                Some(taken)
            }
            None => None,
        };
        let id = run_at_work(&world).await;
        // Its request id means the same, and where it stands is shown.
        let shown = world.admin(&format!("/api/v1/runs/{id}")).await;
        assert_eq!(shown["state"], if is_queued { "queued" } else { "sent" });
        assert!(shown["age_ms"].is_u64(), "{shown}");
        let sent = shown["attempts"].as_array().unwrap();
        assert_eq!(sent.len(), usize::from(!is_queued), "{shown}");
        assert!(sent.iter().all(|attempt| attempt["sent_ms"].is_u64()), "{shown}");
        let request_id = shown["request_id"].as_str().unwrap();
        let same = world.admin(&format!("/api/v1/runs/{request_id}")).await;
        assert_eq!(same["run_id"], *id);
        let (status, answer) = cancel(&world, request_id).await;
        assert_eq!((status, &answer), (200, &json!({ "run_id": id, "cancelled": true })));
        refused(&mut client, 499, "cancelled").await;
        if let Some(taken) = taken {
            assert_eq!(taken.cancelled().await, CancelReason::Operator);
        }
        if let Some((mut client, taken)) = blocking {
            taken.stream(WHOLE).await;
            whole_text(&mut client).await;
        }
        world.idle().await;
        let mut run = Value::Null;
        until("history has its end", async || {
            run = world.admin(&format!("/api/v1/runs/{id}")).await;
            run["terminal"].is_object()
        })
        .await;
        assert_eq!(run["terminal"]["kind"], "cancelled");
        assert_eq!(run["terminal"]["code"], "cancelled");
        let (status, answer) = cancel(&world, &id).await;
        let said = format!("run {id} has ended: cancelled cancelled");
        assert_eq!((status, &answer["error"]["message"]), (404, &json!(said)));
    }
}

#[tokio::test]
async fn an_operator_ends_a_run_in_the_middle_of_its_answer() {
    for form in [Form::Tunnel, Form::Run] {
        let (world, mut node) = pair(form).await;
        let mut client = world.chat(&to("r")).await;
        let mut taken = at(&mut node, "p").await;
        say_hi(&mut taken, form).await;
        client.head().await.unwrap();
        client.event().await.unwrap();
        let id = run_at_work(&world).await;
        // The beginning of an id is enough while it means one run.
        assert_eq!(cancel(&world, &id[..8]).await.0, 200);
        let (rest, end) = client.body_and_end().await;
        match form {
            Form::Tunnel => assert!(end.unwrap_err().is_early_end()),
            Form::Run => {
                end.unwrap();
                let rest = String::from_utf8_lossy(&rest).into_owned();
                assert!(rest.contains("cancelled") && !rest.contains("[DONE]"), "{rest}");
            }
        }
        assert_eq!(taken.cancelled().await, CancelReason::Operator);
        world.idle().await;
        assert_eq!(world.last_run().await["terminal"]["kind"], "cancelled");
        let (status, answer) = cancel(&world, "nonsense").await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 404 && message.starts_with("no run `nonsense` is known"), "{message}");

        // Ids of one moment begin alike: which of the two is meant must be said.
        let clients = [world.chat(&to("r")).await, world.chat(&to("r")).await];
        let taken = [at(&mut node, "p").await, at(&mut node, "p").await];
        let (status, answer) = cancel(&world, &id[..1]).await;
        assert_eq!(
            (status, &answer["error"]["code"]),
            (400, &json!("invalid_request")),
            "{answer}"
        );
        drop(clients);
        for taken in taken {
            assert_eq!(taken.cancelled().await, CancelReason::ClientGone);
        }
    }
}
