//! Requests and admission together: a thousand requests are aborted at random points, and nothing
//! stays behind.

use std::time::{Duration, Instant};

use iop_admission::{Admission, Config, Entry, Need, Permit, Refused, Ticket};
use iop_dispatch::{Budget, Deadlines, Dispatch, Ended, Evidence, Grant, Output, Policy, Spec};
use iop_types::{
    AdapterType, Capabilities, CloseReason, ErrorCode, Failure, Form, Generation, NodeId,
    ProviderRevision, ProviderState, ProviderStatus, Recovery, Refusal, Requeue, RunKind,
};

const NEED: Need = Need { method: "POST", path: "/v1/chat/completions", run: Some(RunKind::Chat) };
const CAPACITY: u32 = 2;
const STEP: Duration = Duration::from_millis(50);

#[test]
fn a_thousand_random_aborts_leave_nothing_in_flight() {
    let mut retries = 0;
    for seed in 1..=20 {
        println!("seed {seed}");
        let mut edge = Edge::new(seed);
        for _ in 0..50 {
            edge.receive();
            for _ in 0..edge.random.below(4) {
                edge.step();
            }
        }
        edge.wind_up();
        retries += edge.retries;
    }
    assert!(retries > 0, "nodes were lost while nothing was released");
}

/// One request as its task holds it.
struct Task {
    dispatch: Dispatch,
    ticket: Option<Ticket>,
    permit: Option<Permit>,
    is_out: bool,
}

struct Edge {
    admission: Admission,
    tasks: Vec<Task>,
    generation: u64,
    now: Instant,
    random: Random,
    finished: u32,
    received: u32,
    retries: u32,
    budget: Budget,
}

impl Edge {
    fn new(seed: u64) -> Self {
        let now = Instant::now();
        let admission = Admission::new(now, Config::default()).expect("a valid configuration");
        let mut edge = Self {
            admission,
            tasks: Vec::new(),
            generation: 0,
            now,
            random: Random(seed),
            finished: 0,
            received: 0,
            retries: 0,
            budget: Budget::new(now),
        };
        edge.node_ready();
        edge
    }

    fn node_ready(&mut self) {
        self.generation += 1;
        let generation = Generation(self.generation);
        self.admission.handle_ready(self.now, &NodeId::from("n"), generation, vec![status()]);
        self.deliver();
    }

    fn receive(&mut self) {
        self.received += 1;
        let spec = Spec {
            received: self.now,
            deadlines: Deadlines { whole: Some(Duration::from_secs(20)), ..Deadlines::default() },
            streamed: true,
            has_finish: true,
            policy: Policy {
                recovery: Recovery::Full,
                hold_head: Duration::from_secs(15),
                is_repeatable: true,
                budget: self.budget.clone(),
            },
        };
        let mut task =
            Task { dispatch: Dispatch::new(spec), ticket: None, permit: None, is_out: false };
        let request = iop_admission::Request { model: "m", need: NEED, affinity: None };
        let entry = self.admission.request(self.now, &request).map(|admitted| admitted.entry);
        task.enter(self.now, entry);
        self.tasks.push(task);
        let last = self.tasks.len() - 1;
        self.carry_out(last);
        self.deliver();
    }

    /// Something happens to somebody.
    fn step(&mut self) {
        self.now += STEP;
        self.admission.handle_timeout(self.now);
        self.deliver();
        if self.random.below(40) == 0 {
            return self.lose_node();
        }
        if self.tasks.is_empty() {
            return;
        }
        let index = self.random.below(self.tasks.len());
        let (now, what) = (self.now, self.random.below(12));
        let task = &mut self.tasks[index];
        match what {
            0..=2 => task.dispatch.handle_client_gone(now),
            3 => task.dispatch.handle_client_stalled(now),
            _ if !task.is_out => task.dispatch.handle_timeout(now),
            4 | 5 => drop(task.dispatch.handle_start(now)),
            6 => drop(task.dispatch.handle_body(now, true)),
            7 => task.ended(
                now,
                Ended::Completed(Evidence { finish_seen: true, ..Evidence::default() }),
            ),
            8 => task.ended(now, Ended::Failed(Failure::new(ErrorCode::ProviderError, "reset"))),
            9 => task.ended(now, Ended::Refused(Refusal::CapacityExceeded { capacity: CAPACITY })),
            10 => task.ended(now, Ended::Cancelled),
            _ => task.unsent(now, Requeue::LinkFull),
        }
        self.carry_out(index);
        self.deliver();
        self.admission.handle_status(
            now,
            &NodeId::from("n"),
            Generation(self.generation),
            status(),
        );
        self.deliver();
    }

    /// The link ends and the Node is back at once, before all of its requests have noticed.
    fn lose_node(&mut self) {
        self.node_ready();
        for index in 0..self.tasks.len() {
            let task = &mut self.tasks[index];
            let is_old = task.permit.as_ref().is_some_and(|permit| {
                permit.candidate().instance.generation != Generation(self.generation)
            });
            if is_old && std::mem::take(&mut task.is_out) {
                task.dispatch.handle_node_lost(self.now, CloseReason::ConnectionLost);
                self.carry_out(index);
                self.deliver();
            }
        }
    }

    fn carry_out(&mut self, index: usize) {
        let task = &mut self.tasks[index];
        while let Some(output) = task.dispatch.poll_output() {
            match output {
                Output::Send(_) => task.is_out = true,
                Output::Cancel(_) | Output::RememberUsageRefusal | Output::ReleaseHead => {}
                Output::LeaveQueue => {
                    if let Some(ticket) = task.ticket.take() {
                        assert!(self.admission.cancel(self.now, ticket));
                    }
                }
                Output::Requeue(cause) => {
                    let permit = task.permit.take().expect("a permit to give back");
                    let entry = self.admission.requeue(self.now, permit, cause);
                    task.enter(self.now, entry);
                }
                Output::Retry(retry) => {
                    self.retries += 1;
                    let permit = task.permit.take().expect("a permit to give back");
                    let elsewhere = retry.reason.is_answer();
                    let entry = self.admission.retry(self.now, permit, elsewhere);
                    task.enter(self.now, entry);
                }
                Output::Release => {
                    let permit = task.permit.take().expect("a permit to give back");
                    self.admission.release(self.now, permit);
                }
                Output::Finish(_) => self.finished += 1,
            }
        }
    }

    /// Brings what admission decided to those who wait.
    fn deliver(&mut self) {
        while let Some(output) = self.admission.poll_output() {
            let ticket = output.ticket();
            let index = self.tasks.iter().position(|task| task.ticket == Some(ticket));
            let index = index.expect("only who waits hears something");
            let entry = match output {
                iop_admission::Output::Granted { permit, .. } => Ok(Entry::Granted(permit)),
                iop_admission::Output::Refused { refused, .. } => Err(refused),
            };
            self.tasks[index].enter(self.now, entry);
            self.carry_out(index);
        }
        let gauges = self.admission.gauges(self.now);
        let held = self.tasks.iter().filter(|task| task.permit.is_some()).count();
        assert_eq!(gauges.in_flight as usize, held);
        let in_use = self.admission.providers(self.now)[0].in_use;
        assert!(in_use <= CAPACITY, "{in_use} in use");
    }

    fn wind_up(&mut self) {
        for index in 0..self.tasks.len() {
            self.tasks[index].dispatch.handle_client_gone(self.now);
            self.carry_out(index);
            self.deliver();
        }
        self.now += iop_dispatch::RETURN_WAIT;
        for index in 0..self.tasks.len() {
            self.tasks[index].dispatch.handle_timeout(self.now);
            self.carry_out(index);
            self.deliver();
        }
        assert!(self.tasks.iter().all(|task| task.dispatch.is_over()));
        assert_eq!(self.finished, self.received, "every request ended once");
        let gauges = self.admission.gauges(self.now);
        assert_eq!((gauges.in_flight, gauges.waiting), (0, 0));

        self.receive();
        let last = self.tasks.last().expect("the request that just came");
        assert!(last.is_out, "the next request is dispatched at once");
    }
}

impl Task {
    fn enter(&mut self, now: Instant, entry: Result<Entry, Refused>) {
        self.ticket = None;
        match entry {
            Ok(Entry::Granted(permit)) => {
                let candidate = permit.candidate();
                let grant = Grant {
                    node: candidate.instance.node.clone(),
                    provider: candidate.instance.provider.clone(),
                    target: candidate.target.clone(),
                    generation: candidate.instance.generation,
                    form: Form::Run,
                    why: candidate.why.as_str(),
                    asks_usage: false,
                    has_others: candidate.has_others,
                };
                self.permit = Some(permit);
                self.dispatch.handle_granted(now, grant);
            }
            Ok(Entry::Waiting(ticket)) => self.ticket = Some(ticket),
            Err(refused) => self.dispatch.handle_refused(now, refused.failure()),
        }
    }

    fn ended(&mut self, now: Instant, ended: Ended) {
        self.is_out = false;
        self.dispatch.handle_ended(now, ended);
    }

    fn unsent(&mut self, now: Instant, cause: Requeue) {
        self.is_out = false;
        self.dispatch.handle_unsent(now, cause);
    }
}

fn status() -> ProviderStatus {
    ProviderStatus {
        provider: "p".into(),
        adapter: AdapterType::Mock,
        state: ProviderState::Ready,
        reason: String::new(),
        targets: vec!["m".into()],
        loaded: Vec::new(),
        capacity: CAPACITY,
        in_use: 0,
        zombies: 0,
        queued: None,
        revision: ProviderRevision(1),
        capabilities: Capabilities { runs: vec![RunKind::Chat], ..Capabilities::default() },
    }
}

/// Xorshift: a printed seed plays the same run again.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).expect("below a usize")
    }
}
