//! Starting groups of processes, and looking at them from outside.

mod edge;
mod process;
mod proxy;
pub(crate) mod stream;

use std::time::Duration;

use iop_testkit::PATIENCE;
use serde_json::{Value, json};

pub(crate) use self::edge::Edge;
pub(crate) use self::process::{Apart, IOP, Running, Up, ports};
pub(crate) use self::proxy::{Pass, Proxy, time_for};

/// The operation that most tests call.
pub(crate) const CHAT: &str = "/v1/chat/completions";

/// What the scripted provider lists when nothing else is asked for.
pub(crate) const MODEL: &str = "mock-model";

/// Within this a provider has to see that a client left (DESIGN, sections 5 and 7).
pub(crate) const SEEN: Duration = Duration::from_secs(1);

/// A streamed chat that asks for usage itself, so that every byte of the answer is the provider's.
pub(crate) fn streamed(model: &str) -> Value {
    json!({
        "model": model, "stream": true, "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": "hello"}],
    })
}

/// A chat that is answered in one piece.
pub(crate) fn unary(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "hello"}]})
}

/// Looks again and again until `look` finds something; `None` after [`PATIENCE`].
pub(crate) async fn eventually<T>(mut look: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            // The state is in another process: ask again.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.ok()
}
