//! What a tunnel may call: inference and tokenizing, by vLLM's and SGLang's own documentation.
//!
//! Everything that manages the server stays out: `/sleep`, `/load_lora_adapter`, `/flush_cache`,
//! `/start_profile`, `/update_weights*`, `/abort_request` and their like act on all of its users, and
//! `/invocations` is the same inference past the server's own API key. So do paths with an id in them
//! (`/v1/responses/ID`): what they name lives in one server, and nothing here remembers which.

use iop_types::Operation;

use crate::openai_compat::operations::listed;

/// The allow-list. Which of these a server answers depends on its model; it says so itself.
const TUNNEL: &[(&str, &str)] = &[
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v2/embed"),
    ("POST", "/rerank"),
    ("POST", "/v1/rerank"),
    ("POST", "/v2/rerank"),
    ("POST", "/score"),
    ("POST", "/v1/score"),
    ("POST", "/classify"),
    ("POST", "/v1/classify"),
    ("POST", "/pooling"),
    ("POST", "/tokenize"),
    ("POST", "/v1/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/detokenize"),
    ("POST", "/v1/audio/transcriptions"),
    ("POST", "/v1/audio/translations"),
];

pub(super) fn tunnel() -> Vec<Operation> {
    listed(TUNNEL)
}
