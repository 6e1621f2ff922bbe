//! What a Node does with requests, watched from both sides: a scripted Edge and a scripted provider.

mod commands;
mod health;
mod stalls;
mod support;

use std::time::Duration;

use iop_net::link::Answer;
use iop_node::{LocalServer, Secrets};
use iop_testkit::script::{OnCancel, Step};
use iop_testkit::vllm::Engine;
use iop_testkit::{ScriptedProvider, ScriptedVllm};
use iop_wire::v1::{ProviderState, RefusalReason};
use iop_wire::{v1, v1::provider_tunnel_frame::Kind as Frame};
use support::{Rig, all, head, is_terminal, provider, refusal, run, tunnel};

const CHAT: &str = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;

/// A Node with one provider, `lab`, that serves `m`.
async fn with_lab(max_concurrency: u32) -> (Rig, ScriptedProvider) {
    with_entry(|entry| entry.max_concurrency = max_concurrency).await
}

/// As [`with_lab`], with what the test changes of its entry.
async fn with_entry(change: impl FnOnce(&mut v1::ProviderConfig)) -> (Rig, ScriptedProvider) {
    let lab = ScriptedProvider::start().await;
    lab.set_models(&["m"]);
    let mut entry = provider("lab", "openai_compat", &lab.endpoint());
    change(&mut entry);
    let rig = Rig::start(vec![entry], Secrets::default()).await;
    rig.wait_for_state("lab", ProviderState::Ready).await;
    (rig, lab)
}

#[tokio::test]
async fn a_stall_field_out_of_range_is_refused_first_of_all_in_both_forms() {
    let (rig, lab) = with_lab(1).await;
    for ms in [-1, 86_400_001, i64::MIN, i64::MAX] {
        // Nothing else of these requests is right either: the stall field is what they hear of.
        let bad = v1::RequestHead {
            response_stall_timeout_ms: ms,
            attempt: 0,
            ..head("no-such-provider", "")
        };
        for message in [run(bad.clone()), tunnel(bad)] {
            assert_eq!(refusal(rig.send(message, CHAT)).await, RefusalReason::StallTimeout, "{ms}");
        }
    }
    assert!(lab.log().exchanges.is_empty(), "no request reached the provider");
    let absent = tunnel(head("lab", "m"));
    assert!(all(rig.send(absent, CHAT)).await.len() > 2, "0 and absent mean the default");
}

#[tokio::test]
async fn a_request_that_names_nothing_here_is_refused_without_a_call() {
    let (rig, lab) = with_lab(1).await;
    let stranger = tunnel(head("no-such-provider", "m"));
    assert_eq!(refusal(rig.send(stranger, CHAT)).await, RefusalReason::UnknownProvider);
    let stale = v1::RequestHead { provider_revision: 7, ..head("lab", "m") };
    assert_eq!(refusal(rig.send(tunnel(stale), CHAT)).await, RefusalReason::StaleConfig);
    let nameless =
        v1::RequestHead { run_id: bytes::Bytes::from_static(b"short"), ..head("lab", "m") };
    assert_eq!(refusal(rig.send(run(nameless), CHAT)).await, RefusalReason::Malformed);
    let mut elsewhere = tunnel(head("lab", "m"));
    if let iop_net::link::RequestMessage::Tunnel(request) = &mut elsewhere {
        request.path_and_query = "/v1/../admin".to_owned();
    }
    assert_eq!(refusal(rig.send(elsewhere, CHAT)).await, RefusalReason::Unsupported);
    assert!(lab.log().exchanges.is_empty());
}

#[tokio::test]
async fn one_permit_carries_one_call_and_a_second_send_of_the_same_attempt_is_a_duplicate() {
    let (rig, lab) = with_lab(1).await;
    lab.once("/v1/chat/completions", |request| {
        iop_testkit::answer::stream_start(request).then(Step::Hold)
    });
    let first = head("lab", "m");
    let mut running = rig.send(tunnel(first.clone()), CHAT);
    running.recv().await.unwrap();
    assert_eq!(refusal(rig.send(tunnel(first), CHAT)).await, RefusalReason::Duplicate);
    let second = tunnel(head("lab", "m"));
    assert_eq!(refusal(rig.send(second, CHAT)).await, RefusalReason::CapacityExceeded);
    assert_eq!(lab.log().exchanges.len(), 1);
    running.cancel(v1::CancelReason::ClientGone);
    all(running).await;
    assert!(all(rig.send(tunnel(head("lab", "m")), CHAT)).await.len() > 2, "the permit came back");
}

#[tokio::test]
async fn a_session_id_is_echoed_at_both_ends_and_joins_nothing() {
    let (rig, lab) = with_lab(4).await;
    let same = |form: fn(v1::RequestHead) -> iop_net::link::RequestMessage| {
        form(v1::RequestHead { session_id: "thread-7".to_owned(), ..head("lab", "m") })
    };
    let (one, other) =
        tokio::join!(all(rig.send(same(tunnel), CHAT)), all(rig.send(same(run), CHAT)),);
    for answers in [one, other] {
        let sessions: Vec<_> = answers.iter().map(session_of).collect();
        assert_eq!(sessions.first().copied(), Some("thread-7"));
        assert_eq!(sessions.last().copied(), Some("thread-7"));
        assert!(sessions[1..sessions.len() - 1].iter().all(|session| session.is_empty()));
    }
    assert_eq!(lab.log().exchanges.len(), 2, "two runs, two calls");
}

fn session_of(answer: &Answer) -> &str {
    match answer {
        Answer::Event(event) => &event.session_id,
        Answer::Frame(frame) => &frame.session_id,
        Answer::Command(response) => &response.session_id,
    }
}

#[tokio::test]
async fn a_provider_that_does_not_end_a_cancelled_call_is_reset_and_its_permit_is_a_zombie() {
    let (rig, lab) = with_lab(2).await;
    lab.once("/v1/chat/completions", |request| {
        iop_testkit::answer::stream_start(request).on_cancel(OnCancel::Ignore).then(Step::Hold)
    });
    let mut stream = rig.send(tunnel(head("lab", "m")), CHAT);
    stream.recv().await.unwrap();
    stream.cancel(v1::CancelReason::ClientGone);
    let last = all(stream).await.pop();
    assert!(
        matches!(last, Some(Answer::Frame(frame)) if matches!(frame.kind, Some(Frame::Cancelled(_))))
    );
    let seen = rig.wait_until(|seen| seen.providers["lab"].zombies == 1).await;
    assert_eq!(seen.providers["lab"].in_use, 1, "the zombie holds its permit");
    lab.wait_until("a reset", |log| log.connections.iter().any(|c| c.reset_at.is_some())).await;
    assert!(
        all(rig.send(tunnel(head("lab", "m")), CHAT)).await.len() > 2,
        "the other permit serves"
    );
}

#[tokio::test]
async fn the_end_of_a_link_ends_its_calls_and_the_next_link_serves_under_a_larger_generation() {
    let (rig, lab) = with_lab(1).await;
    lab.once("/v1/chat/completions", |request| {
        iop_testkit::answer::stream_start(request).then(Step::Hold)
    });
    let mut stream = rig.send(tunnel(head("lab", "m")), CHAT);
    stream.recv().await.unwrap();
    rig.cut_wire();
    while let Ok(answer) = stream.recv().await {
        assert!(!is_terminal(&answer), "the stream ends with its link, not by {answer:?}");
    }
    lab.wait_until("the provider's end", |log| log.in_flight() == 0).await;
    let seen = rig.wait_until(|seen| seen.generations.len() == 2).await;
    assert!(seen.generations[1] > seen.generations[0]);
    assert!(all(rig.send(tunnel(head("lab", "m")), CHAT)).await.len() > 2);
}

#[tokio::test]
async fn a_provider_that_comes_up_later_is_told_of_then() {
    let place = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let entry = provider("late", "openai_compat", &format!("http://{place}"));
    let rig = Rig::start(vec![entry], Secrets::default()).await;
    let status = rig.wait_for_state("late", ProviderState::Starting).await;
    assert!(!status.reason.is_empty(), "it says what is missing");
    let late = ScriptedProvider::start_on(place).await;
    late.set_models(&["m"]);
    let status = rig.wait_for_state("late", ProviderState::Ready).await;
    assert_eq!(status.targets, ["m"]);
}

#[tokio::test]
async fn a_provider_whose_secret_is_missing_is_failed_and_never_called() {
    let lab = ScriptedProvider::start().await;
    let mut entry = provider("lab", "openai_compat", &lab.endpoint());
    entry.node_secret = "lab-key".to_owned();
    let rig = Rig::start(vec![entry], Secrets::default()).await;
    let status = rig.wait_for_state("lab", ProviderState::Failed).await;
    assert!(status.reason.contains("`lab-key`"), "{}", status.reason);
    assert_eq!(
        refusal(rig.send(tunnel(head("lab", "m")), CHAT)).await,
        RefusalReason::UnknownProvider
    );
    assert_eq!(lab.log().model_lists, 0);
}

/// F11.
#[tokio::test]
async fn what_a_node_cannot_use_of_its_configuration_is_failed_or_missing_and_the_rest_serves() {
    let lab = ScriptedProvider::start().await;
    lab.set_models(&["m"]);
    let entries = vec![
        provider("future", "telepathy", &lab.endpoint()),
        provider("nowhere", "openai_compat", "no url at all"),
        provider("lab", "openai_compat", &lab.endpoint()),
    ];
    let rig = Rig::start(entries, Secrets::default()).await;
    rig.wait_for_state("lab", ProviderState::Ready).await;
    let broken = rig.known("nowhere");
    assert_eq!(broken.state(), ProviderState::Failed);
    assert!(broken.reason.contains("endpoint"), "{broken:?}");
    let seen = rig.wait_until(|_| true).await;
    assert!(!seen.providers.contains_key("future"), "nobody here could say what it is");
    for key in ["future", "nowhere"] {
        let refused = refusal(rig.send(tunnel(head(key, "m")), CHAT)).await;
        assert_eq!(refused, RefusalReason::UnknownProvider, "{key}");
    }
    assert!(all(rig.send(tunnel(head("lab", "m")), CHAT)).await.len() > 2);
}

#[tokio::test]
async fn a_secret_reaches_its_provider_and_nobody_else() {
    let lab = ScriptedProvider::start().await;
    lab.set_models(&["m"]);
    let mut entry = provider("lab", "openai_compat", &lab.endpoint());
    entry.node_secret = "lab-key".to_owned();
    let mut secrets = Secrets::default();
    secrets.insert("lab-key".to_owned(), Ok("sk-canary".to_owned()));
    let rig = Rig::start(vec![entry], secrets).await;
    rig.wait_for_state("lab", ProviderState::Ready).await;
    let answers = all(rig.send(tunnel(head("lab", "m")), CHAT)).await;
    let log = lab.log();
    assert_eq!(log.exchanges[0].request.header("authorization"), Some("Bearer sk-canary"));
    assert!(!format!("{answers:?}").contains("canary"));
}

#[tokio::test]
async fn a_server_on_a_usual_port_is_found_and_served() {
    let found = ScriptedProvider::start().await;
    found.set_models(&["m"]);
    let places = vec![LocalServer::new("vllm", found.address().port())];
    let config = v1::NodeConfig { revision: 1, providers: Vec::new(), discover: true };
    let rig = Rig::with(config, Secrets::default(), places).await;
    let status = rig.wait_for_state("vllm", ProviderState::Ready).await;
    let request = v1::RequestHead { provider_revision: status.revision, ..head("vllm", "m") };
    assert!(all(rig.send(tunnel(request), CHAT)).await.len() > 2);
}

#[tokio::test]
async fn a_server_on_a_usual_port_is_spoken_to_as_what_it_shows_itself_to_be() {
    let engine = ScriptedVllm::start(Engine::Sglang, "m").await;
    let other = ScriptedProvider::start().await;
    let places = vec![
        LocalServer::new("vllm", engine.address().port()),
        LocalServer::new("sglang", other.address().port()),
    ];
    let config = v1::NodeConfig { revision: 1, providers: Vec::new(), discover: true };
    let rig = Rig::with(config, Secrets::default(), places).await;
    for (key, adapter, capacity) in [("vllm", "vllm", 256), ("sglang", "openai_compat", 8)] {
        let status = rig.wait_for_state(key, ProviderState::Ready).await;
        assert_eq!((status.adapter.as_str(), status.capacity), (adapter, capacity), "{key}");
    }
}

#[tokio::test]
async fn a_server_that_starts_after_its_node_is_served_leaves_and_comes_back() {
    let gone = ScriptedProvider::start().await;
    let address = gone.address();
    gone.stop().await;
    let places = vec![LocalServer::new("late", address.port())];
    let config = v1::NodeConfig { revision: 1, providers: Vec::new(), discover: true };
    let rig = Rig::with(config, Secrets::default(), places).await;
    for _ in 0..2 {
        let server = ScriptedProvider::start_on(address).await;
        let began = std::time::Instant::now();
        rig.wait_for_state("late", ProviderState::Ready).await;
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
        server.stop().await;
        rig.wait_for_state("late", ProviderState::Absent).await;
    }
}

#[tokio::test]
async fn a_node_that_stops_finishes_what_it_has() {
    let (mut rig, lab) = with_lab(1).await;
    lab.once("/v1/chat/completions", |request| {
        iop_testkit::answer::chat_stream(request, 5, Duration::from_millis(50))
    });
    let mut stream = rig.send(tunnel(head("lab", "m")), CHAT);
    stream.recv().await.unwrap();
    rig.node.stop();
    let rest = all(stream).await;
    assert!(
        matches!(rest.last(), Some(Answer::Frame(frame)) if matches!(frame.kind, Some(Frame::End(_)))),
        "{rest:?}"
    );
    assert!(rest.iter().filter(|answer| is_terminal(answer)).count() == 1);
    rig.node.stopped().await.unwrap();
    lab.wait_until("no connection", |log| log.open_connections() == 0).await;
}

#[tokio::test]
async fn a_run_whose_provider_refuses_it_ends_with_the_providers_words_and_status() {
    let (rig, lab) = with_lab(1).await;
    lab.once("/v1/chat/completions", |_| {
        iop_testkit::answer::error(
            400,
            "invalid_request_error",
            "context_length_exceeded",
            "too long",
        )
    });
    let answers = all(rig.send(run(head("lab", "m")), CHAT)).await;
    let [Answer::Event(event)] = answers.as_slice() else { panic!("{answers:?}") };
    let Some(v1::run_event::Kind::Error(error)) = &event.kind else { panic!("{event:?}") };
    let Some(v1::run_error::Error::Failure(failure)) = &error.error else { panic!("{error:?}") };
    assert_eq!(failure.provider_status, 400);
    assert!(failure.message.contains("too long"), "{}", failure.message);
}
