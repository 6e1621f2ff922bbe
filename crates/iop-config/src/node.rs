//! The Node's own file: who it is, whom it dials, and what its Edge cannot decide.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use iop_types::NodeId;
use iop_types::host::{Host, Reserved, is_metadata_name, reserved};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::ConfigError;
use crate::host_port::HostPort;
use crate::{check, defaults, read, schema};

/// Configuration of one Node. Its providers come from its Edge.
///
/// Made by [`parse`](Self::parse), or by [`new`](Self::new) and passed through
/// [`checked`](Self::checked).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "IOP Node configuration")]
pub struct NodeConfig {
    /// Version of the file format. Only 1 exists.
    #[schemars(schema_with = "schema::version")]
    pub version: u32,
    /// Name of this Node in its Edge's file.
    #[schemars(with = "String")]
    pub node: NodeId,
    /// `HOST:PORT` where the Edge listens for Nodes. A Node without an identity (`iop node join`)
    /// dials this machine only.
    #[serde(default = "default_edge")]
    #[schemars(schema_with = "schema::address")]
    pub edge: HostPort,
    /// Directory of history and other state. `~` is the home directory; absent means the usual
    /// place of the operating system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<String>,
    /// Addresses, networks and host names that providers may be reached at. The Edge cannot widen
    /// it. Absent allows only this machine. Metadata services, multicast, broadcast and `0.0.0.0/8`
    /// are never reached; a link-local address only where an entry is exactly that address.
    #[serde(default = "default_egress")]
    #[schemars(with = "Vec<String>")]
    pub egress: Vec<EgressRule>,
    /// Whether commands of the Edge may pull, copy and delete models on this machine, where the
    /// Edge's entry of the provider says so too. Servers that this Node found by itself have no
    /// entry; there this key alone decides. The Edge cannot widen it.
    #[serde(default)]
    pub manage_models: bool,
    /// Secrets that providers' `api_key: { node_secret: NAME }` name, and where each is kept.
    #[serde(default)]
    pub secrets: BTreeMap<String, SecretSource>,
}

impl NodeConfig {
    /// Makes the configuration of a Node that leaves everything else at its default.
    pub fn new(node: NodeId) -> Self {
        Self {
            version: 1,
            node,
            edge: default_edge(),
            data_dir: None,
            egress: default_egress(),
            manage_models: false,
            secrets: BTreeMap::new(),
        }
    }

    /// Reads a Node's file. `file_name` is only for messages.
    ///
    /// # Errors
    /// Fails with every mistake that was found, each with its place.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, ConfigError> {
        read::file(text, file_name, check::node)
    }

    /// Checks a value that was made or changed in code; `origin` names it in messages.
    ///
    /// # Errors
    /// Fails with every mistake that was found.
    pub fn checked(self, origin: &str) -> Result<Self, ConfigError> {
        read::value(self, origin, check::node)
    }

    /// Returns the whole configuration as it takes effect; secrets are named, never held.
    pub fn effective(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("keys are strings and there are no numbers")
    }
}

/// Where a secret is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SecretSource {
    /// Name of an environment variable of the Node's process.
    Env(String),
    /// Path of a file; white space at its end is not part of the secret.
    File(String),
}

/// Where a Node's adapters may connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EgressRule {
    /// An address or a network.
    Net(IpNet),
    /// A host name, in lower case and without a dot at its end; whatever address it has.
    Host(String),
}

impl FromStr for EgressRule {
    type Err = EgressRuleError;

    fn from_str(text: &str) -> Result<Self, EgressRuleError> {
        let malformed = || EgressRuleError::Malformed { text: text.to_owned() };
        let rule = match (text.parse::<IpNet>(), text.parse()) {
            (Ok(net), _) => Self::Net(net.trunc()),
            (Err(_), Ok(Host::Address(address))) if !text.starts_with('[') => {
                Self::Net(address.into())
            }
            (Err(_), Ok(Host::Name(name))) => Self::Host(name),
            (Err(_), Ok(Host::Address(_)) | Err(_)) => return Err(malformed()),
        };
        match rule.reserved() {
            Some(Reserved::Never) => Err(EgressRuleError::Never { text: text.to_owned() }),
            Some(Reserved::LinkLocal) if !rule.is_one_address() => {
                Err(EgressRuleError::LinkLocal { text: text.to_owned() })
            }
            Some(Reserved::LinkLocal) | None => Ok(rule),
        }
    }
}

impl EgressRule {
    /// Says whether the rule holds nothing but reserved addresses, and so would allow nothing.
    fn reserved(&self) -> Option<Reserved> {
        match self {
            // Reserved blocks are no wider than these, so that one holds both ends of what it holds.
            Self::Net(net) => {
                let is_wide = net.prefix_len() < if net.addr().is_ipv4() { 4 } else { 8 };
                let ends = (reserved(net.network()), reserved(net.broadcast()));
                match ends {
                    _ if is_wide => None,
                    (Some(first), Some(last)) if first == last => Some(first),
                    _ => None,
                }
            }
            Self::Host(name) => is_metadata_name(name).then_some(Reserved::Never),
        }
    }

    fn is_one_address(&self) -> bool {
        match self {
            Self::Net(net) => net.prefix_len() == net.max_prefix_len(),
            Self::Host(_) => false,
        }
    }
}

impl fmt::Display for EgressRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(net) => net.fmt(f),
            Self::Host(name) => f.write_str(name),
        }
    }
}

impl Serialize for EgressRule {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EgressRule {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Text that is no egress rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EgressRuleError {
    /// Neither network, address nor name.
    #[error(
        "`{text}` is no address, network or host name: write one like 127.0.0.0/8, \"::1/128\" or openrouter.ai, without scheme or port"
    )]
    Malformed {
        /// The entry.
        text: String,
    },
    /// Nothing that is ever dialled.
    #[error(
        "`{text}` is a metadata service, or stands for many or for none: nothing there is ever dialled, remove it"
    )]
    Never {
        /// The entry.
        text: String,
    },
    /// A network of link-local addresses, which are allowed one by one.
    #[error("`{text}` is a link-local network: name the server's one address instead")]
    LinkLocal {
        /// The entry.
        text: String,
    },
}

fn default_edge() -> HostPort {
    defaults::LISTEN_NODES.into()
}

/// Returns what a Node may reach unless its file says otherwise: its own machine.
fn default_egress() -> Vec<EgressRule> {
    ["127.0.0.0/8", "::1/128"]
        .into_iter()
        .map(|rule| rule.parse().expect("both are networks"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_would_allow_nothing_is_refused_with_the_way_out() {
        let refused = |text: &str| text.parse::<EgressRule>().expect_err(text).to_string();
        for text in ["169.254.169.254", "0.0.0.0", "224.0.0.0/8", "ff02::/16", "metadata.goog."] {
            assert!(refused(text).contains("ever dialled"), "{text}");
        }
        for text in ["169.254.0.0/16", "fe80::/64"] {
            assert!(refused(text).contains("one address"), "{text}");
        }
        for text in ["0x7f.1", "127.1", "[::1]", "h:80"] {
            assert!(refused(text).contains("no address"), "{text}");
        }
        for text in ["0.0.0.0/0", "::/0", "169.254.7.7", "fe80::7", "10.0.0.0/8", "gpu.lan"] {
            assert!(text.parse::<EgressRule>().is_ok(), "{text}");
        }
    }
}
