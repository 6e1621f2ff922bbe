//! `iop node`: one machine's Node in a process of its own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use iop_config::{
    ConfigError, EgressRule, HostPort, NodeConfig, NodeOverlay, SecretSource, Side, defaults,
};
use iop_net::egress::{Allowed, Egress};
use iop_net::link::FatalLink;
use iop_net::net::TokioNet;
use iop_node::{LocalServer, ManageModels, Node, Secrets, Settings};
use iop_store::{DataDir, DataDirError, NodeHistory};
use iop_types::InstanceId;
use tracing::info;

use crate::config_command::{self, FileError};
use crate::data_dir::{self, variable};
use crate::descriptors;
use crate::stop_signal;

/// Runs `iop node run` until a signal, or until the Edge makes another dial pointless.
///
/// # Errors
/// The file is not valid, another process holds the data directory, or the Edge refused for good.
pub(crate) async fn run(file: &Path) -> Result<(), NodeError> {
    let variables = NodeOverlay::from_variables(variable)?;
    let config = config_command::node_file(file)?.overlaid(variables)?;
    descriptors::allow_many();
    let stop = stop_signal::listen().map_err(NodeError::Signals)?;
    let places = LocalServer::usual();
    let manage_models = match config.manage_models {
        true => ManageModels::AlsoWhereFound,
        false => ManageModels::Nowhere,
    };
    let edge = local_edge(&config.edge)?;
    let started = start(&config, edge, places, manage_models)?;
    info!(node = %config.node, edge = %config.edge, "node started");
    let mut node = started.node;
    tokio::select! {
        outcome = node.stopped() => return Ok(outcome?),
        () = stop.cancelled() => node.stop(),
    }
    Ok(node.stopped().await?)
}

/// Without an identity nothing but this machine is dialled.
fn local_edge(edge: &HostPort) -> Result<SocketAddr, NodeError> {
    let is_near = |address: &SocketAddr| address.ip().to_canonical().is_loopback();
    edge.address().filter(is_near).ok_or_else(|| NodeError::NoIdentity(edge.clone()))
}

/// A running Node and the directory that it holds.
pub(crate) struct Started {
    /// The Node.
    pub node: Node,
    /// Held until the Node has stopped; `None` where there is no usable directory.
    _data_dir: Option<DataDir>,
}

/// Starts a Node that dials `edge`.
///
/// # Errors
/// Another process holds the data directory.
pub(crate) fn start(
    config: &NodeConfig,
    edge: SocketAddr,
    local_servers: Vec<LocalServer>,
    manage_models: ManageModels,
) -> Result<Started, NodeError> {
    let opened = data_dir::open(config.data_dir.as_deref(), Side::Node)?;
    let history = opened.as_ref().ok().map(|dir| {
        let now = jiff::Timestamp::now();
        NodeHistory::open(dir, defaults::NODE_HISTORY, defaults::NODE_HISTORY_BYTES, now)
    });
    let settings = Settings {
        node: config.node.clone(),
        edge,
        instance: InstanceId::from_uuid(uuid::Uuid::new_v4()),
        egress: Egress::Only(config.egress.iter().map(allowed).collect()),
        secrets: secrets(&config.secrets),
        manage_models,
        local_servers,
        drain: DRAIN,
    };
    let node = Node::start(settings, Arc::new(TokioNet), history);
    Ok(Started { node, _data_dir: opened.ok() })
}

/// A Node that stops lets its calls finish for as long as an Edge does.
const DRAIN: Duration = defaults::DRAIN;

fn secrets(sources: &BTreeMap<String, SecretSource>) -> Secrets {
    let environment = data_dir::environment();
    let mut secrets = Secrets::default();
    for (name, source) in sources {
        let value = match source {
            SecretSource::Env(name) => {
                variable(name).ok_or_else(|| format!("variable {name} is not set"))
            }
            SecretSource::File(path) => environment
                .resolve(path)
                .map_err(|error| error.to_string())
                .and_then(|path| {
                    std::fs::read_to_string(&path)
                        .map_err(|error| format!("file {}: {error}", path.display()))
                })
                .map(|text| text.trim_end().to_owned()),
        };
        secrets.insert(name.clone(), value);
    }
    secrets
}

fn allowed(rule: &EgressRule) -> Allowed {
    match rule {
        EgressRule::Net(net) => Allowed::Net(*net),
        EgressRule::Host(host) => Allowed::Host(host.clone()),
    }
}

/// Why a Node does not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// Flags, variables and file together are not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data directory cannot be taken.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// Another machine is named, and this Node has no identity to show there.
    #[error(
        "`edge`: {0} is not a loopback address, and another machine is dialled in managed mode \
         only: a node without an identity dials this machine, like 127.0.0.1:7401"
    )]
    NoIdentity(HostPort),
    /// The Edge refused for good.
    #[error(transparent)]
    Link(#[from] FatalLink),
    /// The process cannot be told to stop.
    #[error("signal handlers cannot be set")]
    Signals(#[source] std::io::Error),
}
