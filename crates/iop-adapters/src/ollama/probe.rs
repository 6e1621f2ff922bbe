//! A look at one target of Ollama.
//!
//! A hung Ollama goes on listing its models, so that its list can only speak against a target. What
//! speaks for it is one generated token, asked for with the context length that the model is loaded
//! with: any other would make the server load it anew, under the eyes of everybody who uses it.

use iop_dialect::ollama::read_model_names;
use iop_execution::{BoxFuture, Look, Probe, ProbeOutcome};
use serde_json::{Map, Value, json};

use super::Ollama;
use super::contexts::Context;
use super::discovery::TAGS;
use crate::probe::{Finding, Findings, Limit, Unsuited, listing, token};

impl Probe for Ollama {
    fn probe(&self, look: Look) -> BoxFuture<'_, ProbeOutcome> {
        Box::pin(async move {
            let limit = Limit::within(look.within);
            let has = |body: &[u8]| {
                let target = look.target.as_str();
                // A name without a tag means `:latest`, as everywhere in Ollama.
                let is_it =
                    |name: &str| name == target || name.strip_suffix(":latest") == Some(target);
                Some(read_model_names(body).ok()?.iter().any(|name| is_it(name)))
            };
            let listed = limit.bound(listing(&self.server, TAGS, has)).await;
            let mut findings = Findings { listing: Some(listed), ..Findings::default() };
            if findings.is_open()
                && look.may_generate
                && !self.is_hosted
                && let Some(options) = self.options(&look)
            {
                let generated = limit.bound(self.generate(look.target.as_str(), options)).await;
                findings.token = Some(generated);
            }
            findings.conclude()
        })
    }

    fn may_serve(&self) -> bool {
        !self.is_hosted
    }
}

impl Ollama {
    /// Returns the options that leave the model as it is loaded, `None` where these are not known.
    fn options(&self, look: &Look) -> Option<Map<String, Value>> {
        let num_ctx = match (self.forced.num_ctx, self.contexts.of(&look.target)?) {
            (Some(forced), _) => Some(forced),
            (None, Context::Default) => None,
            (None, Context::Size(asked)) => Some(asked),
            (None, Context::Unread) => return None,
        };
        let mut options = Map::new();
        options.insert("num_predict".to_owned(), 1.into());
        if let Some(num_ctx) = num_ctx {
            options.insert("num_ctx".to_owned(), num_ctx.get().into());
        }
        Some(options)
    }

    /// Asks for one token, or for a vector of what does not generate.
    async fn generate(&self, target: &str, options: Map<String, Value>) -> Finding {
        let mut asked = json!({"model": target, "stream": false, "options": options});
        let keep_alive = self.forced.keep_alive.as_deref();
        if let Some(value) = keep_alive.and_then(|text| serde_json::from_str::<Value>(text).ok()) {
            asked["keep_alive"] = value;
        }
        let with = |key: &str| {
            let mut body = asked.clone();
            body[key] = ".".into();
            body.to_string()
        };
        match token(&self.server, "/api/generate", with("prompt"), has_token).await {
            Ok(finding) => finding,
            Err(Unsuited) => {
                let vector = token(&self.server, "/api/embed", with("input"), has_vector).await;
                vector.unwrap_or(Finding::Nothing)
            }
        }
    }
}

/// A model that was merely loaded has generated nothing.
fn has_token(body: &[u8]) -> bool {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    let has_text = |key: &str| answer[key].as_str().is_some_and(|text| !text.is_empty());
    let count = answer["eval_count"].as_u64().unwrap_or_default();
    count > 0 || has_text("response") || has_text("thinking")
}

fn has_vector(body: &[u8]) -> bool {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    answer["embeddings"].as_array().is_some_and(|vectors| !vectors.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_was_only_loaded_has_generated_nothing() {
        assert!(!has_token(br#"{"done":true,"done_reason":"load","response":""}"#));
        assert!(has_token(br#"{"done":true,"response":"a"}"#));
        assert!(has_token(br#"{"done":true,"response":"","thinking":"","eval_count":1}"#));
        assert!(!has_token(b"<html>"));
    }
}
