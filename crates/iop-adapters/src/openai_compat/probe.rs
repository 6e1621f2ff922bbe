//! A look at one target of a server that speaks OpenAI's API.
//!
//! First what costs nothing, both at once: the list of models, and `GET /health`, which many servers
//! have. Then, where that leaves it open, one token. What an unknown server says of its health can
//! only speak against it: its engine may be dead behind it. A hosted server is asked for its list
//! alone, so that nobody pays for a look; it is never proven to be available.

use iop_dialect::openai::read_model_list;
use iop_execution::{BoxFuture, Look, Probe, ProbeOutcome};
use serde_json::{Value, json};

use super::OpenaiCompat;
use crate::probe::{Finding, Findings, Limit, health, listing, token};

impl Probe for OpenaiCompat {
    fn probe(&self, look: Look) -> BoxFuture<'_, ProbeOutcome> {
        Box::pin(async move {
            let limit = Limit::within(look.within);
            let path = (!self.is_hosted).then_some("/health");
            let mut findings = self.examine(path, false, &look, limit).await;
            if findings.is_open() && look.may_generate && !self.is_hosted {
                let generated = limit.bound(self.generate(look.target.as_str())).await;
                findings.token = Some(generated);
            }
            findings.conclude()
        })
    }

    fn may_serve(&self) -> bool {
        !self.is_hosted
    }
}

impl OpenaiCompat {
    /// Asks for the engine's health at `path`, if any, and for the list of models.
    pub(crate) async fn examine(
        &self,
        path: Option<&str>,
        health_is_proof: bool,
        look: &Look,
        limit: Limit,
    ) -> Findings {
        let has = |body: &[u8]| {
            let ids = read_model_list(body).ok()?;
            Some(ids.iter().any(|id| id == look.target.as_str()))
        };
        let asking = async {
            match path {
                Some(path) => Some(limit.bound(health(&self.server, path)).await),
                None => None,
            }
        };
        let listing = limit.bound(listing(&self.server, "/v1/models", has));
        let (health, listing) = futures_util::future::join(asking, listing).await;
        Findings { health, health_is_proof, listing: Some(listing), token: None }
    }

    /// Asks for one token, or for what the target has in its place: it may not be for chats.
    async fn generate(&self, target: &str) -> Finding {
        let chat = json!({
            "model": target,
            "messages": [{"role": "user", "content": "."}],
            "max_tokens": 1,
        });
        let completion = json!({"model": target, "prompt": ".", "max_tokens": 1});
        let embedding = json!({"model": target, "input": "."});
        let operations = [
            ("/v1/chat/completions", chat, "choices"),
            ("/v1/completions", completion, "choices"),
            ("/v1/embeddings", embedding, "data"),
        ];
        for (path, body, list) in operations {
            let has = |body: &[u8]| has_any(body, list);
            let asked = token(&self.server, path, body.to_string(), has).await;
            if let Ok(finding) = asked {
                return finding;
            }
        }
        Finding::Nothing
    }
}

/// Says whether the answer is an object with something in this list.
fn has_any(body: &[u8], list: &str) -> bool {
    let answer: Option<Value> = serde_json::from_slice(body).ok();
    answer.as_ref().and_then(|answer| answer[list].as_array()).is_some_and(|list| !list.is_empty())
}
