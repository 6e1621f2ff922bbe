//! The Edge's file: everything that users write.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use iop_types::{NodeId, ProviderKey, RouteName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check;
use crate::error::ConfigError;
use crate::host_port::HostPort;
use crate::limits::Limits;
use crate::provider::Provider;
use crate::route::Route;
use crate::{address, defaults, duration, read, schema};

/// Configuration of an Edge and of all its Nodes.
///
/// Made by [`parse`](Self::parse), or from [`EdgeConfig::default`] changed in code and passed
/// through [`checked`](Self::checked): then every reference is resolved and every value in range.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "IOP Edge configuration")]
pub struct EdgeConfig {
    /// Version of the file format. Only 1 exists.
    #[schemars(schema_with = "schema::version")]
    pub version: u32,
    /// Name of the execution group: this Edge and its Nodes.
    #[serde(default = "default_group")]
    pub group: String,
    /// Who may connect.
    #[serde(default)]
    pub mode: Mode,
    /// Where the Edge listens.
    #[serde(default)]
    pub listen: Listen,
    /// Certificate for the listeners of clients and, where it is not on loopback, of the command
    /// line. Only in managed mode; absent serves clients without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// `HOST:PORT` under which other machines reach `listen.nodes`; invitations name it. Only in
    /// managed mode; absent means the address of `listen.nodes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub advertise: Option<HostPort>,
    /// Whether clients need a key. Absent: exactly where `listen.clients` is not on loopback. Only
    /// in managed mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_keys: Option<bool>,
    /// How long a Node's certificate is valid: 10s … 7d. It renews itself at half of that. Only in
    /// managed mode.
    #[serde(default = "default_node_certificate", with = "duration::text")]
    #[schemars(schema_with = "schema::duration")]
    pub node_certificate: Duration,
    /// Directory of history and other state. `~` is the home directory; absent means the usual
    /// place of the operating system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<String>,
    /// Nodes by name. A Node that is not named here is accepted too, with discovery.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, NodeEntry>")]
    pub nodes: BTreeMap<NodeId, NodeEntry>,
    /// Model names for clients, beside the targets that providers list themselves. An exact name
    /// here wins over a listed target, which wins over a name that ends in `*` and so stands for
    /// every name that begins like it; of several such the longest wins.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, Route>")]
    pub routes: BTreeMap<RouteName, Route>,
    /// Whether every target that a ready provider lists is a model under its own name.
    #[serde(default = "yes")]
    pub discovered_routes: bool,
    /// Bounds on sizes, times and counts.
    #[serde(default)]
    pub limits: Limits,
    /// Which web pages may call the Edge.
    #[serde(default)]
    pub cors: Cors,
    /// Host names, beside `localhost` and the loopback addresses, under which clients reach this
    /// Edge. A request with another Host is refused.
    #[serde(default)]
    pub hosts: Vec<String>,
}

impl EdgeConfig {
    /// Reads an Edge's file. `file_name` is only for messages.
    ///
    /// # Errors
    /// Fails with every mistake that was found, each with its place.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, ConfigError> {
        read::file(text, file_name, check::edge)
    }

    /// Checks a value that was made or changed in code; `origin` names it in messages.
    ///
    /// # Errors
    /// Fails with every mistake that was found.
    pub fn checked(self, origin: &str) -> Result<Self, ConfigError> {
        read::value(self, origin, check::edge)
    }

    /// Returns the whole configuration as it takes effect, every default written out.
    ///
    /// Files name secrets and never hold them, so that there is none in here either. The result is
    /// itself a valid file.
    pub fn effective(&self) -> serde_json::Value {
        let mut whole = self.clone();
        for node in whole.nodes.values_mut() {
            node.discover = Some(node.discovers());
            for provider in node.providers.iter_mut().flat_map(BTreeMap::values_mut) {
                provider.max_concurrency = Some(provider.capacity());
                provider.hosted = Some(provider.is_hosted());
            }
        }
        serde_json::to_value(whole).expect("keys are strings and numbers are finite")
    }

    /// Says whether clients need a key.
    pub fn requires_keys(&self) -> bool {
        let is_open = !self.listen.clients.ip().to_canonical().is_loopback();
        self.mode == Mode::Managed && self.require_keys.unwrap_or(is_open)
    }

    /// Finds a provider's entry.
    pub fn provider(&self, node: &NodeId, provider: &ProviderKey) -> Option<&Provider> {
        self.nodes.get(node)?.providers.as_ref()?.get(provider)
    }
}

impl Default for EdgeConfig {
    fn default() -> Self {
        Self {
            version: 1,
            group: default_group(),
            mode: Mode::default(),
            listen: Listen::default(),
            tls: None,
            advertise: None,
            require_keys: None,
            node_certificate: defaults::NODE_CERTIFICATE,
            data_dir: None,
            nodes: BTreeMap::new(),
            routes: BTreeMap::new(),
            discovered_routes: true,
            limits: Limits::default(),
            cors: Cors::default(),
            hosts: Vec::new(),
        }
    }
}

/// Who may connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// This machine only: loopback addresses, no TLS, no keys.
    #[default]
    Local,
    /// Also other machines: Nodes with an identity of this group, clients with keys, and
    /// providers' credentials sealed at the Edge. `iop edge init` prepares it.
    Managed,
}

/// Files of a certificate and its key. Read again when they change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// PEM file of the certificate, its chain behind it.
    pub certificate: String,
    /// PEM file of its private key.
    pub key: String,
}

/// Where the Edge listens; three different addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Listen {
    /// For clients: the OpenAI-compatible API. Port 0 takes any free port.
    #[serde(with = "address")]
    #[schemars(schema_with = "schema::address")]
    pub clients: SocketAddr,
    /// For Nodes, which dial in.
    #[serde(with = "address")]
    #[schemars(schema_with = "schema::address")]
    pub nodes: SocketAddr,
    /// For the command line and for metrics.
    #[serde(with = "address")]
    #[schemars(schema_with = "schema::address")]
    pub admin: SocketAddr,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            clients: defaults::LISTEN_CLIENTS,
            nodes: defaults::LISTEN_NODES,
            admin: defaults::LISTEN_ADMIN,
        }
    }
}

/// One Node's part of the Edge's file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NodeEntry {
    /// Providers by their key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeMap<String, Provider>>")]
    pub providers: Option<BTreeMap<ProviderKey, Provider>>,
    /// Whether the Node adds the model servers that it finds on its own loopback. Absent: true
    /// exactly where `providers` is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discover: Option<bool>,
}

impl NodeEntry {
    /// Says whether the Node adds the model servers that it finds.
    pub fn discovers(&self) -> bool {
        self.discover.unwrap_or(self.providers.is_none())
    }
}

/// Which web pages may call the Edge from a browser.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Cors {
    /// Allowed origins as `http://HOST[:PORT]`, or `"*"` alone for every page. Empty allows none.
    pub origins: Vec<String>,
}

impl Cors {
    /// Says whether a page of this origin may call.
    pub fn allows(&self, origin: &str) -> bool {
        self.origins.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(origin))
    }
}

const fn default_node_certificate() -> Duration {
    defaults::NODE_CERTIFICATE
}

fn default_group() -> String {
    defaults::GROUP.to_owned()
}

const fn yes() -> bool {
    true
}
