//! Normalized runs: a provider's answers as events, and its refusals as failures.

use std::time::Duration;

use iop_execution::CallError;
use iop_testkit::script::{Cut, Script};
use iop_testkit::{ScriptedProvider, answer};
use iop_types::{ErrorCode, Event, EventKind, Finish, Part, RunKind, Usage};
use serde_json::json;

use crate::support::{CHAT, Outcome, adapter, run};

const INPUT: &str = r#"{"model":"client-name","messages":[{"role":"user","content":"hi"}]}"#;

type Ran = Outcome<Event, iop_execution::Completion>;

/// Runs one chat against a stream with this body.
async fn stream(body: impl Into<Vec<u8>>, cut: Cut) -> Ran {
    let provider = ScriptedProvider::start().await;
    let body = body.into();
    provider.on(CHAT, move |_| {
        let head = [("content-type", "text/event-stream")];
        Script::new().head(200, &head).cut(cut.clone()).bytes(body.clone()).fin()
    });
    let outcome = run(&*adapter(&provider), RunKind::Chat, INPUT).await;
    provider.wait_until("nothing stays open", |log| log.open_connections() == 0).await;
    outcome
}

/// Runs one chat against this answer.
async fn answered(script: impl Fn() -> Script + Send + Sync + 'static) -> Ran {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, move |_| script());
    run(&*adapter(&provider), RunKind::Chat, INPUT).await
}

fn content(text: &str) -> String {
    format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": {"content": text}}]}))
}

const STOP: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn stopped() -> Vec<Finish> {
    vec![Finish { choice: 0, reason: "stop".to_owned() }]
}

#[tokio::test]
async fn the_provider_is_asked_for_a_stream_of_its_own_target_with_usage() {
    let provider = ScriptedProvider::start().await;
    let input = r#"{"model":"client-name", "messages":[], "stream":false,
        "x_vendor":{"a":[1,null]},"min_p":0.1}"#;
    let outcome = run(&*adapter(&provider), RunKind::Chat, input).await;
    let completion = outcome.result.as_ref().unwrap();
    assert_eq!(completion.finish, stopped());
    assert_eq!(completion.usage, Some(Usage { input_tokens: 16, output_tokens: 5 }));
    assert_eq!(outcome.items[0].kind, EventKind::Start);
    assert_eq!(outcome.text(), (0..5).map(answer::piece).collect::<String>());

    let log = provider.log();
    let request = &log.exchanges[0].request;
    let body = request.json();
    assert_eq!(body["model"], "served-model");
    assert_eq!(body["stream"], true);
    assert_eq!(body["stream_options"], json!({"include_usage": true}));
    assert_eq!(body["x_vendor"], json!({"a": [1, null]}));
    assert_eq!(body["min_p"], 0.1);
    let length = request.body.len().to_string();
    assert_eq!(request.header("content-length"), Some(length.as_str()));
    assert_eq!(request.header("content-type"), Some("application/json"));
}

#[tokio::test]
async fn every_way_to_write_and_to_cut_a_stream_gives_the_same_events() {
    let lf = [content("안"), content("녕 😀"), STOP.to_owned(), DONE.to_owned()].concat();
    let variants = [
        lf.clone(),
        lf.replace('\n', "\r\n"),
        lf.replace('\n', "\r"),
        lf.replace("data: ", "data:"),
        lf.replace("data: ", "id: q-1\nevent: message\nretry: 100\ndata: "),
        format!(": PROVIDER BUSY\n\n: ping\n\n{lf}"),
        format!("\u{feff}{lf}"),
    ];
    for variant in variants {
        for cut in [Cut::Whole, Cut::EveryByte, Cut::Sizes(vec![2]), Cut::Sizes(vec![7, 1, 30])] {
            let outcome = stream(variant.clone(), cut.clone()).await;
            assert_eq!(outcome.text(), "안녕 😀", "{cut:?} {variant:?}");
            let completion = outcome.result.as_ref().unwrap();
            assert_eq!(completion.finish, stopped());
            assert_eq!(outcome.items.len(), 3, "start and two deltas: {:?}", outcome.items);
        }
    }
}

#[tokio::test]
async fn invalid_utf8_is_a_failure_and_never_a_replacement_character() {
    let bytes = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\xec\x95\"}}]}\n\n";
    let outcome = stream(&bytes[..], Cut::Whole).await;
    assert_eq!(outcome.failure().code, ErrorCode::ProviderError);
    assert_eq!(outcome.text(), "");
}

#[tokio::test]
async fn a_very_long_event_is_delivered_and_one_above_the_cap_is_an_error_that_names_it() {
    let long = "x".repeat(3 << 20);
    let body = [content(&long), content("y"), STOP.to_owned(), DONE.to_owned()].concat();
    let outcome = stream(body, Cut::Whole).await;
    assert!(outcome.result.is_ok());
    assert_eq!(outcome.text().len(), long.len() + 1);

    let outcome = stream(content(&"x".repeat(9 << 20)), Cut::Whole).await;
    assert_eq!(outcome.failure().code, ErrorCode::ProviderError);
    assert!(outcome.failure().message.contains("8388608"), "{}", outcome.failure());
}

#[tokio::test]
async fn a_last_event_without_its_blank_line_counts() {
    let last = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}"#;
    for end in ["", "\n", "\n\n"] {
        let outcome = stream(format!("{}{last}{end}", content("a")), Cut::Whole).await;
        let completion = outcome.result.unwrap();
        assert_eq!(completion.finish, stopped());
        assert_eq!(completion.usage, Some(Usage { input_tokens: 3, output_tokens: 2 }));
    }
    let outcome = stream(content("a") + "data: {\"choices\":[{", Cut::Whole).await;
    assert_eq!(outcome.failure().code, ErrorCode::Truncated);
}

#[tokio::test]
async fn a_usage_chunk_without_choices_gives_no_delta() {
    let usage = r#"{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}"#;
    for chunk in [
        format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\n"),
        format!("data: {{\"usage\":{usage}}}\n\n"),
    ] {
        let body = [content("a"), STOP.to_owned(), chunk, DONE.to_owned()].concat();
        let outcome = stream(body, Cut::Whole).await;
        assert_eq!(outcome.items.len(), 2);
        let usage = Some(Usage { input_tokens: 9, output_tokens: 1 });
        assert_eq!(outcome.result.unwrap().usage, usage);
    }
}

#[tokio::test]
async fn a_finish_reason_completes_with_no_done_or_with_two() {
    for done in ["", DONE, "data: [DONE]\n\ndata: [DONE]\n\n"] {
        let outcome = stream(format!("{}{STOP}{done}", content("a")), Cut::Whole).await;
        assert_eq!(outcome.result.unwrap().finish, stopped());
    }
}

#[tokio::test]
async fn a_stream_that_is_cut_off_is_truncated_and_keeps_what_it_delivered() {
    let head = || Script::new().head(200, answer::STREAM_HEADERS);
    let event = || r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#;
    let pause = Duration::from_millis(50);
    let outcomes = [
        answered(move || head().event(event()).event(event()).last_chunk()).await,
        answered(move || head().event(event()).event(event()).fin()).await,
        answered(move || head().event(event()).event(event()).wait(pause).reset()).await,
        stream(content("a") + &content("a") + DONE, Cut::Whole).await,
    ];
    for outcome in outcomes {
        assert_eq!(outcome.failure().code, ErrorCode::Truncated);
        assert_eq!(outcome.text(), "aa");
    }
}

#[tokio::test]
async fn an_error_inside_a_200_stream_fails_the_run_with_the_providers_words() {
    let objects = [
        "data: {\"error\":{\"message\":\"quota\",\"type\":\"insufficient_quota\",\"code\":429}}\n\n",
        "data: {\"error\":\"quota\"}\n\n",
        "event: error\ndata: {\"message\":\"quota\"}\n\n",
    ];
    for object in objects {
        let outcome = stream([content("a"), object.into(), DONE.into()].concat(), Cut::Whole).await;
        assert_eq!(outcome.failure().code, ErrorCode::ProviderError, "{object}");
        assert!(outcome.failure().message.contains("quota"), "{}", outcome.failure());
        assert_eq!(outcome.text(), "a");
    }
}

#[tokio::test]
async fn a_refusal_before_the_stream_carries_status_message_and_retry_after() {
    let outcome = answered(|| {
        let body = r#"{"error":{"message":"context too long","type":"x","code":null}}"#;
        let length = body.len().to_string();
        let head = [
            ("content-type", "application/json"),
            ("content-length", length.as_str()),
            ("retry-after", "7"),
        ];
        Script::new().head(429, &head).bytes(body)
    })
    .await;
    assert!(outcome.items.is_empty(), "no start: {:?}", outcome.items);
    let failure = outcome.failure();
    assert_eq!(failure.code, ErrorCode::ProviderError);
    assert_eq!((failure.provider_status, failure.retry_after_s), (Some(429), Some(7)));
    assert!(failure.message.contains("context too long"), "{failure}");

    let page = answered(|| answer::sized(502, "text/html", "<html>secret page</html>")).await;
    assert_eq!(page.failure().provider_status, Some(502));
    assert!(!page.failure().message.contains("<html>"), "{}", page.failure());
    let moved = [("location", "/elsewhere"), ("content-length", "0")];
    let redirect = answered(move || Script::new().head(302, &moved)).await;
    assert_eq!(redirect.failure().provider_status, Some(302));
}

#[tokio::test]
async fn a_refusal_whose_body_never_comes_still_says_its_status() {
    let head = [("content-length", "10")];
    let outcome = answered(move || Script::new().head(503, &head).hold()).await;
    assert_eq!(outcome.failure().provider_status, Some(503));
}

#[tokio::test]
async fn an_unexpected_type_or_coding_is_a_failure_and_no_empty_success() {
    let page = answered(|| answer::sized(200, "text/html", "<html>")).await;
    assert!(page.failure().message.contains("content type `text/html`"), "{}", page.failure());
    assert!(page.items.is_empty());
    let coded = answered(|| {
        let head = [
            ("content-type", "text/event-stream"),
            ("content-encoding", "gzip"),
            ("content-length", "2"),
        ];
        Script::new().head(200, &head).bytes("\x1f\x0b")
    })
    .await;
    assert!(coded.failure().message.contains("content encoding `gzip`"), "{}", coded.failure());
}

#[tokio::test]
async fn an_answer_in_one_piece_is_read_where_a_stream_was_asked_for() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |request| answer::chat(request, "whole"));
    let outcome = run(&*adapter(&provider), RunKind::Chat, INPUT).await;
    assert_eq!(outcome.text(), "whole");
    let completion = outcome.result.unwrap();
    assert_eq!(completion.finish, stopped());
    assert!(completion.usage.is_some());

    let failing = answered(|| answer::json(200, &json!({"error": {"message": "no slot"}}))).await;
    assert!(failing.failure().message.contains("no slot"), "{}", failing.failure());
}

#[tokio::test]
async fn a_text_completion_is_read_like_a_chat() {
    let provider = ScriptedProvider::start().await;
    let input = r#"{"model":"m","prompt":"a"}"#;
    let outcome = run(&*adapter(&provider), RunKind::Completion, input).await;
    assert_eq!(outcome.text(), "a scripted answer");
    assert_eq!(provider.log().exchanges[0].request.path(), "/v1/completions");
}

#[tokio::test]
async fn embeddings_are_one_vector_for_each_input_and_fewer_are_a_failure() {
    let provider = ScriptedProvider::start().await;
    let adapter = adapter(&provider);
    for format in ["", r#","encoding_format":"float""#, r#","encoding_format":"base64""#] {
        let input = format!(r#"{{"model":"m","input":["a","b"]{format}}}"#);
        let outcome = run(&*adapter, RunKind::Embedding, &input).await;
        assert!(outcome.result.is_ok(), "{format}: {:?}", outcome.result);
        let vectors: Vec<_> = outcome.items[1..]
            .iter()
            .map(|event| match &event.kind {
                EventKind::Delta { choice, part: Part::Embedding(vector) } => {
                    (*choice, vector.clone())
                }
                other => panic!("unexpected {other:?}"),
            })
            .collect();
        let expected = [(0, answer::embedding(0, 8)), (1, answer::embedding(1, 8))];
        assert_eq!(vectors, expected, "{format}");
        assert!(outcome.result.unwrap().finish.is_empty());
    }
    let sent = provider.log().exchanges[0].request.json();
    assert_eq!(sent, json!({"model": "served-model", "input": ["a", "b"]}));

    provider.on("/v1/embeddings", |_| {
        answer::json(200, &json!({"data": [{"index": 0, "embedding": [1.0]}]}))
    });
    let fewer = run(&*adapter, RunKind::Embedding, r#"{"model":"m","input":["a","b"]}"#).await;
    assert_eq!(fewer.failure().code, ErrorCode::ProviderError);
}

#[tokio::test]
async fn what_cannot_be_sent_opens_no_connection() {
    let provider = ScriptedProvider::start().await;
    let adapter = adapter(&provider);
    let inputs = [
        (RunKind::Chat, "not json"),
        (RunKind::Chat, r#"{"model":"a","MODEL":"b"}"#),
        (RunKind::Embedding, r#"{"model":"a"}"#),
        (RunKind::Rerank, r#"{"model":"a"}"#),
    ];
    for (kind, input) in inputs {
        let outcome = run(&*adapter, kind, input).await;
        assert_eq!(outcome.failure().code, ErrorCode::InvalidRequest, "{input}");
    }
    assert!(provider.log().connections.is_empty());
}

#[tokio::test]
async fn a_provider_that_is_not_there_or_leaves_at_once_is_told_apart() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |_| Script::new().reset());
    let adapter = adapter(&provider);
    let lost = run(&*adapter, RunKind::Chat, INPUT).await;
    assert_eq!(lost.failure().code, ErrorCode::ProviderError);
    assert_eq!(lost.failure().provider_status, None);
    assert!(lost.failure().message.contains("before it answered"), "{}", lost.failure());
    assert_eq!(provider.log().exchanges.len(), 1, "it was not tried again");
    provider.stop().await;
    let refused = run(&*adapter, RunKind::Chat, INPUT).await;
    assert_eq!(refused.failure().code, ErrorCode::ConnectFailed);
    assert!(matches!(refused.result, Err(CallError::Failed(_))));
}

#[tokio::test]
async fn a_thousand_streams_that_break_leave_no_permit_and_no_connection() {
    let provider = ScriptedProvider::start().await;
    provider.on(CHAT, |request| answer::stream_start(request).reset());
    let adapter = adapter(&provider);
    let gate = iop_execution::Gate::new(1);
    for _ in 0..1_000 {
        let permit = gate.try_acquire().unwrap();
        let outcome = run(&*adapter, RunKind::Chat, INPUT).await;
        assert!(outcome.result.is_err());
        drop(permit);
    }
    assert_eq!(gate.in_use(), 0);
    provider.wait_until("nothing stays open", |log| log.open_connections() == 0).await;
    assert_eq!(iop_testkit::kernel::connections_to(provider.address().port()), 0);
}
