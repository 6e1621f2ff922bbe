//! Writes events as one OpenAI answer.

use std::collections::BTreeMap;

use bytes::Bytes;
use iop_types::{Event, EventKind, Part, Usage};
use serde::Serialize;
use serde_json::{Map, Value};

use super::head::{UsageObject, to_json};
use super::{Head, TextKind};

/// Collects the events of a run for a client that wants one JSON answer.
#[derive(Debug)]
pub struct AnswerWriter {
    head: Head,
    choices: BTreeMap<u32, Choice>,
    usage: Option<Usage>,
    collected: usize,
}

#[derive(Debug, Default)]
struct Choice {
    text: String,
    reasoning: String,
    calls: BTreeMap<u32, Call>,
    logprobs: Option<Map<String, Value>>,
    reason: Option<String>,
}

#[derive(Debug, Default)]
struct Call {
    id: Option<String>,
    name: String,
    arguments: String,
}

impl AnswerWriter {
    /// Makes a writer.
    pub const fn new(head: Head) -> Self {
        Self { head, choices: BTreeMap::new(), usage: None, collected: 0 }
    }

    /// Takes the next event; finish reasons come with `Complete`. Failures are the caller's.
    pub fn push(&mut self, event: &Event) {
        self.usage = event.usage.or(self.usage);
        match &event.kind {
            EventKind::Delta { choice, part } => {
                let choice = self.choices.entry(*choice).or_default();
                self.collected += choice.push(part);
            }
            EventKind::ReasoningDelta { choice, text } => {
                self.choices.entry(*choice).or_default().reasoning.push_str(text);
                self.collected += text.len();
            }
            EventKind::Complete { finish } => {
                for finish in finish {
                    let choice = self.choices.entry(finish.choice).or_default();
                    choice.reason = Some(finish.reason.clone());
                }
            }
            EventKind::Start | EventKind::Error(_) | EventKind::Cancelled => {}
        }
    }

    /// Returns how many bytes of text are collected, for the caller's memory budget.
    pub const fn collected(&self) -> usize {
        self.collected
    }

    /// Writes the answer; usage is what the events carried last.
    pub fn into_json(self) -> Bytes {
        let head = &self.head;
        let choices = self.choices.iter().map(|(index, choice)| match head.kind {
            TextKind::Chat => choice.written(*index, choice.message(head, *index)),
            TextKind::Completion => choice.written(*index, choice.completion()),
        });
        let answer = Answer {
            id: head.id(),
            object: match head.kind {
                TextKind::Chat => "chat.completion",
                TextKind::Completion => "text_completion",
            },
            created: head.created,
            model: &head.model,
            choices: choices.collect(),
            usage: self.usage.map(UsageObject::from),
        };
        to_json(&answer).into()
    }
}

impl Choice {
    /// Adds a part and returns its size.
    fn push(&mut self, part: &Part) -> usize {
        match part {
            Part::Text(text) => {
                self.text.push_str(text);
                text.len()
            }
            Part::ToolCall { index, id, name, arguments } => {
                let call = self.calls.entry(*index).or_default();
                if let Some(id) = id {
                    call.id = Some(id.clone());
                }
                call.name.push_str(name.as_deref().unwrap_or_default());
                call.arguments.push_str(arguments);
                name.as_deref().unwrap_or_default().len() + arguments.len()
            }
            Part::Logprobs(json) => {
                self.push_logprobs(json);
                json.len()
            }
            // Not text: embeddings and scores have answers of their own.
            Part::Embedding(_) | Part::Score(_) => 0,
        }
    }

    /// Joins the lists of the pieces, member by member; chat has `content`, completions have
    /// `tokens`, `token_logprobs` and others.
    fn push_logprobs(&mut self, json: &str) {
        let Ok(piece) = serde_json::from_str::<Map<String, Value>>(json) else { return };
        let logprobs = self.logprobs.get_or_insert_default();
        for (name, value) in piece {
            match (logprobs.get_mut(&name), value) {
                (Some(Value::Array(list)), Value::Array(more)) => list.extend(more),
                (Some(Value::Array(_)), Value::Null) => {}
                (_, value) => {
                    logprobs.insert(name, value);
                }
            }
        }
    }

    fn message<'a>(&'a self, head: &Head, choice: u32) -> Content<'a> {
        let call = |(index, call): (&u32, &'a Call)| ToolCall {
            id: call.id.clone().unwrap_or_else(|| head.tool_call_id(choice, *index)),
            r#type: "function",
            function: Function { name: &call.name, arguments: &call.arguments },
        };
        let has_calls = !self.calls.is_empty();
        Content::Chat {
            message: Message {
                role: "assistant",
                content: (!has_calls || !self.text.is_empty()).then_some(&self.text),
                reasoning_content: (!self.reasoning.is_empty()).then_some(&self.reasoning),
                tool_calls: has_calls.then(|| self.calls.iter().map(call).collect()),
            },
        }
    }

    fn completion(&self) -> Content<'_> {
        let reasoning_content = (!self.reasoning.is_empty()).then_some(self.reasoning.as_str());
        Content::Completion { text: &self.text, reasoning_content }
    }

    fn written<'a>(&'a self, index: u32, content: Content<'a>) -> WrittenChoice<'a> {
        let finish_reason = self.reason.as_deref();
        WrittenChoice { index, content, logprobs: self.logprobs.as_ref(), finish_reason }
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<WrittenChoice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<UsageObject>,
}

#[derive(Serialize)]
struct WrittenChoice<'a> {
    index: u32,
    #[serde(flatten)]
    content: Content<'a>,
    logprobs: Option<&'a Map<String, Value>>,
    finish_reason: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Chat {
        message: Message<'a>,
    },
    Completion {
        text: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning_content: Option<&'a str>,
    },
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: Option<&'a String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Vec<ToolCall<'a>>>,
}

#[derive(Serialize)]
struct ToolCall<'a> {
    id: String,
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    arguments: &'a str,
}

#[cfg(test)]
mod tests {
    use iop_types::{Finish, RunId};
    use serde_json::json;

    use super::*;

    fn answer(kind: TextKind, events: Vec<Event>) -> Value {
        let run_id = RunId::from_slice(&[7; 16]).unwrap();
        let mut writer = AnswerWriter::new(Head { kind, run_id, created: 9, model: "m".into() });
        events.iter().for_each(|event| writer.push(event));
        serde_json::from_slice(&writer.into_json()).unwrap()
    }

    fn delta(choice: u32, part: Part) -> Event {
        EventKind::Delta { choice, part }.into()
    }

    fn complete(reason: &str, usage: Option<Usage>) -> Event {
        let finish = vec![Finish { choice: 0, reason: reason.into() }];
        Event { kind: EventKind::Complete { finish }, usage }
    }

    #[test]
    fn a_chat_answer_joins_the_deltas() {
        let usage = Some(Usage { input_tokens: 3, output_tokens: 2 });
        let events = vec![
            EventKind::Start.into(),
            EventKind::ReasoningDelta { choice: 0, text: "r".into() }.into(),
            delta(0, Part::Logprobs(r#"{"content":[{"token":"a"}],"refusal":null}"#.into())),
            delta(0, Part::Text("a".into())),
            delta(0, Part::Logprobs(r#"{"content":[{"token":"b"}],"refusal":null}"#.into())),
            delta(0, Part::Text("b".into())),
            complete("stop", usage),
        ];
        assert_eq!(
            answer(TextKind::Chat, events),
            json!({
                "id": "chatcmpl-07070707-0707-0707-0707-070707070707",
                "object": "chat.completion",
                "created": 9,
                "model": "m",
                "choices": [{
                    "index": 0,
                    "message": {"role": "assistant", "content": "ab", "reasoning_content": "r"},
                    "logprobs": {"content": [{"token": "a"}, {"token": "b"}], "refusal": null},
                    "finish_reason": "stop",
                }],
                "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
            })
        );
    }

    #[test]
    fn tool_calls_are_whole_and_leave_no_empty_content() {
        let call = |index, id: Option<&str>, name: Option<&str>, arguments: &str| {
            let (id, name) = (id.map(Into::into), name.map(Into::into));
            delta(0, Part::ToolCall { index, id, name, arguments: arguments.into() })
        };
        let events = vec![
            call(0, Some("c1"), Some("f"), "{\"a\""),
            call(1, None, Some("g"), ""),
            call(0, None, None, ":1}"),
            complete("tool_calls", None),
        ];
        assert_eq!(
            answer(TextKind::Chat, events)["choices"],
            json!([{
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": null,
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}},
                        {"id": "call_07070707-0707-0707-0707-070707070707_0_1", "type": "function", "function": {"name": "g", "arguments": ""}},
                    ],
                },
                "logprobs": null,
                "finish_reason": "tool_calls",
            }])
        );
    }

    #[test]
    fn a_completion_answer_has_text_and_no_usage_where_it_is_unknown() {
        let events = vec![delta(0, Part::Text("a".into())), complete("length", None)];
        assert_eq!(
            answer(TextKind::Completion, events),
            json!({
                "id": "cmpl-07070707-0707-0707-0707-070707070707",
                "object": "text_completion",
                "created": 9,
                "model": "m",
                "choices": [{"index": 0, "text": "a", "logprobs": null, "finish_reason": "length"}],
            })
        );
    }

    #[test]
    fn an_empty_answer_has_empty_content() {
        let answer = answer(TextKind::Chat, vec![complete("stop", None)]);
        assert_eq!(answer["choices"][0]["message"], json!({"role": "assistant", "content": ""}));
    }

    #[test]
    fn what_is_collected_is_counted() {
        let run_id = RunId::from_slice(&[7; 16]).unwrap();
        let head = Head { kind: TextKind::Chat, run_id, created: 9, model: "m".into() };
        let mut writer = AnswerWriter::new(head);
        writer.push(&delta(0, Part::Text("abc".into())));
        writer.push(&EventKind::ReasoningDelta { choice: 1, text: "de".into() }.into());
        assert_eq!(writer.collected(), 5);
    }
}
