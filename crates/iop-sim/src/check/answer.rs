//! What a client made of its answer, and whether it could have been written by one provider.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::record::CallSeen;

/// What a client made of its answer.
#[derive(Default)]
pub(super) struct Answer {
    /// Who wrote the text; absent where the mock did, or nobody.
    pub(super) tag: Option<String>,
    /// Whether it came to a finish reason and the end of its form.
    pub(super) is_finished: bool,
}

impl Answer {
    /// Reads an answer.
    ///
    /// # Errors
    /// No provider and no Edge may write such an answer.
    pub(super) fn read(call: &CallSeen) -> Result<Self, String> {
        let mut answer = Self::default();
        if call.status != Some(200) {
            return Ok(answer);
        }
        let mut text = String::new();
        if call.body.starts_with('{') {
            let Ok(body) = serde_json::from_str::<Value>(&call.body) else { return Ok(answer) };
            let said = &body["choices"][0]["message"]["content"];
            text.push_str(said.as_str().or(body["text"].as_str()).unwrap_or_default());
            let is_vector = body["data"][0]["embedding"].is_array();
            let is_transcript = body["choices"].is_null() && body["text"].is_string();
            let is_chat = body["choices"][0]["finish_reason"].is_string();
            answer.is_finished = is_chat || is_vector || is_transcript;
        } else {
            answer.read_stream(&call.body, &mut text)?;
        }
        answer.check(&text)?;
        Ok(answer)
    }

    fn read_stream(&mut self, body: &str, text: &mut String) -> Result<(), String> {
        let (mut is_finished, mut is_done) = (false, false);
        // What follows the last blank line is an event that was cut off.
        let whole = body.rsplit_once("\n\n").map_or("", |(whole, _)| whole);
        for data in whole.split("\n\n").filter_map(|event| event.trim().strip_prefix("data: ")) {
            if is_done {
                return Err("an event after [DONE]".to_owned());
            }
            if data == "[DONE]" {
                is_done = true;
                continue;
            }
            let event: Value = serde_json::from_str(data)
                .map_err(|error| format!("an event that is not JSON: {error}"))?;
            if !event["error"].is_null() {
                // Whatever follows, it does not pass for success.
                return Ok(());
            }
            if event["usage"].is_object() && event["choices"].as_array().is_none_or(Vec::is_empty) {
                return Err("a usage chunk that the client did not ask for".to_owned());
            }
            text.push_str(event["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
            is_finished |= event["choices"][0]["finish_reason"].is_string();
        }
        self.is_finished = is_finished && is_done;
        Ok(())
    }

    /// Holds the pieces of text against their numbers: in order, without gaps, by one writer.
    fn check(&mut self, text: &str) -> Result<(), String> {
        let mut writers = BTreeSet::new();
        for (index, word) in text.split_whitespace().enumerate() {
            let Some((tag, number)) = word.split_once(':') else { continue };
            if !tag.contains('#') {
                continue;
            }
            let number = number.trim_end_matches('.');
            if number.parse() != Ok(index) {
                return Err(format!("piece {number} of `{tag}` at place {index}"));
            }
            writers.insert(tag.to_owned());
        }
        if writers.len() > 1 {
            return Err(format!("text of several answers: {writers:?}"));
        }
        self.tag = writers.into_iter().next();
        Ok(())
    }
}
