//! Between the words of this crate and SQLite's values.

use rusqlite::types::Value;
use rusqlite::{Row, types};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A count; what SQLite cannot hold is its largest number.
pub(crate) fn integer(count: u64) -> Value {
    Value::Integer(whole(count))
}

/// A count that may be unknown.
pub(crate) fn optional(count: Option<u64>) -> Value {
    count.map_or(Value::Null, integer)
}

/// A number as SQLite's integer; what it cannot hold is its largest.
pub(crate) fn whole<N>(number: N) -> i64
where
    i64: TryFrom<N>,
{
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// An enum of words as its word; anything without one as nothing.
pub(crate) fn word(word: impl Serialize) -> Value {
    match serde_json::to_value(word) {
        Ok(serde_json::Value::String(text)) => Value::Text(text),
        Ok(_) | Err(_) => Value::Null,
    }
}

/// Reads a word; one that is not known is absent.
pub(crate) fn read_word<T: DeserializeOwned>(
    row: &Row<'_>,
    column: &str,
) -> rusqlite::Result<Option<T>> {
    let text: Option<String> = row.get(column)?;
    Ok(text.and_then(|text| serde_json::from_value(serde_json::Value::String(text)).ok()))
}

/// Reads a count; a negative one is absent.
pub(crate) fn read_count(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<u64>> {
    let count: Option<i64> = row.get(column)?;
    Ok(count.and_then(|count| u64::try_from(count).ok()))
}

/// Reads a value through its text form, which must be right.
pub(crate) fn read_text<T, E>(
    row: &Row<'_>,
    column: &str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> rusqlite::Result<T>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let text: String = row.get(column)?;
    parse(&text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(0, types::Type::Text, Box::new(error))
    })
}

/// Reads a time in Unix milliseconds.
pub(crate) fn read_time(row: &Row<'_>, column: &str) -> rusqlite::Result<jiff::Timestamp> {
    jiff::Timestamp::from_millisecond(row.get(column)?).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(0, types::Type::Integer, Box::new(error))
    })
}
