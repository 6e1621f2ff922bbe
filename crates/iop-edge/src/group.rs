//! The execution group as the Edge sees it: which Nodes are linked, under which generation.
//!
//! The link server asks here who may join and tells here what its Nodes report; admission learns it
//! at once. A link is entered before admission may grant anything on it, and leaves only together
//! with its generation, so that whoever holds a permit finds the link of that generation or none.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iop_config::EdgeConfig;
use iop_net::link::{EdgeHost, EdgeLink, LinkStats};
use iop_types::{CloseReason, ErrorCode, Generation, HealthObservation, InstanceId, NodeId};
use iop_wire::v1;
use jiff::Timestamp;
use tracing::{debug, info, warn};

use crate::admit::Desk;
use crate::bridge;
use crate::metrics::Metrics;
use crate::surface::errors::ErrorAnswer;

/// The Nodes of one Edge.
pub(crate) struct Group {
    file: Arc<EdgeConfig>,
    desk: Arc<Desk>,
    metrics: Arc<Metrics>,
    nodes: Mutex<Nodes>,
}

#[derive(Default)]
struct Nodes {
    linked: BTreeMap<NodeId, Member>,
    /// Who registered and is not ready yet.
    introduced: BTreeMap<NodeId, Introduction>,
}

struct Member {
    link: EdgeLink,
    who: Introduction,
    since: Timestamp,
    is_draining: bool,
}

/// What a Node said of itself.
#[derive(Debug, Clone)]
pub(crate) struct Introduction {
    /// Where it dialled from.
    pub(crate) address: SocketAddr,
    /// Its process.
    pub(crate) instance: Option<InstanceId>,
    /// Version of its software.
    pub(crate) version: String,
    /// Operating system and architecture.
    pub(crate) platform: String,
}

/// One Node, for the admin listener.
pub(crate) struct NodeView {
    /// Its name.
    pub(crate) node: NodeId,
    /// Its link, while it has one.
    pub(crate) linked: Option<Linked>,
}

/// One link, for the admin listener and metrics.
pub(crate) struct Linked {
    /// What the Node said of itself.
    pub(crate) who: Introduction,
    /// Number of the link.
    pub(crate) generation: Generation,
    /// When it became ready.
    pub(crate) since: Timestamp,
    /// Whether the Node asked for nothing new.
    pub(crate) is_draining: bool,
    /// Its counters.
    pub(crate) stats: LinkStats,
}

/// Registrations that may be under way at once; further ones forget the older.
const MAX_INTRODUCED: usize = 1024;
/// Longest name of a Node: it appears in logs, metrics and paths.
const MAX_NODE_ID: usize = 64;
/// Longest text that a Node may say of itself, in characters.
const MAX_SAID: usize = 100;

impl Group {
    /// Makes a group without Nodes.
    pub(crate) fn new(file: Arc<EdgeConfig>, desk: Arc<Desk>, metrics: Arc<Metrics>) -> Self {
        Self { file, desk, metrics, nodes: Mutex::default() }
    }

    /// Finds the link that a Node has now; its fence knows whether it is the one of a grant.
    pub(crate) fn link(&self, node: &NodeId) -> Option<EdgeLink> {
        self.lock().linked.get(node).map(|member| member.link.clone())
    }

    /// Finds the link of a Node, whatever its generation.
    ///
    /// # Errors
    /// There is no such Node, or it has no link; the answer names those that there are.
    pub(crate) fn linked(&self, node: &NodeId) -> Result<EdgeLink, ErrorAnswer> {
        let nodes = self.lock();
        if let Some(member) = nodes.linked.get(node) {
            return Ok(member.link.clone());
        }
        let linked: Vec<_> = nodes.linked.keys().map(NodeId::as_str).collect();
        let linked = if linked.is_empty() { "none".to_owned() } else { linked.join(", ") };
        Err(if self.file.nodes.contains_key(node) {
            let message = format!("node `{node}` is not linked at the moment: linked are {linked}");
            ErrorAnswer::new(ErrorCode::NoReadyProvider, message)
        } else {
            unknown_node(node, &linked)
        })
    }

    /// Lists the Nodes that are linked and those that the file names.
    pub(crate) fn view(&self) -> Vec<NodeView> {
        let nodes = self.lock();
        let mut all: BTreeMap<&NodeId, Option<Linked>> =
            self.file.nodes.keys().map(|node| (node, None)).collect();
        for (node, member) in &nodes.linked {
            let linked = Linked {
                who: member.who.clone(),
                generation: member.link.generation(),
                since: member.since,
                is_draining: member.is_draining,
                stats: member.link.stats(),
            };
            all.insert(node, Some(linked));
        }
        all.into_iter().map(|(node, linked)| NodeView { node: node.clone(), linked }).collect()
    }

    /// Takes in what a Node observed on the link of this generation.
    pub(crate) fn take_in(
        &self,
        node: &NodeId,
        generation: Generation,
        observation: &HealthObservation,
    ) {
        let HealthObservation { provider, target, health, seq } = observation;
        let taken = self.desk.tell(|admission, now| {
            admission.handle_observation(now, node, generation, observation)
        });
        match taken {
            Ok(()) => {
                self.metrics.count_observation(health.provider_health());
                info!(%node, %provider, %target, %health, seq, "target looked at");
            }
            Err(stale) => {
                self.metrics.count_observation_refused(stale.as_str());
                debug!(%node, %provider, %target, seq, %stale, "refused a health observation");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EdgeHost for Group {
    fn admit(
        &self,
        peer: SocketAddr,
        request: &v1::RegisterRequest,
    ) -> Result<v1::NodeConfig, v1::RegisterRefused> {
        let refuse = |message: String| {
            warn!(%peer, reason = %message, "node refused");
            Err(bridge::refusal(CloseReason::RegistrationRefused, message))
        };
        if !peer.ip().to_canonical().is_loopback() {
            return refuse(
                "this edge runs in local mode and takes nodes of its own machine only: other \
                 machines need managed mode"
                    .to_owned(),
            );
        }
        if !is_node_id(&request.node_id) {
            return refuse(format!(
                "node id is not 1 to {MAX_NODE_ID} letters, digits, dots, dashes or underscores: \
                 give the node another `node` in its file"
            ));
        }
        let node = NodeId::from(request.node_id.as_str());
        let view = self.file.node_view(&node, bridge::FIRST_REVISION);
        let config = bridge::node_config(&view);
        let mut nodes = self.lock();
        if nodes.introduced.len() >= MAX_INTRODUCED {
            nodes.introduced.clear();
        }
        nodes.introduced.insert(
            node,
            Introduction {
                address: peer,
                instance: InstanceId::from_slice(&request.instance_id).ok(),
                version: said(&request.software_version),
                platform: said(&request.platform),
            },
        );
        Ok(config)
    }

    fn ready(&self, link: EdgeLink, ready: v1::NodeReadyRequest) {
        let node = link.node().clone();
        let generation = link.generation();
        let providers: Vec<_> = ready
            .providers
            .into_iter()
            .filter_map(|status| bridge::status(node.as_str(), status))
            .collect();
        info!(%node, %generation, providers = providers.len(), "node joined");
        {
            let mut nodes = self.lock();
            let who = nodes.introduced.remove(&node).unwrap_or_else(Introduction::unknown);
            let member = Member { link, who, since: Timestamp::now(), is_draining: false };
            nodes.linked.insert(node.clone(), member);
        }
        self.desk.tell(|admission, now| {
            admission.handle_ready(now, &node, generation, providers);
        });
    }

    fn status(&self, link: &EdgeLink, status: v1::ProviderStatus) {
        let node = link.node();
        let Some(status) = bridge::status(node.as_str(), status) else { return };
        info!(
            %node,
            provider = %status.provider,
            state = %status.state,
            reason = %status.reason,
            targets = status.targets.len(),
            "provider changed"
        );
        self.desk.tell(|admission, now| {
            admission.handle_status(now, node, link.generation(), status);
        });
    }

    fn observed(&self, link: &EdgeLink, observation: v1::HealthObservation) {
        self.take_in(link.node(), link.generation(), &observation.into());
    }

    fn draining(&self, link: &EdgeLink) {
        info!(node = %link.node(), "node drains");
        if let Some(member) = self.lock().linked.get_mut(link.node())
            && member.link.generation() == link.generation()
        {
            member.is_draining = true;
        }
        self.desk.tell(|admission, now| {
            admission.handle_draining(now, link.node(), link.generation());
        });
    }

    fn closed(&self, node: &NodeId, generation: Generation, reason: CloseReason) {
        info!(%node, %generation, %reason, "link ended");
        self.metrics.count_link_closed(reason.as_str());
        {
            let mut nodes = self.lock();
            if nodes.linked.get(node).is_some_and(|member| member.link.generation() == generation) {
                nodes.linked.remove(node);
            }
        }
        self.desk.tell(|admission, now| admission.handle_away(now, node, generation));
    }
}

impl Introduction {
    fn unknown() -> Self {
        Self {
            address: SocketAddr::from(([0, 0, 0, 0], 0)),
            instance: None,
            version: String::new(),
            platform: String::new(),
        }
    }
}

/// Answers a question about a Node that nobody knows.
pub(crate) fn unknown_node(node: &NodeId, known: &str) -> ErrorAnswer {
    let shown: String = node.as_str().chars().filter(|c| !c.is_control()).take(100).collect();
    let message = format!("there is no node `{shown}`: the edge knows {known}");
    ErrorAnswer::new(ErrorCode::NotFound, message)
}

fn is_node_id(text: &str) -> bool {
    (1..=MAX_NODE_ID).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// What a Node says of itself is shown to people and bounded for them.
fn said(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_SAID).collect()
}

#[cfg(test)]
mod tests {
    use iop_admission::{Admission, Config};
    use iop_types::{
        AdapterType, Capabilities, HealthEvidence, ProviderRevision, ProviderState, ProviderStatus,
    };

    use super::*;

    fn group() -> Group {
        let admission = Admission::new(std::time::Instant::now(), Config::default()).unwrap();
        let file = "version: 1\nnodes:\n  box:\n    providers:\n      demo: { adapter: mock }\n";
        let file = Arc::new(EdgeConfig::parse(file, "edge.yaml").unwrap());
        Group::new(file, Desk::new(admission), Arc::new(Metrics::new("test")))
    }

    fn register(node: &str) -> v1::RegisterRequest {
        v1::RegisterRequest { node_id: node.to_owned(), ..v1::RegisterRequest::default() }
    }

    #[test]
    fn a_node_of_the_file_gets_its_entry_and_another_one_looks_around() {
        let group = group();
        let peer = "127.0.0.1:5000".parse().unwrap();
        let named = group.admit(peer, &register("box")).unwrap();
        assert_eq!((named.providers.len(), named.discover), (1, false));
        assert_eq!((named.providers[0].key.as_str(), named.providers[0].revision), ("demo", 1));
        let other = group.admit(peer, &register("laptop")).unwrap();
        assert_eq!((other.providers.len(), other.discover), (0, true));
    }

    #[test]
    fn another_machine_is_told_that_managed_mode_is_needed() {
        let refused =
            group().admit("10.0.0.9:5000".parse().unwrap(), &register("box")).unwrap_err();
        assert!(refused.message.contains("managed mode"), "{}", refused.message);
        assert_eq!(refused.reason(), v1::CloseReason::RegistrationRefused);
    }

    #[test]
    fn an_observation_that_says_nothing_about_now_is_counted_by_its_reason() {
        let group = group();
        let status = ProviderStatus {
            provider: "demo".into(),
            adapter: AdapterType::Mock,
            state: ProviderState::Ready,
            reason: String::new(),
            targets: vec!["m".into()],
            loaded: Vec::new(),
            capacity: 1,
            in_use: 0,
            zombies: 0,
            queued: None,
            revision: ProviderRevision(1),
            capabilities: Capabilities::default(),
        };
        group.desk.tell(|admission, now| {
            admission.handle_ready(now, &"box".into(), Generation(2), vec![status]);
        });
        let observe = |generation, target: &str, seq| {
            let health = HealthEvidence::Unavailable;
            let (provider, target) = ("demo".into(), target.into());
            let observation = HealthObservation { provider, target, health, seq };
            group.take_in(&"box".into(), Generation(generation), &observation);
        };
        observe(2, "m", 1);
        observe(2, "m", 1);
        observe(1, "m", 2);
        observe(2, "n", 3);
        let told = group.metrics.render(Vec::new());
        for line in [
            r#"iop_health_observations_total{health="unavailable"} 1"#,
            r#"iop_health_observations_refused_total{reason="not_newer"} 1"#,
            r#"iop_health_observations_refused_total{reason="old_generation"} 1"#,
            r#"iop_health_observations_refused_total{reason="unknown_target"} 1"#,
        ] {
            assert!(told.contains(line), "{line} is not in\n{told}");
        }
    }

    #[test]
    fn names_that_would_garble_logs_and_metrics_are_refused() {
        let peer = "[::1]:5000".parse().unwrap();
        for name in ["", "a b", "a\nb", "ü", &"x".repeat(65)] {
            assert!(group().admit(peer, &register(name)).is_err(), "{name:?}");
        }
        assert!(group().admit(peer, &register("my-box.local_1")).is_ok());
    }

    #[test]
    fn the_file_s_nodes_are_listed_while_they_are_away() {
        let view = group().view();
        assert_eq!(view.len(), 1);
        assert!(view[0].node.as_str() == "box" && view[0].linked.is_none());
    }
}
