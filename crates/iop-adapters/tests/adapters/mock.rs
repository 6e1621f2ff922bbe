//! The scripted provider, driven by paused time.

use std::time::Duration;

use iop_adapters::{BuildError, ProviderSettings, Targets, build};
use iop_execution::{CallError, Completion, ProbeOutcome};
use iop_types::{AdapterType, ErrorCode, Event, EventKind, Part, RunKind, Usage};
use tokio::time::{Instant, sleep};

use crate::support::{Outcome, built, look_at, run, run_until, tools};

const CHAT: &str = r#"{"messages":[{"role":"user","content":"who are you?"}]}"#;

fn scripted(script: &str) -> ProviderSettings {
    let mut settings = ProviderSettings::new("demo".into(), AdapterType::Mock);
    settings.script = Some(script.to_owned());
    settings
}

type Ran = Outcome<Event, Completion>;

async fn chat(script: &str) -> Ran {
    run(&*built(&scripted(script)), RunKind::Chat, CHAT).await
}

#[tokio::test(start_paused = true)]
async fn the_demonstration_says_what_it_is_word_by_word_and_reports_usage() {
    let settings = ProviderSettings::new("demo".into(), AdapterType::Mock);
    let provider = built(&settings);
    let collected = run(&*provider, RunKind::Chat, CHAT).await;
    let said = collected.text();
    assert!(said.contains("built-in demo provider"), "{said}");
    assert!(said.ends_with("who are you?"), "{said}");
    assert_eq!(collected.items[0].kind, EventKind::Start);
    let words = said.split_whitespace().count();
    assert_eq!(collected.items.len(), words + 1);
    let completion = collected.result.unwrap();
    assert_eq!(completion.finish[0].reason, "stop");
    let usage = Usage { input_tokens: 3, output_tokens: words as u64 };
    assert_eq!(completion.usage, Some(usage));
}

#[tokio::test]
async fn health_is_what_the_script_says() {
    let script = r#"{"targets":["a","b","c"],"by_target":{"b":{"health":"unavailable"},"c":{"health":"unknown"}}}"#;
    let provider = built(&scripted(script));
    for (target, outcome) in [
        ("a", ProbeOutcome::Available),
        ("b", ProbeOutcome::Unavailable),
        ("c", ProbeOutcome::Unknown),
        ("d", ProbeOutcome::Unavailable),
    ] {
        assert_eq!(provider.probe().unwrap().probe(look_at(target)).await, outcome, "{target}");
    }
    let wrong = build(&scripted(r#"{"answer":{"health":"ill"}}"#), &tools());
    assert!(wrong.is_err_and(|error| error.to_string().contains("script.answer.health")));
}

#[tokio::test(start_paused = true)]
async fn delays_are_kept_to_the_millisecond_and_the_same_seed_gives_the_same_jitter() {
    let begun = Instant::now();
    let script = r#"{"answer":{"text":"a b c","first_delay_ms":100,"chunk_delay_ms":10}}"#;
    chat(script).await;
    assert_eq!(begun.elapsed(), Duration::from_millis(130));

    let jittery = r#"{"answer":{"text":"a b c","chunk_jitter_ms":1000,"seed":7}}"#;
    let begun = Instant::now();
    chat(jittery).await;
    let first = begun.elapsed();
    let begun = Instant::now();
    chat(jittery).await;
    assert_eq!(begun.elapsed(), first);
    assert_ne!(first, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn chunks_have_the_scripted_size_and_join_to_the_text() {
    let collected = chat(r#"{"answer":{"text":"añb😀c","chunk_chars":2,"usage":false}}"#).await;
    assert_eq!(collected.items.len(), 4);
    assert_eq!(collected.text(), "añb😀c");
    assert_eq!(collected.result.unwrap().usage, None);
}

#[tokio::test(start_paused = true)]
async fn an_error_comes_at_its_point_and_nothing_after_it() {
    let script = r#"{"answer":{"text":"a b c d","error":{"after_chunks":2,
        "message":"out of memory","provider_status":500,"retry_after_s":3}}}"#;
    let collected = chat(script).await;
    assert_eq!(collected.text(), "a b");
    let Err(CallError::Failed(failure)) = collected.result else { panic!("it fails") };
    assert_eq!(failure.code, ErrorCode::ProviderError);
    assert_eq!((failure.provider_status, failure.retry_after_s), (Some(500), Some(3)));

    let early = chat(r#"{"answer":{"error":{"code":"connect_failed"}}}"#).await;
    assert!(early.items.is_empty(), "it fails before the head");
    let late = chat(r#"{"answer":{"text":"a b","error":{"after_chunks":99}}}"#).await;
    assert_eq!(late.text(), "a b");
    assert!(late.result.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_silence_lasts_as_long_as_scripted_and_cancelling_ends_an_endless_one() {
    let begun = Instant::now();
    chat(r#"{"answer":{"text":"a b","silence":{"after_chunks":1,"for_ms":60000}}}"#).await;
    assert_eq!(begun.elapsed(), Duration::from_secs(60));

    let endless = r#"{"answer":{"text":"a b","silence":{"after_chunks":1}}}"#;
    let provider = built(&scripted(endless));
    let stop = sleep(Duration::from_secs(3600));
    let begun = Instant::now();
    let collected = run_until(&*provider, RunKind::Chat, CHAT, stop).await;
    assert_eq!(collected.result, Err(CallError::Cancelled));
    assert_eq!(collected.text(), "a");
    assert_eq!(begun.elapsed(), Duration::from_secs(3600));
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_ignores_cancelling_returns_at_its_own_end() {
    let script = r#"{"answer":{"text":"a b c","chunk_delay_ms":1000,"ignore_cancel":true}}"#;
    let provider = built(&scripted(script));
    let stop = sleep(Duration::from_millis(1500));
    let begun = Instant::now();
    let collected = run_until(&*provider, RunKind::Chat, CHAT, stop).await;
    assert_eq!(begun.elapsed(), Duration::from_secs(3));
    assert_eq!(collected.result, Err(CallError::Cancelled));
    assert_eq!(collected.text(), "a", "the fence let nothing out after the cancel");
}

#[tokio::test(start_paused = true)]
async fn reasoning_and_a_tool_call_come_in_the_order_of_a_real_answer() {
    let script = r#"{"answer":{"reasoning":"let me see","chunk_chars":6,
        "tool_call":{"name":"look","arguments":{"city":"Köln"}}}}"#;
    let collected = chat(script).await;
    let mut reasoning = String::new();
    let mut arguments = String::new();
    for event in &collected.items[1..] {
        match &event.kind {
            EventKind::ReasoningDelta { text, .. } => {
                assert_eq!(arguments, "");
                reasoning.push_str(text);
            }
            EventKind::Delta {
                part: Part::ToolCall { index: 0, arguments: piece, .. }, ..
            } => {
                arguments.push_str(piece);
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    assert_eq!((reasoning.as_str(), arguments.as_str()), ("let me see", r#"{"city":"Köln"}"#));
    assert_eq!(collected.result.unwrap().finish[0].reason, "tool_calls");
}

#[tokio::test(start_paused = true)]
async fn a_token_limit_cuts_the_answer_and_says_length() {
    let provider = built(&scripted(r#"{"answer":{"text":"a b c d"}}"#));
    let input = r#"{"prompt":"x","max_tokens":2}"#;
    let collected = run(&*provider, RunKind::Completion, input).await;
    assert_eq!(collected.text(), "a b");
    let completion = collected.result.unwrap();
    assert_eq!(completion.finish[0].reason, "length");
    assert_eq!(completion.usage, Some(Usage { input_tokens: 1, output_tokens: 2 }));
}

#[tokio::test(start_paused = true)]
async fn an_embedding_has_one_vector_for_each_input() {
    let provider = built(&scripted(r#"{"answer":{"dimensions":3}}"#));
    let collected = run(&*provider, RunKind::Embedding, r#"{"input":["x","y"]}"#).await;
    let vectors: Vec<_> = collected.items[1..]
        .iter()
        .map(|event| match &event.kind {
            EventKind::Delta { choice, part: Part::Embedding(vector) } => (*choice, vector.len()),
            other => panic!("unexpected {other:?}"),
        })
        .collect();
    assert_eq!(vectors, [(0, 3), (1, 3)]);
}

#[tokio::test]
async fn a_mock_lists_its_scripted_targets_as_far_as_they_are_served() {
    let mut settings = scripted(r#"{"targets":["a","b","c"]}"#);
    settings.targets = Targets::from_list(["c", "a"]);
    let discovery = built(&settings).discover().await.unwrap();
    assert_eq!(discovery.targets, ["a", "c"].map(Into::into));
    assert!(built(&settings).tunnel().is_none(), "runs only");
}

#[tokio::test]
async fn a_script_with_a_mistake_is_refused_naming_the_member() {
    let error = build(&scripted(r#"{"answer":{"usage":"yes"}}"#), &tools()).err().unwrap();
    assert!(matches!(&error, BuildError::Script(script) if script.path == "script.answer.usage"));
}
