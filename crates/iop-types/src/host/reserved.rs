//! Addresses at which no model server is, and what hides behind an address that is translated.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address is left alone whatever networks are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserved {
    /// It stands for many, for none, or for a cloud's metadata service, which hands out credentials to
    /// whoever asks. Nothing allows it.
    Never,
    /// It means another machine on each wire, and metadata services live there. Only an entry that
    /// names exactly this address allows it.
    LinkLocal,
}

/// Metadata services outside the link-local networks, or inside and not to be named by mistake. They are
/// those of Amazon (also to containers), Google, Azure, Oracle and Alibaba.
const METADATA_V4: [Ipv4Addr; 6] = [
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(169, 254, 170, 2),
    Ipv4Addr::new(169, 254, 170, 23),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
    Ipv4Addr::new(100, 100, 100, 200),
];
const METADATA_V6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];
const METADATA_NAMES: [&str; 7] = [
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "metadata.azure.internal",
    "metadata.tencentyun.com",
    "instance-data",
    "instance-data.ec2.internal",
];

/// Says whether a name, in any case and with or without a dot at its end, is that of a metadata service.
pub fn is_metadata_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    METADATA_NAMES.iter().any(|metadata| metadata.eq_ignore_ascii_case(name))
}

/// Says whether an address is reserved, also when it only leads to one that is.
pub fn reserved(address: IpAddr) -> Option<Reserved> {
    match address.to_canonical() {
        IpAddr::V4(address) => reserved_v4(address),
        IpAddr::V6(address) => {
            let inner = behind(IpAddr::V6(address)).and_then(reserved_v4);
            match reserved_v6(address) {
                Some(Reserved::Never) => Some(Reserved::Never),
                outer => inner.or(outer),
            }
        }
    }
}

fn reserved_v4(address: Ipv4Addr) -> Option<Reserved> {
    // 0.0.0.0/8 is "this host", which many systems dial as loopback.
    let is_nobody = address.octets()[0] == 0;
    if is_nobody
        || address.is_multicast()
        || address.is_broadcast()
        || METADATA_V4.contains(&address)
    {
        return Some(Reserved::Never);
    }
    address.is_link_local().then_some(Reserved::LinkLocal)
}

fn reserved_v6(address: Ipv6Addr) -> Option<Reserved> {
    if address.is_unspecified() || address.is_multicast() || METADATA_V6.contains(&address) {
        return Some(Reserved::Never);
    }
    // fec0::/10 is what fe80::/10 was for sites, and is still configured here and there.
    let is_local = matches!(address.segments()[0] & 0xffc0, 0xfe80 | 0xfec0);
    is_local.then_some(Reserved::LinkLocal)
}

/// Returns the IPv4 address that an address stands for: itself, or where its packets end after NAT64
/// (RFC 6052, RFC 8215), 6to4 (RFC 3056), Teredo (RFC 4380), ISATAP (RFC 5214) or by the old
/// IPv4-compatible form.
pub fn behind(address: IpAddr) -> Option<Ipv4Addr> {
    let address = match address.to_canonical() {
        IpAddr::V4(address) => return Some(address),
        IpAddr::V6(address) => address,
    };
    let pair = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(pair(high, low)),
        // Whoever runs a translator chooses how long its prefix is; this is the usual one.
        [0x64, 0xff9b, 1, _, _, _, high, low] => Some(pair(high, low)),
        [0x2002, high, low, ..] => Some(pair(high, low)),
        [0x2001, 0, _, _, _, _, high, low] => Some(pair(!high, !low)),
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => Some(pair(high, low)),
        // ::1 and :: are themselves.
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => Some(pair(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserved(address: &str) -> Option<Reserved> {
        super::reserved(address.parse().expect(address))
    }

    #[test]
    fn nobody_everybody_and_metadata_services_are_never_reached() {
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "239.255.255.255",
            "255.255.255.255",
            "169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "::",
            "ff02::1",
            "fd00:ec2::254",
            "fd20:ce::254",
        ] {
            assert_eq!(reserved(address), Some(Reserved::Never), "{address}");
        }
    }

    #[test]
    fn a_reserved_address_is_seen_in_any_clothes() {
        for address in [
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::169.254.169.254",
            "2002:a9fe:a9fe::1",
            "2001:0:1:2:3:4:5601:5601",
            "2001:db8::5efe:169.254.169.254",
            "fe80::200:5efe:169.254.169.254",
        ] {
            assert_eq!(reserved(address), Some(Reserved::Never), "{address}");
        }
        assert_eq!(reserved("64:ff9b::169.254.1.1"), Some(Reserved::LinkLocal));
    }

    #[test]
    fn link_local_addresses_are_told_from_ordinary_ones() {
        for address in ["169.254.1.1", "fe80::1", "febf::1", "fec0::1"] {
            assert_eq!(reserved(address), Some(Reserved::LinkLocal), "{address}");
        }
        for address in [
            "127.0.0.1",
            "10.0.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "8.8.8.8",
            "::1",
            "fd00::1",
            "2001:db8::1",
            "64:ff9b::8.8.8.8",
        ] {
            assert_eq!(reserved(address), None, "{address}");
        }
    }

    #[test]
    fn names_of_metadata_services_are_known_in_any_spelling() {
        assert!(is_metadata_name("Metadata.Google.Internal."));
        assert!(!is_metadata_name("metadata.example"));
    }
}
