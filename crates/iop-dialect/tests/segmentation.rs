//! However a stream is cut, the result is the one that a plain reading of the whole text gives.

use bytes::Bytes;
use iop_dialect::ndjson;
use iop_dialect::openai::{StreamReader, TextKind};
use iop_dialect::sse::{ProgressScan, Splitter};
use iop_dialect::usage::{ChunkFilter, StreamObserver};
use proptest::prelude::*;
use serde_json::Value;

/// Lines that streams are made of; `¶` stands for the line end of the case.
const BLOCKS: &[&str] = &[
    r#"data: {"choices":[{"index":0,"delta":{"content":"안녕"},"finish_reason":null}],"usage":null}¶¶"#,
    r#"data:{"choices": [ {"index":0,"delta":{"reasoning":"r"}}]}¶¶"#,
    r#"data: {"choices":[{"index":0,"delta":{"content":"\"choices\":[],\"usage\":{}"}}]}¶¶"#,
    r#"data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}}]}}]}¶¶"#,
    r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}¶¶"#,
    r#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}¶¶"#,
    r#"id: 1¶event: message¶data: { "usage" : {"prompt_tokens":2}, "choices" : [ ] }¶¶"#,
    r#"data: {"choices":[],"usage":{"prompt_tokens":9}}¶: late comment¶¶"#,
    r#"data: {"choices":[],"prompt_filter_results":[]}¶¶"#,
    r#"data: {"choices":[],"usage":null}¶¶"#,
    "data: {\"choices\":[],¶data: \"usage\":{}}¶¶",
    r#"data: {"text":"choices","choices":[]}¶¶"#,
    r#"data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}¶¶"#,
    r#"data: {"choices":[{"delta":{"content":"bc"},"finish_reason":null}]}¶¶"#,
    r#"data: {"choices":[{"delta":{"content":"a"},"finish_reason":"length"}]}¶¶"#,
    r#"data: {"choices":[{"delta":{"content":"a","x":""},"finish_reason":null}],"usage":{"prompt_tokens":5}}¶¶"#,
    r#"data: {"error":{"message":"quota","code":429}}¶¶"#,
    "event: error¶data: broken¶¶",
    "event: ping¶data: {\"type\":\"ping\"}¶¶",
    ": keep-alive¶¶",
    ": comment¶",
    ":¶",
    "¶",
    "data¶¶",
    "data: ¶¶",
    "event: ping¶",
    "retry: 7¶",
    "data: [DONE]¶¶",
    "nonsense¶",
    "\u{FEFF}",
];

/// A stream of random blocks, each with line ends of its own, perhaps cut off at its end.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let block =
        (proptest::sample::select(BLOCKS), proptest::sample::select(&["\n", "\r\n", "\r"][..]));
    (prop::collection::vec(block, 0..12), any::<prop::sample::Index>(), any::<bool>()).prop_map(
        |(blocks, end, is_cut_off)| {
            let text: String = blocks.iter().map(|(block, end)| block.replace('¶', end)).collect();
            let mut bytes = text.into_bytes();
            if is_cut_off {
                bytes.truncate(end.index(bytes.len() + 1));
            }
            bytes
        },
    )
}

/// Cuts a stream at random places.
fn segments(bytes: &[u8], cuts: &[prop::sample::Index]) -> Vec<Bytes> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    at.extend([0, bytes.len()]);
    at.sort_unstable();
    at.windows(2).map(|pair| Bytes::copy_from_slice(&bytes[pair[0]..pair[1]])).collect()
}

fn cuts() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    prop_oneof![
        prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        prop::collection::vec(any::<prop::sample::Index>(), 200),
    ]
}

/// Splits a whole text into lines with their ends; the last may have none.
fn lines(mut text: &[u8]) -> Vec<(&[u8], &[u8])> {
    let mut lines = Vec::new();
    while !text.is_empty() {
        let len = text.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(text.len());
        let end = match &text[len..] {
            [b'\r', b'\n', ..] => 2,
            [] => 0,
            _ => 1,
        };
        lines.push((&text[..len], &text[len..len + end]));
        text = &text[len + end..];
    }
    lines
}

fn field<'l>(line: &'l [u8], name: &str) -> Option<&'l [u8]> {
    let rest = line.strip_prefix(name.as_bytes())?;
    match rest.strip_prefix(b":") {
        Some(value) => Some(value.strip_prefix(b" ").unwrap_or(value)),
        None => rest.is_empty().then_some(rest),
    }
}

fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix("\u{FEFF}".as_bytes()).unwrap_or(text)
}

/// The events of a whole text, by the letter of the SSE standard, the unfinished last one included.
fn expected_events(text: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut events, mut name, mut data) = (Vec::new(), Vec::new(), Vec::<&[u8]>::new());
    for (line, _) in lines(without_mark(text)).into_iter().chain([(&b""[..], &b""[..])]) {
        if line.is_empty() {
            if !data.is_empty() {
                events.push((std::mem::take(&mut name), data.join(&b'\n')));
            }
            name.clear();
            data.clear();
        } else if let Some(value) = field(line, "data") {
            data.push(value);
        } else if let Some(value) = field(line, "event") {
            name = value.to_vec();
        }
    }
    events
}

/// Whether a whole text shows progress. A last line that is still short enough to become a known
/// field does not.
fn expected_progress(text: &[u8]) -> bool {
    let mut is_ping = false;
    for (line, end) in lines(without_mark(text)) {
        let is_known = |name: &&str| field(line, name).is_some();
        let is_unclear = end.is_empty() && line.len() <= "event".len() && !line.contains(&b':');
        if line.is_empty() {
            is_ping = false;
        } else if let Some(value) = field(line, "data") {
            if !is_ping && value.iter().any(|byte| !matches!(byte, b' ' | b'\t')) {
                return true;
            }
        } else if let Some(value) = field(line, "event") {
            is_ping = value == b"ping";
        } else if !line.starts_with(b":") && !["id", "retry"].iter().any(is_known) && !is_unclear {
            return true;
        }
    }
    false
}

/// What is left of a whole text without its first usage chunk.
fn expected_filtered(text: &[u8]) -> Vec<u8> {
    let mut passed = Vec::new();
    let mut event: Vec<(&[u8], &[u8])> = Vec::new();
    let mut has_removed = false;
    // One past the last line, so that the unfinished last event is judged as well.
    let all: Vec<_> = lines(text).into_iter().map(Some).chain([None]).collect();
    for line in all {
        event.extend(line);
        let has_ended = line.is_none_or(|(line, _)| line.is_empty());
        let is_comment = event.len() == 1 && event[0].0.starts_with(b":");
        if has_ended || is_comment {
            let removes = !has_removed && !is_comment && is_usage_chunk(&event);
            has_removed |= removes;
            if !removes {
                passed.extend(event.iter().flat_map(|(line, end)| [*line, *end]).flatten());
            }
            event.clear();
        }
    }
    passed
}

fn is_usage_chunk(event: &[(&[u8], &[u8])]) -> bool {
    let data: Vec<_> = event.iter().filter_map(|(line, _)| field(line, "data")).collect();
    let [data] = data.as_slice() else { return false };
    let has_comment = event.iter().any(|(line, _)| line.starts_with(b":"));
    let Ok(json) = serde_json::from_slice::<Value>(data) else { return false };
    !has_comment
        && json["choices"].as_array().is_some_and(Vec::is_empty)
        && json["usage"].is_object()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn splitter_reads_what_the_standard_says(text in stream(), cuts in cuts()) {
        let mut splitter = Splitter::default();
        let mut events = Vec::new();
        for segment in segments(&text, &cuts) {
            splitter.push(&segment, |event| {
                let event = event.unwrap();
                events.push((event.name.to_vec(), event.data.to_vec()));
            });
        }
        splitter.finish(|event| {
            let event = event.unwrap();
            events.push((event.name.to_vec(), event.data.to_vec()));
        });
        prop_assert_eq!(events, expected_events(&text));
    }

    #[test]
    fn progress_is_seen_exactly_when_the_whole_text_shows_it(text in stream(), cuts in cuts()) {
        let mut scan = ProgressScan::new();
        let mut progress = false;
        for segment in segments(&text, &cuts) {
            progress |= scan.scan(&segment);
        }
        prop_assert_eq!(progress, expected_progress(&text));
        let mut whole = ProgressScan::new();
        whole.scan(&text);
        prop_assert_eq!(scan.is_done(), whole.is_done());
    }

    #[test]
    fn filter_passes_every_byte_but_the_one_chunk(text in stream(), cuts in cuts()) {
        let mut filter = ChunkFilter::new();
        let mut passed = Vec::new();
        for segment in segments(&text, &cuts) {
            filter.push(segment, |part| {
                assert!(!part.is_empty());
                passed.extend_from_slice(&part);
            });
        }
        filter.finish(|part| passed.extend_from_slice(&part));
        prop_assert_eq!(filter.has_removed(), passed.len() < text.len());
        let expected = expected_filtered(&text);
        prop_assert_eq!(String::from_utf8_lossy(&passed), String::from_utf8_lossy(&expected));
    }

    #[test]
    fn observer_sees_what_parsing_every_event_shows(text in stream(), cuts in cuts()) {
        let mut observer = StreamObserver::new();
        for segment in segments(&text, &cuts) {
            observer.observe(&segment);
        }
        observer.finish();
        let events = expected_events(&text);
        let chunks: Vec<Value> = events
            .iter()
            .filter(|(name, _)| name != b"error" && name != b"ping")
            .filter_map(|(_, data)| serde_json::from_slice(data).ok())
            .collect();
        let has_finished = chunks.iter().any(|chunk| chunk["choices"][0]["finish_reason"].is_string());
        let input = chunks.iter().filter_map(|chunk| chunk["usage"]["prompt_tokens"].as_u64()).next_back();
        let has_error = chunks.iter().any(|chunk| chunk["error"].is_object());
        prop_assert_eq!(observer.has_finished(), has_finished);
        prop_assert_eq!(observer.usage().map(|usage| usage.input_tokens), input);
        prop_assert_eq!(
            observer.error().is_some(),
            has_error || events.iter().any(|(name, _)| name == b"error")
        );
        prop_assert_eq!(
            observer.is_done(),
            events.iter().any(|(name, data)| data == b"[DONE]" && name != b"error" && name != b"ping")
        );
    }

    #[test]
    fn reader_yields_the_same_events_for_every_segmentation(text in stream(), cuts in cuts()) {
        let read = |segments: &[Bytes]| {
            let mut reader = StreamReader::new(TextKind::Chat);
            let mut events = Vec::new();
            let pushed = segments.iter().try_for_each(|segment| reader.push(segment, &mut events));
            let ended = pushed.and_then(|()| reader.finish(&mut events));
            (events, ended)
        };
        let whole = read(&[Bytes::copy_from_slice(&text)]);
        prop_assert_eq!(read(&segments(&text, &cuts)), whole);
    }

    #[test]
    fn lines_of_json_are_those_of_the_whole_text(text in "[ab\n\r ]{0,60}", cuts in cuts()) {
        let mut splitter = ndjson::Splitter::default();
        let mut seen: Vec<Vec<u8>> = Vec::new();
        for segment in segments(text.as_bytes(), &cuts) {
            splitter.push(&segment, |line| seen.push(line.unwrap().to_vec()));
        }
        splitter.finish(|line| seen.push(line.unwrap().to_vec()));
        let expected: Vec<Vec<u8>> = text
            .split('\n')
            .map(|line| line.strip_suffix('\r').unwrap_or(line))
            .filter(|line| !line.trim_ascii().is_empty())
            .map(|line| line.as_bytes().to_vec())
            .collect();
        prop_assert_eq!(seen, expected);
    }
}
