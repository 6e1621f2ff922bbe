//! Which addresses may be dialled: the operator's allow-list.
//!
//! A list names networks and hosts. A connection is allowed when the address that is really dialled
//! lies in a listed network, or when the endpoint was configured with a listed host name; what a name
//! resolves to is then the operator's trust in that name. The check is made per address, after
//! resolution and before the dial, so a name that is not listed cannot lead anywhere else.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// Addresses and host names that may be dialled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Egress {
    /// Everything.
    Any,
    /// What is listed, and nothing else.
    Only(Vec<Allowed>),
}

/// One entry of an allow-list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    /// Every address of a network.
    Net(IpNet),
    /// Whatever this host resolves to; lower case.
    Host(String),
}

impl Egress {
    /// Allows this machine only.
    pub fn loopback() -> Self {
        const V4: IpNet = IpNet::V4(ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::LOCALHOST, 8));
        const V6: IpNet = IpNet::V6(ipnet::Ipv6Net::new_assert(std::net::Ipv6Addr::LOCALHOST, 128));
        Self::Only(vec![Allowed::Net(V4.trunc()), Allowed::Net(V6)])
    }

    /// Reads a list of networks (`10.0.0.0/8`), addresses (`::1`) and host names (`openrouter.ai`).
    ///
    /// # Errors
    /// Names the first entry that is none of these.
    pub fn parse<I>(entries: I) -> Result<Self, MalformedEntry>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        entries
            .into_iter()
            .map(|entry| entry.as_ref().parse())
            .collect::<Result<_, _>>()
            .map(Self::Only)
    }

    /// Says whether `address`, reached under the name `host`, may be dialled.
    pub fn allows(&self, host: &str, address: IpAddr) -> bool {
        // ::ffff:10.0.0.1 dials 10.0.0.1.
        let address = address.to_canonical();
        match self {
            Self::Any => true,
            Self::Only(list) => list.iter().any(|allowed| match allowed {
                Allowed::Net(net) => net.contains(&address),
                Allowed::Host(name) => name.eq_ignore_ascii_case(host),
            }),
        }
    }
}

impl std::str::FromStr for Allowed {
    type Err = MalformedEntry;

    fn from_str(text: &str) -> Result<Self, MalformedEntry> {
        if let Ok(net) = text.parse::<IpNet>() {
            return Ok(Self::Net(net.trunc()));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Net(address.to_canonical().into()));
        }
        // Only digits and dots is an address with a mistake in it, not a name.
        let is_name = !text.is_empty()
            && text.len() <= 253
            && text.split('.').all(is_label)
            && text.chars().any(|c| c.is_ascii_alphabetic());
        if is_name {
            Ok(Self::Host(text.to_ascii_lowercase()))
        } else {
            Err(MalformedEntry(text.to_owned()))
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(net) => net.fmt(f),
            Self::Host(name) => f.write_str(name),
        }
    }
}

fn is_label(label: &str) -> bool {
    !label.is_empty()
        && label.len() <= 63
        && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// An entry of an allow-list that is neither a network nor a host name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("egress entry `{0}` is neither a network such as 10.0.0.0/8 nor a host name")]
pub struct MalformedEntry(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[&str]) -> Egress {
        Egress::parse(entries).unwrap()
    }

    fn allows(egress: &Egress, host: &str, address: &str) -> bool {
        egress.allows(host, address.parse().unwrap())
    }

    #[test]
    fn a_network_is_matched_by_the_dialled_address_whatever_the_name() {
        let egress = list(&["127.0.0.0/8", "::1/128"]);
        assert!(allows(&egress, "localhost", "127.0.0.1"));
        assert!(allows(&egress, "anything.example", "127.9.9.9"));
        assert!(allows(&egress, "localhost", "::1"));
        assert!(!allows(&egress, "localhost", "192.168.0.1"));
        assert_eq!(egress, Egress::loopback());
    }

    #[test]
    fn a_host_name_is_matched_without_case_and_never_by_its_suffix() {
        let egress = list(&["OpenRouter.ai"]);
        assert!(allows(&egress, "openrouter.AI", "104.18.0.1"));
        assert!(!allows(&egress, "evil-openrouter.ai", "104.18.0.1"));
        assert!(!allows(&egress, "openrouter.ai.evil.example", "104.18.0.1"));
        assert!(!allows(&egress, "104.18.0.1", "104.18.0.1"));
    }

    #[test]
    fn an_ipv4_address_in_ipv6_clothes_is_the_ipv4_address() {
        assert!(allows(&list(&["10.0.0.0/8"]), "h", "::ffff:10.1.2.3"));
        assert!(!allows(&list(&["::/0"]), "h", "::ffff:10.1.2.3"));
        assert!(allows(&list(&["::ffff:10.1.2.3"]), "h", "10.1.2.3"));
    }

    #[test]
    fn a_network_with_host_bits_means_its_network() {
        assert!(allows(&list(&["10.1.2.3/8"]), "h", "10.200.0.1"));
    }

    #[test]
    fn an_empty_list_allows_nothing() {
        assert!(!allows(&Egress::Only(vec![]), "localhost", "127.0.0.1"));
    }

    #[test]
    fn an_entry_that_is_neither_is_refused_by_name() {
        for entry in ["", "10.0.0.0/33", "10.0.0.300", "http://h", "a..b", "*.example", "h:80"] {
            assert_eq!(Egress::parse([entry]), Err(MalformedEntry(entry.to_owned())));
        }
    }
}
