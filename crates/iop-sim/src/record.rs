//! What the ends of a simulation saw, for the checks at its end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use iop_store::{Outcome, Receipt, WorkOutcome, WorkReceipt};
use iop_types::{RunId, WorkKey};

use crate::ledger::{Ledger, now};
use crate::pipe::Kernel;
use crate::plan::Behaviour;
use crate::world::EDGE;

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
    /// When which provider was asked for one token, to see whether it lives.
    pub(crate) probes: Vec<(&'static str, Duration)>,
    /// Runs in the order of their receipt.
    pub(crate) runs: Vec<RunSeen>,
    /// Work in the order in which Nodes took it.
    pub(crate) works: Vec<WorkSeen>,
    /// How often each host was killed so far.
    kills: BTreeMap<String, usize>,
}

/// A call as its client saw it.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallSeen {
    pub(crate) ended: Duration,
    pub(crate) status: Option<u16>,
    pub(crate) first_byte: Option<Duration>,
    pub(crate) body: String,
    pub(crate) end: CallEnd,
    /// What an operator was told who cancelled it.
    pub(crate) cancelled: Option<Cancelled>,
}

/// What an operator was told who cancelled a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cancelled {
    pub(crate) at: Duration,
    /// Whether there was something to cancel.
    pub(crate) was_under_way: bool,
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
    /// When it wrote something of its answer; comments are nothing.
    pub(crate) progress: Vec<Duration>,
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
    /// When history was told its end.
    pub(crate) ended: Option<Duration>,
    pub(crate) outcomes: Vec<Outcome>,
}

/// A dispatch as the history of a Node saw it.
#[derive(Debug, Clone)]
pub(crate) struct WorkSeen {
    pub(crate) node: &'static str,
    pub(crate) key: WorkKey,
    /// How often the Node had been killed when it took it.
    pub(crate) kills: usize,
    pub(crate) outcomes: Vec<WorkOutcome>,
}

impl Served {
    /// Returns when it last got on.
    pub(crate) fn progressed(&self) -> Duration {
        self.progress.last().copied().unwrap_or(self.began)
    }
}

impl Seen {
    /// Returns how often a host was killed so far.
    pub(crate) fn kills(&self, host: &str) -> usize {
        self.kills.get(host).copied().unwrap_or_default()
    }

    /// A host is killed.
    pub(crate) fn note_kill(&mut self, host: &str) {
        *self.kills.entry(host.to_owned()).or_default() += 1;
    }

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
        let edge_kills = seen.kills(EDGE);
        seen.runs.push(RunSeen {
            run_id: receipt.run_id,
            edge_kills,
            request_id: receipt.request_id.to_string(),
            received: now(),
            ended: None,
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
            Some(run) => {
                run.ended = Some(now());
                run.outcomes.push(outcome.clone());
            }
            None => {
                drop(seen);
                self.ledger.violation("history", "a run ended that was never received");
            }
        }
    }
}

/// The history of a Node as it is handed over.
#[derive(Clone)]
pub(crate) struct Clerk {
    pub(crate) node: &'static str,
    pub(crate) records: Records,
    pub(crate) ledger: Ledger,
    /// Of the Node's host.
    pub(crate) kernel: Kernel,
}

impl std::fmt::Debug for Clerk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clerk")
    }
}

impl iop_store::node::Sink for Clerk {
    fn received(&self, receipt: &WorkReceipt) {
        let mut seen = self.records.seen();
        let kills = seen.kills(self.node);
        let (node, key) = (self.node, receipt.key);
        seen.works.push(WorkSeen { node, key, kills, outcomes: Vec::new() });
    }

    fn ended(&self, receipt: &WorkReceipt, outcome: &WorkOutcome) {
        // A process that is killed writes nothing.
        if self.kernel.is_killed() {
            return;
        }
        let mut seen = self.records.seen();
        let mut works = seen.works.iter_mut().rev();
        match works.find(|work| work.node == self.node && work.key == receipt.key) {
            Some(work) => work.outcomes.push(*outcome),
            None => {
                drop(seen);
                self.ledger.violation(self.node, "work ended in its history that never began");
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
