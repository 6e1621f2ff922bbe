//! From text to a checked value, and from a mistake to a message that says where and what instead.

mod mistake;

use serde::de::DeserializeOwned;

use crate::error::{ConfigError, Problem};
use crate::path::Path;
use crate::tree::Tree;

pub(crate) use mistake::closest;

/// A file is this long at most: nobody writes more by hand, and a wrong path may be a model.
const MAX_BYTES: usize = 4 << 20;

/// Collects what a check finds.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<(Path, String)>);

impl Findings {
    /// Notes a mistake.
    pub(crate) fn add(&mut self, path: Path, message: impl Into<String>) {
        self.0.push((path, message.into()));
    }
}

/// Reads a file and checks it.
pub(crate) fn file<T: DeserializeOwned>(
    text: &str,
    file_name: &str,
    check: impl FnOnce(&mut T, &mut Findings),
) -> Result<T, ConfigError> {
    let refuse = |problems| ConfigError { source_name: file_name.to_owned(), problems };
    if text.len() > MAX_BYTES {
        let message = format!("is {} bytes long, a configuration is at most 4 MiB", text.len());
        return Err(refuse(vec![Problem { position: None, path: Path::root(), message }]));
    }
    // What is no YAML at all is said before what makes no sense.
    let tree =
        Tree::of(text).map_err(|error| refuse(vec![mistake::problem(&error, &Tree::default())]))?;
    let options = serde_saphyr::options! { with_snippet: false, strict_booleans: true };
    let mut value: T = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| refuse(vec![mistake::problem(&error, &tree)]))?;
    let mut findings = Findings::default();
    check(&mut value, &mut findings);
    settle(value, findings, &tree).map_err(refuse)
}

/// Checks a value that was not read from a file.
pub(crate) fn value<T>(
    mut value: T,
    origin: &str,
    check: impl FnOnce(&mut T, &mut Findings),
) -> Result<T, ConfigError> {
    let mut findings = Findings::default();
    check(&mut value, &mut findings);
    settle(value, findings, &Tree::default())
        .map_err(|problems| ConfigError { source_name: origin.to_owned(), problems })
}

fn settle<T>(value: T, findings: Findings, tree: &Tree) -> Result<T, Vec<Problem>> {
    if findings.0.is_empty() {
        return Ok(value);
    }
    let mut problems: Vec<_> = findings
        .0
        .into_iter()
        .map(|(path, message)| Problem { position: tree.position(&path), path, message })
        .collect();
    problems.sort_by_key(|problem| problem.position);
    Err(problems)
}
