//! A look: what the server lists, whether its engine is well, how many requests wait in it.
//!
//! The three questions are asked at once. The list decides what is served. Health can only take that
//! away: a server whose engine died goes on listing its models. The queue is a hint: without it the
//! Edge has its own counts, so that nothing about it ever makes a look fail.

use std::time::Duration;

use http::StatusCode;
use iop_execution::{DiscoverError, Discovery};
use iop_types::Target;

use super::queue::{self, Queue};
use super::{Engine, Vllm};
use crate::server::unreachable_by;

/// Both engines answer `/health` from memory. Shorter than the look's own bound, so that the reason
/// is known.
const HEALTH_PATIENCE: Duration = Duration::from_secs(4);
/// The hint is worth less waiting than the look.
const METRICS_PATIENCE: Duration = Duration::from_secs(2);
/// With its histograms a server with some adapters writes a few hundred KiB.
const MAX_METRICS: usize = 4 << 20;

impl Vllm {
    pub(super) async fn look(&self) -> Result<Discovery, DiscoverError> {
        let questions = (self.api.models(), self.health(), self.queue());
        let (listed, health, queue) =
            futures_util::future::join3(questions.0, questions.1, questions.2).await;
        if let Ok(models) = &listed {
            let mut owners = models.iter().filter_map(|model| model.owned_by.as_deref());
            let engine = owners.find_map(Engine::of_owner).or(queue.map(|queue| queue.engine));
            *self.engine() = engine;
        }
        // An engine that says why it cannot serve explains a list that failed, too.
        if let Err(unwell @ DiscoverError::Unwell(_)) = health {
            return Err(unwell);
        }
        let models = listed?;
        health?;
        let ids = models.into_iter().map(|model| Target::from(model.id));
        let targets = self.api.targets.select(ids);
        Ok(Discovery {
            // These engines list what they loaded when they started.
            loaded: targets.clone(),
            targets,
            queued: queue.map(|queue| queue.waiting),
            is_idle: queue.is_some_and(Queue::is_idle),
        })
    }

    /// Fails when the engine says that it cannot serve, or says nothing. A server without the path
    /// has no word on it.
    async fn health(&self) -> Result<(), DiscoverError> {
        let asking = async {
            let mut call = self.api.server.get("/health");
            call.head().await.map(|head| head.status).map_err(|error| unreachable_by(&error))
        };
        match tokio::time::timeout(HEALTH_PATIENCE, asking).await {
            Ok(Ok(status)) if status.is_server_error() => Err(unwell(status)),
            Ok(answered) => answered.map(drop),
            Err(_) => Err(DiscoverError::Unreachable(format!(
                "GET /health was not answered within {HEALTH_PATIENCE:?}"
            ))),
        }
    }

    async fn queue(&self) -> Option<Queue> {
        let asking = async {
            let mut call = self.api.server.get("/metrics");
            let head = call.head().await.ok()?;
            if head.status != StatusCode::OK {
                return None;
            }
            queue::read(&self.api.server.gather(&mut call, MAX_METRICS).await.ok()?)
        };
        tokio::time::timeout(METRICS_PATIENCE, asking).await.ok()?
    }
}

fn unwell(status: StatusCode) -> DiscoverError {
    let status = status.as_u16();
    DiscoverError::Unwell(format!(
        "the engine is starting or not well: GET /health answered {status}"
    ))
}
