//! How long a provider asks to be left alone: the value of `Retry-After`, in either of its forms.
//!
//! A date is a time by the provider's own clock, and is held against what the same answer says of that
//! clock in its `Date`. Only where it says nothing does the time count at which the answer came, as
//! RFC 9110 has it of a recipient with a clock.
//!
//! Not decided here: whose answer is asked, whether the wish is heeded, and for how long at most.

use std::time::{Duration, SystemTime};

/// Longer than any date. A header of several kibibytes is not worth the parser's time.
const LONGEST_VALUE: usize = 64;

/// Reads the value of `Retry-After`; `None` where it is neither seconds nor a date.
///
/// `date` is the value of the answer's `Date`, `received` the wall clock when it came. A date that is
/// over asks for no time at all.
pub fn retry_after(value: &[u8], date: Option<&[u8]>, received: SystemTime) -> Option<Duration> {
    let value = text(value)?;
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // More digits than a number has are a wish all the same.
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    let until = httpdate::parse_http_date(value).ok()?;
    let sent = date.and_then(text).and_then(|date| httpdate::parse_http_date(date).ok());
    Some(until.duration_since(sent.unwrap_or(received)).unwrap_or_default())
}

fn text(value: &[u8]) -> Option<&str> {
    let value = value.trim_ascii();
    (value.len() <= LONGEST_VALUE).then(|| std::str::from_utf8(value).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SENT: &[u8] = b"Wed, 21 Oct 2026 07:28:00 GMT";

    /// Reads a value that came at the epoch: whoever takes that for now is off by half a century.
    fn read(value: &[u8], date: Option<&[u8]>) -> Option<u64> {
        retry_after(value, date, SystemTime::UNIX_EPOCH).map(|wish| wish.as_secs())
    }

    #[test]
    fn seconds_are_seconds_whatever_the_date() {
        for (value, seconds) in [("0", 0), ("7", 7), (" 120 ", 120), ("007", 7)] {
            assert_eq!(read(value.as_bytes(), None), Some(seconds), "{value}");
            assert_eq!(read(value.as_bytes(), Some(SENT)), Some(seconds), "{value}");
        }
        assert_eq!(read(b"99999999999999999999999", None), Some(u64::MAX));
    }

    #[test]
    fn a_date_in_any_form_of_the_standard_counts_from_the_providers_own_clock() {
        for value in [
            "Wed, 21 Oct 2026 07:29:30 GMT",
            "Wednesday, 21-Oct-26 07:29:30 GMT",
            "Wed Oct 21 07:29:30 2026",
        ] {
            assert_eq!(read(value.as_bytes(), Some(SENT)), Some(90), "{value}");
        }
    }

    #[test]
    fn without_a_clock_of_the_providers_a_date_counts_from_when_the_answer_came() {
        let value = b"Thu, 01 Jan 1970 00:02:00 GMT";
        assert_eq!(read(value, None), Some(120));
        assert_eq!(read(value, Some(b"this morning")), Some(120));
    }

    #[test]
    fn a_date_that_is_over_asks_for_no_time() {
        assert_eq!(read(b"Wed, 21 Oct 2026 07:27:59 GMT", Some(SENT)), Some(0));
    }

    #[test]
    fn what_is_neither_seconds_nor_a_date_asks_for_nothing() {
        let long = [b"1".as_slice(); LONGEST_VALUE + 1].concat();
        let values: [&[u8]; 8] =
            [b"", b" ", b"-1", b"+1", b"1.5", b"soon", b"\xff\xfe", long.as_slice()];
        for value in values {
            assert_eq!(read(value, Some(SENT)), None, "{value:?}");
        }
    }

    proptest! {
        #[test]
        fn no_value_panics(value: Vec<u8>, date: Option<Vec<u8>>, text in "[A-Za-z]{3,9}[, ]{1,2}[0-9]{2}[ -][A-Z][a-z]{2}[ -][0-9]{2,4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT") {
            let now = SystemTime::UNIX_EPOCH;
            retry_after(&value, date.as_deref(), now);
            retry_after(text.as_bytes(), date.as_deref(), now);
            retry_after(SENT, Some(text.as_bytes()), now);
        }
    }
}
