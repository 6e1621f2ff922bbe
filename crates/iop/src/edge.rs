//! `iop edge`: an Edge in a process of its own.

use std::sync::Arc;

use iop_config::{ConfigError, EdgeConfig, EdgeOverlay, Side};
use iop_edge::{Edge, StartError, Tools};
use iop_net::net::TokioNet;
use iop_store::{DataDir, DataDirError, EdgeHistory};

use crate::cli;
use crate::config_command::{self, FileError};
use crate::data_dir::{self, variable};
use crate::descriptors;
use crate::stop_signal;

/// Runs `iop edge` until a signal.
///
/// # Errors
/// The file is not valid, a port or the data directory is taken.
pub(crate) async fn run(command: cli::Edge) -> Result<(), EdgeError> {
    let config = configured(config_command::edge_file(&command.config)?, &command.listen)?;
    descriptors::allow_many();
    let stop = stop_signal::listen().map_err(EdgeError::Signals)?;
    let mut started = start(config).await?;
    crate::announce(&format!("Endpoint  http://{}/v1\n", started.edge.addresses().clients));
    stop.cancelled().await;
    started.edge.stop();
    started.edge.stopped().await;
    Ok(())
}

/// Puts variables and flags over a file.
///
/// # Errors
/// What comes out is not valid.
pub(crate) fn configured(
    file: EdgeConfig,
    listen: &cli::Listen,
) -> Result<EdgeConfig, ConfigError> {
    let variables = EdgeOverlay::from_variables(variable)?;
    file.overlaid(listen.overlay().or(variables))
}

/// A running Edge and the directory that it holds.
pub(crate) struct Started {
    /// The Edge.
    pub edge: Edge,
    /// Held until the Edge has stopped; `None` where there is no usable directory.
    _data_dir: Option<DataDir>,
}

/// Starts an Edge.
///
/// # Errors
/// A port or the data directory is taken.
pub(crate) async fn start(config: EdgeConfig) -> Result<Started, EdgeError> {
    let opened = data_dir::open(config.data_dir.as_deref(), Side::Edge)?;
    let history = match &opened {
        Ok(dir) => EdgeHistory::open(dir, config.limits.history, jiff::Timestamp::now()),
        Err(reason) => EdgeHistory::disabled(reason.as_str()),
    };
    let tools = Tools { net: Arc::new(TokioNet), history };
    let edge = Edge::start(config, tools).await?;
    Ok(Started { edge, _data_dir: opened.ok() })
}

/// Why an Edge does not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EdgeError {
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// Flags, variables and file together are not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data directory cannot be taken.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// A listener cannot be opened.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The process cannot be told to stop.
    #[error("signal handlers cannot be set")]
    Signals(#[source] std::io::Error),
}
