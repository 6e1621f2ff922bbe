//! The rules that only the whole story can break, held against it at its end.
//!
//! What one frame or one moment can break is checked when it happens: by the wiretap, by the
//! assertions of the software, by the wait for quiet.

mod answer;
mod calm;
mod works;

use iop_store::{TerminalKind, TerminalRecord};
use iop_types::ErrorCode;

use self::answer::Answer;
use crate::ledger::Ledger;
use crate::plan::Plan;
use crate::record::{CallEnd, CallSeen, Records, RunSeen, Seen};
use crate::wiretap;
use crate::world::EDGE;

/// Holds everything that was seen against the rules.
pub(crate) fn all(plan: &Plan, records: &Records, ledger: &Ledger) {
    let seen = records.seen();
    let mut breaches = Vec::new();
    for run in &seen.runs {
        let breach = run_breach(run, &seen)
            .or_else(|| wrong_link(run, ledger))
            .or_else(|| fenced(run, ledger));
        breaches.extend(breach.map(|what| (run.request_id.clone(), what)));
    }
    for (number, call) in seen.calls.iter().enumerate() {
        let who = format!("call-{number}");
        match call {
            Some(call) => {
                // A client that lost its network cannot tell; what the Edge makes of it is checked.
                if call.end == CallEnd::Never && !plan.loses_clients() {
                    breaches.push((who.clone(), "did not end within its bound".to_owned()));
                }
                let found = call_breaches(number, call, &seen, ledger);
                breaches.extend(found.into_iter().map(|what| (who.clone(), what)));
            }
            None => breaches.push((who, "never ended".to_owned())),
        }
    }
    breaches.extend(works::breaches(&seen));
    if plan.faults.is_empty() {
        breaches.extend(calm::breaches(plan, &seen));
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
        [] if run.edge_kills < seen.kills(EDGE) => None,
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

/// An attempt travels on the link for which it got its permit, or not at all.
fn wrong_link(run: &RunSeen, ledger: &Ledger) -> Option<String> {
    let attempts = run.outcomes.iter().flat_map(|outcome| &outcome.attempts);
    attempts.into_iter().find_map(|it| {
        let told = wiretap::attempt(it.attempt.0, run.run_id.as_bytes());
        let (meant, (seen, _)) = (it.generation.0, ledger.telling_of(&told)?);
        (meant != seen).then(|| format!("attempt {} of {meant} came on link {seen}", it.attempt))
    })
}

/// What comes on a link whose Node has a newer one changes nothing any more.
fn fenced(run: &RunSeen, ledger: &Ledger) -> Option<String> {
    let attempts = run.outcomes.iter().flat_map(|outcome| &outcome.attempts);
    attempts.into_iter().find_map(|it| {
        let end = it.terminal.as_ref()?;
        let is_heard =
            end.kind == TerminalKind::Completed || end.code == Some(ErrorCode::ResponseStalled);
        let told = wiretap::attempt(it.attempt.0, run.run_id.as_bytes());
        (is_heard && ledger.came_late(&told))
            .then(|| format!("attempt {} ended by a word of a fenced link", it.attempt))
    })
}

fn call_breaches(number: usize, call: &CallSeen, seen: &Seen, ledger: &Ledger) -> Vec<String> {
    let mut breaches = Vec::new();
    let answer = match Answer::read(call) {
        Ok(answer) => answer,
        Err(breach) => return vec![breach],
    };
    let request_id = format!("call-{number}");
    let run = seen.runs.iter().find(|run| run.request_id == request_id);
    let outcome = run.and_then(|run| run.outcomes.first());
    if let (Some(run), Some(outcome), Some(first_byte)) = (run, outcome, call.first_byte) {
        for attempt in &outcome.attempts {
            let told = wiretap::attempt(attempt.attempt.0, run.run_id.as_bytes());
            if ledger.telling_of(&told).is_some_and(|(_, sent)| sent > first_byte) {
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
    let was_cancelled = call.cancelled.is_some_and(|cancelled| cancelled.was_under_way);
    if was_cancelled && outcome.is_some_and(|outcome| !is_cancelled(&outcome.terminal)) {
        breaches.push("was cancelled by an operator, and history says otherwise".to_owned());
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

fn is_cancelled(terminal: &TerminalRecord) -> bool {
    (terminal.kind, terminal.code) == (TerminalKind::Cancelled, Some(ErrorCode::Cancelled))
}
