//! The Edge's file in the words of the parts that it configures.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use iop_admission::{
    CandidateConfig, Config, ProviderId, ProviderSettings, QueueLimits, RouteConfig, RouteSettings,
};
use iop_config::{EdgeConfig, Route};
use iop_types::NodeId;

use crate::bridge;

/// Returns what admission is told: routes, and what the file says about providers.
pub(crate) fn admission(file: &EdgeConfig) -> Config {
    Config {
        routes: file
            .routes
            .iter()
            .map(|(name, route)| RouteConfig {
                name: name.clone(),
                settings: route_settings(route),
                candidates: route.candidates.iter().map(candidate).collect(),
            })
            .collect(),
        discovered_routes: file.discovered_routes,
        discovered: RouteSettings::default(),
        providers: providers(file),
    }
}

fn route_settings(route: &Route) -> RouteSettings {
    RouteSettings {
        policy: route.policy,
        queue: QueueLimits {
            max_waiting: route.queue.max_waiting,
            timeout: route.queue.timeout,
            wait_for_node: route.queue.wait_for_node,
        },
        timeout: route.timeout,
        usage: route.usage,
        hold_head: route.hold_head,
        recovery: route.recovery,
    }
}

fn candidate(candidate: &iop_config::Candidate) -> CandidateConfig {
    CandidateConfig {
        provider: ProviderId { node: candidate.node.clone(), provider: candidate.provider.clone() },
        target: candidate.target.clone(),
        priority: candidate.priority,
        weight: candidate.weight,
    }
}

fn providers(file: &EdgeConfig) -> BTreeMap<ProviderId, ProviderSettings> {
    let mut all = BTreeMap::new();
    for (node, entry) in &file.nodes {
        for (key, provider) in entry.providers.iter().flatten() {
            let id = ProviderId { node: node.clone(), provider: key.clone() };
            let settings = ProviderSettings {
                stall_timeout: provider.response_stall_timeout,
                usage: provider.usage,
            };
            all.insert(id, settings);
        }
    }
    all
}

/// An address that local mode does not open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "listen.{key}: {address} is not a loopback address: local mode serves this machine only, other \
     machines need managed mode; use 127.0.0.1:{}", .address.port()
)]
pub struct NotLoopback {
    /// Key under `listen`.
    pub key: &'static str,
    /// The refused address.
    pub address: SocketAddr,
}

/// Refuses every bind of local mode that another machine could reach.
pub(crate) fn check_loopback(file: &EdgeConfig) -> Result<(), NotLoopback> {
    let listen = &file.listen;
    for (key, address) in
        [("clients", listen.clients), ("nodes", listen.nodes), ("admin", listen.admin)]
    {
        if !address.ip().to_canonical().is_loopback() {
            return Err(NotLoopback { key, address });
        }
    }
    Ok(())
}

/// A Node whose configuration does not fit the one message that carries it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "nodes.{node}: its configuration takes {bytes} bytes, a node is told {MAX_NODE_CONFIG} at most: \
     shorten `targets`, `headers` or `script`, or spread its providers over two nodes"
)]
pub struct NodeTooLarge {
    /// The Node.
    pub node: NodeId,
    /// Bytes of its configuration as it is sent.
    pub bytes: usize,
}

/// Most that one Node's configuration may take: the message that carries it is a control frame, and
/// has some limits and numbers of its own.
const MAX_NODE_CONFIG: usize = iop_wire::Class::Control.max_envelope() - 4 * 1024;

/// Refuses a file whose Nodes could never be told what it says.
pub(crate) fn check_node_sizes(file: &EdgeConfig) -> Result<(), NodeTooLarge> {
    for node in file.nodes.keys() {
        let config = bridge::node_config(&file.node_view(node, bridge::FIRST_REVISION));
        let bytes = iop_wire::frame::encoded_len(&config);
        if bytes > MAX_NODE_CONFIG {
            return Err(NodeTooLarge { node: node.clone(), bytes });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bind_that_others_can_reach_is_refused_with_the_way_out() {
        let mut file = EdgeConfig::default();
        assert_eq!(check_loopback(&file), Ok(()));
        file.listen.admin = "0.0.0.0:7402".parse().unwrap();
        let refusal = check_loopback(&file).unwrap_err().to_string();
        assert!(refusal.starts_with("listen.admin: 0.0.0.0:7402"), "{refusal}");
        assert!(refusal.contains("managed mode") && refusal.contains("127.0.0.1:7402"));
    }

    #[test]
    fn a_node_that_could_not_be_told_its_configuration_is_named() {
        let file = |bytes: usize| {
            let text = "x".repeat(bytes);
            let text = format!(
                "version: 1\nnodes:\n  box:\n    providers:\n      m: {{ adapter: mock, script: {{ answer: {{ text: {text} }} }} }}\n"
            );
            EdgeConfig::parse(&text, "edge.yaml").unwrap()
        };
        assert_eq!(check_node_sizes(&file(MAX_NODE_CONFIG - 1000)), Ok(()));
        let refusal = check_node_sizes(&file(MAX_NODE_CONFIG)).unwrap_err().to_string();
        assert!(refusal.starts_with("nodes.box: its configuration takes 10"), "{refusal}");
    }

    #[test]
    fn the_files_stall_timeout_and_usage_reach_admission() {
        let text = "version: 1\nnodes:\n  box:\n    providers:\n      lab:\n        adapter: openai_compat\n        endpoint: http://127.0.0.1:8000\n        response_stall_timeout: 7s\n        usage: observed\nroutes:\n  fast:\n    policy: ordered\n    candidates:\n      - { node: box, provider: lab, target: m, weight: 3 }\n    queue: { max_waiting: 2, timeout: 3s, wait_for_node: 0s }\n";
        let file = EdgeConfig::parse(text, "edge.yaml").unwrap();
        let config = admission(&file);
        let id = ProviderId { node: "box".into(), provider: "lab".into() };
        assert_eq!(config.providers[&id].stall_timeout.as_wire(), 7_000);
        assert_eq!(config.providers[&id].usage, iop_types::UsageMode::Observed);
        let route = &config.routes[0];
        assert_eq!((route.name.as_str(), route.candidates[0].weight), ("fast", 3));
        assert_eq!(route.settings.policy, iop_types::Policy::Ordered);
        assert_eq!(route.settings.queue.max_waiting, 2);
        assert_eq!(config.validate(), Ok(()));
    }
}
