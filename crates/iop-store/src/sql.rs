//! Between the words of this crate and SQLite's values.

use iop_types::RunId;
use rusqlite::types::Type;
use rusqlite::{Error, Row};
use serde::de::DeserializeOwned;

/// A number as SQLite's integer; what it cannot hold is its largest.
pub(crate) fn whole<N>(number: N) -> i64
where
    i64: TryFrom<N>,
{
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A count that may be unknown.
pub(crate) fn optional(count: Option<u64>) -> Option<i64> {
    count.map(whole)
}

/// A record that has no text form.
pub(crate) fn unwritable(error: serde_json::Error) -> Error {
    Error::ToSqlConversionFailure(Box::new(error))
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

/// Reads a number that is never negative.
pub(crate) fn read_number(row: &Row<'_>, column: &str) -> rusqlite::Result<u64> {
    let number: i64 = row.get(column)?;
    u64::try_from(number).map_err(|error| malformed(Type::Integer, error))
}

/// Reads the id of a run.
pub(crate) fn read_id(row: &Row<'_>, column: &str) -> rusqlite::Result<RunId> {
    let bytes: [u8; 16] = row.get(column)?;
    RunId::from_slice(&bytes).map_err(|error| malformed(Type::Blob, error))
}

/// Reads a text of JSON, which must be right where there is one.
pub(crate) fn read_json<T>(
    row: &Row<'_>,
    column: &str,
    parse: impl FnOnce(&str) -> serde_json::Result<T>,
) -> rusqlite::Result<Option<T>> {
    let text: Option<String> = row.get(column)?;
    text.map(|text| parse(&text).map_err(|error| malformed(Type::Text, error))).transpose()
}

/// Reads a time in Unix milliseconds.
pub(crate) fn read_time(row: &Row<'_>, column: &str) -> rusqlite::Result<jiff::Timestamp> {
    jiff::Timestamp::from_millisecond(row.get(column)?)
        .map_err(|error| malformed(Type::Integer, error))
}

/// Reads a time that may not have come.
pub(crate) fn read_optional_time(
    row: &Row<'_>,
    column: &str,
) -> rusqlite::Result<Option<jiff::Timestamp>> {
    let time: Option<i64> = row.get(column)?;
    time.map(|_| read_time(row, column)).transpose()
}

/// Writes a value as the word that serde gives it.
pub(crate) fn word<T: serde::Serialize>(of: &T) -> rusqlite::Result<String> {
    match serde_json::to_value(of).map_err(unwritable)? {
        serde_json::Value::String(word) => Ok(word),
        other => Err(Error::ToSqlConversionFailure(format!("`{other}` is no word").into())),
    }
}

/// Reads a word, which must be known.
pub(crate) fn to_word<T: DeserializeOwned>(row: &Row<'_>, column: &str) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    serde_json::from_value(serde_json::Value::String(text))
        .map_err(|error| malformed(Type::Text, error))
}

/// Reads a text of JSON, which must be there and right.
pub(crate) fn to_json<T: DeserializeOwned>(row: &Row<'_>, column: &str) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(|error| malformed(Type::Text, error))
}

fn malformed(what: Type, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::FromSqlConversionFailure(0, what, Box::new(error))
}
