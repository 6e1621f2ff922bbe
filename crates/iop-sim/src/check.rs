//! The rules that only the whole story can break, held against it at its end.
//!
//! What one frame or one moment can break is checked when it happens: by the wiretap, by the
//! assertions of the software, by the wait for quiet.

use std::collections::BTreeMap;

use iop_store::{TerminalKind, TerminalRecord};
use serde_json::Value;

use crate::ledger::Ledger;
use crate::record::{CallEnd, CallSeen, Records, RunSeen, Seen};

/// Holds everything that was seen against the rules.
pub(crate) fn all(records: &Records, ledger: &Ledger) {
    let seen = records.seen();
    let mut breaches = Vec::new();
    for run in &seen.runs {
        breaches.extend(run_breach(run, &seen).map(|what| (run.request_id.clone(), what)));
    }
    for (number, call) in seen.calls.iter().enumerate() {
        let who = format!("call-{number}");
        match call {
            Some(call) => {
                breaches.extend(
                    call_breaches(number, call, &seen).into_iter().map(|it| (who.clone(), it)),
                );
            }
            None => breaches.push((who, "never ended".to_owned())),
        }
    }
    drop(seen);
    for (who, what) in breaches {
        ledger.violation(&who, what);
    }
}

/// One row, one terminal; attempts numbered anew.
fn run_breach(run: &RunSeen, seen: &Seen) -> Option<String> {
    match run.outcomes.as_slice() {
        // An Edge that was killed leaves what it had at work; its successor says `interrupted`.
        [] if run.edge_start < seen.edge_starts => None,
        [] => Some("history has no terminal for it".to_owned()),
        [outcome] => {
            let numbers: Vec<_> = outcome.attempts.iter().map(|it| it.attempt.0).collect();
            let is_numbered = numbers.is_sorted_by(|a, b| a < b);
            let all_ended = outcome.attempts.iter().all(|attempt| attempt.terminal.is_some());
            if !is_numbered {
                Some(format!("attempts are numbered {numbers:?}"))
            } else if !all_ended {
                Some("an attempt has no terminal".to_owned())
            } else {
                None
            }
        }
        several => Some(format!("history has {} terminals for it", several.len())),
    }
}

fn call_breaches(number: usize, call: &CallSeen, seen: &Seen) -> Vec<String> {
    let mut breaches = Vec::new();
    if call.end == CallEnd::Never {
        breaches.push(format!("did not end within {:?}", crate::client::BOUND));
    }
    let answer = match Answer::read(call) {
        Ok(answer) => answer,
        Err(breach) => return vec![breach],
    };
    let request_id = format!("call-{number}");
    let run = seen.runs.iter().find(|run| run.request_id == request_id);
    let outcome = run.and_then(|run| run.outcomes.first());
    if let (Some(run), Some(outcome), Some(first_byte)) = (run, outcome, call.first_byte) {
        for attempt in &outcome.attempts {
            let sent = std::time::Duration::from_millis(attempt.sent_ms.unwrap_or_default());
            if run.received + sent > first_byte + std::time::Duration::from_millis(1) {
                breaches.push(format!("attempt {} after the first byte", attempt.attempt));
            }
        }
    }
    let looks_complete = call.end == CallEnd::Clean && answer.is_finished;
    if looks_complete && outcome.is_some_and(|outcome| !is_completed(&outcome.terminal)) {
        breaches.push("looked complete to its client, and history says otherwise".to_owned());
    }
    let says_completed = outcome.is_some_and(|outcome| is_completed(&outcome.terminal));
    let left = !matches!(call.end, CallEnd::Clean);
    if says_completed && !left && call.status == Some(200) && !answer.is_finished {
        breaches.push("history says completed, and its client missed the end".to_owned());
    }
    if let Some(tag) = &answer.tag {
        match seen.served.iter().find(|served| served.tag == *tag) {
            None => breaches.push(format!("text of `{tag}`, which no provider wrote")),
            Some(served) if served.call != number => {
                breaches.push(format!("text that was written for call {}", served.call));
            }
            Some(served) if looks_complete && !served.is_whole => {
                breaches.push(format!("looked complete, and `{tag}` was not"));
            }
            Some(_) => {}
        }
    }
    breaches
}

fn is_completed(terminal: &TerminalRecord) -> bool {
    terminal.kind == TerminalKind::Completed
}

/// What a client made of its answer.
#[derive(Default)]
struct Answer {
    /// Who wrote the text; absent where the mock did, or nobody.
    tag: Option<String>,
    /// Whether it came to a finish reason and the end of its form.
    is_finished: bool,
}

impl Answer {
    fn read(call: &CallSeen) -> Result<Self, String> {
        let mut answer = Self::default();
        if call.status != Some(200) {
            return Ok(answer);
        }
        let mut text = String::new();
        if call.body.starts_with('{') {
            let Ok(body) = serde_json::from_str::<Value>(&call.body) else { return Ok(answer) };
            text.push_str(body["choices"][0]["message"]["content"].as_str().unwrap_or_default());
            answer.is_finished = body["choices"][0]["finish_reason"].is_string();
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
        let mut writers = BTreeMap::new();
        for (index, word) in text.split_whitespace().enumerate() {
            let Some((tag, number)) = word.split_once(':') else { continue };
            if !tag.contains('#') {
                continue;
            }
            let number = number.trim_end_matches('.');
            if number.parse() != Ok(index) {
                return Err(format!("piece {number} of `{tag}` at place {index}"));
            }
            writers.insert(tag.to_owned(), ());
        }
        if writers.len() > 1 {
            return Err(format!("text of several answers: {:?}", writers.keys()));
        }
        self.tag = writers.into_keys().next();
        Ok(())
    }
}
