//! The Node's own rows: which call, when and how it ended. Never content.

use std::time::{Duration, Instant};

use iop_store::{NodeHistory, TerminalKind, WorkOutcome, WorkReceipt};
use iop_types::{ErrorCode, RequestHead};

use crate::call::{Outcome, now};

/// How long the last rows may take to reach the disk when the Node stops.
const CLOSE_BOUND: Duration = Duration::from_secs(2);

/// Where a Node notes its work; notes nothing where it keeps no history.
pub(crate) struct Journal(Option<NodeHistory>);

/// A call that has begun.
pub(crate) struct Record {
    receipt: Option<WorkReceipt>,
    began: Instant,
}

impl Journal {
    pub(crate) const fn new(history: Option<NodeHistory>) -> Self {
        Self(history)
    }

    pub(crate) fn begin(&self, head: &RequestHead) -> Record {
        let receipt = self.0.as_ref().map(|history| {
            let receipt = WorkReceipt {
                key: head.work,
                provider: head.provider.clone(),
                target: head.target.clone(),
                received_at: jiff::Timestamp::now(),
            };
            history.received(receipt.clone());
            receipt
        });
        Record { receipt, began: now() }
    }

    pub(crate) fn end(&self, record: Record, first_progress: Option<Instant>, outcome: &Outcome) {
        let Record { receipt, began } = record;
        let (Some(history), Some(receipt)) = (&self.0, receipt) else { return };
        let since = |then: Instant| {
            u64::try_from(then.saturating_duration_since(began).as_millis()).unwrap_or(u64::MAX)
        };
        let (kind, code) = terminal(outcome);
        let outcome =
            WorkOutcome { head_ms: first_progress.map(since), ended_ms: since(now()), kind, code };
        history.ended(receipt, outcome);
    }

    pub(crate) async fn close(&self) {
        if let Some(history) = &self.0
            && !history.close(CLOSE_BOUND).await
        {
            tracing::warn!("the node's history was not written to its end");
        }
    }
}

fn terminal(outcome: &Outcome) -> (TerminalKind, Option<ErrorCode>) {
    match outcome {
        Outcome::Completed(_) => (TerminalKind::Completed, None),
        Outcome::Failed(failure) => (TerminalKind::Failed, Some(failure.code)),
        Outcome::Cancelled(_) => (TerminalKind::Cancelled, None),
    }
}
