//! Names of identities: `spiffe://<group>/iop/<edge|node>/<id>`.

use std::fmt;
use std::sync::Arc;

use iop_types::NodeId;
use rustls_pki_types::DnsName;

/// The trust domain of an execution group: its name in lower case.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrustDomain(Arc<str>);

impl TrustDomain {
    /// Makes the trust domain of a group.
    ///
    /// # Errors
    /// The group's name cannot stand in a host name, which managed mode needs.
    pub fn new(group: &str) -> Result<Self, NameError> {
        let domain = group.to_ascii_lowercase();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_host = DnsName::try_from(format!("edge.{domain}")).is_ok();
        if domain.is_empty() || domain.len() > 64 || !domain.bytes().all(is_plain) || !is_host {
            return Err(NameError::Group(group.to_owned()));
        }
        Ok(Self(domain.into()))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the host name by which Nodes verify the Edge's certificate, whatever address they dial.
    pub fn edge_host(&self) -> String {
        format!("edge.{}", self.0)
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// What an identity is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The group's Edge.
    Edge,
    /// One of its Nodes.
    Node,
}

impl Kind {
    /// Returns the word in the name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Edge => "edge",
            Self::Node => "node",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The name of one identity, as it stands in its certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpiffeId {
    domain: TrustDomain,
    kind: Kind,
    id: Arc<str>,
}

impl SpiffeId {
    /// Names an identity.
    ///
    /// # Errors
    /// `id` cannot stand in a path.
    pub fn new(domain: TrustDomain, kind: Kind, id: &str) -> Result<Self, NameError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_dots = matches!(id, "." | "..");
        if id.is_empty() || id.len() > 64 || is_dots || !id.bytes().all(is_plain) {
            return Err(NameError::Id(id.to_owned()));
        }
        Ok(Self { domain, kind, id: id.into() })
    }

    /// Reads a URI.
    ///
    /// # Errors
    /// It is not the name of an identity of any group.
    pub fn parse(uri: &str) -> Result<Self, NameError> {
        let malformed = || NameError::Uri(uri.to_owned());
        let (domain, path) = uri
            .strip_prefix("spiffe://")
            .and_then(|rest| rest.split_once('/'))
            .ok_or_else(malformed)?;
        let (kind, id) = path
            .strip_prefix("iop/")
            .and_then(|rest| rest.split_once('/'))
            .ok_or_else(malformed)?;
        let kind = match kind {
            "edge" => Kind::Edge,
            "node" => Kind::Node,
            _ => return Err(malformed()),
        };
        let named = TrustDomain::new(domain).map_err(|_| malformed())?;
        // One name has one spelling: an upper-case trust domain is none.
        if named.as_str() != domain {
            return Err(malformed());
        }
        Self::new(named, kind, id).map_err(|_| malformed())
    }

    /// Returns the trust domain.
    pub fn domain(&self) -> &TrustDomain {
        &self.domain
    }

    /// Returns what it is for.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the id within the group.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the Node that is named, `None` if it is no Node.
    pub fn node(&self) -> Option<NodeId> {
        match self.kind {
            Kind::Node => Some(NodeId::from(&*self.id)),
            Kind::Edge => None,
        }
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spiffe://{}/iop/{}/{}", self.domain, self.kind, self.id)
    }
}

/// A name that cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// A group.
    #[error(
        "`group` is {0:?}, which cannot stand in a host name: managed mode needs letters, digits, \
         hyphens and dots, not beginning or ending with a hyphen or dot, and not only digits \
         behind the last dot"
    )]
    Group(String),
    /// An id.
    #[error("{0:?} is no identity: write 1 to 64 letters, digits, hyphens, underscores or dots")]
    Id(String),
    /// A URI.
    #[error("{0:?} names no identity of an execution group")]
    Uri(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_survives_being_written_and_read() {
        for kind in [Kind::Edge, Kind::Node] {
            let domain = TrustDomain::new("Home.lan").unwrap();
            let id = SpiffeId::new(domain, kind, "work_station-1.x").unwrap();
            assert_eq!(SpiffeId::parse(&id.to_string()), Ok(id));
        }
    }

    #[test]
    fn what_is_not_exactly_a_name_is_refused() {
        for uri in [
            "",
            "https://home/iop/node/a",
            "spiffe://home",
            "spiffe://home/iop/node/",
            "spiffe://home/iop/node/a/b",
            "spiffe://home/iop/node/..",
            "spiffe://home/iop/worker/a",
            "spiffe://home/node/a",
            "spiffe://Home/iop/node/a",
            "spiffe://home:1/iop/node/a",
            "spiffe://home/iop/node/a?x",
            "spiffe://home/iop/node/a%20",
            "SPIFFE://home/iop/node/a",
        ] {
            assert!(SpiffeId::parse(uri).is_err(), "{uri}");
        }
    }

    #[test]
    fn a_group_must_be_able_to_stand_in_a_host_name() {
        for group in ["", "a..b", ".a", "a b", "grüppe", "12"] {
            let error = TrustDomain::new(group).unwrap_err();
            assert!(error.to_string().starts_with("`group` is"), "{error}");
        }
        assert_eq!(TrustDomain::new("home_1").unwrap().edge_host(), "edge.home_1");
    }
}
