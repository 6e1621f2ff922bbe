//! Lengths of time as people write them: `500ms`, `5m`, `1h30m`, `30d`.

use std::time::Duration;

/// Units from long to short, in milliseconds.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Reads a length of time: whole numbers with units, the longer unit first.
///
/// # Errors
/// Fails on a missing or unknown unit, on a unit that is not shorter than the one before it, and
/// beyond what milliseconds can count.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let refuse = || DurationError { text: text.to_owned() };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut total: u64 = 0;
    let mut shorter_than = u64::MAX;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        let letters = tail.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (name, tail) = tail.split_at(letters);
        let number: u64 = number.parse().map_err(|_| refuse())?;
        let (_, unit) = UNITS.into_iter().find(|(unit, _)| *unit == name).ok_or_else(refuse)?;
        if unit >= shorter_than {
            return Err(refuse());
        }
        total = number.checked_mul(unit).and_then(|ms| total.checked_add(ms)).ok_or_else(refuse)?;
        shorter_than = unit;
        rest = tail;
    }
    if text.is_empty() { Err(refuse()) } else { Ok(Duration::from_millis(total)) }
}

/// Writes a length of time so that [`parse`] reads it back; parts below a millisecond are cut.
pub fn format(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if rest == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (name, unit) in UNITS {
        if rest >= unit {
            text.push_str(&format!("{}{name}", rest / unit));
            rest %= unit;
        }
    }
    text
}

/// Text that is no length of time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a duration: write whole numbers with units, like 500ms, 30s, 5m or 1h30m")]
pub struct DurationError {
    text: String,
}

/// Serde form of a duration; the unit is never left out, except for 0.
pub(crate) mod text {
    use std::fmt;
    use std::time::Duration;

    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    pub(crate) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::format(*value))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        from.deserialize_str(Text)
    }

    struct Text;

    impl Visitor<'_> for Text {
        type Value = Duration;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a duration like 500ms, 30s, 5m or 1h30m")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
            super::parse(text).map_err(E::custom)
        }
    }
}

/// Reads a duration that has a largest value, which a mistake is told with what was written.
pub(crate) fn at_most<'de, D: serde::Deserializer<'de>>(
    from: D,
    most: Duration,
) -> Result<Duration, D::Error> {
    struct AtMost(Duration);

    impl serde::de::Visitor<'_> for AtMost {
        type Value = Duration;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a duration like 500ms, 30s, 5m or 1h30m")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Duration, E> {
            let duration = parse(text).map_err(E::custom)?;
            if duration > self.0 {
                let most = format(self.0);
                return Err(E::custom(format_args!(
                    "`{text}` is more than {most}: write at most {most}"
                )));
            }
            Ok(duration)
        }
    }

    from.deserialize_str(AtMost(most))
}

/// Serde form of an optional duration.
pub(crate) mod optional {
    use std::time::Duration;

    use serde::de::Deserializer;
    use serde::ser::Serializer;

    pub(crate) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::text::serialize(value, to),
            None => to.serialize_none(),
        }
    }

    /// A key that is there has a value, as where there is a default.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        super::text::deserialize(from).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_add_up_from_long_to_short() {
        for (text, ms) in [
            ("1ms", 1),
            ("300s", 300_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("30d", 2_592_000_000),
            ("1m1s1ms", 61_001),
            ("0", 0),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn a_missing_unit_a_fraction_and_a_wrong_order_are_refused_with_an_example() {
        for text in ["", "300", "5 m", "1.5h", "-1s", "m", "5m1h", "5s5s", "5x", "99999999999999d"]
        {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains("1h30m"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(ms in 0..u64::MAX) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(parse(&format(duration)), Ok(duration));
        }
    }
}
