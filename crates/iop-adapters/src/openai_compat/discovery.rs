//! What the server lists.

use std::time::Duration;

use http::StatusCode;
use iop_dialect::openai::{ListedModel, read_models};
use iop_execution::{DiscoverError, Discovery};
use iop_types::Target;

use super::OpenaiCompat;
use crate::server::unreachable_by;

/// A list of models is short; a server that needs longer is busy or gone.
const PATIENCE: Duration = Duration::from_secs(5);
/// The lists of large hosted providers are about 1 MiB.
const MAX_LIST: usize = 8 << 20;

impl OpenaiCompat {
    pub(super) async fn list(&self) -> Result<Discovery, DiscoverError> {
        let ids = self.models().await?.into_iter().map(|model| Target::from(model.id));
        Ok(Discovery { targets: self.targets.select(ids), ..Discovery::default() })
    }

    /// Asks for the list of models, configured targets or not.
    pub(crate) async fn models(&self) -> Result<Vec<ListedModel>, DiscoverError> {
        tokio::time::timeout(PATIENCE, self.ask()).await.unwrap_or_else(|_| {
            Err(DiscoverError::Unreachable(format!(
                "the server did not list its models within {PATIENCE:?}"
            )))
        })
    }

    async fn ask(&self) -> Result<Vec<ListedModel>, DiscoverError> {
        let mut call = self.server.get("/v1/models");
        let head = call.head().await.map_err(|error| unreachable_by(&error))?;
        match head.status {
            status if status.is_success() => {}
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                return Err(DiscoverError::Unusable(format!(
                    "GET /v1/models answered {}: check the provider's `api_key`",
                    status.as_u16()
                )));
            }
            status => {
                let status = status.as_u16();
                return Err(DiscoverError::Unusable(format!("GET /v1/models answered {status}")));
            }
        }
        let body = self.server.gather(&mut call, MAX_LIST).await;
        let body = body.map_err(|error| unreachable_by(&error))?;
        read_models(&body)
            .map_err(|error| DiscoverError::Unusable(format!("GET /v1/models: {error}")))
    }
}
