//! Where a host keeps its history on this machine.

use iop_config::{Environment, Os, Side};
use iop_store::{DataDir, DataDirError};
use tracing::warn;

/// Returns the environment of this process.
pub(crate) fn environment() -> Environment {
    Environment::new(Os::CURRENT, variable)
}

/// Takes hold of a host's data directory. One that cannot be used costs the history and nothing
/// else: the reason is logged and returned.
///
/// # Errors
/// Another process holds the directory: the host already runs.
pub(crate) fn open(
    configured: Option<&str>,
    side: Side,
) -> Result<Result<DataDir, String>, DataDirError> {
    let reason = match environment().data_dir(configured, side) {
        Ok(path) => match DataDir::open(path) {
            Ok(dir) => return Ok(Ok(dir)),
            Err(error) if error.is_in_use() => return Err(error),
            Err(error) => crate::chain(&error),
        },
        Err(no_home) => no_home.to_string(),
    };
    warn!(reason, "no history is kept");
    Ok(Err(reason))
}

/// Looks a variable of this process up; one that is not text counts as absent.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
