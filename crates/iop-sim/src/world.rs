//! One simulation from its first step to its last.
//!
//! ```text
//! hosts start ─► calls and faults ─► every call ended, every fault over ─► quiet: permits are back
//!   ─► aftermath: fresh calls succeed ─► everything stops in order ─► checks
//! ```

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use iop_config::EdgeConfig;
use iop_edge::{Edge, Tools};
use iop_net::egress::Egress;
use iop_node::{ManageModels, Node, Secrets, Settings};
use iop_store::EdgeHistory;
use iop_types::{InstanceId, NodeId};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use turmoil::Sim;
use uuid::Uuid;

use crate::check;
use crate::client::Clients;
use crate::ledger::Ledger;
use crate::network::{Network, seen};
use crate::plan::{Call, FaultKind, Manner, Plan};
use crate::provider::Provider;
use crate::record::{CallEnd, Historian, Records};

/// The host of the Edge.
pub(crate) const EDGE: &str = "edge";
/// The hosts of the Nodes.
pub(crate) const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// The hosts of their providers.
pub(crate) const PROVIDERS: [&str; 3] = ["engine-1", "engine-2", "engine-3"];
/// The host of the clients.
const CLIENT_HOST: &str = "clients";

const CLIENT_PORT: u16 = 7400;
/// Where the Edge listens for Nodes.
pub(crate) const LINK_PORT: u16 = 7401;
const ADMIN_PORT: u16 = 7402;
/// Where providers listen.
pub(crate) const PROVIDER_PORT: u16 = 9000;

/// Until everything is quiet after the last call: a link that is given up and dialled again, a
/// zombie's ceiling.
const QUIET_WITHIN: Duration = Duration::from_secs(240);
/// A simulation that takes longer than this is stuck.
const AT_MOST: Duration = Duration::from_secs(900);

/// What became of one simulation.
#[derive(Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The same for every run of a seed.
    pub digest: u64,
    /// Rules that were broken, one line each.
    pub violations: Vec<String>,
    /// What happened, one line each.
    pub trace: String,
    /// What the software logged.
    pub log: String,
    /// Simulated time.
    pub simulated: Duration,
}

impl Report {
    /// Tells the simulation to a person: what happened, what broke, how to see it again.
    pub fn story(&self) -> String {
        format!(
            "{}\nseed {}: {}\nagain: scripts/simulate --seed {}",
            self.trace,
            self.seed,
            self.violations.join("\n  "),
            self.seed
        )
    }
}

/// Runs the simulation of a seed; the software's logs are kept up to `verbosity`.
pub fn run(seed: u64, verbosity: tracing::Level) -> Report {
    crate::logging::note_panics();
    let ledger = Ledger::default();
    let plan = Rc::new(Plan::of(seed));
    let subscriber = crate::logging::subscriber(&ledger, verbosity);
    let simulated = tracing::subscriber::with_default(subscriber, || {
        let world = World::new(&plan, &ledger);
        world.run()
    });
    for panic in crate::logging::take_panics() {
        ledger.violation("panic", panic);
    }
    Report {
        seed,
        digest: ledger.digest(),
        violations: ledger.violations(),
        trace: ledger.trace(),
        log: ledger.log(),
        simulated,
    }
}

/// What the parts of a simulation share.
struct World {
    plan: Rc<Plan>,
    ledger: Ledger,
    records: Records,
    canary: String,
    stop: CancellationToken,
    is_calm: Rc<Cell<bool>>,
    faults_over: Rc<Cell<bool>>,
    leaks: Rc<RefCell<Vec<String>>>,
}

impl World {
    fn new(plan: &Rc<Plan>, ledger: &Ledger) -> Self {
        Self {
            plan: Rc::clone(plan),
            ledger: ledger.clone(),
            records: Records::new(plan.calls.len()),
            canary: format!("canary-{:016x}", plan.seed),
            stop: CancellationToken::new(),
            is_calm: Rc::default(),
            faults_over: Rc::default(),
            leaks: Rc::default(),
        }
    }

    fn run(&self) -> Duration {
        let plan = &self.plan;
        self.ledger
            .note("plan", format!("seed {}, tick {:?}, {:?}", plan.seed, plan.tick, plan.latency));
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
        self.add_edge(&mut sim);
        for index in 0..NODES.len() {
            self.add_provider(&mut sim, index);
            self.add_node(&mut sim, index, edge);
        }
        self.add_clients(&mut sim, edge);
        self.step(&mut sim);
        let simulated = sim.elapsed();
        drop(sim);
        check::all(&self.records, &self.ledger);
        if self.ledger.mentions(&self.canary) {
            self.ledger.violation("logs", "hold a prompt");
        }
        simulated
    }

    /// Steps until the clients are done, with faults as planned.
    fn step(&self, sim: &mut Sim<'_>) {
        let faults = &self.plan.faults;
        let mut begun = 0;
        let mut healed = vec![false; faults.len()];
        loop {
            let now = sim.elapsed();
            self.ledger.set_clock(now);
            while let Some(fault) = faults.get(begun).filter(|fault| fault.at <= now) {
                self.ledger.note("fault", format!("{:?} until {:?}", fault.kind, fault.until));
                begin(sim, fault.kind);
                begun += 1;
            }
            for (index, fault) in faults.iter().enumerate() {
                if index < begun && !healed[index] && fault.until <= now {
                    healed[index] = true;
                    self.ledger.note("fault", format!("{:?} is over", fault.kind));
                    end(sim, fault.kind, self.plan.latency);
                }
            }
            self.faults_over.set(healed.iter().all(|healed| *healed));
            match sim.step() {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => {
                    self.ledger.violation("simulation", error.to_string());
                    break;
                }
            }
        }
    }

    fn add_edge(&self, sim: &mut Sim<'_>) {
        let file = EdgeConfig::parse(&edge_file(sim), "edge.yaml")
            .unwrap_or_else(|error| panic!("the simulation's file is wrong: {error}"));
        let network = Network::of(EDGE, &self.ledger);
        let historian = Arc::new(Historian {
            records: self.records.clone(),
            ledger: self.ledger.clone(),
            canary: self.canary.clone(),
        });
        let (records, stop, leaks) =
            (self.records.clone(), self.stop.clone(), Rc::clone(&self.leaks));
        sim.host(EDGE, move || {
            let tools = Tools {
                net: Arc::new(network.clone()),
                history: EdgeHistory::kept_by(Arc::clone(&historian) as Arc<_>),
            };
            let (file, records, stop) = (file.clone(), records.clone(), stop.clone());
            let (network, leaks) = (network.clone(), Rc::clone(&leaks));
            async move {
                records.seen().edge_starts += 1;
                let mut edge = Edge::start(file, tools).await?;
                stop.cancelled().await;
                edge.stop();
                edge.stopped().await;
                drop(edge);
                look_for_leaks(EDGE, &network, &leaks).await;
                Ok(())
            }
        });
    }

    fn add_node(&self, sim: &mut Sim<'_>, index: usize, edge: SocketAddr) {
        let name = NODES[index];
        let network = Network::of(name, &self.ledger);
        let starts = Cell::new(0_u128);
        let seed = u128::from(self.plan.seed);
        let (stop, leaks) = (self.stop.clone(), Rc::clone(&self.leaks));
        sim.host(name, move || {
            starts.set(starts.get() + 1);
            let instance = seed << 32 | (index as u128) << 16 | starts.get();
            let settings = Settings {
                node: NodeId::from(name),
                edge: SocketAddr::new(edge.ip(), LINK_PORT),
                instance: InstanceId::from_uuid(Uuid::from_u128(instance)),
                egress: Egress::loopback(),
                secrets: Secrets::default(),
                manage_models: ManageModels::Nowhere,
                local_servers: Vec::new(),
                drain: Duration::from_secs(5),
            };
            let (network, stop, leaks) = (network.clone(), stop.clone(), Rc::clone(&leaks));
            async move {
                let mut node = Node::start(settings, Arc::new(network.clone()), None);
                stop.cancelled().await;
                node.stop();
                node.stopped().await?;
                drop(node);
                look_for_leaks(name, &network, &leaks).await;
                Ok(())
            }
        });
    }

    fn add_provider(&self, sim: &mut Sim<'_>, index: usize) {
        let provider = Provider {
            index,
            plan: Rc::clone(&self.plan),
            records: self.records.clone(),
            ledger: self.ledger.clone(),
            requests: Rc::default(),
            is_calm: Rc::clone(&self.is_calm),
        };
        sim.host(PROVIDERS[index], move || provider.clone().run());
    }

    fn add_clients(&self, sim: &mut Sim<'_>, edge: SocketAddr) {
        let clients = Clients {
            edge,
            network: Network::of(CLIENT_HOST, &self.ledger),
            records: self.records.clone(),
            ledger: self.ledger.clone(),
            canary: self.canary.clone(),
        };
        let plan = Rc::clone(&self.plan);
        let (is_calm, faults_over) = (Rc::clone(&self.is_calm), Rc::clone(&self.faults_over));
        let (stop, ledger, leaks) =
            (self.stop.clone(), self.ledger.clone(), Rc::clone(&self.leaks));
        sim.client(CLIENT_HOST, async move {
            futures_util::future::join_all(plan.calls.iter().map(|call| clients.call(call))).await;
            while !faults_over.get() {
                sleep(Duration::from_millis(100)).await;
            }
            is_calm.set(true);
            become_quiet(&clients).await;
            aftermath(&clients, plan.calls.len()).await;
            become_quiet(&clients).await;
            stop.cancel();
            // Edge and Nodes drain, close what lingers, and say what they left behind.
            for _ in 0..300 {
                if leaks.borrow().len() == 1 + NODES.len() {
                    break;
                }
                sleep(Duration::from_millis(100)).await;
            }
            let told = leaks.borrow();
            if told.len() != 1 + NODES.len() {
                ledger.violation("stop", format!("only {told:?} have stopped within 30 s"));
            }
            for leak in told.iter().filter(|leak| !leak.is_empty()) {
                ledger.violation("stop", leak.clone());
            }
            Ok(())
        });
    }
}

/// Waits until the Edge says that nothing is at work and every Node is linked and idle.
async fn become_quiet(clients: &Clients) {
    let deadline = crate::ledger::now() + QUIET_WITHIN;
    loop {
        let unrest = match unrest(clients).await {
            Ok(None) => return,
            Ok(Some(unrest)) => unrest,
            Err(error) => format!("the admin listener fails: {error}"),
        };
        if crate::ledger::now() > deadline {
            clients.ledger.violation("edge", format!("is not quiet: {unrest}"));
            return;
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// Says what is not quiet.
async fn unrest(clients: &Clients) -> Result<Option<String>, Box<dyn std::error::Error>> {
    let status = clients.page(ADMIN_PORT, "/api/v1/status").await?;
    let providers = clients.page(ADMIN_PORT, "/api/v1/providers").await?;
    let is_idle = status["in_flight"] == 0
        && status["waiting"] == 0
        && status["buffered_bodies"]["used_bytes"] == 0
        && status["nodes_linked"] == NODES.len();
    let providers = providers["providers"].as_array().cloned().unwrap_or_default();
    let restless = providers.iter().find(|provider| {
        provider["ready"] != true || provider["in_use"] != 0 || provider["zombies"] != 0
    });
    Ok(match restless {
        Some(provider) => Some(provider.to_string()),
        None => (!is_idle).then(|| status.to_string()),
    })
}

/// Asks again when all is over: nothing of what failed may linger.
async fn aftermath(clients: &Clients, from: usize) {
    clients.records.seen().calls.resize(from + 4, None);
    for number in from..from + 4 {
        let call = Call {
            number,
            at: Duration::ZERO,
            model: if number % 2 == 0 { "tiny" } else { "play" },
            is_stream: true,
            manner: Manner::Patient,
        };
        clients.call(&call).await;
        let seen = clients.records.seen().calls[number].clone().unwrap_or_default();
        if seen.end != CallEnd::Clean || seen.status != Some(200) {
            let (end, status) = (seen.end, seen.status);
            clients.ledger.violation("aftermath", format!("a fresh call ends {end:?}, {status:?}"));
        }
    }
}

/// Says which tasks and connections a host left behind.
async fn look_for_leaks(host: &str, network: &Network, leaks: &RefCell<Vec<String>>) {
    // The last connections end with their peers' answers.
    sleep(Duration::from_secs(2)).await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let sockets = network.open_connections();
    let leak = match (tasks, sockets) {
        (0, 0) => String::new(),
        (tasks, sockets) => format!("{host} left {tasks} tasks and {sockets} connections"),
    };
    leaks.borrow_mut().push(leak);
}

fn begin(sim: &mut Sim<'_>, kind: FaultKind) {
    match kind {
        FaultKind::Partition(a, b) => sim.partition(a, b),
        FaultKind::OneWay(from, to) => sim.partition_oneway(from, to),
        FaultKind::Hold(a, b) => sim.hold(a, b),
        FaultKind::Slow(a, b, latency) => sim.set_link_latency(a, b, latency),
        FaultKind::Crash(host) => sim.crash(host),
        FaultKind::Bounce(host) => {
            sim.crash(host);
            sim.bounce(host);
        }
    }
}

fn end(sim: &mut Sim<'_>, kind: FaultKind, latency: Duration) {
    match kind {
        FaultKind::Partition(a, b) => sim.repair(a, b),
        FaultKind::OneWay(from, to) => sim.repair_oneway(from, to),
        FaultKind::Hold(a, b) => sim.release(a, b),
        FaultKind::Slow(a, b, _) => sim.set_link_latency(a, b, latency),
        FaultKind::Crash(host) => sim.bounce(host),
        FaultKind::Bounce(_) => {}
    }
}

fn address(sim: &Sim<'_>, host: &str, port: u16) -> SocketAddr {
    seen(SocketAddr::new(sim.lookup(host), port))
}

/// The Edge's file: every Node has a provider with a server and a mock, which answers as runs.
fn edge_file(sim: &Sim<'_>) -> String {
    let mut nodes = String::new();
    for (node, provider) in NODES.iter().zip(PROVIDERS) {
        let endpoint = address(sim, provider, PROVIDER_PORT);
        nodes.push_str(&format!(
            "
  {node}:
    providers:
      engine:
        adapter: openai_compat
        endpoint: http://{endpoint}
        targets: [tiny]
        max_concurrency: 6
        response_stall_timeout: 3s
      stage:
        adapter: mock
        max_concurrency: 4
        response_stall_timeout: 3s
        script:
          targets: [play]
          answer: {{ text: \"To be, or not to be\", repeat: 3, first_delay_ms: 300, chunk_delay_ms: 40 }}"
        ));
    }
    format!(
        "version: 1
limits: {{ client_stall_timeout: 10s, first_progress: 60s, drain: 10s }}
nodes:{nodes}
"
    )
}
