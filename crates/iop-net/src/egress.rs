//! Which addresses may be dialled: the operator's allow-list.
//!
//! A list names networks and hosts. A connection is allowed when the address that is really dialled
//! lies in a listed network, or when the endpoint was configured with a listed host name; what a name
//! resolves to is then the operator's trust in that name. The check is made per address, after
//! resolution and before the dial, so a name that is not listed cannot lead anywhere else.
//!
//! That trust has an end: addresses at which no model server is (`iop_types::host`) are refused whatever
//! is listed, and link-local ones unless an entry names exactly the address. An IPv6 address that a
//! translator turns into an IPv4 address is judged as that one.

use std::fmt;
use std::net::IpAddr;

use iop_types::host::{Host, Reserved, behind, is_metadata_name, reserved};
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
        match reserved(address) {
            Some(Reserved::Never) => false,
            Some(Reserved::LinkLocal) => self.names(address),
            None if is_metadata_name(host) => false,
            None => match self {
                Self::Any => true,
                Self::Only(list) => {
                    let end = behind(address).map_or(address, IpAddr::V4);
                    let host = host.strip_suffix('.').unwrap_or(host);
                    let is_listed = |allowed: &Allowed| match allowed {
                        Allowed::Net(net) => net.contains(&end),
                        Allowed::Host(name) => name.eq_ignore_ascii_case(host),
                    };
                    list.iter().any(is_listed) || self.names(address)
                }
            },
        }
    }

    /// Says whether an entry is exactly this address.
    fn names(&self, address: IpAddr) -> bool {
        match self {
            Self::Any => false,
            Self::Only(list) => list.contains(&Allowed::Net(address.into())),
        }
    }
}

impl std::str::FromStr for Allowed {
    type Err = MalformedEntry;

    fn from_str(text: &str) -> Result<Self, MalformedEntry> {
        if let Ok(net) = text.parse::<IpNet>() {
            return Ok(Self::Net(net.trunc()));
        }
        match text.parse() {
            Ok(Host::Address(address)) if !text.starts_with('[') => Ok(Self::Net(address.into())),
            Ok(Host::Name(name)) => Ok(Self::Host(name)),
            Ok(Host::Address(_)) | Err(_) => Err(MalformedEntry(text.to_owned())),
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
    fn what_holds_no_model_server_is_refused_whatever_is_listed() {
        let wide = list(&["0.0.0.0/0", "::/0", "169.254.0.0/16", "fe80::/10", "trusted.example"]);
        for address in [
            "169.254.169.254",
            "169.254.1.1",
            "fe80::1",
            "fd00:ec2::254",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "ff02::1",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::",
        ] {
            for egress in [&wide, &Egress::Any] {
                assert!(!allows(egress, "trusted.example", address), "{address}");
            }
        }
        assert!(!allows(&wide, "metadata.google.internal.", "10.0.0.1"));
        let named = list(&["169.254.169.254", "0.0.0.0", "metadata.google.internal"]);
        assert!(!allows(&named, "169.254.169.254", "169.254.169.254"));
        assert!(!allows(&named, "0.0.0.0", "0.0.0.0"));
        assert!(!allows(&named, "metadata.google.internal", "10.0.0.1"));
    }

    #[test]
    fn a_link_local_address_is_allowed_by_its_own_entry_and_no_wider_one() {
        let egress = list(&["169.254.7.7", "fe80::7/128"]);
        assert!(allows(&egress, "h", "169.254.7.7"));
        assert!(allows(&egress, "h", "fe80::7"));
        assert!(!allows(&egress, "h", "169.254.7.8"));
        assert!(!allows(&list(&["169.254.7.6/31"]), "h", "169.254.7.7"));
    }

    #[test]
    fn a_translated_address_is_judged_by_where_it_ends() {
        let inside = list(&["10.0.0.0/8"]);
        assert!(allows(&inside, "h", "64:ff9b::10.1.2.3"));
        assert!(!allows(&list(&["::/0"]), "h", "64:ff9b::10.1.2.3"));
        assert!(!allows(&list(&["::/0"]), "h", "2002:a01:203::1"));
        assert!(allows(&list(&["64:ff9b::a01:203"]), "h", "64:ff9b::10.1.2.3"));
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
        for entry in [
            "",
            "10.0.0.0/33",
            "10.0.0.300",
            "http://h",
            "a..b",
            "*.example",
            "h:80",
            "127.1",
            "0x7f.1",
        ] {
            assert_eq!(Egress::parse([entry]), Err(MalformedEntry(entry.to_owned())));
        }
    }
}
