//! `iop config`: what a file means, before anything is started with it.

use std::io;
use std::path::{Path, PathBuf};

use iop_adapters::ScriptError;
use iop_config::{ConfigError, EdgeConfig, NodeConfig};

use crate::cli::{Config, FileKind};

/// Runs `iop config` and returns what it prints.
///
/// # Errors
/// The file cannot be read, or is not valid.
pub(crate) fn run(command: &Config) -> Result<String, FileError> {
    match command {
        Config::Check { file, kind } => check(file, *kind),
        Config::Schema { kind } => {
            let schema = match kind {
                FileKind::Edge => iop_config::schema::edge(),
                FileKind::Node => iop_config::schema::node(),
            };
            Ok(format!("{schema:#}\n"))
        }
        Config::Example { kind: FileKind::Edge } => Ok(iop_config::example::edge()),
        Config::Example { kind: FileKind::Node } => Ok(iop_config::example::node()),
    }
}

fn check(path: &Path, kind: Option<FileKind>) -> Result<String, FileError> {
    let text = read(path)?;
    let name = path.display().to_string();
    match kind.unwrap_or_else(|| guess(&text)) {
        FileKind::Edge => {
            let config = edge(&text, path)?;
            let providers: usize = config
                .nodes
                .values()
                .map(|node| node.providers.as_ref().map_or(0, std::collections::BTreeMap::len))
                .sum();
            Ok(format!(
                "{name}: valid edge file (nodes: {}, providers: {providers}, routes: {})\n",
                config.nodes.len(),
                config.routes.len()
            ))
        }
        FileKind::Node => {
            let config = NodeConfig::parse(&text, &name)?;
            Ok(format!("{name}: valid node file of `{}`, edge {}\n", config.node, config.edge))
        }
    }
}

/// A Node's file says which Node it is of; an Edge's cannot.
fn guess(text: &str) -> FileKind {
    let is_node = text.lines().any(|line| line.starts_with("node:") || line.starts_with("edge:"));
    if is_node { FileKind::Node } else { FileKind::Edge }
}

/// Reads an Edge's file.
///
/// # Errors
/// The file cannot be read, or is not valid.
pub(crate) fn edge_file(path: &Path) -> Result<EdgeConfig, FileError> {
    edge(&read(path)?, path)
}

/// Reads an Edge's file with the scripts in it, which only the mock adapter understands.
fn edge(text: &str, path: &Path) -> Result<EdgeConfig, FileError> {
    let name = path.display().to_string();
    let config = EdgeConfig::parse(text, &name)?;
    for (node, entry) in &config.nodes {
        for (provider, settings) in entry.providers.iter().flatten() {
            let Some(script) = &settings.script else { continue };
            iop_adapters::check_script(&script.to_string()).map_err(|source| {
                let place = format!("nodes.{node}.providers.{provider}");
                FileError::Script { name: name.clone(), place, source }
            })?;
        }
    }
    Ok(config)
}

/// Reads a Node's file.
///
/// # Errors
/// The file cannot be read, or is not valid.
pub(crate) fn node_file(path: &Path) -> Result<NodeConfig, FileError> {
    Ok(NodeConfig::parse(&read(path)?, &path.display().to_string())?)
}

fn read(path: &Path) -> Result<String, FileError> {
    std::fs::read_to_string(path)
        .map_err(|source| FileError::Unreadable { path: path.to_owned(), source })
}

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// It cannot be read.
    #[error("configuration file `{}` cannot be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        #[source]
        source: io::Error,
    },
    /// It is not valid.
    #[error(transparent)]
    Invalid(#[from] ConfigError),
    /// A mock provider's script cannot be played.
    #[error("{name}: `{place}`: {source}")]
    Script {
        /// The file.
        name: String,
        /// The provider's place in it.
        place: String,
        /// What is wrong with the script.
        source: ScriptError,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_names_a_node_or_an_edge_is_a_node_file() {
        assert_eq!(guess("version: 1\nnode: box\n"), FileKind::Node);
        assert_eq!(guess("version: 1\nnodes:\n  box: {}\n"), FileKind::Edge);
    }
}
