//! Reads a provider's unary chat or completion answer into the same events as a stream.

use iop_types::{ErrorCode, Event, Failure};

use super::choices::{Choices, Extent};
use super::{Answer, TextKind};

/// Reads a unary chat answer.
///
/// # Errors
/// The body is not such an answer, or holds an error object.
pub fn read_chat_answer(body: &[u8], events: &mut Vec<Event>) -> Result<Answer, Failure> {
    read_answer(TextKind::Chat, body, events)
}

/// Reads a unary text completion.
///
/// # Errors
/// The body is not such an answer, or holds an error object.
pub fn read_completion_answer(body: &[u8], events: &mut Vec<Event>) -> Result<Answer, Failure> {
    read_answer(TextKind::Completion, body, events)
}

fn read_answer(kind: TextKind, body: &[u8], events: &mut Vec<Event>) -> Result<Answer, Failure> {
    let mut choices = Choices::new(kind);
    choices.read(body, Extent::Whole, events)?;
    if choices.has_finished() {
        Ok(choices.into_answer())
    } else {
        let message = "provider's answer has no choice with a finish reason";
        Err(Failure::new(ErrorCode::Truncated, message))
    }
}

#[cfg(test)]
mod tests {
    use iop_types::{EventKind, Finish, Part, Usage};

    use super::*;

    #[test]
    fn a_unary_chat_answer_becomes_the_events_of_a_stream() {
        let body = br#"{"id":"x","object":"chat.completion","choices":[
            {"index":0,"message":{"role":"assistant","reasoning":"r","content":"a","tool_calls":[
                {"type":"function","function":{"name":"f","arguments":"{}"}},
                {"type":"function","function":{"name":"f","arguments":"{}"}}]},
             "logprobs":{"content":[]},"finish_reason":"tool_calls"},
            {"message":{"content":null,"refusal":"no"},"finish_reason":"stop"}],
            "usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}"#;
        let mut events = Vec::new();
        let answer = read_chat_answer(body, &mut events).unwrap();
        let usage = Some(Usage { input_tokens: 3, output_tokens: 2 });
        let delta = |choice, part| Event::new(EventKind::Delta { choice, part });
        let call = |index| Part::ToolCall {
            index,
            id: None,
            name: Some("f".into()),
            arguments: "{}".into(),
        };
        assert_eq!(
            events,
            [
                delta(0, Part::Logprobs(r#"{"content":[]}"#.into())),
                EventKind::ReasoningDelta { choice: 0, text: "r".into() }.into(),
                delta(0, Part::Text("a".into())),
                delta(0, call(0)),
                delta(0, call(1)),
                Event { usage, ..delta(1, Part::Text("no".into())) },
            ]
        );
        let finish = |choice, reason: &str| Finish { choice, reason: reason.into() };
        assert_eq!(
            answer,
            Answer { finish: vec![finish(0, "tool_calls"), finish(1, "stop")], usage }
        );
    }

    #[test]
    fn a_text_completion_yields_its_text() {
        let body = br#"{"choices":[{"index":0,"text":"abc","finish_reason":"length"}]}"#;
        let mut events = Vec::new();
        let answer = read_completion_answer(body, &mut events).unwrap();
        let text = EventKind::Delta { choice: 0, part: Part::Text("abc".into()) };
        assert_eq!(events, [text.into()]);
        assert_eq!(answer.usage, None);
    }

    #[test]
    fn what_is_not_an_answer_is_a_failure() {
        for (body, code, text) in [
            (&br#"{"error":{"message":"m"}}"#[..], ErrorCode::ProviderError, "with an error: m"),
            (b"<html>", ErrorCode::ProviderError, "cannot be read: expected value"),
            (b"{\"choices\":[{\"text\":\"\xFF\"}]}", ErrorCode::ProviderError, "not UTF-8"),
            (b"{}", ErrorCode::Truncated, "no choice"),
            (br#"{"choices":[{"text":"a"}]}"#, ErrorCode::Truncated, "no choice"),
        ] {
            let failure = read_completion_answer(body, &mut Vec::new()).unwrap_err();
            assert_eq!(failure.code, code);
            assert!(failure.message.contains(text), "{failure}");
        }
    }
}
