//! A host as endpoints and allow-lists name it, in one spelling.
//!
//! Resolvers and libraries read one address in many ways: `2130706433`, `0x7f.1` and `0177.0.0.1` are
//! all 127.0.0.1 to some of them. Whoever compares texts before one of them is dialled compares the
//! wrong thing. So a host is an address in its usual form or a name, and nothing in between;
//! [`reserved`] says which addresses stand for no model server at all.

mod reserved;

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

pub use self::reserved::{Reserved, behind, is_metadata_name, reserved};

/// An address or a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// An address; an IPv4 address in IPv6 clothes is the IPv4 address.
    Address(IpAddr),
    /// A name, in lower case and without a dot at its end.
    Name(String),
}

impl FromStr for Host {
    type Err = HostError;

    /// Reads a name, an IPv4 address, or an IPv6 address with or without brackets.
    fn from_str(text: &str) -> Result<Self, HostError> {
        if let Some(rest) = text.strip_prefix('[') {
            let inner = rest.strip_suffix(']').ok_or(HostError::Malformed)?;
            let address: Ipv6Addr = inner.parse().map_err(|_| HostError::Malformed)?;
            return Ok(Self::Address(address.to_canonical()));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Address(address.to_canonical()));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.is_empty() || name.len() > 253 || !name.split('.').all(is_label) {
            return Err(HostError::Malformed);
        }
        if name.rsplit('.').next().is_some_and(is_number) {
            return Err(HostError::Numeric);
        }
        Ok(Self::Name(name.to_ascii_lowercase()))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

fn is_label(label: &str) -> bool {
    !label.is_empty()
        && label.len() <= 63
        && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// Says whether a last label makes an address of the whole name to whoever reads `inet_aton`'s forms.
fn is_number(label: &str) -> bool {
    match label.strip_prefix("0x").or_else(|| label.strip_prefix("0X")) {
        Some(digits) => digits.bytes().all(|b| b.is_ascii_hexdigit()),
        None => label.bytes().all(|b| b.is_ascii_digit()),
    }
}

/// Text that is no host. No message repeats it: it may hold a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// Neither name nor address.
    #[error("the host is missing or malformed: write a name, an IPv4 address or [an IPv6 address]")]
    Malformed,
    /// A number that some programs take for an address.
    #[error(
        "the host is an address in another spelling: write four decimal numbers, like 127.0.0.1"
    )]
    Numeric,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_has_one_spelling() {
        for (text, shown) in [
            ("127.0.0.1", "127.0.0.1"),
            ("[::1]", "::1"),
            ("::1", "::1"),
            ("[::ffff:10.0.0.1]", "10.0.0.1"),
            ("[0:0:0:0:0:ffff:a00:1]", "10.0.0.1"),
            ("LocalHost.", "localhost"),
            ("gpu_1.lan", "gpu_1.lan"),
            ("1password.example", "1password.example"),
            ("0xcafe.example", "0xcafe.example"),
        ] {
            assert_eq!(text.parse::<Host>().map(|host| host.to_string()), Ok(shown.to_owned()));
        }
    }

    #[test]
    fn an_address_in_another_spelling_is_refused() {
        for text in [
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "127.1",
            "0177.0.0.1",
            "127.0.0.1.",
            "127.0.0.0x1",
            "0X7F.0X1",
            "0x",
            "1.2.3.4.5",
            "example.300",
        ] {
            assert_eq!(text.parse::<Host>(), Err(HostError::Numeric), "{text}");
        }
    }

    #[test]
    fn what_is_neither_name_nor_address_is_refused() {
        for text in [
            "",
            ".",
            "a..b",
            "h..",
            "[::1",
            "::1]",
            "[127.0.0.1]",
            "[h]",
            "fe80::1%eth0",
            "[fe80::1%25eth0]",
            "u@h",
            "h#f",
            "h/p",
            "h:80",
            "h h",
            "h%2e",
            "b\u{fc}cher",
            "\u{2460}27.0.0.1",
            "h\0",
            "*.example",
        ] {
            assert_eq!(text.parse::<Host>(), Err(HostError::Malformed), "{text:?}");
        }
    }
}
