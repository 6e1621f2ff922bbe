//! Options that the operator forces on every request.
//!
//! Ollama loads a model anew when a request asks for another context length, so one figure for all
//! requests is what keeps it in memory. Bodies that are made here take the forced options in when
//! they are made; raw ones get them spliced in, every other byte stays.

use std::num::NonZeroU32;
use std::ops::Range;

use bytes::Bytes;

use crate::splice::{BodyError, Member, read_body, read_object, replace, span, type_name};

/// Options that win over those of the request. Without any, requests stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Forced {
    /// Value of `options.num_ctx`.
    pub num_ctx: Option<NonZeroU32>,
    /// Value of `keep_alive` as JSON text: a number of seconds or a duration.
    pub keep_alive: Option<String>,
}

impl Forced {
    /// Says whether requests stay as they are.
    pub const fn is_nothing(&self) -> bool {
        self.num_ctx.is_none() && self.keep_alive.is_none()
    }

    /// Puts the options into a body of Ollama's own API; returns the same `Bytes` when there are
    /// none.
    ///
    /// # Errors
    /// The body is no JSON object with a `model`, or has a member that Go's reader, which does not
    /// regard case, could take in place of a forced one.
    pub fn splice(&self, body: &Bytes) -> Result<Bytes, BodyError> {
        if self.is_nothing() {
            return Ok(body.clone());
        }
        let wanted = [Member::top("model"), Member::top("options"), Member::top("keep_alive")];
        let [model, options, keep_alive] = read_body(body, wanted)?;
        // Without it there is nothing to load, and the body might be empty.
        let expected = "the name of a model";
        model.ok_or(BodyError::Missing { key: "model", expected })?;
        let brace = body.iter().position(|byte| *byte == b'{').unwrap_or_default();
        let front = brace + 1..brace + 1;

        let mut changes = Vec::new();
        if let Some(num_ctx) = self.num_ctx {
            changes.push(change_options(body, options, num_ctx, &front)?);
        }
        if let Some(value) = &self.keep_alive {
            changes.push(match keep_alive {
                Some(old) => (span(body, old), value.clone()),
                None => (front, format!("\"keep_alive\":{value},")),
            });
        }
        changes.sort_by_key(|(at, _)| at.start);
        Ok(replace(body, &changes))
    }
}

/// Reads the context length that a body of Ollama's own API asks for; `None` where it leaves it to the
/// server.
///
/// # Errors
/// The body is no JSON object, or what it asks for is no length.
pub fn asked_num_ctx(body: &[u8]) -> Result<Option<NonZeroU32>, BodyError> {
    // Prompts are long, and few bodies speak of it at all.
    if memchr::memmem::find(body, NUM_CTX.key.as_bytes()).is_none() {
        return Ok(None);
    }
    let [options] = read_body(body, [Member::top("options")])?;
    let Some(options) = options.filter(|options| type_name(options) == "an object") else {
        return Ok(None);
    };
    let [asked] = read_object(options, [NUM_CTX])?;
    let Some(asked) = asked.filter(|asked| type_name(asked) != "null") else { return Ok(None) };
    let found = type_name(asked);
    let expected = "a positive whole number";
    asked.parse().map(Some).map_err(|_| BodyError::WrongType { key: NUM_CTX.key, expected, found })
}

fn change_options(
    body: &[u8],
    options: Option<&str>,
    num_ctx: NonZeroU32,
    front: &Range<usize>,
) -> Result<(Range<usize>, String), BodyError> {
    let Some(options) = options else {
        return Ok((front.clone(), format!("\"options\":{{\"num_ctx\":{num_ctx}}},")));
    };
    let at = span(body, options);
    match type_name(options) {
        "null" => return Ok((at, format!("{{\"num_ctx\":{num_ctx}}}"))),
        "an object" => {}
        found => {
            let expected = "an object or leave it out";
            return Err(BodyError::WrongType { key: "options", expected, found });
        }
    }
    let [old] = read_object(options, [NUM_CTX])?;
    Ok(match old {
        Some(old) => (span(body, old), num_ctx.to_string()),
        None => {
            let is_empty = options[1..].trim_ascii_start().starts_with('}');
            let comma = if is_empty { "" } else { "," };
            let inside = at.start + 1;
            (inside..inside, format!("\"num_ctx\":{num_ctx}{comma}"))
        }
    })
}

pub(super) const NUM_CTX: Member = Member { key: "num_ctx", label: "options.num_ctx" };

#[cfg(test)]
mod tests {
    use super::*;

    fn forced(num_ctx: u32, keep_alive: Option<&str>) -> Forced {
        let num_ctx = NonZeroU32::new(num_ctx);
        Forced { num_ctx, keep_alive: keep_alive.map(str::to_owned) }
    }

    fn spliced(forced: &Forced, body: &str) -> Result<String, BodyError> {
        let spliced = forced.splice(&Bytes::copy_from_slice(body.as_bytes()))?;
        Ok(String::from_utf8(spliced.to_vec()).unwrap())
    }

    #[test]
    fn fc_059_the_context_size_is_spliced_in_and_every_other_byte_stays() {
        for (body, expected) in [
            (
                "{ \"model\" : \"m\",\"x\":1e-3}\n",
                "{\"options\":{\"num_ctx\":8192}, \"model\" : \"m\",\"x\":1e-3}\n",
            ),
            (
                r#"{"options":{"seed":1, "num_ctx" : 65536 },"model":"m"}"#,
                r#"{"options":{"seed":1, "num_ctx" : 8192 },"model":"m"}"#,
            ),
            (
                r#"{"options":{ "seed":1},"model":"m"}"#,
                r#"{"options":{"num_ctx":8192, "seed":1},"model":"m"}"#,
            ),
            (r#"{"options":{ },"model":"m"}"#, r#"{"options":{"num_ctx":8192 },"model":"m"}"#),
            (r#"{"options":null,"model":"m"}"#, r#"{"options":{"num_ctx":8192},"model":"m"}"#),
        ] {
            assert_eq!(spliced(&forced(8192, None), body).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn fc_063_the_configured_keep_alive_wins_and_both_options_go_together() {
        let five = forced(0, Some("\"5m\""));
        let wins = spliced(&five, r#"{"keep_alive":-1,"model":"m"}"#);
        assert_eq!(wins.as_deref(), Ok(r#"{"keep_alive":"5m","model":"m"}"#));
        let both = spliced(&forced(1, Some("-1")), r#"{"model":"m"}"#);
        let expected = r#"{"options":{"num_ctx":1},"keep_alive":-1,"model":"m"}"#;
        assert_eq!(both.as_deref(), Ok(expected));
    }

    #[test]
    fn fc_060_without_a_forced_option_the_body_is_the_same_memory() {
        let body = Bytes::from_static(br#"{"model":"m","options":{"num_ctx":4096}}"#);
        assert_eq!(Forced::default().splice(&body).unwrap().as_ptr(), body.as_ptr());
    }

    #[test]
    fn a_member_that_go_could_take_for_a_forced_one_is_refused() {
        let both = forced(8192, Some("0"));
        for body in [
            r#"{"model":"m","Options":{"num_ctx":1}}"#,
            r#"{"model":"m","options":{},"options":{}}"#,
            r#"{"model":"m","options":{"Num_Ctx":1}}"#,
            r#"{"model":"m","options":{"num_ctx":1,"num_ct\u0078":2}}"#,
            r#"{"model":"m","KEEP_ALIVE":-1}"#,
            "{\"model\":\"m\",\"\u{212A}eep_alive\":-1}",
            r#"{"model":"m","Model":"other"}"#,
            r#"{"model":"m","options":[]}"#,
            r#"{"options":{}}"#,
            "{}",
            "[]",
        ] {
            assert!(spliced(&both, body).is_err(), "{body}");
        }
    }
}
