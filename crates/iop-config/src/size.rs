//! Amounts of memory as people write them: `64KiB`, `32MiB`, `1GiB`.

/// Units from large to small; the decimal ones are read but never written.
const UNITS: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
];

/// Reads an amount of memory.
///
/// # Errors
/// Fails on a missing or unknown unit and beyond 64 bits.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let refuse = || SizeError { text: text.to_owned() };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| refuse())?;
    let unit = unit.trim_start();
    let (_, factor) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(refuse)?;
    number.checked_mul(factor).ok_or_else(refuse)
}

/// Writes an amount of memory in the largest unit that divides it.
pub fn format(bytes: u64) -> String {
    let (name, factor) = UNITS
        .into_iter()
        .find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor))
        .unwrap_or(("B", 1));
    format!("{}{name}", bytes / factor)
}

/// Text that is no amount of memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a size: write a whole number with a unit, like 64KiB, 32MiB or 1GiB")]
pub struct SizeError {
    text: String,
}

/// Serde form of a size.
pub(crate) mod text {
    use std::fmt;

    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    pub(crate) fn serialize<S: Serializer>(value: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::format(*value))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        from.deserialize_str(Text)
    }

    struct Text;

    impl Visitor<'_> for Text {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a size like 64KiB, 32MiB or 1GiB")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
            super::parse(text).map_err(E::custom)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn binary_and_decimal_units_are_told_apart() {
        assert_eq!(parse("32MiB"), Ok(33_554_432));
        assert_eq!(parse("32 MB"), Ok(32_000_000));
        assert_eq!(parse("7B"), Ok(7));
    }

    #[test]
    fn a_missing_unit_and_an_overflow_are_refused_with_an_example() {
        for text in ["", "32", "MiB", "1.5GiB", "-1B", "1mib", "99999999999999999GiB"] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains("32MiB"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(bytes in any::<u64>()) {
            prop_assert_eq!(parse(&format(bytes)), Ok(bytes));
        }
    }
}
