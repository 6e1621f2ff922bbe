//! Nothing but the closed list of Ollama's operations is ever found.

#![no_main]

use iop_types::OllamaOperation;
use libfuzzer_sys::fuzz_target;

/// Written down once more: a list that grows by accident differs from this one.
const LIST: [(&str, &str, bool); 7] = [
    ("GET", "/api/version", false),
    ("GET", "/api/tags", false),
    ("GET", "/api/ps", false),
    ("POST", "/api/show", false),
    ("POST", "/api/pull", true),
    ("POST", "/api/copy", true),
    ("DELETE", "/api/delete", true),
];

fuzz_target!(|input: &str| {
    let (method, path) = input.split_once(' ').unwrap_or(("GET", input));
    let found = OllamaOperation::find(method, path);
    let listed = LIST.iter().find(|(known, at, _)| (*known, *at) == (method, path));
    let found = found.map(|found| (found.method(), found.path(), found.manages()));
    assert_eq!(found, listed.copied());
});
