//! Properties: whatever happens in whatever order, places are counted right, nobody waits for a
//! place that is free, and everybody hears exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use iop_admission::{Entry, Permit, Ticket};
use iop_types::{Generation, Requeue};
use proptest::prelude::*;

use crate::edge::{CHAT, Edge, SECOND, candidate, config, provider, provider_id, route};

/// Capacity of each provider; each stands alone on the Node of the same name.
const NODES: [(&str, u32); 3] = [("x", 1), ("y", 2), ("z", 3)];

/// Which providers serve a model.
fn serves(node: &str, model: &str) -> bool {
    match model {
        "all" | "alias" => true,
        "xy" => node != "z",
        other => other == node,
    }
}

const MODELS: [&str; 4] = ["all", "xy", "z", "alias"];

#[derive(Debug, Clone)]
enum Step {
    Ask(usize),
    Release(usize),
    Requeue(usize, Requeue),
    Cancel(usize),
    Ready(usize),
    Report(usize),
    Drain(usize),
    Away(usize),
    AwayAgain(usize, u64),
    Advance(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let cause = prop_oneof![
        Just(Requeue::CapacityExceeded),
        Just(Requeue::StaleConfig),
        Just(Requeue::Draining),
        Just(Requeue::Fenced),
        Just(Requeue::LinkFull),
    ];
    prop_oneof![
        8 => (0..MODELS.len()).prop_map(Step::Ask),
        6 => any::<usize>().prop_map(Step::Release),
        3 => (any::<usize>(), cause).prop_map(|(index, cause)| Step::Requeue(index, cause)),
        2 => any::<usize>().prop_map(Step::Cancel),
        3 => (0..NODES.len()).prop_map(Step::Ready),
        2 => (0..NODES.len()).prop_map(Step::Report),
        1 => (0..NODES.len()).prop_map(Step::Drain),
        1 => (0..NODES.len()).prop_map(Step::Away),
        1 => (0..NODES.len(), 1..4u64).prop_map(|(node, back)| Step::AwayAgain(node, back)),
        2 => (1..12_000u64).prop_map(Step::Advance),
    ]
}

/// What a careful reader would note on paper: who is here, who holds what, who waits.
struct Paper {
    edge: Edge,
    /// Current generation of each Node that is here.
    here: BTreeMap<&'static str, u64>,
    draining: BTreeSet<&'static str>,
    /// Nodes whose provider said no and has not reported since. Some of these refusals have lapsed;
    /// the paper promises nothing about them.
    refusing: BTreeSet<&'static str>,
    next_generation: u64,
    held: Vec<Permit>,
    waiting: BTreeMap<Ticket, &'static str>,
    asked: usize,
    heard: BTreeSet<Ticket>,
    refused_at_once: usize,
}

impl Paper {
    fn new() -> Self {
        let alias = NODES.map(|(node, _)| {
            let mut alias = candidate(node, node);
            alias.provider = provider_id(node, node);
            alias
        });
        Self {
            edge: Edge::new(config(&[route("alias", &alias)])),
            here: BTreeMap::new(),
            draining: BTreeSet::new(),
            refusing: BTreeSet::new(),
            next_generation: 0,
            held: Vec::new(),
            waiting: BTreeMap::new(),
            asked: 0,
            heard: BTreeSet::new(),
            refused_at_once: 0,
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Ask(model) => self.ask(MODELS[*model]),
            Step::Release(index) => {
                if let Some(permit) = self.pick_permit(*index) {
                    self.edge.release(permit);
                }
            }
            Step::Requeue(index, cause) => self.requeue(*index, *cause),
            Step::Cancel(index) => {
                let tickets: Vec<_> = self.waiting.keys().copied().collect();
                if let Some(ticket) = tickets.get(index % tickets.len().max(1)) {
                    assert!(self.edge.cancel(*ticket));
                    self.waiting.remove(ticket);
                    assert!(self.heard.insert(*ticket));
                }
            }
            Step::Ready(node) => self.ready(NODES[*node].0),
            Step::Report(node) => {
                let node = NODES[*node].0;
                if let Some(generation) = self.here.get(node) {
                    self.refusing.remove(node);
                    self.edge.status(node, *generation, status_of(node));
                }
            }
            Step::Drain(node) => {
                let node = NODES[*node].0;
                if let Some(generation) = self.here.get(node) {
                    self.draining.insert(node);
                    self.edge.draining(node, *generation);
                }
            }
            Step::Away(node) => {
                let node = NODES[*node].0;
                if let Some(generation) = self.here.get(node).copied() {
                    self.leave(node);
                    self.edge.away(node, generation);
                }
            }
            Step::AwayAgain(node, back) => {
                let generation = self.next_generation.saturating_sub(*back);
                let node = NODES[*node].0;
                if self.here.get(node) != Some(&generation) {
                    self.edge.away(node, generation);
                }
            }
            Step::Advance(ms) => self.edge.advance(Duration::from_millis(*ms)),
        }
        self.note_outcomes();
        self.check();
    }

    fn ask(&mut self, model: &'static str) {
        self.asked += 1;
        match self.edge.ask(model, CHAT) {
            Ok(Entry::Granted(permit)) => {
                assert!(self.heard.insert(permit.ticket()));
                assert!(serves(node_of(&permit), model));
                self.held.push(permit);
            }
            Ok(Entry::Waiting(ticket)) => {
                self.waiting.insert(ticket, model);
            }
            Err(_) => self.refused_at_once += 1,
        }
    }

    fn requeue(&mut self, index: usize, cause: Requeue) {
        let Some(permit) = self.pick_permit(index) else { return };
        let node = node_of(&permit);
        let model = model_of(&permit);
        if self.is_current(&permit) {
            match cause {
                Requeue::CapacityExceeded | Requeue::StaleConfig | Requeue::LinkFull => {
                    self.refusing.insert(node);
                }
                Requeue::Draining => {
                    self.draining.insert(node);
                }
                Requeue::Fenced => self.leave(node),
            }
        }
        let ticket = permit.ticket();
        self.heard.remove(&ticket);
        match self.edge.requeue(permit, cause) {
            Ok(Entry::Granted(permit)) => {
                assert_eq!(permit.ticket(), ticket);
                self.heard.insert(ticket);
                self.held.push(permit);
            }
            Ok(Entry::Waiting(again)) => {
                assert_eq!(again, ticket, "the old place");
                self.waiting.insert(ticket, model);
            }
            Err(_) => {
                self.heard.insert(ticket);
            }
        }
    }

    fn ready(&mut self, node: &'static str) {
        self.next_generation += 1;
        self.leave(node);
        self.here.insert(node, self.next_generation);
        self.edge.ready(node, self.next_generation, &[status_of(node)]);
    }

    fn leave(&mut self, node: &'static str) {
        self.here.remove(node);
        self.draining.remove(node);
        self.refusing.remove(node);
    }

    fn pick_permit(&mut self, index: usize) -> Option<Permit> {
        (!self.held.is_empty()).then(|| self.held.swap_remove(index % self.held.len()))
    }

    fn is_current(&self, permit: &Permit) -> bool {
        let generation = permit.candidate().instance.generation;
        self.here.get(node_of(permit)).copied().map(Generation) == Some(generation)
    }

    fn note_outcomes(&mut self) {
        for ticket in std::mem::take(&mut self.edge.heard) {
            let model = self.waiting.remove(&ticket).expect("only who waits hears something");
            assert!(self.heard.insert(ticket));
            if self.edge.refused.remove(&ticket).is_some() {
                continue;
            }
            let permit = self.edge.take(ticket);
            assert!(serves(node_of(&permit), model));
            let overtaken =
                self.waiting.iter().find(|(other, wants)| **other < ticket && **wants == model);
            assert_eq!(overtaken, None, "{ticket} overtook one that wants the same");
            self.held.push(permit);
        }
    }

    fn check(&self) {
        for (node, capacity) in NODES {
            let Some(view) = self
                .edge
                .admission
                .providers(self.edge.now)
                .into_iter()
                .find(|view| view.id == provider_id(node, node))
            else {
                continue;
            };
            let of_node = self.held.iter().filter(|permit| node_of(permit) == node);
            let (current, fenced): (Vec<_>, Vec<_>) =
                of_node.partition(|permit| self.is_current(permit));
            assert_eq!(view.in_use as usize, current.len(), "{node}: permits of this generation");
            assert_eq!(view.fenced_in_use as usize, fenced.len(), "{node}: permits of older ones");
            assert!(view.in_use <= capacity, "{node} has more in use than places");

            let is_free = self.here.contains_key(node)
                && !self.draining.contains(node)
                && !self.refusing.contains(node)
                && view.in_use < capacity;
            if is_free {
                let starved = self.waiting.iter().find(|(_, model)| serves(node, model));
                assert_eq!(starved, None, "somebody waits for {node}, which is free");
            }
        }
        let gauges = self.edge.admission.gauges(self.edge.now);
        assert_eq!(gauges.waiting, self.waiting.len());
        assert_eq!(gauges.in_flight as usize, self.held.len());
        assert_eq!(self.asked, self.heard.len() + self.waiting.len() + self.refused_at_once);
    }

    fn wind_up(mut self) {
        for ticket in std::mem::take(&mut self.waiting).into_keys() {
            assert!(self.edge.cancel(ticket));
        }
        while let Some(permit) = self.held.pop() {
            self.edge.release(permit);
        }
        let gauges = self.edge.admission.gauges(self.edge.now);
        assert_eq!((gauges.in_flight, gauges.waiting), (0, 0), "everything came back");
        for (node, _) in NODES {
            self.ready(node);
        }
        let fresh: Vec<_> = (0..6).map(|_| self.edge.permit("all")).collect();
        assert!(matches!(self.edge.ask("all", CHAT), Ok(Entry::Waiting(_))), "six places, no more");
        for permit in fresh {
            self.edge.release(permit);
        }
    }
}

fn status_of(node: &'static str) -> iop_types::ProviderStatus {
    let capacity =
        NODES.iter().find(|(name, _)| *name == node).map_or(0, |(_, capacity)| *capacity);
    let targets: Vec<_> =
        ["all", "xy", "x", "y", "z"].into_iter().filter(|model| serves(node, model)).collect();
    provider(node, capacity, &targets)
}

fn node_of(permit: &Permit) -> &'static str {
    let node = permit.candidate().instance.node.as_str();
    NODES.iter().map(|(name, _)| *name).find(|name| *name == node).expect("a node of this test")
}

fn model_of(permit: &Permit) -> &'static str {
    let route = permit.route().name.as_str();
    MODELS.into_iter().find(|model| *model == route).expect("a model of this test")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn places_are_counted_right_and_nobody_waits_for_a_free_one(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut paper = Paper::new();
        for (node, _) in NODES {
            paper.ready(node);
        }
        for step in &steps {
            paper.take(step);
        }
        paper.wind_up();
    }
}

#[test]
fn fifty_aborts_at_any_point_leave_the_place_free_each_time() {
    let mut edge = Edge::with(&[provider("p", 1, &["m"])]);
    for round in 0..50 {
        let permit = edge.permit("m");
        let ticket = edge.ticket("m");
        match round % 3 {
            // The waiting one leaves, then the running one.
            0 => {
                edge.cancel(ticket);
                edge.release(permit);
            }
            // The running one leaves, then the one that just got its place.
            1 => {
                edge.release(permit);
                let permit = edge.take(ticket);
                edge.release(permit);
            }
            // The running one was never started.
            _ => {
                edge.cancel(ticket);
                let back = edge.requeue_waits(permit, Requeue::CapacityExceeded);
                assert!(edge.cancel(back));
                edge.status("n", 1, provider("p", 1, &["m"]));
            }
        }
        assert_eq!((edge.in_flight(), edge.waiting()), (0, 0), "round {round}");
        edge.advance(SECOND);
    }
    let permit = edge.permit("m");
    edge.release(permit);
}
