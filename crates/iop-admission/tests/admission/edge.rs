//! An Edge's admission with a clock in the test's hand.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use iop_admission::{
    Admission, Admitted, AffinityKey, CandidateConfig, Config, Entry, Need, Output, Permit,
    ProviderId, ProviderView, Refused, Request, RouteConfig, RouteSettings, Ticket,
};
use iop_types::{
    AdapterType, Capabilities, Generation, Operation, ProviderRevision, ProviderState,
    ProviderStatus, Requeue, RunKind,
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) const CHAT: Need =
    Need { method: "POST", path: "/v1/chat/completions", run: Some(RunKind::Chat) };
pub(crate) const EMBEDDINGS: Need =
    Need { method: "POST", path: "/v1/embeddings", run: Some(RunKind::Embedding) };

pub(crate) struct Edge {
    pub(crate) admission: Admission,
    pub(crate) now: Instant,
    /// Outcomes of tickets that were drained.
    pub(crate) granted: BTreeMap<Ticket, Permit>,
    pub(crate) refused: BTreeMap<Ticket, Refused>,
    /// Granted tickets in the order of their grants.
    pub(crate) order: Vec<Ticket>,
    /// Every ticket that heard something, in order.
    pub(crate) heard: Vec<Ticket>,
}

impl Edge {
    pub(crate) fn new(config: Config) -> Self {
        let now = Instant::now();
        Self {
            admission: Admission::new(now, config).expect("a valid configuration"),
            now,
            granted: BTreeMap::new(),
            refused: BTreeMap::new(),
            order: Vec::new(),
            heard: Vec::new(),
        }
    }

    /// An Edge with no configured routes and one ready Node `n` with these providers.
    pub(crate) fn with(providers: &[ProviderStatus]) -> Self {
        let mut edge = Self::new(Config::default());
        edge.ready("n", 1, providers);
        edge
    }

    pub(crate) fn ready(&mut self, node: &str, generation: u64, providers: &[ProviderStatus]) {
        self.admission.handle_ready(
            self.now,
            &node.into(),
            Generation(generation),
            providers.to_vec(),
        );
        self.drain();
    }

    pub(crate) fn status(&mut self, node: &str, generation: u64, status: ProviderStatus) {
        self.admission.handle_status(self.now, &node.into(), Generation(generation), status);
        self.drain();
    }

    pub(crate) fn away(&mut self, node: &str, generation: u64) {
        self.admission.handle_away(self.now, &node.into(), Generation(generation));
        self.drain();
    }

    pub(crate) fn draining(&mut self, node: &str, generation: u64) {
        self.admission.handle_draining(self.now, &node.into(), Generation(generation));
        self.drain();
    }

    pub(crate) fn ask(&mut self, model: &str, need: Need) -> Result<Entry, Refused> {
        self.ask_with(&Request { model, need, affinity: None })
    }

    pub(crate) fn ask_key(&mut self, model: &str, key: u32) -> Permit {
        let affinity = Some(AffinityKey::new(&key.to_le_bytes()));
        match self.ask_with(&Request { model, need: CHAT, affinity }) {
            Ok(Entry::Granted(permit)) => permit,
            other => panic!("not granted: {other:?}"),
        }
    }

    fn ask_with(&mut self, request: &Request<'_>) -> Result<Entry, Refused> {
        let admitted = self.admission.request(self.now, request);
        self.drain();
        admitted.map(|Admitted { entry, .. }| entry)
    }

    pub(crate) fn permit(&mut self, model: &str) -> Permit {
        match self.ask(model, CHAT) {
            Ok(Entry::Granted(permit)) => permit,
            other => panic!("`{model}` was not granted: {other:?}"),
        }
    }

    pub(crate) fn ticket(&mut self, model: &str) -> Ticket {
        match self.ask(model, CHAT) {
            Ok(Entry::Waiting(ticket)) => ticket,
            other => panic!("`{model}` does not wait: {other:?}"),
        }
    }

    pub(crate) fn refusal(&mut self, model: &str) -> Refused {
        match self.ask(model, CHAT) {
            Err(refused) => refused,
            other => panic!("`{model}` was not refused: {other:?}"),
        }
    }

    pub(crate) fn release(&mut self, permit: Permit) {
        self.admission.release(self.now, permit);
        self.drain();
    }

    pub(crate) fn requeue(&mut self, permit: Permit, cause: Requeue) -> Result<Entry, Refused> {
        let entry = self.admission.requeue(self.now, permit, cause);
        self.drain();
        entry
    }

    pub(crate) fn requeue_waits(&mut self, permit: Permit, cause: Requeue) -> Ticket {
        match self.requeue(permit, cause) {
            Ok(Entry::Waiting(ticket)) => ticket,
            other => panic!("does not wait: {other:?}"),
        }
    }

    pub(crate) fn retry(&mut self, permit: Permit, elsewhere: bool) -> Result<Entry, Refused> {
        let entry = self.admission.retry(self.now, permit, elsewhere);
        self.drain();
        entry
    }

    pub(crate) fn retry_waits(&mut self, permit: Permit, elsewhere: bool) -> Ticket {
        match self.retry(permit, elsewhere) {
            Ok(Entry::Waiting(ticket)) => ticket,
            other => panic!("does not wait: {other:?}"),
        }
    }

    pub(crate) fn retried(&mut self, permit: Permit) -> Permit {
        match self.retry(permit, false) {
            Ok(Entry::Granted(permit)) => permit,
            other => panic!("not granted: {other:?}"),
        }
    }

    pub(crate) fn cancel(&mut self, ticket: Ticket) -> bool {
        let cancelled = self.admission.cancel(self.now, ticket);
        self.drain();
        cancelled
    }

    /// Lets time pass, stopping at every instant at which admission wants to be called.
    pub(crate) fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(due) = self.admission.poll_timeout().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.admission.handle_timeout(self.now);
            self.drain();
            assert!(
                self.admission.poll_timeout().is_none_or(|next| next > self.now),
                "a timer that is due was not handled"
            );
        }
        self.now = end;
    }

    pub(crate) fn drain(&mut self) {
        while let Some(output) = self.admission.poll_output() {
            self.heard.push(output.ticket());
            match output {
                Output::Granted { ticket, permit } => {
                    self.order.push(ticket);
                    assert!(self.granted.insert(ticket, permit).is_none());
                }
                Output::Refused { ticket, refused } => {
                    assert!(self.refused.insert(ticket, refused).is_none());
                }
            }
        }
    }

    pub(crate) fn take(&mut self, ticket: Ticket) -> Permit {
        self.granted.remove(&ticket).unwrap_or_else(|| panic!("ticket {ticket} has no permit"))
    }

    pub(crate) fn view(&self, node: &str, provider: &str) -> ProviderView {
        let id = provider_id(node, provider);
        self.admission
            .providers(self.now)
            .into_iter()
            .find(|view| view.id == id)
            .expect("a known provider")
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.admission.gauges(self.now).in_flight
    }

    pub(crate) fn waiting(&self) -> usize {
        self.admission.gauges(self.now).waiting
    }

    pub(crate) fn model_names(&self) -> Vec<String> {
        self.admission.models().iter().map(|model| model.name.to_string()).collect()
    }
}

pub(crate) fn provider_id(node: &str, provider: &str) -> ProviderId {
    ProviderId { node: node.into(), provider: provider.into() }
}

/// A ready provider that relays chat.
pub(crate) fn provider(key: &str, capacity: u32, targets: &[&str]) -> ProviderStatus {
    let chat = Operation { method: CHAT.method.into(), path: CHAT.path.into() };
    ProviderStatus {
        provider: key.into(),
        adapter: AdapterType::OpenaiCompat,
        state: ProviderState::Ready,
        reason: String::new(),
        targets: targets.iter().map(|target| (*target).into()).collect(),
        loaded: Vec::new(),
        capacity,
        in_use: 0,
        zombies: 0,
        queued: None,
        revision: ProviderRevision(1),
        capabilities: Capabilities { tunnel: vec![chat], ..Capabilities::default() },
    }
}

pub(crate) fn in_state(status: ProviderStatus, state: ProviderState) -> ProviderStatus {
    ProviderStatus { state, ..status }
}

/// A candidate on Node `n`.
pub(crate) fn candidate(provider: &str, target: &str) -> CandidateConfig {
    CandidateConfig {
        provider: provider_id("n", provider),
        target: target.into(),
        priority: 0,
        weight: 1,
    }
}

pub(crate) fn route(name: &str, candidates: &[CandidateConfig]) -> RouteConfig {
    RouteConfig {
        name: name.into(),
        settings: RouteSettings::default(),
        candidates: candidates.to_vec(),
    }
}

pub(crate) fn config(routes: &[RouteConfig]) -> Config {
    Config { routes: routes.to_vec(), ..Config::default() }
}

pub(crate) fn winner(permit: &Permit) -> (&str, &str) {
    let candidate = permit.candidate();
    (candidate.instance.provider.as_str(), candidate.target.as_str())
}
