//! What flags and `IOP_*` variables put over a file.
//!
//! The order everywhere is flag, variable, file, default. The command line fills one overlay from
//! its flags and one from the variables, and [`or`](EdgeOverlay::or) puts the first over the second.

use std::net::SocketAddr;
use std::str::FromStr;

use crate::edge::EdgeConfig;
use crate::error::{ConfigError, Problem};
use crate::host_port::HostPort;
use crate::node::NodeConfig;
use crate::path::Path;
use iop_types::NodeId;

/// Variable for `listen.clients` of an Edge.
pub const LISTEN_CLIENTS: &str = "IOP_LISTEN_CLIENTS";
/// Variable for `listen.nodes` of an Edge.
pub const LISTEN_NODES: &str = "IOP_LISTEN_NODES";
/// Variable for `listen.admin` of an Edge.
pub const LISTEN_ADMIN: &str = "IOP_LISTEN_ADMIN";
/// Variable for `data_dir`.
pub const DATA_DIR: &str = "IOP_DATA_DIR";
/// Variable for a Node's `node`.
pub const NODE: &str = "IOP_NODE";
/// Variable for a Node's `edge`.
pub const EDGE: &str = "IOP_EDGE";

/// Every variable that overrides a file, with the field.
pub const VARIABLES: [(&str, &str); 6] = [
    (LISTEN_CLIENTS, "listen.clients"),
    (LISTEN_NODES, "listen.nodes"),
    (LISTEN_ADMIN, "listen.admin"),
    (DATA_DIR, "data_dir"),
    (NODE, "node"),
    (EDGE, "edge"),
];

/// What overrides an Edge's file; `None` leaves the file's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EdgeOverlay {
    /// Overrides `listen.clients`.
    pub listen_clients: Option<SocketAddr>,
    /// Overrides `listen.nodes`.
    pub listen_nodes: Option<SocketAddr>,
    /// Overrides `listen.admin`.
    pub listen_admin: Option<SocketAddr>,
    /// Overrides `data_dir`.
    pub data_dir: Option<String>,
}

impl EdgeOverlay {
    /// Reads the variables through `variable`; an empty one counts as absent.
    ///
    /// # Errors
    /// Fails when a variable does not hold an address, naming the variable.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        Ok(Self {
            listen_clients: address(&variable, LISTEN_CLIENTS)?,
            listen_nodes: address(&variable, LISTEN_NODES)?,
            listen_admin: address(&variable, LISTEN_ADMIN)?,
            data_dir: filled(&variable, DATA_DIR),
        })
    }

    /// Fills what is absent here from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            listen_clients: self.listen_clients.or(other.listen_clients),
            listen_nodes: self.listen_nodes.or(other.listen_nodes),
            listen_admin: self.listen_admin.or(other.listen_admin),
            data_dir: self.data_dir.or(other.data_dir),
        }
    }
}

impl EdgeConfig {
    /// Puts an overlay over the file and checks the result.
    ///
    /// # Errors
    /// Fails when the result is not valid, for example with an address that is not loopback.
    pub fn overlaid(mut self, overlay: EdgeOverlay) -> Result<Self, ConfigError> {
        let listen = &mut self.listen;
        listen.clients = overlay.listen_clients.unwrap_or(listen.clients);
        listen.nodes = overlay.listen_nodes.unwrap_or(listen.nodes);
        listen.admin = overlay.listen_admin.unwrap_or(listen.admin);
        self.data_dir = overlay.data_dir.or(self.data_dir);
        self.checked(ORIGIN)
    }
}

/// What overrides a Node's file; `None` leaves the file's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeOverlay {
    /// Overrides `node`.
    pub node: Option<NodeId>,
    /// Overrides `edge`.
    pub edge: Option<HostPort>,
    /// Overrides `data_dir`.
    pub data_dir: Option<String>,
}

impl NodeOverlay {
    /// Reads the variables through `variable`; an empty one counts as absent.
    ///
    /// # Errors
    /// Fails when a variable does not hold an address, naming the variable.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        Ok(Self {
            node: filled(&variable, NODE).map(NodeId::from),
            edge: parsed(&variable, EDGE)?,
            data_dir: filled(&variable, DATA_DIR),
        })
    }

    /// Fills what is absent here from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            node: self.node.or(other.node),
            edge: self.edge.or(other.edge),
            data_dir: self.data_dir.or(other.data_dir),
        }
    }
}

impl NodeConfig {
    /// Puts an overlay over the file and checks the result.
    ///
    /// # Errors
    /// Fails when the result is not valid.
    pub fn overlaid(mut self, overlay: NodeOverlay) -> Result<Self, ConfigError> {
        self.node = overlay.node.unwrap_or(self.node);
        self.edge = overlay.edge.unwrap_or(self.edge);
        self.data_dir = overlay.data_dir.or(self.data_dir);
        self.checked(ORIGIN)
    }
}

/// How messages name a value whose parts come from the command line, variables and a file.
const ORIGIN: &str = "command line and IOP_* variables";

fn filled(variable: &impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    variable(name).filter(|value| !value.is_empty())
}

fn address(
    variable: &impl Fn(&str) -> Option<String>,
    name: &str,
) -> Result<Option<SocketAddr>, ConfigError> {
    let Some(text) = filled(variable, name) else { return Ok(None) };
    let problem = |_| format!("`{text}` is not an address: write IP:PORT, like 127.0.0.1:7400");
    text.parse().map(Some).map_err(problem).map_err(|message| bad_variable(name, message))
}

fn parsed<T>(
    variable: &impl Fn(&str) -> Option<String>,
    name: &str,
) -> Result<Option<T>, ConfigError>
where
    T: FromStr<Err: ToString>,
{
    let Some(text) = filled(variable, name) else { return Ok(None) };
    text.parse().map(Some).map_err(|error: T::Err| bad_variable(name, error.to_string()))
}

fn bad_variable(name: &str, message: String) -> ConfigError {
    ConfigError {
        source_name: format!("variable {name}"),
        problems: vec![Problem { position: None, path: Path::root(), message }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_beats_a_variable_which_beats_the_file_which_beats_the_default() {
        let file = "version: 1\nlisten: { nodes: 127.0.0.1:3, admin: 127.0.0.1:4 }\n";
        let config = EdgeConfig::parse(file, "edge.yaml").expect("valid");
        let variables = EdgeOverlay::from_variables(|name| match name {
            LISTEN_NODES => Some("127.0.0.1:2".to_owned()),
            LISTEN_ADMIN => Some("127.0.0.1:2000".to_owned()),
            DATA_DIR => Some(String::new()),
            _ => None,
        })
        .expect("valid");
        let flags = EdgeOverlay {
            listen_admin: Some("[::1]:1".parse().expect("address")),
            ..EdgeOverlay::default()
        };
        let config = config.overlaid(flags.or(variables)).expect("valid");
        assert_eq!(config.listen.admin.to_string(), "[::1]:1");
        assert_eq!(config.listen.nodes.to_string(), "127.0.0.1:2");
        assert_eq!(config.listen.clients.to_string(), "127.0.0.1:7400");
        assert_eq!(config.data_dir, None);
    }

    #[test]
    fn a_bad_variable_is_named() {
        let error = NodeOverlay::from_variables(|_| Some("nowhere".to_owned()));
        let text = error.expect_err("no address").to_string();
        assert!(text.starts_with("variable IOP_EDGE: `nowhere` is not HOST:PORT"), "{text}");
    }

    #[test]
    fn an_overlay_is_checked_like_a_file() {
        let overlay = EdgeOverlay {
            listen_nodes: Some("192.168.1.2:7401".parse().expect("address")),
            ..EdgeOverlay::default()
        };
        let error = EdgeConfig::default().overlaid(overlay).expect_err("public");
        assert!(error.to_string().contains("managed mode"), "{error}");
    }
}
