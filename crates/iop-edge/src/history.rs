//! What history keeps of one request, in the words of the store.

use std::time::Duration;

use iop_dispatch::{AttemptEnd, AttemptRecord, Dispatch, Outcome};
use iop_store::{TerminalKind, TerminalRecord, UsageRecord};
use iop_types::{Failure, Usage, UsageSource};

/// Writes the end of a request.
pub(crate) fn ended(
    machine: &Dispatch,
    outcome: &Outcome,
    usage: Option<(Usage, UsageSource)>,
) -> iop_store::Outcome {
    let attempts = machine.attempts();
    iop_store::Outcome {
        form: attempts.last().map(|attempt| attempt.grant.form),
        queued_ms: Some(millis(machine.queued())),
        attempts: attempts.iter().map(attempt).collect(),
        terminal: match outcome {
            Outcome::Completed => TerminalRecord::completed(),
            Outcome::Cancelled(failure) => cancelled(failure),
            Outcome::Failed(failure) => TerminalRecord::failed(failure),
        },
        usage: usage.map(|(tokens, source)| UsageRecord { tokens, source }),
    }
}

/// Writes one attempt, ended or not.
pub(crate) fn attempt(record: &AttemptRecord) -> iop_store::AttemptRecord {
    let grant = &record.grant;
    iop_store::AttemptRecord {
        attempt: record.attempt,
        node: grant.node.clone(),
        provider: grant.provider.clone(),
        target: grant.target.clone(),
        generation: grant.generation,
        why: Some(grant.why.into()),
        sent_ms: Some(millis(record.sent_at)),
        head_ms: record.head_at.map(millis),
        first_token_ms: record.first_token_at.map(millis),
        ended_ms: record.ended_at.map(millis),
        terminal: record.end.as_ref().map(terminal),
        recovery_eligible: record.end.is_some().then_some(record.recovery_eligible),
    }
}

fn terminal(end: &AttemptEnd) -> TerminalRecord {
    match end {
        AttemptEnd::Completed => TerminalRecord::completed(),
        AttemptEnd::Cancelled(code) => TerminalRecord::cancelled(Some(*code)),
        AttemptEnd::Failed(failure) => TerminalRecord::failed(failure),
        // Neither is in the table of errors, for no client ever sees it.
        AttemptEnd::Requeued(_) | AttemptEnd::UsageOptionRefused => TerminalRecord {
            kind: TerminalKind::Failed,
            message: Some(end.as_str().to_owned()),
            retryable: Some(true),
            ..TerminalRecord::completed()
        },
    }
}

fn cancelled(failure: &Failure) -> TerminalRecord {
    TerminalRecord {
        message: Some(failure.message.clone()),
        ..TerminalRecord::cancelled(Some(failure.code))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
