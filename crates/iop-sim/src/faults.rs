//! What the plan lets fail, done between two steps.

use turmoil::Sim;

use crate::hosts::Order;
use crate::plan::{Fault, FaultKind, LINGER};
use crate::world::{EDGE, World, address};

/// The faults of a plan as time passes.
pub(crate) struct Faults<'a> {
    world: &'a World,
    faults: Vec<(&'a Fault, Stage)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Ahead,
    /// Its first part is done.
    Begun,
    Present,
    Over,
}

impl<'a> Faults<'a> {
    pub(crate) fn new(world: &'a World) -> Self {
        let faults = world.plan.faults.iter().map(|fault| (fault, Stage::Ahead)).collect();
        Self { world, faults }
    }

    /// Begins and ends what is due.
    pub(crate) fn advance(&mut self, sim: &mut Sim<'_>) {
        let now = sim.elapsed();
        for (fault, stage) in &mut self.faults {
            if *stage == Stage::Ahead && fault.at <= now {
                *stage = Stage::Begun;
                let line = format!("{:?} until {:?}", fault.kind, fault.until);
                self.world.ledger.note("fault", line);
                begin(self.world, sim, fault.kind);
            }
            if *stage == Stage::Begun && (fault.at + LINGER).min(fault.until) <= now {
                *stage = Stage::Present;
                go_on(self.world, fault.kind);
            }
            if *stage == Stage::Present && fault.until <= now {
                *stage = Stage::Over;
                self.world.ledger.note("fault", format!("{:?} is over", fault.kind));
                end(self.world, sim, fault.kind);
            }
        }
    }

    /// Says whether nothing fails any more.
    pub(crate) fn are_over(&self) -> bool {
        self.faults.iter().all(|(_, stage)| *stage == Stage::Over)
    }
}

fn begin(world: &World, sim: &mut Sim<'_>, kind: FaultKind) {
    match kind {
        FaultKind::Partition(a, b) => sim.partition(a, b),
        FaultKind::OneWay(from, to) => sim.partition_oneway(from, to),
        FaultKind::Hold(a, b) => sim.hold(a, b),
        FaultKind::Slow(a, b, latency) => sim.set_link_latency(a, b, latency),
        FaultKind::HalfOpen(node) => {
            world.network(EDGE).kernel().sever_links(address(sim, node, 0).ip());
        }
        FaultKind::Crash(host) => kill(world, sim, host),
        FaultKind::Bounce(host) => {
            kill(world, sim, host);
            sim.bounce(host);
        }
        FaultKind::Drain(host) => world.orders.give(host, Order::Pause),
    }
}

fn go_on(world: &World, kind: FaultKind) {
    if let FaultKind::HalfOpen(node) = kind {
        world.network(node).kernel().lose_links();
    }
}

fn end(world: &World, sim: &mut Sim<'_>, kind: FaultKind) {
    match kind {
        FaultKind::Partition(a, b) => sim.repair(a, b),
        FaultKind::OneWay(from, to) => sim.repair_oneway(from, to),
        FaultKind::Hold(a, b) => sim.release(a, b),
        FaultKind::Slow(a, b, _) => sim.set_link_latency(a, b, world.plan.latency),
        FaultKind::HalfOpen(node) => {
            world.network(EDGE).kernel().deliver(address(sim, node, 0).ip());
        }
        FaultKind::Crash(host) => sim.bounce(host),
        FaultKind::Bounce(_) => {}
        FaultKind::Drain(host) => world.orders.give(host, Order::Run),
    }
}

/// Ends a process without a word; its kernel closes what it had open.
fn kill(world: &World, sim: &mut Sim<'_>, host: &str) {
    world.records.seen().note_kill(host);
    let network = world.network(host);
    network.kernel().set_killed(true);
    sim.crash(host);
    network.kernel().set_killed(false);
}
