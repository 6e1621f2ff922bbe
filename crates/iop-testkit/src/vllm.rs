//! A vLLM or SGLang server as its documentation describes it, for tests.
//!
//! It is a [`ScriptedProvider`] with these engines' habits: the list names the engine as the owner,
//! `/health` has no body, `/metrics` is Prometheus' text, a stream carries keep-alive comments while
//! it waits, and a peer that leaves aborts its request. What a test does not need (an id's details,
//! the histograms) is left out. Anything can still be programmed by path, as on the provider itself.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::answer;
use crate::provider::{Ended, Exchange, Request, ScriptedProvider};
use crate::script::Script;

/// What a stream says while it has nothing to say.
pub const KEEP_ALIVE: &str = ": keep-alive\n\n";

/// Which of the two engines it plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

/// A scripted vLLM or SGLang.
#[derive(Debug)]
pub struct ScriptedVllm {
    provider: ScriptedProvider,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    engine: Engine,
    models: Vec<String>,
    adapters: Vec<String>,
    health: u16,
    metrics: Option<Metrics>,
}

#[derive(Debug, Clone, Copy)]
struct Metrics {
    running: u32,
    waiting: u32,
}

/// What these engines answer beside OpenAI's API, and here with the least that shows a path works.
const EXTRA: [&str; 14] = [
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v2/embed",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/score",
    "/v1/score",
    "/classify",
    "/pooling",
    "/detokenize",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
];

impl ScriptedVllm {
    /// Starts a healthy, idle engine that serves this model.
    pub async fn start(engine: Engine, model: &str) -> Self {
        Self::on(ScriptedProvider::start().await, engine, model)
    }

    /// Gives a provider that has started already the habits of an engine.
    #[must_use]
    pub fn on(provider: ScriptedProvider, engine: Engine, model: &str) -> Self {
        let state = State {
            engine,
            models: vec![model.to_owned()],
            adapters: Vec::new(),
            health: 200,
            metrics: Some(Metrics { running: 0, waiting: 0 }),
        };
        let server = Self { provider, state: Arc::new(Mutex::new(state)) };
        server.answer("/v1/models", |state, _| state.list());
        server.answer("/health", |state, _| state.health());
        server.answer("/health_generate", |state, _| match state.engine {
            Engine::Vllm => not_found(),
            Engine::Sglang => state.health(),
        });
        server.answer("/version", |state, _| match state.engine {
            Engine::Vllm => answer::json(200, &json!({"version": "0.33.0"})),
            Engine::Sglang => not_found(),
        });
        server.answer("/metrics", |state, _| state.metrics());
        server.answer("/tokenize", |_, request| {
            let text = request.json()["prompt"].as_str().unwrap_or_default().to_owned();
            let tokens: Vec<_> = (0..text.split_whitespace().count()).collect();
            let count = tokens.len();
            answer::json(200, &json!({"count": count, "max_model_len": 4096, "tokens": tokens}))
        });
        for path in EXTRA {
            server.answer(path, |_, request| {
                let answer = json!({"path": request.path(), "model": request.model()});
                answer::json(200, &answer)
            });
        }
        server
    }

    /// Answers health with this status from now on; 503 is what a dead engine says.
    pub fn set_health(&self, status: u16) {
        self.state().health = status;
    }

    /// Sets how many requests run and wait in the engine.
    pub fn set_load(&self, running: u32, waiting: u32) {
        self.state().metrics = Some(Metrics { running, waiting });
    }

    /// Serves no metrics, as SGLang without `--enable-metrics`.
    pub fn without_metrics(&self) {
        self.state().metrics = None;
    }

    /// Lists these LoRA adapters behind the model.
    pub fn set_adapters(&self, names: &[&str]) {
        self.state().adapters = names.iter().map(ToString::to_string).collect();
    }

    /// Answers chats as a stream of `pieces`, `between` apart, with a keep-alive before each.
    pub fn stream_chats(&self, pieces: usize, between: Duration) {
        self.provider.on("/v1/chat/completions", move |request| {
            let mut script = answer::stream_start(request);
            for index in 0..pieces {
                let content = answer::content(request, &answer::piece(index));
                script = script.wait(between).chunk(KEEP_ALIVE).event(content);
            }
            answer::stream_end(script, request, pieces)
        });
    }

    /// The requests that an engine would execute: not looks at health, metrics and version.
    #[must_use]
    pub fn requests(&self) -> Vec<Exchange> {
        let is_look = |exchange: &Exchange| exchange.request.method == "GET";
        self.log().exchanges.into_iter().filter(|exchange| !is_look(exchange)).collect()
    }

    /// When each request was aborted because its client left.
    #[must_use]
    pub fn aborts(&self) -> Vec<Instant> {
        let aborted = |exchange: Exchange| match exchange.ended? {
            (at, Ended::PeerLeft | Ended::WriteFailed) => Some(at),
            (_, Ended::Played | Ended::Stopped) => None,
        };
        self.requests().into_iter().filter_map(aborted).collect()
    }

    /// Ends the process, as far as anybody can tell from outside.
    pub async fn stop(self) {
        self.provider.stop().await;
    }

    fn answer(
        &self,
        path: &str,
        make: impl Fn(&State, &Request) -> Script + Send + Sync + 'static,
    ) {
        let state = Arc::clone(&self.state);
        self.provider.on(path, move |request| make(&lock(&state), request));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Deref for ScriptedVllm {
    type Target = ScriptedProvider;

    fn deref(&self) -> &ScriptedProvider {
        &self.provider
    }
}

impl State {
    fn list(&self) -> Script {
        let owner = match self.engine {
            Engine::Vllm => "vllm",
            Engine::Sglang => "sglang",
        };
        let base = self.models.first().cloned();
        let entry = |id: &String, parent: Option<&String>| {
            json!({
                "id": id, "object": "model", "created": 1_733_000_000, "owned_by": owner,
                "root": id, "parent": parent, "max_model_len": 4096,
            })
        };
        let models = self.models.iter().map(|id| entry(id, None));
        let adapters = self.adapters.iter().map(|id| entry(id, base.as_ref()));
        let data: Vec<Value> = models.chain(adapters).collect();
        answer::json(200, &json!({"object": "list", "data": data}))
    }

    fn health(&self) -> Script {
        Script::new().head(self.health, &[("content-length", "0")])
    }

    fn metrics(&self) -> Script {
        let Some(Metrics { running, waiting }) = self.metrics else { return not_found() };
        let model = self.models.first().map_or("", String::as_str);
        let (runs, waits, label) = match self.engine {
            Engine::Vllm => ("vllm:num_requests_running", "vllm:num_requests_waiting", "engine"),
            Engine::Sglang => ("sglang:num_running_reqs", "sglang:num_queue_reqs", "tp_rank"),
        };
        let text = format!(
            "# HELP {runs} Number of requests that run.\n\
             # TYPE {runs} gauge\n\
             {runs}{{{label}=\"0\",model_name=\"{model}\"}} {running}.0\n\
             # HELP {waits} Number of requests that wait.\n\
             # TYPE {waits} gauge\n\
             {waits}{{{label}=\"0\",model_name=\"{model}\"}} {waiting}.0\n"
        );
        answer::sized(200, "text/plain; version=0.0.4; charset=utf-8", text)
    }
}

fn not_found() -> Script {
    answer::json(404, &json!({"detail": "Not Found"}))
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A test that panicked in here has failed already.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
