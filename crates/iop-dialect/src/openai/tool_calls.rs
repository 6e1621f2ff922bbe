//! Gives the pieces of tool calls the index that they should have had.
//!
//! Servers send every parallel call with index 0, or no index, or an id only once. The rule: an id
//! that is new starts a call; without an id the index tells the call, and without both a piece goes
//! on with the last call, unless it names a function while that call has its name already.

use iop_types::{ErrorCode, Failure, Part};
use serde::Deserialize;
use serde_json::value::RawValue;

/// More parallel calls than any model makes: a bound on what one choice can make us keep.
const MAX_CALLS: usize = 1_024;

/// A piece of a call as the provider sent it.
#[derive(Debug, Deserialize)]
pub(super) struct Piece<'a> {
    index: Option<u32>,
    id: Option<String>,
    #[serde(borrow)]
    function: Option<Function<'a>>,
}

#[derive(Debug, Deserialize)]
struct Function<'a> {
    name: Option<String>,
    /// A string of JSON; some servers send the object itself.
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

/// The calls of one choice.
#[derive(Debug, Default)]
pub(super) struct ToolCalls {
    calls: Vec<Call>,
}

#[derive(Debug)]
struct Call {
    id: Option<String>,
    provider_index: Option<u32>,
    has_name: bool,
}

impl ToolCalls {
    /// Reads the next piece; `None` when it carries nothing.
    pub(super) fn read(&mut self, piece: Piece<'_>) -> Result<Option<Part>, Failure> {
        let known = self.find(&piece);
        self.read_at(known, piece)
    }

    /// Reads a call that is whole by itself, as unary answers have them.
    pub(super) fn read_whole(&mut self, piece: Piece<'_>) -> Result<Option<Part>, Failure> {
        self.read_at(None, piece)
    }

    fn find(&self, piece: &Piece<'_>) -> Option<usize> {
        match (piece.id(), piece.index) {
            (Some(id), _) => self.calls.iter().position(|call| call.id.as_deref() == Some(id)),
            // The last of the calls that share this index.
            (None, Some(index)) => {
                self.calls.iter().rposition(|call| call.provider_index == Some(index))
            }
            (None, None) => {
                let last = self.calls.last()?;
                let starts_another = piece.name().is_some() && last.has_name;
                (!starts_another).then(|| self.calls.len() - 1)
            }
        }
    }

    fn read_at(&mut self, known: Option<usize>, piece: Piece<'_>) -> Result<Option<Part>, Failure> {
        let is_new = known.is_none();
        let at = known.unwrap_or(self.calls.len());
        let Ok(index) = u32::try_from(at)
            .map_err(drop)
            .and_then(|index| if at < MAX_CALLS { Ok(index) } else { Err(()) })
        else {
            let message = format!("provider sent more than {MAX_CALLS} tool calls in one choice");
            return Err(Failure::new(ErrorCode::ProviderError, message));
        };
        if is_new {
            self.calls.push(Call {
                id: piece.id().map(str::to_owned),
                provider_index: piece.index,
                has_name: false,
            });
        }
        let name = piece.name().filter(|_| !self.calls[at].has_name).map(str::to_owned);
        self.calls[at].has_name |= name.is_some();
        let id = if is_new { piece.id().map(str::to_owned) } else { None };
        let arguments = piece.arguments()?;
        let is_empty = !is_new && name.is_none() && arguments.is_empty();
        Ok((!is_empty).then_some(Part::ToolCall { index, id, name, arguments }))
    }
}

impl Piece<'_> {
    fn id(&self) -> Option<&str> {
        self.id.as_deref().filter(|id| !id.is_empty())
    }

    fn name(&self) -> Option<&str> {
        self.function.as_ref()?.name.as_deref().filter(|name| !name.is_empty())
    }

    fn arguments(&self) -> Result<String, Failure> {
        let raw = self.function.as_ref().and_then(|function| function.arguments);
        let Some(raw) = raw.map(RawValue::get) else { return Ok(String::new()) };
        if !raw.starts_with('"') {
            return Ok(raw.to_owned());
        }
        serde_json::from_str(raw).map_err(|error| {
            let message = format!("provider sent tool call arguments that are no text: {error}");
            Failure::new(ErrorCode::ProviderError, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the pieces and returns what each became: index, id, name, arguments.
    fn read(pieces: &[&str]) -> Vec<String> {
        let mut calls = ToolCalls::default();
        let parts = pieces
            .iter()
            .filter_map(|piece| calls.read(serde_json::from_str(piece).unwrap()).unwrap());
        let show = |part| match part {
            Part::ToolCall { index, id, name, arguments } => {
                let [id, name] = [id, name].map(|text| text.unwrap_or_else(|| "-".to_owned()));
                format!("{index} {id} {name} {arguments}")
            }
            other => panic!("{other:?}"),
        };
        parts.map(show).collect()
    }

    #[test]
    fn fc_047_calls_that_share_an_index_are_told_apart_by_their_ids() {
        assert_eq!(
            read(&[
                r#"{"index":0,"id":"c1","function":{"name":"f","arguments":"{\"p\":1}"}}"#,
                r#"{"index":0,"id":"c2","function":{"name":"g","arguments":"{\"p\":"}}"#,
                r#"{"index":0,"function":{"arguments":"2}"}}"#,
            ]),
            ["0 c1 f {\"p\":1}", "1 c2 g {\"p\":", "1 - - 2}"]
        );
    }

    #[test]
    fn fc_048_pieces_without_index_go_on_with_the_last_call_until_an_id_is_new() {
        assert_eq!(
            read(&[
                r#"{"id":"c1","function":{"name":"f","arguments":"{"}}"#,
                r#"{"function":{"arguments":"}"}}"#,
                r#"{"id":"c2","function":{"name":"f","arguments":"[]"}}"#,
                r#"{"id":"c1","function":{"arguments":" "}}"#,
            ]),
            ["0 c1 f {", "0 - - }", "1 c2 f []", "0 - -  "]
        );
    }

    #[test]
    fn fc_050_empty_arguments_are_accepted_and_carry_nothing() {
        assert_eq!(
            read(&[
                r#"{"index":0,"id":"c1","function":{"name":"f","arguments":""}}"#,
                r#"{"index":0,"id":"","function":{"name":"","arguments":""}}"#,
                r#"{"index":0,"function":{"arguments":"{\"x\":"}}"#,
                r#"{"index":0,"function":{"name":"f","arguments":"1}"}}"#,
            ]),
            ["0 c1 f ", "0 - - {\"x\":", "0 - - 1}"]
        );
    }

    #[test]
    fn calls_without_id_and_index_are_told_apart_by_their_names() {
        assert_eq!(
            read(&[
                r#"{"function":{"name":"f","arguments":"{}"}}"#,
                r#"{"function":{"name":"g","arguments":{"a":1}}}"#,
                r#"{"type":"function"}"#,
            ]),
            ["0 - f {}", "1 - g {\"a\":1}"]
        );
    }

    #[test]
    fn indices_that_are_right_stay() {
        assert_eq!(
            read(&[
                r#"{"index":0,"id":"a","function":{"name":"f"}}"#,
                r#"{"index":1,"id":"b","function":{"name":"g"}}"#,
                r#"{"index":0,"function":{"arguments":"1"}}"#,
                r#"{"index":1,"function":{"arguments":"2"}}"#,
            ]),
            ["0 a f ", "1 b g ", "0 - - 1", "1 - - 2"]
        );
    }

    #[test]
    fn the_number_of_calls_is_bounded() {
        let mut calls = ToolCalls::default();
        let mut read = |id: usize| {
            let json = format!(r#"{{"id":"c{id}"}}"#);
            calls.read(serde_json::from_str(&json).unwrap()).map(drop)
        };
        assert!((0..MAX_CALLS).all(|id| read(id).is_ok()));
        assert!(read(MAX_CALLS).unwrap_err().message.contains("1024 tool calls"));
    }
}
