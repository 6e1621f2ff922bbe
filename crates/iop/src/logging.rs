//! Where log lines go: to standard error, so that standard output holds answers only.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::cli::LogFormat;

/// Starts logging by `filter`, or at `usual` where there is none.
///
/// # Errors
/// Names the filter that cannot be read.
pub(crate) fn start(filter: Option<&str>, usual: &str, format: LogFormat) -> Result<(), String> {
    let text = filter.unwrap_or(usual);
    let filter = EnvFilter::try_new(text).map_err(|error| {
        format!("--log `{text}` is not a filter ({error}): try `info` or `iop_net=debug,warn`")
    })?;
    // A reader of the log that went away costs the log and nothing else: telling of a line that
    // could not be written, on the same standard error, would panic.
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    let started = match format {
        LogFormat::Text => {
            lines.with_ansi(std::io::stderr().is_terminal()).with_target(false).try_init()
        }
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| format!("logging cannot be started: {error}"))
}
