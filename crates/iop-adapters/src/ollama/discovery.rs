//! What the server has (`GET /api/tags`) and what it holds in memory (`GET /api/ps`).

use std::time::Duration;

use http::StatusCode;
use iop_dialect::ollama::read_model_names;
use iop_execution::{DiscoverError, Discovery};
use iop_types::Target;

use super::Ollama;
use crate::server::unreachable_by;
use crate::settings::Targets;

/// Both lists come from memory; a server that needs longer is busy or gone.
const PATIENCE: Duration = Duration::from_secs(5);
/// An entry takes about 500 bytes, and nobody has ten thousand models.
const MAX_LIST: usize = 8 << 20;

const GREETING: &[u8] = b"Ollama is running";
/// A page for people is longer, and no greeting.
const MAX_GREETING: usize = 4 << 10;

pub(super) const TAGS: &str = "/api/tags";
const PS: &str = "/api/ps";

impl Ollama {
    pub(super) async fn list(&self) -> Result<Discovery, DiscoverError> {
        let both = futures_util::future::join(self.names(TAGS), self.names(PS));
        let Ok((tags, loaded)) = tokio::time::timeout(PATIENCE, both).await else {
            return Err(DiscoverError::Unreachable(format!(
                "the server did not list its models within {PATIENCE:?}"
            )));
        };
        let mut targets = tags?;
        targets.retain(|target| self.serves(target));
        // Old versions have no such list; what is loaded only makes a choice better.
        let mut loaded = loaded.unwrap_or_else(|reason| {
            tracing::debug!(%reason, "the server does not tell which models it holds");
            Vec::new()
        });
        loaded.retain(|target| targets.contains(target));
        Ok(Discovery { targets, loaded, ..Discovery::default() })
    }

    /// Says whether it is Ollama that answers: no other server greets so.
    pub(crate) async fn greets(&self) -> bool {
        let asking = async {
            let mut call = self.server.get("/");
            let head = call.head().await.ok()?;
            let body = call.body(MAX_GREETING).await.ok()?;
            Some(head.status.is_success() && body.trim_ascii() == GREETING)
        };
        let answered = tokio::time::timeout(PATIENCE, asking).await;
        answered.ok().flatten().unwrap_or(false)
    }

    /// A configured name without a tag means `:latest`, as everywhere in Ollama.
    fn serves(&self, listed: &Target) -> bool {
        match &self.targets {
            Targets::All => true,
            Targets::Only(names) => {
                let untagged = listed.as_str().strip_suffix(":latest");
                names.iter().any(|name| name == listed || Some(name.as_str()) == untagged)
            }
        }
    }

    async fn names(&self, path: &str) -> Result<Vec<Target>, DiscoverError> {
        let mut call = self.server.get(path);
        let head = call.head().await.map_err(|error| unreachable_by(&error))?;
        let status = head.status.as_u16();
        match head.status {
            ok if ok.is_success() => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(DiscoverError::Unusable(format!(
                    "GET {path} answered {status}: check the provider's `api_key`"
                )));
            }
            _ => return Err(DiscoverError::Unusable(format!("GET {path} answered {status}"))),
        }
        let body = self.server.gather(&mut call, MAX_LIST).await;
        let body = body.map_err(|error| unreachable_by(&error))?;
        let names = read_model_names(&body)
            .map_err(|error| DiscoverError::Unusable(format!("GET {path}: {error}")))?;
        Ok(names.into_iter().map(Target::from).collect())
    }
}
