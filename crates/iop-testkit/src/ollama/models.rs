//! The models that the server has, and those that it holds in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::body::Body;
use super::{DEFAULT_NUM_CTX, Refusal};
use crate::answer;
use crate::script::Script;

/// One load of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// The model.
    pub model: String,
    /// The context length that it was loaded with.
    pub num_ctx: u64,
}

#[derive(Debug, Default)]
pub(super) struct Models {
    names: BTreeSet<String>,
    in_memory: BTreeMap<String, InMemory>,
    pub(super) loads: Vec<Load>,
}

#[derive(Debug)]
struct InMemory {
    num_ctx: u64,
    /// `None` is never.
    until: Option<Instant>,
}

/// Size of every model, in bytes.
const SIZE: u64 = 2_019_393_189;

impl Models {
    pub(super) fn replace(&mut self, names: &[&str]) {
        self.names = names.iter().map(|name| tagged(name)).collect();
        self.in_memory.clear();
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.names.iter().cloned().collect()
    }

    pub(super) fn loaded(&mut self) -> Vec<String> {
        self.expire();
        self.in_memory.keys().cloned().collect()
    }

    /// Finds the model of a body; a name without a tag means `:latest`.
    pub(super) fn find(&self, body: &Body) -> Result<String, Refusal> {
        let asked = match body.text("model")? {
            "" => body.text("name")?,
            model => model,
        };
        if asked.is_empty() {
            return Err(Refusal(400, "model is required".to_owned()));
        }
        let name = tagged(asked);
        if self.names.contains(&name) { Ok(name) } else { Err(not_found(asked)) }
    }

    /// Takes a model into memory with this context length; says whether that was a load.
    pub(super) fn load(&mut self, name: &str, num_ctx: Option<u64>, keep: Option<f64>) -> bool {
        self.expire();
        let num_ctx = num_ctx.unwrap_or(DEFAULT_NUM_CTX);
        let is_loaded = self.in_memory.get(name).is_some_and(|held| held.num_ctx == num_ctx);
        if !is_loaded {
            self.loads.push(Load { model: name.to_owned(), num_ctx });
        }
        let until = keep.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
        self.in_memory.insert(name.to_owned(), InMemory { num_ctx, until });
        !is_loaded
    }

    fn expire(&mut self) {
        let now = Instant::now();
        self.in_memory.retain(|_, held| held.until.is_none_or(|until| until > now));
    }

    pub(super) fn tags(&self) -> Value {
        let models: Vec<_> = self.names.iter().map(|name| described(name)).collect();
        json!({ "models": models })
    }

    pub(super) fn ps(&mut self) -> Value {
        self.expire();
        let models: Vec<_> = self
            .in_memory
            .iter()
            .map(|(name, held)| {
                let mut model = described(name);
                // For ever is shown as a date that is far away.
                let left = held.until.map_or(Duration::from_secs(100 * 365 * 86_400), |until| {
                    until.saturating_duration_since(Instant::now())
                });
                model["expires_at"] = json!((Timestamp::now() + left).to_string());
                model["size_vram"] = json!(SIZE);
                model["context_length"] = json!(held.num_ctx);
                model
            })
            .collect();
        json!({ "models": models })
    }

    pub(super) fn show(&self, body: &Body) -> Result<Script, Refusal> {
        let name = self.find(body)?;
        let capabilities = match is_embedding(&name) {
            true => json!(["embedding"]),
            false => json!(["completion", "tools", "thinking", "vision"]),
        };
        Ok(answer::json(
            200,
            &json!({
                "modelfile": format!("FROM {name}"), "template": "{{ .Prompt }}",
                "details": described(&name)["details"],
                "model_info": {"general.architecture": "llama", "llama.context_length": 131_072},
                "capabilities": capabilities, "modified_at": MODIFIED,
            }),
        ))
    }

    /// Downloads, in four steps of progress; a name with `missing` is in no registry.
    pub(super) fn pull(&mut self, body: &Body) -> Result<Script, Refusal> {
        let asked = match body.text("model")? {
            "" => body.text("name")?,
            model => model,
        };
        if asked.is_empty() {
            return Err(Refusal(400, "invalid model name".to_owned()));
        }
        let mut lines = vec![json!({"status": "pulling manifest"})];
        if asked.contains("missing") {
            lines.push(json!({"error": "pull model manifest: file does not exist"}));
        } else {
            let digest = digest(asked);
            for quarter in 1..=4_u64 {
                lines.push(json!({
                    "status": format!("pulling {}", &digest[7..19]), "digest": digest,
                    "total": SIZE, "completed": SIZE / 4 * quarter + SIZE % 4 * (quarter / 4),
                }));
            }
            for status in ["verifying sha256 digest", "writing manifest", "success"] {
                lines.push(json!({ "status": status }));
            }
            self.names.insert(tagged(asked));
        }
        if body.streams() {
            return Ok(stream(&lines, Duration::ZERO));
        }
        let last = lines.pop().unwrap_or_default();
        let status = if last["error"].is_string() { 500 } else { 200 };
        Ok(answer::json(status, &last))
    }

    pub(super) fn copy(&mut self, body: &Body) -> Result<Script, Refusal> {
        let source = body.text("source")?;
        if !self.names.contains(&tagged(source)) {
            return Err(not_found(source));
        }
        let destination = tagged(body.text("destination")?);
        self.names.insert(destination);
        Ok(answer::sized(200, "text/plain", ""))
    }

    pub(super) fn delete(&mut self, body: &Body) -> Result<Script, Refusal> {
        let name = self.find(body)?;
        self.names.remove(&name);
        self.in_memory.remove(&name);
        Ok(answer::sized(200, "text/plain", ""))
    }
}

/// Lines of JSON as one chunk each, with this time before every one of them.
pub(super) fn stream(lines: &[Value], pace: Duration) -> Script {
    let head = [("content-type", "application/x-ndjson"), ("transfer-encoding", "chunked")];
    let mut script = Script::new().wait(pace).head(200, &head);
    for (index, line) in lines.iter().enumerate() {
        let pause = if index == 0 { Duration::ZERO } else { pace };
        script = script.wait(pause).chunk(format!("{line}\n"));
    }
    script.last_chunk()
}

pub(super) fn is_embedding(name: &str) -> bool {
    name.contains("embed")
}

fn not_found(asked: &str) -> Refusal {
    Refusal(404, format!("model '{asked}' not found"))
}

fn tagged(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains(':') { name.to_owned() } else { format!("{name}:latest") }
}

// Any fixed time: nobody interprets it.
const MODIFIED: &str = "2026-10-26T17:21:21.196249Z";

fn described(name: &str) -> Value {
    json!({
        "name": name, "model": name, "modified_at": MODIFIED, "size": SIZE, "digest": digest(name),
        "details": {
            "parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"],
            "parameter_size": "3.2B", "quantization_level": "Q4_K_M",
        },
    })
}

/// A text of the form of a digest, other for other names.
fn digest(name: &str) -> String {
    let mut hex: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
    hex.push_str(&"0".repeat(64));
    format!("sha256:{}", &hex[..64])
}
