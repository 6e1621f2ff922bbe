//! Providers that fall silent, watched from both sides: what leaves for the Edge, what the provider
//! sees of its cancel, and what becomes of the permit. The rules themselves are shown on a manual clock
//! in `iop-execution`; here is that the parts tell the watchdog the right things.

use std::time::{Duration, Instant};

use bytes::Bytes;
use iop_net::link::{Answer, EdgeStream, RequestMessage};
use iop_node::Secrets;
use iop_testkit::answer::{content, stream_end, stream_start};
use iop_testkit::provider::Log;
use iop_testkit::script::{OnCancel, Script};
use iop_testkit::vllm::Engine;
use iop_testkit::{ScriptedOllama, ScriptedProvider, ScriptedVllm};

use iop_wire::v1;
use iop_wire::v1::{ProviderState, StallPhase};

use crate::support::{Rig, all, head, is_terminal, provider, run, tunnel};
use crate::{CHAT, with_entry};

/// The allowed silence, as short as a loaded machine lets it be.
const STALL_MS: u16 = 400;
const STALL: Duration = Duration::from_millis(STALL_MS as u64);
const GRACE: Duration = Duration::from_secs(2);
const PATH: &str = "/v1/chat/completions";

/// A provider that is asked for no token by the look at its health: these scripts answer every chat.
async fn with_lab(max_concurrency: u32) -> (Rig, ScriptedProvider) {
    with_entry(|entry| {
        entry.max_concurrency = max_concurrency;
        entry.hosted = Some(true);
    })
    .await
}

/// A head with the short stall timeout.
fn short() -> v1::RequestHead {
    v1::RequestHead { response_stall_timeout_ms: STALL_MS.into(), ..head("lab", "m") }
}

fn failure(answer: &Answer) -> &v1::Failure {
    let failure = match answer {
        Answer::Event(event) => match &event.kind {
            Some(v1::run_event::Kind::Error(error)) => match &error.error {
                Some(v1::run_error::Error::Failure(failure)) => Some(failure),
                _ => None,
            },
            _ => None,
        },
        Answer::Frame(frame) => match &frame.kind {
            Some(v1::provider_tunnel_frame::Kind::Error(error)) => match &error.error {
                Some(v1::tunnel_error::Error::Failure(failure)) => Some(failure),
                _ => None,
            },
            _ => None,
        },
        Answer::Command(_) => None,
    };
    failure.unwrap_or_else(|| panic!("no failure: {answer:?}"))
}

/// The stall that ended a stream, and what came before it.
async fn stalled(stream: EdgeStream) -> (v1::Stall, Vec<Answer>) {
    let mut answers = all(stream).await;
    let last = answers.pop().expect("a stream ends by a terminal");
    let failure = failure(&last);
    assert_eq!(failure.code, "response_stalled", "{failure:?}");
    (failure.stall.expect("what is known of the stall"), answers)
}

fn both_forms() -> [RequestMessage; 2] {
    [run(short()), tunnel(short())]
}

/// F48, F53.
#[tokio::test]
async fn a_provider_that_ends_in_time_gives_a_confirmed_stall_and_its_permit_back() {
    let (rig, lab) = with_lab(1).await;
    lab.on(PATH, |request| stream_start(request).event(content(request, "a")).hold());
    for (index, message) in both_forms().into_iter().enumerate() {
        let (stall, before) = stalled(rig.send(message, CHAT)).await;
        assert_eq!(stall.phase(), StallPhase::MidStream);
        assert_eq!(stall.retryable, Some(true), "{stall:?}");
        assert_eq!(stall.timeout_ms, u64::from(STALL_MS));
        assert!(stall.silent_ms >= stall.timeout_ms, "{stall:?}");
        assert_eq!(stall.health_observation_seq, Some(index as u64 + 1), "1 is a link's first");
        assert!(before.len() > 1, "what was put before the claim left: {before:?}");
    }
    let log = lab.wait_until("two ends", |log| log.in_flight() == 0).await;
    assert!(log.connections.iter().all(|connection| connection.reset_at.is_none()));
    assert_eq!(rig.known("lab").zombies, 0);
}

/// F47, FC-026.
#[tokio::test]
async fn a_provider_that_never_answers_is_silent_before_its_head() {
    let (rig, lab) = with_lab(2).await;
    lab.on(PATH, |_| Script::new().hold());
    for message in both_forms() {
        let (stall, before) = stalled(rig.send(message, CHAT)).await;
        assert_eq!(stall.phase(), StallPhase::BeforeHead);
        assert!(before.is_empty(), "{before:?}");
    }
}

/// F50, F52: it goes on sending, to nobody.
#[tokio::test]
async fn a_provider_that_ignores_its_cancel_is_reset_and_nothing_it_says_later_leaves() {
    let (rig, lab) = with_lab(2).await;
    lab.once(PATH, |request| {
        let mut script = stream_start(request).on_cancel(OnCancel::Ignore).wait(STALL * 2);
        for _ in 0..500 {
            script = script.event(content(request, "canary")).wait(Duration::from_millis(10));
        }
        script.hold()
    });
    let began = Instant::now();
    let mut answers = all(rig.send(tunnel(short()), CHAT)).await;
    assert!(began.elapsed() >= STALL + GRACE, "{:?}", began.elapsed());
    assert!(!format!("{answers:?}").contains("canary"));
    let stall = failure(&answers.pop().unwrap()).stall.unwrap();
    assert_eq!(stall.retryable, None, "nobody saw it return: {stall:?}");
    lab.wait_until("a reset", |log| log.connections.iter().any(|c| c.reset_at.is_some())).await;
    let seen = rig.wait_until(|seen| seen.providers["lab"].zombies == 1).await;
    assert_eq!(seen.providers["lab"].in_use, 1);
    assert!(all(rig.send(tunnel(short()), CHAT)).await.len() > 2, "the other permit serves");
}

/// F50: the engine's own figures end what nobody saw return, long before the ceiling.
#[tokio::test]
async fn a_zombie_is_free_as_soon_as_its_engine_says_that_it_works_at_nothing() {
    let engine = ScriptedVllm::start(Engine::Vllm, "m").await;
    engine.set_load(1, 0);
    let mut entry = provider("lab", "vllm", &engine.endpoint());
    entry.max_concurrency = 1;
    let rig = Rig::start(vec![entry], Secrets::default()).await;
    rig.wait_for_state("lab", ProviderState::Ready).await;
    engine.once(PATH, |request| stream_start(request).on_cancel(OnCancel::Ignore).hold());
    let (stall, _) = stalled(rig.send(tunnel(short()), CHAT)).await;
    assert_eq!(stall.retryable, None, "{stall:?}");
    rig.wait_until(|seen| seen.providers["lab"].zombies == 1).await;

    // It still works at something: whoever looks goes on counting the call.
    let looks = |log: &Log| log.exchanges.iter().filter(|e| e.request.path() == "/metrics").count();
    let before = looks(&engine.log());
    engine.wait_until("two more looks", |log| looks(log) >= before + 2).await;
    assert_eq!(rig.known("lab").zombies, 1);

    engine.set_load(0, 0);
    rig.wait_until(|seen| seen.providers["lab"].zombies == 0).await;
    assert!(all(rig.send(tunnel(head("lab", "m")), CHAT)).await.len() > 2);
}

/// A canary in everything that a provider says never reaches the terminal.
#[tokio::test]
async fn the_terminal_of_a_stall_says_nothing_of_the_providers() {
    let (rig, lab) = with_lab(1).await;
    lab.on(PATH, |request| {
        let headers = [
            ("content-type", "text/event-stream"),
            ("transfer-encoding", "chunked"),
            ("x-canary", "canary"),
        ];
        Script::new().head(200, &headers).event(content(request, "canary")).hold()
    });
    for message in both_forms() {
        let last = all(rig.send(message, CHAT)).await.pop().unwrap();
        assert!(!format!("{last:?}").contains("canary"), "{last:?}");
        assert!(!format!("{last:?}").contains(&lab.address().port().to_string()), "{last:?}");
    }
}

/// F51: bytes arrive all the time, and none of them is progress.
#[tokio::test]
async fn comments_pings_and_blank_lines_keep_no_call_alive() {
    let (rig, lab) = with_lab(1).await;
    lab.on(PATH, |request| {
        let mut script = stream_start(request);
        for _ in 0..200 {
            for line in [": keep-alive\n\n", "event: ping\ndata: {}\n\n", "\n\n"] {
                script = script.chunk(line);
            }
            script = script.wait(Duration::from_millis(20));
        }
        script.hold()
    });
    for message in both_forms() {
        let began = Instant::now();
        let (stall, _) = stalled(rig.send(message, CHAT)).await;
        assert_eq!(stall.phase(), StallPhase::MidStream);
        assert!(began.elapsed() < STALL * 9, "{:?}", began.elapsed());
    }
}

/// F49: everything was said but the end.
#[tokio::test]
async fn silence_behind_the_last_of_the_text_is_a_stall_in_a_tunnel() {
    let (rig, lab) = with_lab(1).await;
    lab.on(PATH, |request| stream_start(request).event(content(request, "all of it")).hold());
    let (stall, _) = stalled(rig.send(tunnel(short()), CHAT)).await;
    assert_eq!(stall.phase(), StallPhase::MidStream);
}

const FINISH: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;

/// Says whether a run or a tunnel completed.
fn is_completed(answers: &[Answer]) -> bool {
    match answers.last() {
        Some(Answer::Event(event)) => matches!(event.kind, Some(v1::run_event::Kind::Complete(_))),
        Some(Answer::Frame(frame)) => {
            matches!(frame.kind, Some(v1::provider_tunnel_frame::Kind::End(_)))
        }
        Some(Answer::Command(_)) | None => false,
    }
}

/// What the provider owes after `[DONE]` is its end, for which it has 2 s and not its stall timeout,
/// whether that is shorter or far longer.
#[tokio::test]
async fn a_call_that_said_done_completes_though_its_provider_leaves_the_body_open() {
    let (rig, lab) = with_lab(4).await;
    lab.on(PATH, |request| {
        stream_start(request).event(content(request, "a")).event(FINISH).event("[DONE]").hold()
    });
    let calls = [run(short()), tunnel(short()), run(head("lab", "m")), tunnel(head("lab", "m"))];
    let began = Instant::now();
    let ended = futures_util::future::join_all(calls.map(|call| all(rig.send(call, CHAT)))).await;
    let took = began.elapsed();
    assert!(ended.iter().all(|answers| is_completed(answers)), "{ended:?}");
    assert!(took >= GRACE && took < GRACE * 2, "{took:?}");
    let log = lab.wait_until("four ends", |log| log.in_flight() == 0).await;
    assert!(log.connections.iter().all(|connection| connection.reset_at.is_none()), "they ended");
    assert_eq!(rig.known("lab").zombies, 0);
}

/// Its answer is whole, and it may be at work all the same.
#[tokio::test]
async fn a_call_that_said_done_leaves_a_zombie_where_its_provider_ignores_that_it_shall_end() {
    let (rig, lab) = with_lab(2).await;
    lab.on(PATH, |request| {
        stream_start(request).on_cancel(OnCancel::Ignore).event(FINISH).event("[DONE]").hold()
    });
    let calls = both_forms().map(|call| all(rig.send(call, CHAT)));
    let ended = futures_util::future::join_all(calls).await;
    assert!(ended.iter().all(|answers| is_completed(answers)), "{ended:?}");
    rig.wait_until(|seen| seen.providers["lab"].zombies == 2).await;
    let resets = |log: &Log| log.connections.iter().filter(|c| c.reset_at.is_some()).count();
    lab.wait_until("two resets", |log| resets(log) == 2).await;
}

#[tokio::test]
async fn an_ollama_run_that_said_done_leaves_a_zombie_where_its_server_ignores_that_it_shall_end() {
    let ollama = ScriptedOllama::start().await;
    ollama.set_models(&["m:latest"]);
    let mut entry = provider("lab", "ollama", &ollama.endpoint());
    entry.max_concurrency = 1;
    entry.hosted = Some(true);
    let rig = Rig::start(vec![entry], Secrets::default()).await;
    rig.wait_for_state("lab", ProviderState::Ready).await;
    ollama.provider().once("/api/chat", |_| {
        let head = [("content-type", "application/x-ndjson"), ("transfer-encoding", "chunked")];
        Script::new().head(200, &head).on_cancel(OnCancel::Ignore).chunk(concat!(
            "{\"message\":{\"content\":\"all\"},\"done\":false}\n",
            "{\"done\":true,\"done_reason\":\"stop\",\"eval_count\":5,\"prompt_eval_count\":3}\n",
        ))
        .hold()
    });
    let answers = all(rig.send(run(head("lab", "m:latest")), CHAT)).await;
    assert!(is_completed(&answers), "{answers:?}");
    let Some(Answer::Event(last)) = answers.last() else { unreachable!("it completed") };
    let usage = last.usage.as_ref().expect("what it said of its usage is not lost");
    assert_eq!((usage.input_tokens, usage.output_tokens), (3, 5));
    rig.wait_until(|seen| seen.providers["lab"].zombies == 1).await;
}

#[tokio::test]
async fn what_a_provider_sends_within_the_time_after_done_passes_and_later_bytes_do_not() {
    let (rig, lab) = with_lab(1).await;
    lab.once(PATH, |request| {
        stream_start(request)
            .on_cancel(OnCancel::Ignore)
            .event(FINISH)
            .event("[DONE]")
            .wait(GRACE / 4)
            .chunk(": in time\n\n")
            .wait(GRACE)
            .chunk(": too late\n\n")
            .last_chunk()
    });
    let answers = all(rig.send(tunnel(short()), CHAT)).await;
    assert!(is_completed(&answers), "{answers:?}");
    let said = format!("{answers:?}");
    assert!(said.contains("in time") && !said.contains("too late"), "{said}");
    lab.wait_until("its end", |log| log.in_flight() == 0).await;
    assert_eq!(rig.known("lab").zombies, 0, "its end was seen within the grace");
}

/// A client that was promised a length takes less for a broken answer: it is not told that this is whole.
#[tokio::test]
async fn a_stream_of_a_known_length_is_not_over_before_it_though_it_said_done() {
    let (rig, lab) = with_lab(1).await;
    lab.once(PATH, |_| {
        let body = format!("data: {FINISH}\n\ndata: [DONE]\n\n");
        let length = (body.len() + 1).to_string();
        let headers = [("content-type", "text/event-stream"), ("content-length", &length)];
        Script::new().head(200, &headers).bytes(body).hold()
    });
    let (stall, _) = stalled(rig.send(tunnel(short()), CHAT)).await;
    assert_eq!(stall.phase(), StallPhase::MidStream);
}

#[tokio::test]
async fn a_run_whose_answer_is_unusable_has_the_grace_to_end_however_short_its_stall_timeout() {
    let (rig, lab) = with_lab(2).await;
    for (events, code) in [(&["no chunk"][..], "provider_error"), (&["[DONE]"], "truncated")] {
        lab.once(PATH, move |request| {
            let start = stream_start(request).on_cancel(OnCancel::Ignore);
            events.iter().fold(start, Script::event).hold()
        });
        let last = all(rig.send(run(short()), CHAT)).await.pop().unwrap();
        assert_eq!(failure(&last).code, code, "{last:?}");
    }
    rig.wait_until(|seen| seen.providers["lab"].zombies == 2).await;
}

/// FC-044.
#[tokio::test]
async fn a_client_that_takes_nothing_is_no_stall_of_its_provider() {
    let (rig, lab) = with_lab(1).await;
    lab.on(PATH, |request| {
        let mut script = stream_start(request);
        let text = "x".repeat(8 * 1024);
        for _ in 0..100 {
            script = script.event(content(request, &text));
        }
        stream_end(script, request, 100)
    });
    for message in both_forms() {
        let stream = rig.send(message, CHAT);
        // The length of the pause is what is tested: three times what the provider may be silent.
        tokio::time::sleep(STALL * 3).await;
        let answers = all(stream).await;
        let last = answers.last().unwrap();
        assert!(!format!("{last:?}").contains("stalled"), "{last:?}");
        assert!(answers.len() > 10);
    }
}

#[tokio::test]
async fn an_upload_that_waits_for_its_client_is_no_stall_of_its_provider() {
    let (rig, lab) = with_lab(1).await;
    for message in both_forms() {
        let (first, rest) = CHAT.split_at(20);
        let mut stream = rig.open(message);
        stream.queue_body(Bytes::copy_from_slice(first.as_bytes()), false);
        tokio::time::sleep(STALL * 3).await;
        stream.queue_body(Bytes::copy_from_slice(rest.as_bytes()), true);
        let answers = all(stream).await;
        let last = answers.last().unwrap();
        assert!(!format!("{last:?}").contains("stalled"), "{last:?}");
        assert!(answers.len() > 2);
    }
    assert_eq!(lab.log().exchanges.len(), 2);
}

#[tokio::test]
async fn a_provider_that_stops_taking_its_request_is_silent_while_sending() {
    let (rig, lab) = with_lab(1).await;
    lab.at_head(PATH, |_| Script::new().on_cancel(OnCancel::Ignore).hold());
    // More than the buffers of both ends of a loopback connection.
    let long = "x".repeat(16 << 20);
    let mut stream = rig.open(tunnel(short()));
    stream.queue_body(Bytes::from(long), true);
    let (stall, before) = stalled(stream).await;
    assert_eq!(stall.phase(), StallPhase::Sending);
    assert!(before.is_empty());
}

#[tokio::test]
async fn a_cancel_during_the_join_ends_it_at_once_and_it_stays_a_stall() {
    let (rig, lab) = with_lab(1).await;
    lab.once(PATH, |request| stream_start(request).on_cancel(OnCancel::Ignore).hold());
    let mut stream = rig.send(tunnel(short()), CHAT);
    let log =
        lab.wait_until("the claim", |log| log.connections.iter().any(|c| c.fin_at.is_some())).await;
    let claimed = log.connections.iter().find_map(|connection| connection.fin_at).unwrap();
    stream.cancel(v1::CancelReason::ClientGone);
    let (stall, _) = stalled(stream).await;
    assert!(claimed.elapsed() < GRACE, "{:?}", claimed.elapsed());
    assert_eq!(stall.retryable, None, "what is not known is not claimed: {stall:?}");
    // The permit is settled apart from the terminal, when the grace is over.
    rig.wait_until(|seen| seen.providers["lab"].zombies == 1).await;
    assert!(claimed.elapsed() >= GRACE);
}

/// F84: nobody is left to be told, and the permit is settled all the same.
#[tokio::test]
async fn a_link_that_ends_during_the_join_is_told_nothing_and_the_permit_is_settled() {
    let (rig, lab) = with_lab(2).await;
    lab.once(PATH, |request| stream_start(request).on_cancel(OnCancel::Ignore).hold());
    let mut stream = rig.send(tunnel(short()), CHAT);
    lab.wait_until("the claim", |log| log.connections.iter().any(|c| c.fin_at.is_some())).await;
    rig.cut_wire();
    while let Ok(answer) = stream.recv().await {
        assert!(!is_terminal(&answer), "{answer:?}");
    }
    rig.wait_until(|seen| seen.generations.len() == 2 && seen.providers["lab"].zombies == 1).await;
    assert!(all(rig.send(tunnel(head("lab", "m")), CHAT)).await.len() > 2);
}

#[tokio::test]
async fn the_node_ends_a_request_whose_time_is_over_though_no_cancel_comes() {
    let (rig, lab) = with_lab(1).await;
    lab.on(PATH, |request| stream_start(request).hold());
    let whole = v1::RequestHead { ends_within_ms: 300, ..head("lab", "m") };
    for message in [run(whole.clone()), tunnel(v1::RequestHead { attempt: 2, ..whole })] {
        let last = all(rig.send(message, CHAT)).await.pop().unwrap();
        assert_eq!(failure(&last).code, "deadline_exceeded", "{last:?}");
    }
    lab.on(PATH, |_| Script::new().hold());
    let first = v1::RequestHead { first_progress_within_ms: 300, ..head("lab", "m") };
    let last = all(rig.send(tunnel(first), CHAT)).await.pop().unwrap();
    assert_eq!(failure(&last).code, "deadline_exceeded", "{last:?}");
}

#[tokio::test]
async fn the_bound_on_the_head_comes_with_the_providers_entry() {
    let (rig, lab) = with_entry(|entry| entry.first_response_timeout_ms = 300).await;
    lab.on(PATH, |_| Script::new().hold());
    let (stall, _) = stalled(rig.send(tunnel(head("lab", "m")), CHAT)).await;
    assert_eq!((stall.timeout_ms, stall.phase()), (300, StallPhase::BeforeHead));
}
