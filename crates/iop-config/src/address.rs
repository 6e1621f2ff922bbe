//! Serde form of a socket address.

use std::fmt;
use std::net::SocketAddr;

use serde::de::{Deserializer, Error, Visitor};
use serde::ser::Serializer;

pub(crate) fn serialize<S: Serializer>(address: &SocketAddr, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(address)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    from.deserialize_str(Text)
}

struct Text;

impl Visitor<'_> for Text {
    type Value = SocketAddr;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address as IP:PORT, like 127.0.0.1:7400")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<SocketAddr, E> {
        text.parse().map_err(|_| {
            E::custom(format_args!(
                "`{text}` is not an address: write IP:PORT, like 127.0.0.1:7400 or \"[::1]:7400\""
            ))
        })
    }
}
