//! What a Node is told before it dials; everything else it receives from its Edge.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use iop_net::egress::Egress;
use iop_types::{InstanceId, NodeId};

use crate::local::LocalServer;

/// How a Node is set up.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This Node's id in the Edge's file.
    pub node: NodeId,
    /// Address of the Edge's link listener.
    pub edge: SocketAddr,
    /// This process; random per start, never stored.
    pub instance: InstanceId,
    /// Addresses and hosts that adapters may dial.
    pub egress: Egress,
    /// Secrets that provider entries may name.
    pub secrets: Secrets,
    /// Where commands may change which models a server holds.
    pub manage_models: ManageModels,
    /// Model servers that are looked for on this machine, where the Edge allows it.
    pub local_servers: Vec<LocalServer>,
    /// How long a graceful stop may take.
    pub drain: Duration,
}

/// Where commands may change which models a server of this machine holds. The Edge's word alone is
/// not enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ManageModels {
    /// Nowhere: whoever owns this machine has not allowed it.
    #[default]
    Nowhere,
    /// Where the Edge's entry of the provider says so.
    WhereConfigured,
    /// There, and with servers that this Node found by itself, which no entry speaks of.
    AlsoWhereFound,
}

/// Secrets by name, already read from their variables and files.
///
/// A secret that could not be read stays known by the reason, so that only the providers that name it
/// fail.
#[derive(Clone, Default)]
pub struct Secrets(BTreeMap<String, Result<String, String>>);

impl Secrets {
    /// Adds a secret, or the reason why there is none.
    pub fn insert(&mut self, name: String, value: Result<String, String>) {
        self.0.insert(name, value);
    }

    /// Finds a secret.
    ///
    /// # Errors
    /// Says, in words for the operator, why it cannot be had.
    pub fn find(&self, name: &str) -> Result<&str, String> {
        match self.0.get(name) {
            Some(Ok(value)) => Ok(value),
            Some(Err(reason)) => Err(format!("secret `{name}` cannot be read: {reason}")),
            None => {
                Err(format!("secret `{name}` is not in this node's file: add it under `secrets`"))
            }
        }
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_shows_when_settings_are_printed() {
        let mut secrets = Secrets::default();
        secrets.insert("lab".to_owned(), Ok("hunter2".to_owned()));
        assert_eq!(format!("{secrets:?}"), r#"{"lab"}"#);
        assert_eq!(secrets.find("lab"), Ok("hunter2"));
    }

    #[test]
    fn a_missing_secret_is_named_with_the_remedy() {
        let mut secrets = Secrets::default();
        secrets.insert("gone".to_owned(), Err("LAB_KEY is not set".to_owned()));
        assert!(secrets.find("lab").unwrap_err().contains("add it under `secrets`"));
        assert!(secrets.find("gone").unwrap_err().contains("LAB_KEY is not set"));
    }
}
