//! Faults seen in comparable products, each as a test: what a normalized run makes of the bytes,
//! and what a tunnel's observers do with them.

use bytes::Bytes;
use iop_dialect::openai::{Answer, StreamReader, TextKind};
use iop_dialect::sse::ProgressScan;
use iop_dialect::usage::{BodyObserver, ChunkFilter, StreamObserver};
use iop_types::{ErrorCode, Event, EventKind, Failure, Finish, Part, Usage};

const STOP: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;

/// What a run made of a stream: its events, and how it ended.
type Outcome = (Vec<Event>, Result<Answer, Failure>);

fn run_in(segments: &[&[u8]]) -> Outcome {
    let mut reader = StreamReader::new(TextKind::Chat);
    let mut events = Vec::new();
    for segment in segments {
        if let Err(failure) = reader.push(segment, &mut events) {
            return (events, Err(failure));
        }
    }
    let answer = reader.finish(&mut events);
    (events, answer)
}

/// Runs the stream whole, in pieces of one and two bytes and at every cut, and insists on one
/// outcome.
fn run(stream: impl AsRef<[u8]>) -> Outcome {
    let stream = stream.as_ref();
    let whole = run_in(&[stream]);
    for size in [1, 2] {
        assert_eq!(run_in(&stream.chunks(size).collect::<Vec<_>>()), whole, "{size} at a time");
    }
    for cut in 0..stream.len() {
        let (head, tail) = stream.split_at(cut);
        assert_eq!(run_in(&[head, tail]), whole, "cut at {cut}");
    }
    whole
}

fn text(text: &str) -> Event {
    EventKind::Delta { choice: 0, part: Part::Text(text.into()) }.into()
}

fn reasoning(text: &str) -> Event {
    EventKind::ReasoningDelta { choice: 0, text: text.into() }.into()
}

fn stopped(usage: Option<(u64, u64)>) -> Result<Answer, Failure> {
    let finish = vec![Finish { choice: 0, reason: "stop".into() }];
    Ok(Answer { finish, usage: usage.map(tokens) })
}

fn tokens((input_tokens, output_tokens): (u64, u64)) -> Usage {
    Usage { input_tokens, output_tokens }
}

fn observed(stream: impl AsRef<[u8]>) -> StreamObserver {
    let mut observer = StreamObserver::new();
    for byte in stream.as_ref().chunks(1) {
        observer.observe(byte);
    }
    observer.finish();
    observer
}

fn filtered(stream: &str) -> String {
    let mut filter = ChunkFilter::new();
    let mut passed = Vec::new();
    for segment in stream.as_bytes().chunks(3) {
        filter.push(Bytes::copy_from_slice(segment), |part| passed.extend_from_slice(&part));
    }
    filter.finish(|part| passed.extend_from_slice(&part));
    String::from_utf8(passed).expect("the stream is text")
}

#[test]
fn fc_001_a_character_cut_in_two_arrives_whole() {
    let stream = format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"안\"}}}}]}}\n\ndata: {STOP}\n\n"
    );
    assert_eq!(run(stream), (vec![text("안")], stopped(None)));
}

#[test]
fn fc_001_bytes_that_are_no_text_end_the_run_and_are_never_replaced() {
    let stream = [
        &b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n"[..],
        b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\xEC\x95\"}}]}\n\n",
        b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\"}}]}\n\n",
    ]
    .concat();
    let (events, ended) = run(stream);
    assert_eq!(events, [text("a")]);
    let failure = ended.unwrap_err();
    assert_eq!(failure.code, ErrorCode::ProviderError);
    assert_eq!(failure.message, "provider sent text that is not UTF-8");
}

#[test]
fn fc_001_skipped_members_must_be_text_too() {
    let (events, ended) = run(b"data: {\"x\":\"\xFF\",\"choices\":[]}\n\n");
    assert!(events.is_empty() && ended.unwrap_err().message.contains("UTF-8"));
}

#[test]
fn fc_002_carriage_returns_end_lines() {
    for end in ["\r\n", "\r"] {
        let stream = format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"a\"}}}}]}}{end}{end}data: {STOP}{end}{end}data: [DONE]{end}{end}"
        );
        assert_eq!(run(&stream), (vec![text("a")], stopped(None)));
        let seen = observed(&stream);
        assert!(seen.has_finished() && seen.is_done() && seen.is_openai());
        assert_eq!(filtered(&stream), stream);
    }
}

#[test]
fn fc_003_the_space_after_the_colon_is_optional() {
    let stream = format!(
        "data:{{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"x\"}}}}]}}\n\ndata:{STOP}\n\ndata:[DONE]\n\n"
    );
    assert_eq!(run(&stream), (vec![text("x")], stopped(None)));
    assert!(observed(&stream).is_done());
}

#[test]
fn fc_004_comments_are_neither_data_nor_progress() {
    let comments = ": PROVIDER BUSY\n\n: ping - 2026\n\n";
    let stream = format!(
        "{comments}data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"k\"}}}}]}}\n\ndata: {STOP}\n\n"
    );
    assert_eq!(run(&stream), (vec![text("k")], stopped(None)));
    assert_eq!(filtered(&stream), stream);
    let mut scan = ProgressScan::new();
    assert!(!scan.scan(comments.as_bytes()));
    assert!(scan.scan(&stream.as_bytes()[comments.len()..]));
}

#[test]
fn fc_005_other_fields_do_not_disturb() {
    let stream = format!(
        "id: q-1\nevent: message\nretry: 100\ndata: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"y\"}}}}]}}\n\ndata: {STOP}\n\n"
    );
    assert_eq!(run(&stream), (vec![text("y")], stopped(None)));
    assert_eq!(filtered(&stream), stream);
}

/// One event with a string of `len` bytes of arguments, then an end.
fn long_event(len: usize) -> String {
    let arguments = "x".repeat(len);
    format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"tool_calls\":[{{\"index\":0,\"id\":\"c\",\"function\":{{\"name\":\"f\",\"arguments\":\"{arguments}\"}}}}]}}}}]}}\n\ndata: {STOP}\n\ndata: [DONE]\n\n"
    )
}

#[test]
fn fc_006_a_long_line_arrives_whole() {
    let stream = long_event(3 << 20);
    for size in [1_000, 16 << 10, usize::MAX] {
        let (events, ended) = run_in(&stream.as_bytes().chunks(size).collect::<Vec<_>>());
        let [Event { kind: EventKind::Delta { part: Part::ToolCall { arguments, .. }, .. }, .. }] =
            events.as_slice()
        else {
            panic!("{} events", events.len());
        };
        assert_eq!(arguments.len(), 3 << 20);
        assert_eq!(ended, stopped(None));
    }
}

#[test]
fn fc_006_an_event_above_the_cap_ends_the_run_and_the_error_names_the_cap() {
    let (events, ended) =
        run_in(&long_event(9 << 20).as_bytes().chunks(64 << 10).collect::<Vec<_>>());
    assert!(events.is_empty());
    assert!(ended.unwrap_err().message.contains("cap of 8388608 bytes"));
}

#[test]
fn fc_006_a_long_line_passes_the_filter_without_being_held() {
    let stream = Bytes::from(long_event(3 << 20));
    let mut filter = ChunkFilter::new();
    let (mut pushed, mut passed) = (0, 0);
    let mut rest = stream.clone();
    while !rest.is_empty() {
        let segment = rest.split_to(rest.len().min(16 << 10));
        pushed += segment.len();
        filter.push(segment, |part| {
            assert_eq!(part, stream[passed..passed + part.len()]);
            passed += part.len();
        });
        assert!(pushed - passed <= 8 << 10);
    }
    filter.finish(|part| passed += part.len());
    assert_eq!(passed, stream.len());
}

#[test]
fn fc_007_an_event_may_be_cut_at_any_byte() {
    let stream = format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}}}}]}}\n\ndata: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"a\\nb\"}}}}]}}\r\n\r\ndata: {STOP}\n\ndata: [DONE]\n\n"
    );
    assert_eq!(run(stream), (vec![text("a\nb")], stopped(None)));
}

#[test]
fn fc_008_the_last_event_needs_no_blank_line() {
    for end in ["\n\n", "\n", ""] {
        let stream = format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}}}{end}"
        );
        assert_eq!(run(&stream), (vec![], stopped(Some((3, 2)))));
        let seen = observed(&stream);
        assert_eq!(seen.usage(), Some(tokens((3, 2))));
        assert!(seen.has_finished() && !seen.is_truncated());
    }
}

#[test]
fn fc_008_an_incomplete_object_at_the_end_is_a_truncation() {
    let (_, ended) = run(format!("data: {STOP}\n\ndata: {{\"choices\":[],\"usa"));
    let failure = ended.unwrap_err();
    assert_eq!(failure.code, ErrorCode::Truncated);
    assert_eq!(failure.message, "provider's stream ended inside an event");
    let (_, ended) = run(format!("data: {STOP}\n\ndata: [DON"));
    assert_eq!(ended, stopped(None));
}

#[test]
fn fc_010_a_chunk_without_choices_is_usage_and_no_delta() {
    for choices in ["\"choices\":[],", "\"choices\":null,", ""] {
        let stream = format!(
            "data: {STOP}\n\ndata: {{{choices}\"usage\":{{\"prompt_tokens\":9,\"completion_tokens\":1,\"total_tokens\":10}}}}\n\ndata: [DONE]\n\n"
        );
        assert_eq!(run(&stream), (vec![], stopped(Some((9, 1)))));
        assert_eq!(observed(&stream).usage(), Some(tokens((9, 1))));
    }
}

#[test]
fn fc_012_a_large_answer_is_observed_in_bounded_memory() {
    let body = format!(
        r#"{{"choices":[{{"message":{{"content":"{}"}}}}],"usage":{{"prompt_tokens":7,"completion_tokens":5}}}}"#,
        "x".repeat(20 << 20)
    );
    let mut observer = BodyObserver::new();
    for segment in body.as_bytes().chunks(16 << 10) {
        observer.observe(segment);
    }
    assert_eq!(observer.finish(), Some(tokens((7, 5))));
}

#[test]
fn fc_012_malformed_usage_is_unknown_and_nothing_fails() {
    for usage in ["7", "[]", "{\"prompt_tokens\":\"x\"}", "{\"prompt_tokens\":1.5}", "{}"] {
        let stream = format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"a\"}},\"finish_reason\":\"stop\"}}],\"usage\":{usage}}}\n\n"
        );
        assert_eq!(run(&stream), (vec![text("a")], stopped(None)));
        let seen = observed(&stream);
        assert!(seen.usage().is_none() && seen.has_finished());
        let mut observer = BodyObserver::new();
        observer.observe(format!("{{\"usage\":{usage}}}").as_bytes());
        assert_eq!(observer.finish(), None);
    }
}

#[test]
fn fc_013_the_end_marker_may_be_absent_or_come_twice() {
    let content = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
    for end in ["", "data: [DONE]\n\n", "data: [DONE]\n\ndata: [DONE]\n\n"] {
        let stream = format!("{content}data: {STOP}\n\n{end}");
        assert_eq!(run(&stream), (vec![text("a")], stopped(None)));
        let seen = observed(&stream);
        assert!(!seen.is_truncated());
        assert_eq!(seen.is_done(), !end.is_empty());
    }
}

#[test]
fn fc_014_a_stream_without_a_finish_reason_is_truncated_even_after_the_end_marker() {
    let content = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n";
    for end in ["", "data: [DONE]\n\n"] {
        let stream = format!("{content}{content}{end}");
        let (events, ended) = run(&stream);
        assert_eq!(events, [text("a"), text("a")]);
        let failure = ended.unwrap_err();
        assert_eq!(failure.code, ErrorCode::Truncated);
        assert_eq!(failure.message, "provider's stream ended without a finish reason");
        assert!(observed(&stream).is_truncated());
    }
    assert_eq!(run("").1.unwrap_err().code, ErrorCode::Truncated);
}

#[test]
fn fc_015_an_error_object_in_the_stream_is_a_failure() {
    for (event, message, status) in [
        (
            "data: {\"error\":{\"message\":\"quota\",\"type\":\"insufficient_quota\",\"code\":429}}",
            "provider answered with an error: quota (type insufficient_quota, code 429)",
            Some(429),
        ),
        ("data: {\"error\":\"text\"}", "provider answered with an error: text", None),
        (
            "event: error\ndata: {\"message\":\"m\",\"code\":\"c\"}",
            "provider answered with an error: m (code c)",
            None,
        ),
        (
            "event: error\ndata: {\"error\":{\"message\":\"m\"}}",
            "provider answered with an error: m",
            None,
        ),
        (
            "event: error\ndata: out of memory",
            "provider answered with an error: out of memory",
            None,
        ),
        (
            "data: {\"object\": \"error\",\"message\":\"m\",\"type\":\"T\",\"code\":400}",
            "provider answered with an error: m (type T, code 400)",
            Some(400),
        ),
        ("data: {\"error\" : {}}", "provider answered with an error without a message", None),
    ] {
        let stream = format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"a\"}},\"finish_reason\":null}}],\"error\":null}}\n\n{event}\n\ndata: [DONE]\n\n"
        );
        let (events, ended) = run(&stream);
        assert_eq!(events, [text("a")], "{event}");
        let expected =
            Failure { provider_status: status, ..Failure::new(ErrorCode::ProviderError, message) };
        assert_eq!(ended, Err(expected), "{event}");
        let seen = observed(&stream);
        let error = seen.error().cloned().expect(event);
        assert_eq!(error.into_failure(None).message, message);
        assert!(!seen.is_truncated());
        assert_eq!(filtered(&stream), stream);
    }
}

fn call_events(pieces: &[&str]) -> Vec<Event> {
    let event = |piece: &&str| {
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"tool_calls\":[{piece}]}}}}]}}\n\n"
        )
    };
    let stream: String = pieces.iter().map(event).collect();
    let (events, ended) = run(format!("{stream}data: {STOP}\n\n"));
    assert_eq!(ended, stopped(None));
    events
}

fn call(index: u32, id: Option<&str>, name: Option<&str>, arguments: &str) -> Event {
    let (id, name) = (id.map(Into::into), name.map(Into::into));
    let part = Part::ToolCall { index, id, name, arguments: arguments.into() };
    EventKind::Delta { choice: 0, part }.into()
}

#[test]
fn fc_047_parallel_calls_that_all_have_index_0_are_told_apart() {
    let events = call_events(&[
        r#"{"index":0,"id":"c1","function":{"name":"f","arguments":"{\"p\":1}"}}"#,
        r#"{"index":0,"id":"c2","function":{"name":"f","arguments":"{\"p\":2}"}}"#,
    ]);
    assert_eq!(
        events,
        [call(0, Some("c1"), Some("f"), "{\"p\":1}"), call(1, Some("c2"), Some("f"), "{\"p\":2}"),]
    );
}

#[test]
fn fc_048_a_missing_index_means_the_last_call_until_an_id_is_new() {
    let events = call_events(&[
        r#"{"id":"c1","function":{"name":"f","arguments":"{"}}"#,
        r#"{"function":{"arguments":"}"}}"#,
        r#"{"id":"c2","function":{"name":"g","arguments":"{}"}}"#,
    ]);
    assert_eq!(
        events,
        [
            call(0, Some("c1"), Some("f"), "{"),
            call(0, None, None, "}"),
            call(1, Some("c2"), Some("g"), "{}"),
        ]
    );
}

#[test]
fn fc_050_empty_arguments_are_accepted() {
    let events = call_events(&[
        r#"{"index":0,"id":"c1","function":{"name":"f","arguments":""}}"#,
        r#"{"index":0,"function":{"arguments":""}}"#,
        r#"{"index":0,"function":{"arguments":"{\"x\":"}}"#,
        r#"{"index":0,"function":{"arguments":"1}"}}"#,
    ]);
    assert_eq!(
        events,
        [
            call(0, Some("c1"), Some("f"), ""),
            call(0, None, None, "{\"x\":"),
            call(0, None, None, "1}"),
        ]
    );
}

#[test]
fn fc_052_reasoning_is_read_under_both_names_and_once() {
    let delta =
        |delta: &str| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta}}}]}}\n\n");
    let stream = [
        delta(r#"{"reasoning":"r1"}"#),
        delta(r#"{"reasoning_content":"r2","content":""}"#),
        delta(r#"{"reasoning":"r3","reasoning_content":"r3","content":null}"#),
        delta(r#"{"content":"c"}"#),
        format!("data: {STOP}\n\n"),
    ]
    .concat();
    let expected = vec![reasoning("r1"), reasoning("r2"), reasoning("r3"), text("c")];
    assert_eq!(run(stream), (expected, stopped(None)));
}

#[test]
fn fc_091_the_injected_usage_chunk_is_accounted_and_removed() {
    let content =
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n";
    let usage =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n\n";
    let stream = format!("{content}data: {STOP}\n\n{usage}data: [DONE]\n\n");
    assert_eq!(observed(&stream).usage(), Some(tokens((3, 1))));
    assert_eq!(filtered(&stream), format!("{content}data: {STOP}\n\ndata: [DONE]\n\n"));
}

#[test]
fn fc_092_running_totals_replace_each_other() {
    let chunk = |n: u64| {
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"a\"}},\"finish_reason\":null}}],\"usage\":{{\"prompt_tokens\":4,\"completion_tokens\":{n}}}}}\n\n"
        )
    };
    let last = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":3}}\n\n";
    let stream = format!("{}{}{}data: {STOP}\n\n{last}", chunk(1), chunk(2), chunk(3));
    let (events, ended) = run(&stream);
    let ridden: Vec<_> = events.iter().map(|event| event.usage).collect();
    assert_eq!(ridden, [(4, 1), (4, 2), (4, 3)].map(|usage| Some(tokens(usage))));
    assert_eq!(ended, stopped(Some((4, 3))));
    let seen = observed(&stream);
    assert_eq!((seen.usage(), seen.deltas()), (Some(tokens((4, 3))), 3));
}

#[test]
fn what_is_not_a_chunk_ends_the_run_with_a_reason() {
    for (event, reason) in [
        ("data: nope", "cannot be read: expected"),
        ("data: [1]", "cannot be read: invalid"),
        ("data: {\"choices\":7}", "cannot be read: invalid type: integer"),
        ("data: {\"choices\":[{\"delta\":{\"content\":[1]}}]}", "invalid type: sequence"),
        ("data: {\"choices\":[{\"index\":1024}]}", "a choice above index 1023"),
        ("data: {\"choices\":[{\"delta\":{\"function_call\":{}}}]}", "`function_call`"),
    ] {
        let (_, ended) = run(format!("{event}\n\ndata: {STOP}\n\n"));
        let failure = ended.unwrap_err();
        assert_eq!(failure.code, ErrorCode::ProviderError);
        assert!(failure.message.contains(reason), "{failure}");
    }
}

#[test]
fn events_named_ping_are_no_chunks() {
    let stream = format!("event: ping\ndata: {{\"type\":\"ping\"}}\n\ndata:\n\ndata: {STOP}\n\n");
    assert_eq!(run(stream), (vec![], stopped(None)));
}
