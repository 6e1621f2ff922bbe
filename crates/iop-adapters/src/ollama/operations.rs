//! What runs are executed by, and what a tunnel may call.

use iop_types::{Operation, RunKind};

/// The kinds of runs that are translated.
pub(super) const RUNS: &[RunKind] = &[RunKind::Chat, RunKind::Completion, RunKind::Embedding];

/// Ollama's own inference; the bodies can carry every option.
const NATIVE: &[(&str, &str)] = &[
    ("POST", "/api/chat"),
    ("POST", "/api/generate"),
    ("POST", "/api/embed"),
    ("POST", "/api/embeddings"),
];

/// What only reads.
const READING: &[(&str, &str)] = &[
    ("GET", "/api/version"),
    ("GET", "/api/tags"),
    ("GET", "/api/ps"),
    ("POST", "/api/show"),
    ("GET", "/v1/models"),
];

/// Inference in the dialects of others; Ollama reads no options of its own here.
const FOREIGN: &[(&str, &str)] = &[
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/messages"),
];

/// Returns the path that executes a kind; none executes reranking.
pub(super) const fn path_of(kind: RunKind) -> Option<&'static str> {
    match kind {
        RunKind::Chat => Some("/api/chat"),
        RunKind::Completion => Some("/api/generate"),
        RunKind::Embedding => Some("/api/embed"),
        RunKind::Rerank => None,
    }
}

/// Says whether a body of this path carries options.
pub(super) fn carries_options(path: &str) -> bool {
    NATIVE.iter().any(|(_, native)| *native == path)
}

/// Says whether this path executes something.
pub(super) fn is_inference(path: &str) -> bool {
    carries_options(path) || FOREIGN.iter().any(|(_, foreign)| *foreign == path)
}

/// Returns the allow-list as a capability. Compared byte for byte, so that no other spelling of a
/// path passes. With forced options no path is on it that could not carry them: the Edge then
/// chooses the run form, which is executed by the native ones.
pub(super) fn tunnel(forces: bool) -> Vec<Operation> {
    let foreign = if forces { &[] } else { FOREIGN };
    [NATIVE, READING, foreign]
        .into_iter()
        .flatten()
        .map(|(method, path)| Operation { method: (*method).to_owned(), path: (*path).to_owned() })
        .collect()
}
