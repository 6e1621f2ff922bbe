//! What the ends of a simulation saw, for the checks at its end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use iop_store::{Outcome, Receipt};
use iop_types::RunId;

use crate::ledger::{Ledger, now};
use crate::pipe::Kernel;
use crate::plan::Behaviour;

/// What all parties saw; a cheap handle.
#[derive(Clone, Default)]
pub(crate) struct Records(Arc<Mutex<Seen>>);

/// What all parties saw.
#[derive(Default)]
pub(crate) struct Seen {
    /// By number of the call; `None` until it ended.
    pub(crate) calls: Vec<Option<CallSeen>>,
    /// Requests that reached providers.
    pub(crate) served: Vec<Served>,
    /// Runs in the order of their receipt.
    pub(crate) runs: Vec<RunSeen>,
    /// How often the Edge was killed so far.
    pub(crate) edge_kills: usize,
}

/// A call as its client saw it.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallSeen {
    pub(crate) ended: Duration,
    pub(crate) status: Option<u16>,
    pub(crate) first_byte: Option<Duration>,
    pub(crate) body: String,
    pub(crate) end: CallEnd,
}

/// How a call ended for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum CallEnd {
    /// The body came to its end in order.
    Clean,
    /// The connection or the body broke off.
    Broken,
    /// The client left.
    Left,
    /// Nothing happened within the bound.
    #[default]
    Never,
}

/// A request as a provider saw it.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    /// Says who answered what: the first word of every piece of text.
    pub(crate) tag: String,
    pub(crate) provider: &'static str,
    pub(crate) call: usize,
    pub(crate) behaviour: Behaviour,
    pub(crate) began: Duration,
    /// When it last wrote something of its answer; comments are nothing.
    pub(crate) progressed: Duration,
    /// Whether the provider wrote its whole answer.
    pub(crate) is_whole: bool,
    /// When the provider was done with it.
    pub(crate) ended: Option<Duration>,
}

/// A run as history saw it.
#[derive(Debug, Clone)]
pub(crate) struct RunSeen {
    pub(crate) run_id: RunId,
    /// How often the Edge had been killed when it was received.
    pub(crate) edge_kills: usize,
    pub(crate) request_id: String,
    pub(crate) received: Duration,
    pub(crate) outcomes: Vec<Outcome>,
}

impl Seen {
    /// Finds a request at a provider.
    pub(crate) fn served(&mut self, tag: &str) -> Option<&mut Served> {
        self.served.iter_mut().find(|served| served.tag == tag)
    }
}

impl Records {
    pub(crate) fn new(calls: usize) -> Self {
        let records = Self::default();
        records.seen().calls = vec![None; calls];
        records
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// History as it is handed over, run by run.
pub(crate) struct Historian {
    pub(crate) records: Records,
    pub(crate) ledger: Ledger,
    pub(crate) canary: String,
    /// Of the Edge's host.
    pub(crate) kernel: Kernel,
}

impl Historian {
    fn look_for_canary(&self, text: &str) {
        if text.contains(&self.canary) {
            self.ledger.violation("history", "holds a prompt");
        }
    }
}

impl std::fmt::Debug for Historian {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Historian")
    }
}

impl iop_store::edge::Sink for Historian {
    fn received(&self, receipt: &Receipt) {
        self.look_for_canary(&format!("{receipt:?}"));
        self.ledger.note("history", format!("received {}", receipt.request_id));
        let mut seen = self.records.seen();
        let edge_kills = seen.edge_kills;
        seen.runs.push(RunSeen {
            run_id: receipt.run_id,
            edge_kills,
            request_id: receipt.request_id.to_string(),
            received: now(),
            outcomes: Vec::new(),
        });
    }

    fn ended(&self, receipt: &Receipt, outcome: &Outcome) {
        // A process that is killed writes nothing.
        if self.kernel.is_killed() {
            return;
        }
        self.look_for_canary(&format!("{receipt:?} {outcome:?}"));
        let attempts: Vec<_> = outcome
            .attempts
            .iter()
            .map(|attempt| {
                let end = attempt.terminal.as_ref().map(word).unwrap_or_default();
                format!("{}:{} {end}", attempt.attempt, attempt.node)
            })
            .collect();
        let word = word(&outcome.terminal);
        self.ledger.note(
            "history",
            format!("ended {} {word} [{}]", receipt.request_id, attempts.join(", ")),
        );
        let mut seen = self.records.seen();
        match seen.runs.iter_mut().find(|run| run.run_id == receipt.run_id) {
            Some(run) => run.outcomes.push(outcome.clone()),
            None => {
                drop(seen);
                self.ledger.violation("history", "a run ended that was never received");
            }
        }
    }
}

fn word(terminal: &iop_store::TerminalRecord) -> String {
    match terminal.code {
        Some(code) => code.as_str().to_owned(),
        None => match &terminal.message {
            Some(message) => message.clone(),
            None => format!("{:?}", terminal.kind).to_lowercase(),
        },
    }
}
