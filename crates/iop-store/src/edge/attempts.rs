//! The attempts of a run as one text in its row: a JSON array with an array for each attempt.
//!
//! Arrays, because names of members would be most of the file.

use std::borrow::Cow;

use iop_types::{Attempt, Generation, NodeId, ProviderKey, Target};
use serde::Deserialize;

use crate::record::{AttemptRecord, TerminalRecord};

/// An attempt on its way into a row; [`Read`] in the same order.
type Written<'a> = (
    Attempt,
    &'a NodeId,
    &'a ProviderKey,
    &'a Target,
    Generation,
    Option<&'a str>,
    Option<u64>,
    Option<u64>,
    Option<u64>,
    Option<u64>,
    Option<&'a TerminalRecord>,
    Option<bool>,
);

/// An attempt on its way out of a row. What rows of earlier versions lack comes last and is absent:
/// writing a million of them anew would keep an upgrade waiting.
#[derive(Deserialize)]
struct Read(
    Attempt,
    NodeId,
    ProviderKey,
    Target,
    Generation,
    Option<String>,
    Option<u64>,
    Option<u64>,
    Option<u64>,
    Option<u64>,
    Option<TerminalRecord>,
    #[serde(default)] Option<bool>,
);

/// Where the Node is in an attempt's array, as SQL's JSON functions count.
pub(super) const NODE: &str = "$[1]";

/// Puts attempts in place of what `text` held.
pub(super) fn write(attempts: &[AttemptRecord], text: &mut Vec<u8>) -> serde_json::Result<()> {
    text.clear();
    text.push(b'[');
    for (at, attempt) in attempts.iter().enumerate() {
        if at > 0 {
            text.push(b',');
        }
        let values: Written<'_> = (
            attempt.attempt,
            &attempt.node,
            &attempt.provider,
            &attempt.target,
            attempt.generation,
            attempt.why.as_deref(),
            attempt.sent_ms,
            attempt.head_ms,
            attempt.first_token_ms,
            attempt.ended_ms,
            attempt.terminal.as_ref(),
            attempt.recovery_eligible,
        );
        serde_json::to_writer(&mut *text, &values)?;
    }
    text.push(b']');
    Ok(())
}

/// Reads what [`write`] wrote.
pub(super) fn read(text: &str) -> serde_json::Result<Vec<AttemptRecord>> {
    let attempts: Vec<Read> = serde_json::from_str(text)?;
    Ok(attempts.into_iter().map(record).collect())
}

fn record(read: Read) -> AttemptRecord {
    let Read(
        attempt,
        node,
        provider,
        target,
        generation,
        why,
        sent_ms,
        head_ms,
        first_token_ms,
        ended_ms,
        terminal,
        recovery_eligible,
    ) = read;
    AttemptRecord {
        attempt,
        node,
        provider,
        target,
        generation,
        why: why.map(Cow::Owned),
        sent_ms,
        head_ms,
        first_token_ms,
        ended_ms,
        terminal,
        recovery_eligible,
    }
}
