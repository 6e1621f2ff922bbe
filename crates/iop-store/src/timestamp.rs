//! Serde form of a wall-clock time: RFC 3339 in UTC with milliseconds.

use jiff::Timestamp;
use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::Serializer;

pub(crate) fn serialize<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{time:.3}"))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

/// Writes a time that may not have come.
#[expect(clippy::ref_option, reason = "serde calls it with a reference to the field")]
pub(crate) fn optional<S: Serializer>(time: &Option<Timestamp>, to: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => serialize(time, to),
        None => to.serialize_none(),
    }
}
