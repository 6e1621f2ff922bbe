//! The hosts whose software is under test: one Edge, three Nodes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use iop_config::EdgeConfig;
use iop_edge::{Edge, Tools};
use iop_net::egress::Egress;
use iop_node::{ManageModels, Node, Secrets, Settings};
use iop_store::{EdgeHistory, NodeHistory};
use iop_types::{InstanceId, NodeId};
use tokio::sync::watch;
use turmoil::Sim;
use uuid::Uuid;

use crate::network::Network;
use crate::plan::{CAPACITY, STAGE_CAPACITY, STALL};
use crate::record::{Clerk, Historian};
use crate::world::{EDGE, LINK_PORT, NODES, PROVIDER_PORT, PROVIDERS, World, address};

/// What a host is told to do; it obeys in order, as after a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Serve.
    Run,
    /// Stop, and wait.
    Pause,
    /// Stop.
    Stop,
}

/// The orders of all hosts under test.
#[derive(Clone)]
pub(crate) struct Orders(Rc<BTreeMap<&'static str, watch::Sender<Order>>>);

impl Default for Orders {
    fn default() -> Self {
        let hosts = NODES.into_iter().chain([EDGE]);
        Self(Rc::new(hosts.map(|host| (host, watch::Sender::new(Order::Run))).collect()))
    }
}

impl Orders {
    /// Tells one host.
    pub(crate) fn give(&self, host: &str, order: Order) {
        self.0[host].send_replace(order);
    }

    /// Ends the simulation.
    pub(crate) fn stop_all(&self) {
        for order in self.0.values() {
            order.send_replace(Order::Stop);
        }
    }

    fn of(&self, host: &str) -> Obedience {
        Obedience(self.0[host].subscribe())
    }
}

/// The orders of one host.
#[derive(Clone)]
struct Obedience(watch::Receiver<Order>);

impl Obedience {
    /// Completes once the host is to stop.
    async fn stop(&mut self) {
        // The orders live as long as the simulation.
        let _ = self.0.wait_for(|order| *order != Order::Run).await;
    }

    /// Completes once the host is to serve again, or never again: then false.
    async fn again(&mut self) -> bool {
        let order = self.0.wait_for(|order| *order != Order::Pause).await;
        order.is_ok_and(|order| *order == Order::Run)
    }
}

/// Adds the host of the Edge.
pub(crate) fn add_edge(world: &World, sim: &mut Sim<'_>) {
    let file = EdgeConfig::parse(&edge_file(sim), "edge.yaml")
        .unwrap_or_else(|error| panic!("the simulation's file is wrong: {error}"));
    let network = world.network(EDGE);
    let historian = Arc::new(Historian {
        records: world.records.clone(),
        ledger: world.ledger.clone(),
        canary: world.canary.clone(),
        kernel: network.kernel().clone(),
    });
    let (orders, leaks) = (world.orders.of(EDGE), Rc::clone(&world.leaks));
    sim.host(EDGE, move || {
        let (file, network, historian) = (file.clone(), network.clone(), Arc::clone(&historian));
        let (mut orders, leaks) = (orders.clone(), Rc::clone(&leaks));
        async move {
            loop {
                let tools = Tools {
                    net: Arc::new(network.clone()),
                    history: EdgeHistory::kept_by(Arc::clone(&historian) as Arc<_>),
                };
                let mut edge = Edge::start(file.clone(), tools).await?;
                orders.stop().await;
                edge.stop();
                edge.stopped().await;
                if !orders.again().await {
                    break;
                }
            }
            look_for_leaks(EDGE, &network, &leaks).await;
            Ok(())
        }
    });
}

/// Adds the host of a Node.
pub(crate) fn add_node(world: &World, sim: &mut Sim<'_>, index: usize, edge: SocketAddr) {
    let name = NODES[index];
    let network = world.network(name);
    let settings = Settings {
        node: NodeId::from(name),
        edge: SocketAddr::new(edge.ip(), LINK_PORT),
        instance: InstanceId::from_uuid(Uuid::nil()),
        egress: Egress::loopback(),
        secrets: Secrets::default(),
        manage_models: ManageModels::Nowhere,
        local_servers: Vec::new(),
        drain: Duration::from_secs(5),
    };
    let seed = u128::from(world.plan.seed) << 32 | (index as u128) << 16;
    let starts = Rc::new(Cell::new(seed));
    let clerk = Arc::new(Clerk {
        node: name,
        records: world.records.clone(),
        ledger: world.ledger.clone(),
        kernel: network.kernel().clone(),
    });
    let (orders, leaks) = (world.orders.of(name), Rc::clone(&world.leaks));
    sim.host(name, move || {
        let (settings, network, starts) = (settings.clone(), network.clone(), Rc::clone(&starts));
        let clerk = Arc::clone(&clerk);
        let (mut orders, leaks) = (orders.clone(), Rc::clone(&leaks));
        async move {
            loop {
                starts.set(starts.get() + 1);
                let instance = InstanceId::from_uuid(Uuid::from_u128(starts.get()));
                let settings = Settings { instance, ..settings.clone() };
                let history = NodeHistory::kept_by(Arc::clone(&clerk) as Arc<_>);
                let mut node = Node::start(settings, Arc::new(network.clone()), Some(history));
                orders.stop().await;
                node.stop();
                node.stopped().await?;
                if !orders.again().await {
                    break;
                }
            }
            look_for_leaks(name, &network, &leaks).await;
            Ok(())
        }
    });
}

/// Says which tasks and connections a host left behind.
async fn look_for_leaks(host: &str, network: &Network, leaks: &RefCell<Vec<String>>) {
    // The last connections end with their peers' answers.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let leak = match (tasks, network.kernel().open_connections()) {
        (0, 0) => String::new(),
        (tasks, sockets) => format!("{host} left {tasks} tasks and {sockets} connections"),
    };
    leaks.borrow_mut().push(leak);
}

/// The Edge's file: every Node has a provider with a server, and a mock, which answers as runs.
fn edge_file(sim: &Sim<'_>) -> String {
    let mut nodes = String::new();
    for (node, provider) in NODES.iter().zip(PROVIDERS) {
        let endpoint = address(sim, provider, PROVIDER_PORT);
        let stall = STALL.as_secs();
        let _ = write!(
            nodes,
            "
  {node}:
    providers:
      engine:
        adapter: openai_compat
        endpoint: http://{endpoint}
        targets: [tiny]
        max_concurrency: {CAPACITY}
        response_stall_timeout: {stall}s
      stage:
        adapter: mock
        max_concurrency: {STAGE_CAPACITY}
        response_stall_timeout: 3s
        script:
          targets: [play]
          answer: {{ text: \"To be, or not to be\", repeat: 3, first_delay_ms: 300, chunk_delay_ms: 40 }}"
        );
    }
    format!(
        "version: 1
limits: {{ client_stall_timeout: 10s, first_progress: 60s, drain: 10s }}
nodes:{nodes}
"
    )
}
