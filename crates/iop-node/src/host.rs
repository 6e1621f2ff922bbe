//! What the link asks of this Node.

use std::sync::Arc;

use iop_net::link::{BoxFuture, NodeCommand, NodeHost, NodeLink, NodeRequest};
use iop_types::{CloseReason, Generation, ProviderStatus};
use iop_wire::v1;
use tracing::{error, warn};

use crate::node::Shared;
use crate::{bridge, call, command};

/// The Node behind its link.
pub(crate) struct Host(pub(crate) Arc<Shared>);

impl NodeHost for Host {
    fn configure(&self, registered: v1::Registered) -> BoxFuture<'_, v1::NodeReadyRequest> {
        Box::pin(async move {
            let node = &self.0;
            let generation = registered.generation;
            let config = registered.config.clone().unwrap_or_default();
            match bridge::boot_id(&registered) {
                Some(boot) => node.finish(node.providers.configure(boot, &config).await),
                None => error!("the edge's boot id is not 16 bytes long: serving nothing"),
            }
            v1::NodeReadyRequest {
                generation,
                revision: config.revision,
                providers: node.statuses(),
            }
        })
    }

    fn link_up(&self, link: NodeLink) {
        self.0.health.link_up(link.generation());
        let mut current = self.0.link();
        *current = Some(link);
        drop(current);
        // What changed between the ready message and now is told by a look of its own.
        self.0.tell(self.0.providers.statuses());
        self.0.look_again();
    }

    fn accept(&self, request: NodeRequest) {
        let generation = self.0.generation();
        call::accept(&self.0, generation, request);
    }

    fn command(&self, command: NodeCommand) {
        command::accept(&self.0, self.0.generation(), command);
    }

    fn link_down(&self, generation: Generation, reason: CloseReason) {
        self.0.health.link_down(generation);
        let mut current = self.0.link();
        if current.as_ref().is_some_and(|link| link.generation() == generation) {
            *current = None;
        }
        drop(current);
        let cancelled = self.0.checks.work.cancel_generation(generation);
        if cancelled > 0 {
            warn!(%generation, %reason, cancelled, "cancelled the calls of a link that ended");
        }
        self.0.commands.cancel_generation(generation);
    }
}

impl Shared {
    /// Tells the Edge of providers that changed, while there is a link to tell it on.
    pub(crate) fn tell(&self, changed: Vec<ProviderStatus>) {
        if changed.is_empty() {
            return;
        }
        if let Some(link) = self.link().as_ref() {
            for status in changed {
                link.send_status(status.into());
            }
        }
    }

    fn statuses(&self) -> Vec<v1::ProviderStatus> {
        self.providers.statuses().into_iter().map(v1::ProviderStatus::from).collect()
    }

    pub(crate) fn generation(&self) -> Generation {
        self.link().as_ref().map_or(Generation(0), NodeLink::generation)
    }
}
