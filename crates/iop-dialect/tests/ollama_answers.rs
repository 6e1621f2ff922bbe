//! Ollama's lines as events, and how its answers end.

use std::time::Duration;

use iop_dialect::ollama::{Ended, StreamReader, read_embed};
use iop_dialect::openai::TextKind;
use iop_types::{ErrorCode, Event, EventKind, Failure, Finish, Part, Usage};
use proptest::prelude::*;

fn read(kind: TextKind, segments: &[&[u8]]) -> (Vec<Event>, Result<Ended, Failure>) {
    let mut reader = StreamReader::new(kind);
    let mut events = Vec::new();
    for segment in segments {
        if let Err(failure) = reader.push(segment, &mut events) {
            return (events, Err(failure));
        }
    }
    let ended = reader.finish(&mut events);
    (events, ended)
}

fn chat(text: &str) -> (Vec<Event>, Result<Ended, Failure>) {
    read(TextKind::Chat, &[text.as_bytes()])
}

fn delta(part: Part) -> Event {
    EventKind::Delta { choice: 0, part }.into()
}

fn text(text: &str) -> Event {
    delta(Part::Text(text.into()))
}

fn finish(reason: &str) -> Vec<Finish> {
    vec![Finish { choice: 0, reason: reason.into() }]
}

#[test]
fn fc_065_lines_are_read_however_they_are_cut_and_without_a_last_line_end() {
    let lines = "{\"message\":{\"content\":\"hello\"},\"done\":false}\n{\"done\":true,\
        \"done_reason\":\"stop\",\"prompt_eval_count\":3,\"eval_count\":2}";
    for end in ["", "\n", "\r\n", "\n\n"] {
        let whole = format!("{lines}{end}").into_bytes();
        for cut in 0..=whole.len() {
            let (head, tail) = whole.split_at(cut);
            let (events, ended) = read(TextKind::Chat, &[head, tail]);
            assert_eq!(events, [text("hello")], "cut at {cut}");
            let answer = ended.unwrap().answer;
            assert_eq!(answer.finish, finish("stop"));
            assert_eq!(answer.usage, Some(Usage { input_tokens: 3, output_tokens: 2 }));
        }
    }
}

#[test]
fn arguments_that_come_as_text_are_not_quoted_once_more() {
    for (sent, expected) in [
        (r#"{"a": "\u00e9"}"#, r#"{"a": "\u00e9"}"#),
        (r#""{\"a\":1}""#, r#"{"a":1}"#),
        (r#""""#, "{}"),
        ("null", "{}"),
    ] {
        let call = format!(r#"{{"function":{{"name":"f","arguments":{sent}}}}}"#);
        let (events, ended) =
            chat(&format!("{{\"message\":{{\"tool_calls\":[{call}]}}}}\n{{\"done\":true}}\n"));
        let call = Part::ToolCall {
            index: 0,
            id: None,
            name: Some("f".into()),
            arguments: expected.into(),
        };
        assert_eq!(events, [delta(call)], "{sent}");
        assert_eq!(ended.unwrap().answer.finish, finish("tool_calls"));
    }
}

#[test]
fn fc_047_and_fc_049_parallel_calls_have_indices_of_their_own_and_finish_as_calls() {
    let (events, ended) = chat(concat!(
        r#"{"message":{"role":"assistant","content":"","tool_calls":[{"function":{"index":0,"name":"f","arguments":{"p":1}}},"#,
        r#"{"id":"call_x","function":{"index":0,"name":"g","arguments":{"p": 2}}}]},"done":false}"#,
        "\n",
        r#"{"message":{"content":"","tool_calls":[{"function":{"index":0,"name":"f"}}]},"done":false}"#,
        "\n",
        r#"{"message":{"content":""},"done":true,"done_reason":"stop"}"#,
    ));
    let call = |index, id: Option<&str>, name: &str, arguments: &str| {
        delta(Part::ToolCall {
            index,
            id: id.map(str::to_owned),
            name: Some(name.into()),
            arguments: arguments.into(),
        })
    };
    assert_eq!(
        events,
        [
            call(0, None, "f", r#"{"p":1}"#),
            call(1, Some("call_x"), "g", r#"{"p": 2}"#),
            call(2, None, "f", "{}"),
        ]
    );
    assert_eq!(ended.unwrap().answer.finish, finish("tool_calls"));
}

#[test]
fn fc_053_and_fc_054_thinking_is_reasoning_and_none_is_added() {
    let (events, _) = chat(concat!(
        r#"{"message":{"content":"","thinking":"t"},"done":false}"#,
        "\n",
        r#"{"message":{"content":"a","thinking":""},"done":false}"#,
        "\n",
        r#"{"message":{"content":"b"},"done":true}"#,
    ));
    let thought = EventKind::ReasoningDelta { choice: 0, text: "t".into() };
    assert_eq!(events, [thought.into(), text("a"), text("b")]);
}

#[test]
fn an_end_says_why_what_it_used_and_how_long_it_took() {
    for (said, reason) in [
        (r#","done_reason":"stop""#, "stop"),
        (r#","done_reason":"length""#, "length"),
        (r#","done_reason":"load""#, "load"),
        (r#","done_reason":"unload""#, "unload"),
        (r#","done_reason":"""#, "stop"),
        ("", "stop"),
    ] {
        let (_, ended) = chat(&format!("{{\"done\":true{said}}}"));
        let answer = ended.unwrap().answer;
        assert_eq!((answer.finish, answer.usage), (finish(reason), None));
    }
    let (_, ended) = chat(
        r#"{"done":true,"total_duration":5000000,"load_duration":1000000,"eval_count":9,
        "prompt_eval_duration":-1}"#
            .replace('\n', "")
            .as_str(),
    );
    let ended = ended.unwrap();
    let millis = |millis| Some(Duration::from_millis(millis));
    assert_eq!((ended.timings.total(), ended.timings.load()), (millis(5), millis(1)));
    assert_eq!((ended.timings.prompt(), ended.timings.generation()), (None, None));
    // A prompt that was wholly cached is left out.
    assert_eq!(ended.answer.usage, Some(Usage { input_tokens: 0, output_tokens: 9 }));
}

#[test]
fn an_error_line_after_200_fails_the_run_with_the_servers_words() {
    let (events, ended) =
        chat("{\"message\":{\"content\":\"a\"}}\n{\"error\":\"llama runner terminated\"}\n");
    assert_eq!(events, [text("a")]);
    let failure = ended.unwrap_err();
    assert_eq!(failure.code, ErrorCode::ProviderError);
    assert!(failure.message.ends_with("llama runner terminated"), "{failure}");
}

#[test]
fn a_stream_that_does_not_say_done_is_truncated_and_one_that_is_no_stream_fails() {
    for cut_off in
        ["", "{\"message\":{\"content\":\"a\"}}\n", "{\"message\":{\"content\":\"a\"}}\n{\"do"]
    {
        let failure = chat(cut_off).1.unwrap_err();
        assert_eq!(failure.code, ErrorCode::Truncated, "{cut_off}: {failure}");
    }
    for wrong in ["<html>\n", "{\"message\":7}\n", "data: {}\n", "[]\n"] {
        let failure = chat(wrong).1.unwrap_err();
        assert_eq!(failure.code, ErrorCode::ProviderError, "{wrong}: {failure}");
    }
    let (_, ended) = read(TextKind::Chat, &[b"{\"message\":{\"content\":\"\xEC\x95\"}}\n"]);
    assert!(ended.unwrap_err().message.contains("not UTF-8"));
    let image = chat("{\"message\":{\"content\":\"\",\"images\":[\"aa\"]},\"done\":false}\n");
    assert!(image.1.unwrap_err().message.contains("image"));
}

#[test]
fn what_follows_the_end_belongs_to_nobody() {
    let (events, ended) = chat("{\"done\":true}\n{\"message\":{\"content\":\"late\"}}\nnonsense\n");
    assert_eq!(events, []);
    assert_eq!(ended.unwrap().answer.finish, finish("stop"));
}

#[test]
fn a_completion_has_text_and_thoughts_of_its_own_members() {
    let (events, ended) = read(
        TextKind::Completion,
        &[b"{\"response\":\"\",\"thinking\":\"t\"}\n{\"response\":\"a\"}\n{\"response\":\"\",\"context\":[1,2],\"done\":true,\"done_reason\":\"length\"}"],
    );
    let thought = EventKind::ReasoningDelta { choice: 0, text: "t".into() };
    assert_eq!(events, [thought.into(), text("a")]);
    assert_eq!(ended.unwrap().answer.finish, finish("length"));
}

#[test]
fn log_probabilities_have_the_shape_of_the_clients_api() {
    let token = r#"[{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[{"token":"b","logprob":-1.5}]}]"#;
    let chat_line =
        format!("{{\"message\":{{\"content\":\"a\"}},\"logprobs\":{token},\"done\":true}}");
    let (events, _) = chat(&chat_line);
    assert_eq!(events[0], delta(Part::Logprobs(format!("{{\"content\":{token}}}"))));

    let line = format!("{{\"response\":\"a\",\"logprobs\":{token}}}\n");
    let lines = format!("{line}{line}{{\"response\":\"\",\"logprobs\":[],\"done\":true}}");
    let (events, _) = read(TextKind::Completion, &[lines.as_bytes()]);
    let object = |offset: usize| {
        delta(Part::Logprobs(format!(
            r#"{{"text_offset":[{offset}],"token_logprobs":[-0.5],"tokens":["a"],"top_logprobs":[{{"b":-1.5}}]}}"#
        )))
    };
    assert_eq!(events, [object(0), text("a"), object(1), text("a")]);
}

#[test]
fn fc_067_a_vector_is_missing_for_no_input() {
    let embed = |body: &str, inputs| {
        let mut events = Vec::new();
        read_embed(body.as_bytes(), inputs, &mut events).map(|ended| (events, ended))
    };
    let body =
        r#"{"model":"e","embeddings":[[1.0,-2.0],[3]],"total_duration":7,"prompt_eval_count":4}"#;
    let (events, ended) = embed(body, 2).unwrap();
    let vector = |choice, vector: &[f32]| {
        EventKind::Delta { choice, part: Part::Embedding(vector.to_vec()) }.into()
    };
    assert_eq!(events, [vector(0, &[1.0, -2.0]), vector(1, &[3.0])]);
    assert_eq!(ended.answer.usage, Some(Usage { input_tokens: 4, output_tokens: 0 }));
    assert_eq!(ended.timings.total(), Some(Duration::from_nanos(7)));
    for (body, message) in [
        (r#"{"embeddings":[[1]]}"#, "provider returned 1 vectors for 2 inputs"),
        (r#"{"embeddings":[[1],[]]}"#, "provider returned an empty vector for input 1"),
        ("{}", "provider returned 0 vectors for 2 inputs"),
        (r#"{"error":"no"}"#, "provider answered with an error: no"),
        ("<html>", "provider's embeddings cannot be read: expected value at line 1 column 1"),
    ] {
        assert_eq!(embed(body, 2).unwrap_err().message, message);
    }
}

/// Lines that answers are made of, good ones and others.
const LINES: &[&str] = &[
    r#"{"message":{"role":"assistant","content":"안녕 😀"},"done":false}"#,
    r#"{"message":{"content":"","thinking":"t"},"done":false}"#,
    r#"{"message":{"tool_calls":[{"function":{"name":"f","arguments":{"a":"\n}"}}}]}}"#,
    r#"{"response":"r","logprobs":[{"token":"r","logprob":-1}]}"#,
    r#"{"message":{"content":""},"done":true,"done_reason":"stop","prompt_eval_count":3}"#,
    r#"{"done":true,"done_reason":"length","eval_count":2,"load_duration":1}"#,
    r#"{"error":"out of memory"}"#,
    "nonsense",
    "",
    " ",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_answer_reads_the_same_however_it_is_cut(
        lines in prop::collection::vec(
            (prop::sample::select(LINES), prop::sample::select(&["\n", "\r\n"][..])), 0..8),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        end in any::<prop::sample::Index>(),
        is_cut_off in any::<bool>(),
        is_chat in any::<bool>(),
    ) {
        let kind = if is_chat { TextKind::Chat } else { TextKind::Completion };
        let lines: String = lines.iter().map(|(line, end)| format!("{line}{end}")).collect();
        let mut text = lines.into_bytes();
        if is_cut_off {
            text.truncate(end.index(text.len() + 1));
        }
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        at.extend([0, text.len()]);
        at.sort_unstable();
        let segments: Vec<&[u8]> = at.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        prop_assert_eq!(read(kind, &segments), read(kind, &[&text]));
    }
}
