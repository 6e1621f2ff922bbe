//! The histories of the Nodes beside that of the Edge.
//!
//! A Node writes a row when a call has passed its gate and ends it when the call ends, whatever became
//! of the link; only a Node that was killed leaves rows open. What the Edge knows came from there.

use iop_store::{AttemptRecord, TerminalKind, TerminalRecord, WorkOutcome};
use iop_types::{ErrorCode, RunId, WorkKey};

use crate::record::{RunSeen, Seen, WorkSeen};

/// Finds what the histories do not agree on.
pub(super) fn breaches(seen: &Seen) -> Vec<(String, String)> {
    let mut breaches = Vec::new();
    for work in &seen.works {
        let what = open(work, seen).or_else(|| doubled(work, seen)).or_else(|| unheard(work, seen));
        breaches.extend(what.map(|what| (work.node.to_owned(), what)));
    }
    for run in &seen.runs {
        for attempt in run.outcomes.iter().flat_map(|outcome| &outcome.attempts) {
            let what = unknown(run, attempt, seen);
            breaches.extend(what.map(|what| (run.request_id.clone(), what)));
        }
    }
    breaches
}

fn open(work: &WorkSeen, seen: &Seen) -> Option<String> {
    let was_killed = work.kills < seen.kills(work.node);
    match work.outcomes.len() {
        0 if was_killed => None,
        0 => Some("has work in its history that never ended".to_owned()),
        1 => None,
        several => Some(format!("has {several} terminals in its history for one piece of work")),
    }
}

fn doubled(work: &WorkSeen, seen: &Seen) -> Option<String> {
    let rows = seen.works.iter().filter(|other| other.key == work.key).count();
    (rows > 1).then(|| format!("did work that has {rows} rows in the histories of Nodes"))
}

/// Work of which the Edge says nothing, although its history of the run has an end.
fn unheard(work: &WorkSeen, seen: &Seen) -> Option<String> {
    let WorkKey { run_id, attempt } = work.key;
    let run = run(seen, run_id)?;
    let outcome = run.outcomes.first()?;
    let is_known = outcome.attempts.iter().any(|it| {
        let is_refused = it.terminal.as_ref().is_some_and(is_refusal);
        it.attempt == attempt && it.node.as_str() == work.node && !is_refused
    });
    let number = attempt.0;
    (!is_known).then(|| {
        format!("did attempt {number} of {}, of which the edge knows nothing", run.request_id)
    })
}

/// An attempt that had a head, or an end that only its Node can tell, and is in no history of a Node.
fn unknown(run: &RunSeen, attempt: &AttemptRecord, seen: &Seen) -> Option<String> {
    let end = attempt.terminal.as_ref()?;
    let has_stalled = end.code == Some(ErrorCode::ResponseStalled);
    let has_completed = end.kind == TerminalKind::Completed;
    if attempt.head_ms.is_none() && !has_stalled && !has_completed {
        return None;
    }
    let key = WorkKey { run_id: run.run_id, attempt: attempt.attempt };
    let (number, node) = (attempt.attempt.0, &attempt.node);
    let Some(work) = seen.works.iter().find(|work| work.key == key) else {
        return Some(format!("attempt {number} is in no history of {node}"));
    };
    // One that was killed may have written no more.
    let outcome = work.outcomes.first()?;
    let is_the_same = match outcome {
        WorkOutcome { kind: TerminalKind::Completed, .. } => !has_stalled,
        // A client that has all it waits for leaves while its provider still ends.
        WorkOutcome { kind: TerminalKind::Cancelled, .. } => !has_stalled,
        WorkOutcome { kind: TerminalKind::Failed, code, .. } => {
            !has_completed && (!has_stalled || *code == Some(ErrorCode::ResponseStalled))
        }
    };
    let at_node = (outcome.kind, outcome.code);
    (!is_the_same).then(|| {
        format!("attempt {number} ended {:?} {:?}, and at {node} {at_node:?}", end.kind, end.code)
    })
}

/// A Node that refused a request has not begun it. A provider that did not take our option had.
fn is_refusal(end: &TerminalRecord) -> bool {
    end.kind == TerminalKind::Failed
        && end.code.is_none()
        && end.message.as_deref() != Some("usage_option_refused")
}

fn run(seen: &Seen, run_id: RunId) -> Option<&RunSeen> {
    seen.runs.iter().find(|run| run.run_id == run_id)
}
