//! The Node's own file.

use crate::node::{NodeConfig, SecretSource};
use crate::path::Path;
use crate::read::Findings;

use super::{data_dir, name, version};

/// Checks a Node's file.
pub(crate) fn node(config: &mut NodeConfig, findings: &mut Findings) {
    let root = Path::root();
    version(config.version, findings);
    name(config.node.as_str(), "Node", root.key("node"), findings);
    data_dir(config.data_dir.as_deref(), findings);
    for (key, source) in &config.secrets {
        let at = root.key("secrets").key(key);
        name(key, "secret", at.clone(), findings);
        let (kind, text) = match source {
            SecretSource::Env(variable) => ("env", variable),
            SecretSource::File(path) => ("file", path),
        };
        if text.trim().is_empty() {
            findings.add(at.key(kind), "is empty: write where the secret is kept");
        }
    }
}
