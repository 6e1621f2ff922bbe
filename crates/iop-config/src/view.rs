//! What one Node is told of the Edge's file.

use iop_types::{NodeId, ProviderKey, ProviderRevision};

use crate::edge::EdgeConfig;
use crate::provider::Provider;

/// One Node's whole configuration, ready to be turned into a message.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeView<'a> {
    /// Counter of the configuration revision.
    pub counter: u64,
    /// Providers by ascending key.
    pub providers: Vec<ProviderView<'a>>,
    /// Whether the Node adds the model servers that it finds on its loopback.
    pub discover: bool,
}

/// One provider of a [`NodeView`].
#[derive(Debug, Clone, PartialEq)]
pub struct ProviderView<'a> {
    /// Its instance key.
    pub key: &'a ProviderKey,
    /// Its entry.
    pub provider: &'a Provider,
    /// Counter at which the entry last changed.
    pub revision: ProviderRevision,
}

impl EdgeConfig {
    /// Returns what `node` is told when this file takes effect as revision `counter`.
    ///
    /// A file that was loaded is one revision, so that every entry changed at `counter`. A Node that
    /// the file does not name has no providers and looks for model servers.
    pub fn node_view(&self, node: &NodeId, counter: u64) -> NodeView<'_> {
        let entry = self.nodes.get(node);
        let providers = entry
            .and_then(|entry| entry.providers.as_ref())
            .into_iter()
            .flatten()
            .map(|(key, provider)| ProviderView {
                key,
                provider,
                revision: ProviderRevision(counter),
            })
            .collect();
        let discover = entry.is_none_or(crate::edge::NodeEntry::discovers);
        NodeView { counter, providers, discover }
    }
}
