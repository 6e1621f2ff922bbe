//! One simulation from its first step to its last.
//!
//! ```text
//! hosts start ─► calls and faults ─► every call ended, every fault over ─► quiet: permits are back
//!   ─► aftermath: fresh calls succeed ─► everything stops in order ─► checks
//! ```

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tracing::Level;
use turmoil::Sim;

use crate::check;
use crate::client::Clients;
use crate::faults::Faults;
use crate::hosts::{self, Orders};
use crate::ledger::Ledger;
use crate::network::{Network, seen};
use crate::plan::Plan;
use crate::provider::Provider;
use crate::quiet;
use crate::record::Records;
use crate::report::Report;

/// The host of the Edge.
pub(crate) const EDGE: &str = "edge";
/// The hosts of the Nodes.
pub(crate) const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// The hosts of their providers.
pub(crate) const PROVIDERS: [&str; 3] = ["engine-1", "engine-2", "engine-3"];
/// The host of the clients.
pub(crate) const CLIENT_HOST: &str = "clients";

/// Where the Edge listens for clients.
pub(crate) const CLIENT_PORT: u16 = 7400;
/// Where the Edge listens for Nodes.
pub(crate) const LINK_PORT: u16 = 7401;
/// Where the Edge listens for people.
pub(crate) const ADMIN_PORT: u16 = 7402;
/// Where providers listen.
pub(crate) const PROVIDER_PORT: u16 = 9000;

/// A simulation that takes longer than this is stuck.
const AT_MOST: Duration = Duration::from_secs(900);

/// Runs the simulation of a seed; the software's logs are kept up to `verbosity`.
pub fn run(seed: u64, verbosity: Level) -> Report {
    crate::logging::note_panics();
    let world = World::new(Plan::of(seed));
    let subscriber = crate::logging::subscriber(&world.ledger, verbosity);
    let simulated = tracing::subscriber::with_default(subscriber, || world.run());
    for panic in crate::logging::take_panics() {
        world.ledger.violation("panic", panic);
    }
    Report {
        seed,
        digest: world.ledger.digest(),
        violations: world.ledger.violations(),
        trace: world.ledger.trace(),
        log: world.ledger.log(),
        simulated,
    }
}

/// What the parts of a simulation share.
pub(crate) struct World {
    pub(crate) plan: Rc<Plan>,
    pub(crate) ledger: Ledger,
    pub(crate) records: Records,
    /// A word of every prompt, which must not turn up anywhere else.
    pub(crate) canary: String,
    pub(crate) orders: Orders,
    /// What each host left behind when it stopped; empty words where nothing.
    pub(crate) leaks: Rc<RefCell<Vec<String>>>,
    networks: BTreeMap<&'static str, Network>,
    is_calm: Rc<Cell<bool>>,
    faults_over: Rc<Cell<bool>>,
}

impl World {
    fn new(plan: Plan) -> Self {
        let ledger = Ledger::default();
        let hosts = NODES.into_iter().chain(PROVIDERS).chain([EDGE, CLIENT_HOST]);
        let is_undisturbed = plan.faults.is_empty();
        let network = |host| (host, Network::of(host, &ledger, is_undisturbed));
        Self {
            networks: hosts.map(network).collect(),
            ledger,
            records: Records::new(plan.calls.len()),
            canary: plan.canary(),
            orders: Orders::default(),
            leaks: Rc::default(),
            is_calm: Rc::default(),
            faults_over: Rc::default(),
            plan: Rc::new(plan),
        }
    }

    /// Returns the network as a host sees it.
    pub(crate) fn network(&self, host: &str) -> Network {
        self.networks[host].clone()
    }

    fn run(&self) -> Duration {
        let plan = &self.plan;
        let header =
            format!("seed {}, turns of {:?}, ways of {:?}", plan.seed, plan.tick, plan.latency);
        self.ledger.note("plan", header);
        let mut sim = turmoil::Builder::new()
            .rng_seed(plan.seed)
            .tick_duration(plan.tick)
            .simulation_duration(AT_MOST)
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(plan.latency.max(Duration::from_millis(2)))
            .epoch(std::time::UNIX_EPOCH + Duration::from_secs(1_800_000_000))
            // One segment for each frame of a pipe, whose window is what bounds them.
            .tcp_capacity(1 << 16)
            .build();
        let edge = address(&sim, EDGE, CLIENT_PORT);
        hosts::add_edge(self, &mut sim);
        for index in 0..NODES.len() {
            self.add_provider(&mut sim, index);
            hosts::add_node(self, &mut sim, index, edge);
        }
        self.add_clients(&mut sim, edge);
        self.step(&mut sim);
        let simulated = sim.elapsed();
        drop(sim);
        check::all(plan, &self.records, &self.ledger);
        if self.ledger.mentions(&self.canary) {
            self.ledger.violation("logs", "hold a prompt");
        }
        simulated
    }

    /// Steps until the clients are done, with faults as planned.
    fn step(&self, sim: &mut Sim<'_>) {
        let mut faults = Faults::new(self);
        loop {
            self.ledger.set_clock(sim.elapsed());
            faults.advance(sim);
            self.faults_over.set(faults.are_over());
            match sim.step() {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => return self.ledger.violation("simulation", error.to_string()),
            }
        }
    }

    fn add_provider(&self, sim: &mut Sim<'_>, index: usize) {
        let provider = Provider {
            index,
            network: self.network(PROVIDERS[index]),
            plan: Rc::clone(&self.plan),
            records: self.records.clone(),
            ledger: self.ledger.clone(),
            requests: Rc::default(),
            connections: Rc::default(),
            is_calm: Rc::clone(&self.is_calm),
        };
        sim.host(PROVIDERS[index], move || provider.clone().run());
    }

    fn add_clients(&self, sim: &mut Sim<'_>, edge: SocketAddr) {
        let clients = Clients {
            edge,
            network: self.network(CLIENT_HOST),
            records: self.records.clone(),
            ledger: self.ledger.clone(),
            canary: self.canary.clone(),
            bound: self.plan.bound(),
        };
        let (plan, orders, leaks) =
            (Rc::clone(&self.plan), self.orders.clone(), Rc::clone(&self.leaks));
        let (is_calm, faults_over) = (Rc::clone(&self.is_calm), Rc::clone(&self.faults_over));
        sim.client(CLIENT_HOST, async move {
            let calls = plan.calls.iter().map(|call| clients.call(call));
            tokio::select! {
                biased;
                _ = futures_util::future::join_all(calls) => {}
                () = quiet::audit(&clients) => {}
            }
            while !faults_over.get() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            is_calm.set(true);
            quiet::become_quiet(&clients).await;
            quiet::aftermath(&clients, plan.calls.len()).await;
            quiet::become_quiet(&clients).await;
            quiet::all_answered(&clients.ledger);
            orders.stop_all();
            quiet::all_stopped(&clients.ledger, &leaks).await;
            Ok(())
        });
    }
}

/// Returns where the software reaches a host.
pub(crate) fn address(sim: &Sim<'_>, host: &str, port: u16) -> SocketAddr {
    seen(SocketAddr::new(sim.lookup(host), port))
}
