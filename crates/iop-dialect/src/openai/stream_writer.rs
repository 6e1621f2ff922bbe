//! Writes events as an OpenAI stream.
//!
//! Each delta becomes one chunk. `Start` becomes nothing: the role, with which OpenAI's streams
//! begin, rides on the first chunk of each choice, so that no byte leaves before there is content
//! and a stream that fails early can still be replaced. `Complete` becomes one finish chunk per
//! choice, the usage chunk where it was asked for and is known, and `[DONE]`; a failure becomes one
//! error event and nothing behind it.

use std::collections::BTreeMap;

use bytes::{BufMut, BytesMut};
use iop_types::{Event, EventKind, Finish, Part, Usage};
use serde::Serialize;

use super::error_body::cancelled_event;
use super::head::{UsageObject, to_json};
use super::{Head, TextKind, error_event};

/// Writes one stream as SSE. After a terminal event nothing more is written.
#[derive(Debug)]
pub struct StreamWriter {
    head: Head,
    /// `data: {"id":…,"model":…,"choices":[`, the same for every chunk.
    opening: Vec<u8>,
    include_usage: bool,
    choices: BTreeMap<u32, Choice>,
    usage: Option<Usage>,
    has_ended: bool,
}

#[derive(Debug, Default)]
struct Choice {
    has_role: bool,
    /// How many tool calls have begun.
    calls: u32,
    /// Waits for the text that it belongs to.
    logprobs: Option<String>,
}

/// What the chunks of a choice differ in.
#[derive(Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[ToolCall<'a>; 1]>,
}

#[derive(Serialize)]
struct ToolCall<'a> {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

/// The members in front of `choices`.
#[derive(Serialize)]
struct Opening<'a> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
}

impl StreamWriter {
    /// Makes a writer; `include_usage` is what the client asked for.
    pub fn new(head: Head, include_usage: bool) -> Self {
        let object = match head.kind {
            TextKind::Chat => "chat.completion.chunk",
            TextKind::Completion => "text_completion",
        };
        let (id, created, model) = (head.id(), head.created, head.model.as_str());
        let mut opening = b"data: ".to_vec();
        opening.extend(to_json(&Opening { id, object, created, model }));
        // In place of the closing brace.
        opening.pop();
        opening.extend_from_slice(b",\"choices\":[");
        Self {
            head,
            opening,
            include_usage,
            choices: BTreeMap::new(),
            usage: None,
            has_ended: false,
        }
    }

    /// Appends what the event looks like to clients.
    pub fn write(&mut self, event: &Event, out: &mut BytesMut) {
        if self.has_ended {
            return;
        }
        self.usage = event.usage.or(self.usage);
        self.has_ended = event.is_terminal();
        match &event.kind {
            EventKind::Start => {}
            EventKind::ReasoningDelta { choice, text } => {
                self.write_delta(
                    *choice,
                    Delta { reasoning_content: Some(text), ..Delta::default() },
                    out,
                );
            }
            EventKind::Delta { choice, part } => self.write_part(*choice, part, out),
            EventKind::Complete { finish } => self.write_end(finish, out),
            EventKind::Error(failure) => {
                out.put(error_event(failure.code, &failure.message));
            }
            EventKind::Cancelled => out.put(cancelled_event()),
        }
    }

    fn write_part(&mut self, choice: u32, part: &Part, out: &mut BytesMut) {
        match part {
            Part::Text(text) => {
                self.write_delta(choice, Delta { content: Some(text), ..Delta::default() }, out);
            }
            Part::ToolCall { index, id, name, arguments } => {
                let known = &mut self.choices.entry(choice).or_default().calls;
                let is_new = *index >= *known;
                *known = (*known).max(index.saturating_add(1));
                let own_id;
                let id = match id {
                    None if is_new => {
                        own_id = self.head.tool_call_id(choice, *index);
                        Some(own_id.as_str())
                    }
                    id => id.as_deref(),
                };
                let function = Function { name: name.as_deref(), arguments };
                let r#type = is_new.then_some("function");
                let call = ToolCall { index: *index, id, r#type, function };
                self.write_delta(
                    choice,
                    Delta { tool_calls: Some([call]), ..Delta::default() },
                    out,
                );
            }
            Part::Logprobs(logprobs) => {
                let waiting =
                    self.choices.entry(choice).or_default().logprobs.replace(logprobs.clone());
                if let Some(waiting) = waiting {
                    self.write_choice(choice, Delta::default(), Some(&waiting), None, out);
                }
            }
            // Not text: an embeddings or rerank answer is no stream.
            Part::Embedding(_) | Part::Score(_) => {}
        }
    }

    fn write_end(&mut self, finish: &[Finish], out: &mut BytesMut) {
        for Finish { choice, reason } in finish {
            let logprobs = self.choices.entry(*choice).or_default().logprobs.take();
            self.write_choice(*choice, Delta::default(), logprobs.as_deref(), Some(reason), out);
        }
        if let Some(usage) = self.usage.filter(|_| self.include_usage) {
            out.extend_from_slice(&self.opening);
            out.extend_from_slice(b"],\"usage\":");
            out.extend_from_slice(&to_json(&UsageObject::from(usage)));
            out.extend_from_slice(b"}\n\n");
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    fn write_delta(&mut self, choice: u32, delta: Delta<'_>, out: &mut BytesMut) {
        let logprobs = self.choices.entry(choice).or_default().logprobs.take();
        self.write_choice(choice, delta, logprobs.as_deref(), None, out);
    }

    fn write_choice(
        &mut self,
        choice: u32,
        mut delta: Delta<'_>,
        logprobs: Option<&str>,
        finish_reason: Option<&str>,
        out: &mut BytesMut,
    ) {
        out.extend_from_slice(&self.opening);
        put_json(out, b"{\"index\":", &choice);
        match self.head.kind {
            TextKind::Chat => {
                let has_role = &mut self.choices.entry(choice).or_default().has_role;
                delta.role = (!std::mem::replace(has_role, true)).then_some("assistant");
                put_json(out, b",\"delta\":", &delta);
            }
            TextKind::Completion => {
                put_json(out, b",\"text\":", delta.content.unwrap_or_default());
                if let Some(reasoning) = delta.reasoning_content {
                    put_json(out, b",\"reasoning_content\":", reasoning);
                }
            }
        }
        out.extend_from_slice(b",\"logprobs\":");
        // A line end can only be white space in JSON, and would end the event's data line here.
        let logprobs = logprobs.unwrap_or("null").split(['\n', '\r']);
        logprobs.for_each(|line| out.extend_from_slice(line.as_bytes()));
        put_json(out, b",\"finish_reason\":", &finish_reason);
        // As OpenAI does once usage was asked for.
        let usage: &[u8] = if self.include_usage { b",\"usage\":null" } else { b"" };
        out.extend_from_slice(b"}]");
        out.extend_from_slice(usage);
        out.extend_from_slice(b"}\n\n");
    }
}

fn put_json<T: Serialize + ?Sized>(out: &mut BytesMut, label: &[u8], value: &T) {
    out.extend_from_slice(label);
    serde_json::to_writer(out.writer(), value).expect("writing JSON into memory cannot fail");
}

#[cfg(test)]
mod tests {
    use iop_types::{ErrorCode, Failure, RunId};
    use serde_json::{Value, json};

    use super::*;

    fn writer(kind: TextKind, include_usage: bool) -> StreamWriter {
        let run_id = RunId::from_slice(&[7; 16]).unwrap();
        StreamWriter::new(Head { kind, run_id, created: 9, model: "m".into() }, include_usage)
    }

    fn written(mut writer: StreamWriter, events: Vec<Event>) -> Vec<String> {
        let mut out = BytesMut::new();
        events.iter().for_each(|event| writer.write(event, &mut out));
        let text = String::from_utf8(out.to_vec()).unwrap();
        let events = text.strip_suffix("\n\n").unwrap_or_default();
        events.split("\n\n").map(|event| event.strip_prefix("data: ").unwrap().to_owned()).collect()
    }

    /// Returns what the chunks differ in: the choice, or usage where there is none.
    fn chunks(written: &[String]) -> Vec<Value> {
        let chunks = written.iter().filter(|event| *event != "[DONE]");
        let differing = chunks.map(|chunk| {
            let mut chunk: Value = serde_json::from_str(chunk).unwrap();
            match chunk["choices"].get_mut(0) {
                Some(choice) => choice.take(),
                None => chunk["usage"].take(),
            }
        });
        differing.collect()
    }

    fn text(choice: u32, text: &str) -> Event {
        EventKind::Delta { choice, part: Part::Text(text.into()) }.into()
    }

    fn complete(reasons: &[(u32, &str)], usage: Option<Usage>) -> Event {
        let finish =
            |(choice, reason): &(u32, &str)| Finish { choice: *choice, reason: (*reason).into() };
        let finish = reasons.iter().map(finish).collect();
        Event { kind: EventKind::Complete { finish }, usage }
    }

    #[test]
    fn a_chat_stream_begins_with_the_role_and_ends_with_reason_and_done() {
        let events = vec![
            EventKind::Start.into(),
            text(0, "a\"b"),
            text(0, "c"),
            complete(&[(0, "stop")], None),
        ];
        let id = "chatcmpl-07070707-0707-0707-0707-070707070707";
        let chunk = |rest: &str| {
            format!(
                r#"{{"id":"{id}","object":"chat.completion.chunk","created":9,"model":"m","choices":[{{"index":0,{rest}}}]}}"#
            )
        };
        assert_eq!(
            written(writer(TextKind::Chat, false), events),
            [
                chunk(
                    r#""delta":{"role":"assistant","content":"a\"b"},"logprobs":null,"finish_reason":null"#
                ),
                chunk(r#""delta":{"content":"c"},"logprobs":null,"finish_reason":null"#),
                chunk(r#""delta":{},"logprobs":null,"finish_reason":"stop""#),
                "[DONE]".to_owned(),
            ]
        );
    }

    #[test]
    fn start_alone_writes_nothing() {
        let mut out = BytesMut::new();
        writer(TextKind::Chat, true).write(&EventKind::Start.into(), &mut out);
        assert!(out.is_empty());
    }

    #[test]
    fn fc_091_the_usage_chunk_comes_exactly_when_the_client_asked() {
        let usage = Some(Usage { input_tokens: 3, output_tokens: 2 });
        for kind in [TextKind::Chat, TextKind::Completion] {
            let events = || vec![text(0, "a"), complete(&[(0, "stop")], usage)];
            let with = written(writer(kind, true), events());
            assert!(with[0].ends_with(r#""usage":null}"#) && with[1].ends_with(r#""usage":null}"#));
            assert!(with[2].ends_with(r#""choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}"#));
            assert_eq!(with[3..], ["[DONE]"]);
            let without = written(writer(kind, false), events());
            assert!(without.iter().all(|chunk| !chunk.contains("usage")));
            assert_eq!(without.len(), 3);
        }
    }

    #[test]
    fn fc_092_usage_is_the_last_total_never_a_sum() {
        let usage = |output_tokens| Some(Usage { input_tokens: 4, output_tokens });
        let mut events: Vec<_> =
            (1..=3).map(|n| Event { usage: usage(n), ..text(0, "a") }).collect();
        events.push(complete(&[(0, "stop")], None));
        let chunks = chunks(&written(writer(TextKind::Chat, true), events));
        assert_eq!(
            chunks[4],
            json!({"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7})
        );
    }

    #[test]
    fn unknown_usage_is_left_out() {
        let written = written(writer(TextKind::Chat, true), vec![complete(&[(0, "stop")], None)]);
        assert_eq!(written.len(), 2);
    }

    #[test]
    fn each_choice_has_its_role_and_its_finish_chunk() {
        let events = vec![
            text(1, "b"),
            text(0, "a"),
            complete(&[(0, "stop"), (1, "length"), (2, "stop")], None),
        ];
        let chunks = chunks(&written(writer(TextKind::Chat, false), events));
        let chunk = |index: u32, delta: Value, reason: Option<&str>| json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": reason});
        assert_eq!(
            chunks,
            [
                chunk(1, json!({"role": "assistant", "content": "b"}), None),
                chunk(0, json!({"role": "assistant", "content": "a"}), None),
                chunk(0, json!({}), Some("stop")),
                chunk(1, json!({}), Some("length")),
                chunk(2, json!({"role": "assistant"}), Some("stop")),
            ]
        );
    }

    #[test]
    fn reasoning_tool_calls_and_logprobs_have_their_places() {
        let call = |index, id: Option<&str>, name: Option<&str>, arguments: &str| {
            let part = Part::ToolCall {
                index,
                id: id.map(Into::into),
                name: name.map(Into::into),
                arguments: arguments.into(),
            };
            Event::new(EventKind::Delta { choice: 0, part })
        };
        let events = vec![
            EventKind::ReasoningDelta { choice: 0, text: "r".into() }.into(),
            EventKind::Delta { choice: 0, part: Part::Logprobs(r#"{"content":[1]}"#.into()) }
                .into(),
            text(0, "a"),
            call(0, Some("c1"), Some("f"), ""),
            call(0, None, None, "{}"),
            call(1, None, Some("g"), "{}"),
            EventKind::Delta { choice: 0, part: Part::Logprobs("{\r\n}".into()) }.into(),
            complete(&[(0, "tool_calls")], None),
        ];
        let chunks = chunks(&written(writer(TextKind::Chat, false), events));
        let deltas: Vec<_> = chunks.iter().map(|chunk| &chunk["delta"]).collect();
        assert_eq!(
            deltas,
            [
                &json!({"role": "assistant", "reasoning_content": "r"}),
                &json!({"content": "a"}),
                &json!({"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}]}),
                &json!({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
                &json!({"tool_calls": [{"index": 1, "id": "call_07070707-0707-0707-0707-070707070707_0_1", "type": "function", "function": {"name": "g", "arguments": "{}"}}]}),
                &json!({}),
            ]
        );
        let logprobs: Vec<_> = chunks.iter().map(|chunk| chunk["logprobs"].to_string()).collect();
        assert_eq!(logprobs, ["null", r#"{"content":[1]}"#, "null", "null", "null", "{}"]);
    }

    #[test]
    fn a_completion_stream_has_text_and_no_role() {
        let written = written(
            writer(TextKind::Completion, false),
            vec![text(0, "a"), complete(&[(0, "length")], None)],
        );
        assert!(
            written[0].contains(r#""id":"cmpl-0707"#)
                && written[0].contains(r#""object":"text_completion""#)
        );
        assert_eq!(
            chunks(&written),
            [
                json!({"index": 0, "text": "a", "logprobs": null, "finish_reason": null}),
                json!({"index": 0, "text": "", "logprobs": null, "finish_reason": "length"}),
            ]
        );
    }

    #[test]
    fn a_failure_is_one_error_event_and_nothing_follows() {
        let failure = Failure::new(ErrorCode::ResponseStalled, "provider was silent for 3 s");
        let events =
            vec![text(0, "a"), EventKind::Error(failure).into(), text(0, "b"), complete(&[], None)];
        let seen = written(writer(TextKind::Chat, true), events);
        assert_eq!(
            seen[1..],
            [
                r#"{"error":{"message":"provider was silent for 3 s","type":"server_error","param":null,"code":"response_stalled"}}"#
            ]
        );
        let cancelled = written(
            writer(TextKind::Chat, true),
            vec![EventKind::Cancelled.into(), complete(&[], None)],
        );
        assert_eq!(cancelled.len(), 1);
        assert!(cancelled[0].contains(r#""code":"cancelled""#));
    }
}
