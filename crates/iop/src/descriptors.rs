//! How many descriptors the process may have open.
//!
//! Every stream costs one at the client and one at the provider. Systems start programs with a low
//! soft limit (256 on macOS, often 1024 on Linux) for the sake of `select(2)`, which nothing here
//! uses, and allow far more on request.

/// Takes as many as are allowed. What is refused leaves the limit as it was, and is logged.
#[cfg(unix)]
pub(crate) fn allow_many() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    /// Most that macOS grants where it claims that there is no limit (`OPEN_MAX`).
    const MACOS: u64 = 10_240;

    let now = getrlimit(Resource::Nofile);
    let wanted = match now.maximum {
        Some(most) if cfg!(target_os = "macos") => Some(most.min(MACOS)),
        None if cfg!(target_os = "macos") => Some(MACOS),
        most => most,
    };
    if now.current.is_none() || now.current == wanted {
        return;
    }
    let limit = Rlimit { current: wanted, maximum: now.maximum };
    match setrlimit(Resource::Nofile, limit) {
        Ok(()) => {
            tracing::debug!(from = now.current, to = wanted, "raised the limit of open files");
        }
        Err(error) => {
            tracing::warn!(%error, limit = now.current, "the limit of open files cannot be raised");
        }
    }
}

/// Nothing to do: no such limit exists.
#[cfg(not(unix))]
pub(crate) fn allow_many() {}
