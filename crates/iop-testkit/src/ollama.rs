//! A server that behaves as Ollama's documentation says, over the scripted provider.
//!
//! It has models, loads them (which takes as long as a test says), keeps a log of every load with
//! its context length, and unloads them when their time is over. A request that asks for another
//! context length loads the model anew, as Ollama does; the paths of OpenAI cannot ask and get the
//! default. Answers are lines of JSON whose pieces a test chooses ([`Reply`]).
//!
//! Bodies are read as Go reads them: known keys without regard to case, the last one of several
//! wins, `options` by exact keys. What Go would refuse (a call's arguments as text, a `keep_alive`
//! without unit, an image that is no base64) is refused in its words.
//!
//! ```no_run
//! # async fn example() {
//! use iop_testkit::ScriptedOllama;
//!
//! let ollama = ScriptedOllama::start().await;
//! ollama.set_models(&["llama3.2:latest"]);
//! // … let a client chat through IOP …
//! assert_eq!(ollama.loads().len(), 1);
//! # }
//! ```
//!
//! Rules that a test adds to [`provider`](ScriptedOllama::provider) win over all of this.

mod body;
mod inference;
mod models;
mod reply;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;

use crate::answer;
use crate::provider::{Request, ScriptedProvider};
use crate::script::Script;

use self::body::Body;
pub use self::models::Load;
use self::models::Models;
pub use self::reply::{Call, Reply};

/// The context length of a load that asked for none.
pub const DEFAULT_NUM_CTX: u64 = 4_096;

/// The version that it says it is.
pub const VERSION: &str = "0.13.5";

/// A scripted Ollama on loopback.
#[derive(Debug)]
pub struct ScriptedOllama {
    provider: ScriptedProvider,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    models: Models,
    reply: Reply,
    load_delay: Duration,
}

impl ScriptedOllama {
    /// Starts a server that has the one model `mock-model:latest`.
    ///
    /// # Panics
    /// Panics when no loopback port can be bound.
    pub async fn start() -> Self {
        let provider = ScriptedProvider::start().await;
        let shared = Arc::new(Shared::default());
        let answering = Arc::clone(&shared);
        provider.on_matching(|_| true, move |request| answering.answer(request));
        let ollama = Self { provider, shared };
        ollama.set_models(&["mock-model:latest"]);
        ollama
    }

    /// The server underneath: its log, its address, and rules that win over Ollama's.
    #[must_use]
    pub fn provider(&self) -> &ScriptedProvider {
        &self.provider
    }

    /// The base URL without a path, as it stands in a configuration.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.provider.endpoint()
    }

    /// Replaces the models; none of them is loaded.
    ///
    /// One whose name holds `embed` gives vectors only.
    pub fn set_models(&self, names: &[&str]) {
        self.shared.state().models.replace(names);
    }

    /// Chooses how long a load takes; nothing by default.
    pub fn set_load_delay(&self, delay: Duration) {
        self.shared.state().load_delay = delay;
    }

    /// Chooses what is answered from now on.
    pub fn set_reply(&self, reply: Reply) {
        self.shared.state().reply = reply;
    }

    /// Every load up to now.
    #[must_use]
    pub fn loads(&self) -> Vec<Load> {
        self.shared.state().models.loads.clone()
    }

    /// The names of the models that are in memory now.
    #[must_use]
    pub fn loaded(&self) -> Vec<String> {
        self.shared.state().models.loaded()
    }

    /// The names of the models that it has.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.shared.state().models.names()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, request: &Request) -> Script {
        let state = &mut *self.state();
        match (request.method.as_str(), request.path()) {
            ("GET" | "HEAD", "/") => answer::sized(200, "text/plain", "Ollama is running"),
            ("GET" | "HEAD", "/api/version") => answer::json(200, &json!({"version": VERSION})),
            ("GET" | "HEAD", "/api/tags") => answer::json(200, &state.models.tags()),
            ("GET", "/api/ps") => answer::json(200, &state.models.ps()),
            ("GET", "/v1/models") => answer::models(&state.models.names()),
            ("POST", path @ ("/api/chat" | "/api/generate")) => {
                with_body(request, |body| state.generate(path, body))
            }
            ("POST", path @ ("/api/embed" | "/api/embeddings")) => {
                with_body(request, |body| state.embed(path, body))
            }
            ("POST", "/v1/chat/completions" | "/v1/completions" | "/v1/embeddings") => {
                with_body(request, |body| state.foreign(request, body))
            }
            ("POST", "/api/show") => with_body(request, |body| state.models.show(body)),
            ("POST", "/api/pull") => with_body(request, |body| state.models.pull(body)),
            ("POST", "/api/copy") => with_body(request, |body| state.models.copy(body)),
            ("DELETE", "/api/delete") => with_body(request, |body| state.models.delete(body)),
            _ => answer::sized(404, "text/plain", "404 page not found"),
        }
    }
}

/// An answer that says why there is none.
#[derive(Debug)]
struct Refusal(u16, String);

fn with_body(request: &Request, answer: impl FnOnce(&Body) -> Result<Script, Refusal>) -> Script {
    let answered = Body::read(&request.body).and_then(|body| answer(&body));
    answered
        .unwrap_or_else(|Refusal(status, error)| answer::json(status, &json!({ "error": error })))
}
