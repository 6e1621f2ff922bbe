//! What a tunnel may call.

use iop_types::{Operation, RunKind};

/// The allow-list. Compared byte for byte, so that no other spelling of a path passes.
const TUNNEL: &[(&str, &str)] = &[
    ("POST", path_of(RunKind::Chat)),
    ("POST", path_of(RunKind::Completion)),
    ("POST", path_of(RunKind::Embedding)),
    // Servers that have one of these answer it; the others say so themselves.
    ("POST", path_of(RunKind::Rerank)),
    ("POST", "/v1/moderations"),
    ("POST", "/v1/audio/speech"),
    ("POST", "/v1/audio/transcriptions"),
    ("POST", "/v1/audio/translations"),
    ("POST", "/v1/images/generations"),
    ("POST", "/v1/images/edits"),
];

/// The kinds of runs that are translated.
pub(super) const RUNS: &[RunKind] = &[RunKind::Chat, RunKind::Completion, RunKind::Embedding];

/// Returns the path that executes a kind.
pub(super) const fn path_of(kind: RunKind) -> &'static str {
    match kind {
        RunKind::Chat => "/v1/chat/completions",
        RunKind::Completion => "/v1/completions",
        RunKind::Embedding => "/v1/embeddings",
        RunKind::Rerank => "/v1/rerank",
    }
}

/// Returns the allow-list as a capability.
pub(crate) fn tunnel() -> Vec<Operation> {
    listed(TUNNEL)
}

/// Makes a capability of a table of methods and paths.
pub(crate) fn listed(table: &[(&str, &str)]) -> Vec<Operation> {
    table
        .iter()
        .map(|(method, path)| Operation { method: (*method).to_owned(), path: (*path).to_owned() })
        .collect()
}
