//! Reads the few members of a request body that routing needs, and replaces them in place.
//!
//! The body is never serialized again: an edit copies it around the replaced spans, so that every
//! other byte, known or not, reaches the provider as the client sent it.
//!
//! Reading is strict about the members that decide who serves a request and what it may cost. JSON
//! readers disagree about a key that appears twice, and Go's take `Model` for `model`; a body that
//! we and the provider could read differently would let a client ask us for one model and the
//! provider for another, so it is refused.

use std::ops::Range;

use bytes::Bytes;

mod error;
mod members;

pub use error::BodyError;
pub(crate) use members::{Member, read_body, read_members, read_object, type_name};

use members::offset_in;

/// What routing needs of a request body, and where it stands in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routing {
    body_len: usize,
    model: String,
    model_at: Range<usize>,
    stream: bool,
    stream_at: Option<Range<usize>>,
    options: StreamOptions,
    /// Just behind the opening brace; the object has at least one member.
    insert_at: usize,
}

/// The client's `stream_options`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum StreamOptions {
    Absent,
    Null {
        at: Range<usize>,
    },
    /// An object with its own `include_usage`.
    WithUsage {
        include_usage: bool,
        at: Range<usize>,
    },
    /// An object without it.
    WithoutUsage {
        /// Just behind the opening brace.
        insert_at: usize,
        is_empty: bool,
    },
}

/// What [`Routing::edit`] changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Edit<'a> {
    /// The name to put in place of the client's model.
    pub model: Option<&'a str>,
    /// The value to give to `stream`.
    pub stream: Option<bool>,
    /// Whether a stream asks for usage; `false` leaves `stream_options` as it came.
    pub include_usage: bool,
}

impl Routing {
    /// Reads the routing members of a body that must be one JSON object.
    ///
    /// # Errors
    /// Names the member and the remedy.
    pub fn read(body: &[u8]) -> Result<Self, BodyError> {
        let [model, stream, options] = read_body(
            body,
            [Member::top("model"), Member::top("stream"), Member::top("stream_options")],
        )?;
        let expected = "the name of a model";
        let raw = model.ok_or(BodyError::Missing { key: "model", expected })?;
        let model: String = serde_json::from_str(raw).map_err(|_| BodyError::WrongType {
            key: "model",
            expected,
            // A string that is no string has an escape which means nothing.
            found: if raw.starts_with('"') { "a broken string" } else { type_name(raw) },
        })?;
        if model.is_empty() {
            return Err(BodyError::Empty { key: "model", expected });
        }
        let brace = body.iter().position(|byte| *byte == b'{').unwrap_or_default();
        Ok(Self {
            body_len: body.len(),
            model,
            model_at: span(body, raw),
            stream: match stream {
                Some(value) => read_bool(value, "stream")?,
                None => false,
            },
            stream_at: stream.map(|value| span(body, value)),
            options: StreamOptions::read(body, options)?,
            insert_at: brace + 1,
        })
    }

    /// Routes a body that is no JSON, and that nothing here can change, to a model that was named
    /// elsewhere.
    pub const fn elsewhere(model: String) -> Self {
        Self {
            body_len: 0,
            model,
            model_at: 0..0,
            stream: false,
            stream_at: None,
            options: StreamOptions::Absent,
            insert_at: 0,
        }
    }

    /// Returns the model that the client asks for, never empty.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Says whether the client asks for a stream.
    pub const fn is_stream(&self) -> bool {
        self.stream
    }

    /// Says whether the client itself asks for the usage chunk (`stream_options.include_usage`).
    pub const fn asks_usage(&self) -> bool {
        matches!(self.options, StreamOptions::WithUsage { include_usage: true, .. })
    }

    /// Says whether the client sent `stream_options` itself, whatever is in it.
    pub const fn has_stream_options(&self) -> bool {
        !matches!(self.options, StreamOptions::Absent)
    }

    /// Replaces the model and, in a stream, asks for usage. Returns the same `Bytes` when nothing
    /// changes.
    ///
    /// # Panics
    /// `body` must be the body that was read.
    pub fn rewrite(&self, body: &Bytes, model: Option<&str>, include_usage: bool) -> Bytes {
        self.edit(body, Edit { model, stream: None, include_usage })
    }

    /// Makes the changes that are left to make; returns the same `Bytes` when there are none.
    ///
    /// # Panics
    /// `body` must be the body that was read.
    pub fn edit(&self, body: &Bytes, edit: Edit<'_>) -> Bytes {
        assert_eq!(body.len(), self.body_len, "the edited body is the one that was read");
        let mut changes: Vec<(Range<usize>, String)> = Vec::new();
        if let Some(model) = edit.model.filter(|model| *model != self.model) {
            changes.push((self.model_at.clone(), serde_json::Value::from(model).to_string()));
        }
        if let Some(stream) = edit.stream.filter(|stream| *stream != self.stream) {
            changes.push(match &self.stream_at {
                Some(at) => (at.clone(), stream.to_string()),
                None => (self.insert_at..self.insert_at, format!("\"stream\":{stream},")),
            });
        }
        if edit.include_usage && edit.stream.unwrap_or(self.stream) {
            changes.extend(self.options.ask_usage(self.insert_at));
        }
        if changes.is_empty() {
            return body.clone();
        }
        // Stable: what is inserted at one place stays in the order of insertion.
        changes.sort_by_key(|(at, _)| at.start);
        replace(body, &changes)
    }
}

impl StreamOptions {
    fn read(body: &[u8], value: Option<&str>) -> Result<Self, BodyError> {
        const INCLUDE_USAGE: Member =
            Member { key: "include_usage", label: "stream_options.include_usage" };
        let Some(value) = value else { return Ok(Self::Absent) };
        let at = span(body, value);
        match type_name(value) {
            "null" => return Ok(Self::Null { at }),
            "an object" => {}
            found => {
                let expected = "an object or leave it out";
                return Err(BodyError::WrongType { key: "stream_options", expected, found });
            }
        }
        let [include_usage] = read_object(value, [INCLUDE_USAGE])?;
        Ok(match include_usage {
            Some(value) => Self::WithUsage {
                include_usage: read_bool(value, INCLUDE_USAGE.label)?,
                at: span(body, value),
            },
            None => Self::WithoutUsage {
                insert_at: at.start + 1,
                is_empty: value[1..].trim_ascii_start().starts_with('}'),
            },
        })
    }

    fn ask_usage(&self, insert_at: usize) -> Option<(Range<usize>, String)> {
        match self {
            Self::Absent => Some((
                insert_at..insert_at,
                "\"stream_options\":{\"include_usage\":true},".to_owned(),
            )),
            Self::Null { at } => Some((at.clone(), "{\"include_usage\":true}".to_owned())),
            Self::WithUsage { include_usage: true, .. } => None,
            Self::WithUsage { include_usage: false, at } => Some((at.clone(), "true".to_owned())),
            Self::WithoutUsage { insert_at, is_empty } => {
                let comma = if *is_empty { "" } else { "," };
                Some((*insert_at..*insert_at, format!("\"include_usage\":true{comma}")))
            }
        }
    }
}

/// Reads a boolean; null, which some clients send for what they leave out, is false.
fn read_bool(value: &str, key: &'static str) -> Result<bool, BodyError> {
    match value {
        "true" => Ok(true),
        "false" | "null" => Ok(false),
        other => {
            Err(BodyError::WrongType { key, expected: "true or false", found: type_name(other) })
        }
    }
}

/// Returns where a value stands, which must be a slice of the body.
pub(crate) fn span(body: &[u8], value: &str) -> Range<usize> {
    let start = offset_in(body, value);
    start..start + value.len()
}

/// Copies the body around the replaced spans, which are in ascending order.
pub(crate) fn replace(body: &[u8], changes: &[(Range<usize>, String)]) -> Bytes {
    let grown: usize = changes.iter().map(|(_, text)| text.len()).sum();
    let mut edited = Vec::with_capacity(body.len() + grown);
    let mut copied = 0;
    for (at, text) in changes {
        edited.extend_from_slice(&body[copied..at.start]);
        edited.extend_from_slice(text.as_bytes());
        copied = at.end;
    }
    edited.extend_from_slice(&body[copied..]);
    edited.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(body: &str, edit: Edit<'_>) -> String {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let edited = Routing::read(&body).unwrap().edit(&body, edit);
        String::from_utf8(edited.to_vec()).unwrap()
    }

    fn with_usage(body: &str) -> String {
        edited(body, Edit { include_usage: true, ..Edit::default() })
    }

    fn refused(body: &str) -> BodyError {
        Routing::read(body.as_bytes()).unwrap_err()
    }

    #[test]
    fn only_the_model_is_replaced_and_every_other_byte_stays() {
        let body = "\n{ \"x_vendor\" : {\"a\":[1,null]},\t\"model\" : \"m\" , \"n\":1e-3 }\r\n";
        let model = Some("org/\"very\"-long");
        assert_eq!(
            edited(body, Edit { model, ..Edit::default() }),
            "\n{ \"x_vendor\" : {\"a\":[1,null]},\t\"model\" : \"org/\\\"very\\\"-long\" , \"n\":1e-3 }\r\n"
        );
    }

    #[test]
    fn a_body_that_needs_no_change_is_the_same_memory() {
        let bodies = [
            r#"{"model":"m"}"#,
            r#"{"mod\u0065l":"\u006d","stream":false,"stream_options":null}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true},"model":"m"}"#,
        ];
        for body in bodies {
            let body = Bytes::from(body);
            let routing = Routing::read(&body).unwrap();
            assert_eq!(routing.rewrite(&body, Some("m"), true).as_ptr(), body.as_ptr());
            assert_eq!(routing.rewrite(&body, None, false).as_ptr(), body.as_ptr());
        }
    }

    #[test]
    fn usage_is_asked_for_in_each_shape_of_stream_options() {
        for (body, expected) in [
            (
                r#"{ "model":"m","stream":true}"#,
                r#"{"stream_options":{"include_usage":true}, "model":"m","stream":true}"#,
            ),
            (
                r#"{"model":"m","stream_options": null ,"stream":true}"#,
                r#"{"model":"m","stream_options": {"include_usage":true} ,"stream":true}"#,
            ),
            (
                r#"{"model":"m","stream_options":{ },"stream":true}"#,
                r#"{"model":"m","stream_options":{"include_usage":true },"stream":true}"#,
            ),
            (
                r#"{"model":"m","stream_options":{"a":{}},"stream":true}"#,
                r#"{"model":"m","stream_options":{"include_usage":true,"a":{}},"stream":true}"#,
            ),
            (
                r#"{"model":"m","stream_options":{"include_usage":false,"a":1},"stream":true}"#,
                r#"{"model":"m","stream_options":{"include_usage":true,"a":1},"stream":true}"#,
            ),
        ] {
            assert_eq!(with_usage(body), expected);
        }
    }

    #[test]
    fn usage_is_asked_for_only_in_streams() {
        for body in [r#"{"model":"m"}"#, r#"{"model":"m","stream":false,"stream_options":{}}"#] {
            assert_eq!(with_usage(body), body);
        }
        let edit = Edit { stream: Some(true), include_usage: true, ..Edit::default() };
        assert_eq!(
            edited(r#"{"model":"m"}"#, edit),
            r#"{"stream":true,"stream_options":{"include_usage":true},"model":"m"}"#
        );
        assert_eq!(
            edited(
                r#"{"stream":null,"model":"m"}"#,
                Edit { stream: Some(true), ..Edit::default() }
            ),
            r#"{"stream":true,"model":"m"}"#
        );
    }

    #[test]
    fn what_the_client_asked_for_is_known() {
        let read = |body: &str| Routing::read(body.as_bytes()).unwrap();
        let asked =
            read(r#"{"model":"a/b","stream":true,"stream_options":{"include_usage":true}}"#);
        assert_eq!(asked.model(), "a/b");
        assert!(asked.is_stream() && asked.asks_usage() && asked.has_stream_options());
        let silent = read(r#"{"model":"m","stream_options":{"include_usage":null}}"#);
        assert!(!silent.is_stream() && !silent.asks_usage() && silent.has_stream_options());
        assert!(!read(r#"{"model":"m"}"#).has_stream_options());
    }

    #[test]
    fn a_routing_key_that_appears_twice_is_refused_also_when_escaped() {
        for (body, key) in [
            (r#"{"model":"a","model":"b"}"#, "model"),
            (r#"{"model":"a","m\u006Fdel":"b"}"#, "model"),
            (r#"{"model":"a","stream":true,"stream":true}"#, "stream"),
            (r#"{"model":"a","stream_options":{},"stream_options":{}}"#, "stream_options"),
            (
                r#"{"model":"a","stream_options":{"include_usage":true,"include_usage":false}}"#,
                "stream_options.include_usage",
            ),
        ] {
            let error = refused(body);
            assert_eq!(error, BodyError::Duplicate { key });
            assert_eq!(error.param(), Some(key));
        }
    }

    #[test]
    fn a_key_that_a_lenient_reader_takes_for_a_routing_key_is_refused() {
        for (body, key, found) in [
            (r#"{"model":"a","Model":"b"}"#, "model", "Model"),
            (r#"{"MODEL":"b"}"#, "model", "MODEL"),
            ("{\"model\":\"a\",\"\u{17F}tream\":true}", "stream", "\u{17F}tream"),
            (r#"{"model":"a","\u017Ftream_option\u017F":{}}"#, "stream_options", "ſtream_optionſ"),
            (
                r#"{"model":"a","stream_options":{"Include_Usage":true}}"#,
                "stream_options.include_usage",
                "Include_Usage",
            ),
        ] {
            assert_eq!(refused(body), BodyError::LookAlike { key, found: found.to_owned() });
        }
        assert!(
            Routing::read(r#"{"model":"m","models":1,"mode":2,"Streams":3}"#.as_bytes()).is_ok()
        );
        assert!(Routing::read(r#"{"model":"m","metadata":{"Model":"x"}}"#.as_bytes()).is_ok());
    }

    #[test]
    fn the_kelvin_sign_folds_to_k() {
        let wanted = [Member::top("token")];
        let error = read_body("{\"to\u{212A}en\":1}".as_bytes(), wanted).unwrap_err();
        assert_eq!(error, BodyError::LookAlike { key: "token", found: "to\u{212A}en".to_owned() });
    }

    #[test]
    fn wrong_types_name_the_member_and_what_to_send() {
        for (body, message) in [
            (r#"{"model":7}"#, "`model` is a number: send the name of a model"),
            (r#"{"model":null}"#, "`model` is null: send the name of a model"),
            (r#"{"model":"\ud800"}"#, "`model` is a broken string: send the name of a model"),
            (r#"{"model":"m","stream":"yes"}"#, "`stream` is a string: send true or false"),
            (
                r#"{"model":"m","stream_options":[]}"#,
                "`stream_options` is an array: send an object or leave it out",
            ),
            (
                r#"{"model":"m","stream_options":{"include_usage":1}}"#,
                "`stream_options.include_usage` is a number: send true or false",
            ),
            (r#"{"model":""}"#, "`model` is empty: send the name of a model"),
            (r#"{"messages":[]}"#, "`model` is missing: send the name of a model"),
            ("[1]", "body is an array: send a JSON object"),
            (" \"x\"", "body is a string: send a JSON object"),
        ] {
            assert_eq!(refused(body).to_string(), message, "{body}");
        }
    }

    #[test]
    fn what_is_not_json_is_refused_with_line_and_column() {
        for (body, line, column) in [
            ("", 1, 0),
            ("{", 1, 1),
            ("{\"model\":\"m\",\n \"n\": x}", 2, 7),
            ("{\"model\":\"m\"} x", 1, 15),
            ("{\"model\":\"m\",}", 1, 14),
            ("{'model':'m'}", 1, 2),
            ("nope", 1, 2),
            ("{\"model\":\"a\nb\"}", 1, 11),
        ] {
            match refused(body) {
                BodyError::NotJson { line: l, column: c, reason } => {
                    assert_eq!((l, c), (line, column), "{body:?}: {reason}");
                    assert!(!reason.is_empty() && !reason.contains(" at line"));
                }
                other => panic!("{body:?}: {other}"),
            }
        }
        assert_eq!(Routing::read(b"{\"model\":\"\xFF\"}"), Err(BodyError::NotUtf8 { offset: 10 }));
    }

    #[test]
    fn nesting_is_bounded_and_never_overflows_the_stack() {
        let nested = |depth: usize, open: &str, close: &str| {
            format!(r#"{{"model":"m","x":{}1{}}}"#, open.repeat(depth), close.repeat(depth))
        };
        let read = |depth| Routing::read(nested(depth, "[", "]").as_bytes()).map(|_| ());
        assert_eq!(read(126), Ok(()));
        assert_eq!(read(127), Err(BodyError::TooDeep { limit: 127 }));
        assert_eq!(read(1_000_000), Err(BodyError::TooDeep { limit: 127 }));
        let objects = nested(200, r#"{"[\"":"#, "}");
        assert_eq!(refused(&objects), BodyError::TooDeep { limit: 127 });
        assert!(matches!(refused(&"[".repeat(1_000_000)), BodyError::NotJson { .. }));
        assert!(matches!(refused(&"{\"a\":".repeat(1_000_000)), BodyError::NotJson { .. }));
        // Many brackets are not deep ones, nor are those in strings.
        let flat =
            format!(r#"{{"model":"m","x":[{}1],"y":"{}"}}"#, "[],".repeat(500), "[".repeat(500));
        assert!(Routing::read(flat.as_bytes()).is_ok());
        // The bound is the one that serde_json can read again.
        assert!(serde_json::from_str::<serde_json::Value>(&nested(126, "[", "]")).is_ok());
        assert!(serde_json::from_str::<serde_json::Value>(&nested(127, "[", "]")).is_err());
    }
}
