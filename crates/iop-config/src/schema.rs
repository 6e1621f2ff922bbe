//! JSON schemas of both files, for editors and for the reference page.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Value, json};

use iop_types::{AdapterType, Policy, Recovery, UsageMode};

use crate::edge::EdgeConfig;
use crate::node::NodeConfig;

/// Returns the schema (draft 2020-12) of the Edge's file.
pub fn edge() -> Value {
    of::<EdgeConfig>()
}

/// Returns the schema (draft 2020-12) of the Node's file.
pub fn node() -> Value {
    of::<NodeConfig>()
}

fn of<T: JsonSchema>() -> Value {
    SchemaGenerator::default().into_root_schema_for::<T>().to_value()
}

pub(crate) fn version(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "const": 1 })
}

pub(crate) fn duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "title": "duration",
        "type": ["string", "integer"],
        "pattern": "^(0|([0-9]+(d|h|m|s|ms))+)$",
        "maximum": 0,
        "minimum": 0
    })
}

pub(crate) fn size(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "title": "size",
        "type": "string",
        "pattern": "^[0-9]+ *(B|KiB|MiB|GiB|KB|MB|GB)$"
    })
}

pub(crate) fn address(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "title": "address", "type": "string", "pattern": "^.+:[0-9]+$" })
}

pub(crate) fn adapter(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<_> = AdapterType::ALL.iter().map(|adapter| adapter.as_str()).collect();
    json_schema!({ "type": "string", "enum": names })
}

pub(crate) fn policy(_: &mut SchemaGenerator) -> Schema {
    words(Policy::ALL, |policy| match policy {
        Policy::LeastLoaded => {
            "the one that holds the target in memory, then the one with most room"
        }
        Policy::Ordered => "the first in the order of the file",
        Policy::Weighted => "turns in proportion to the weights",
        Policy::Affinity => "the same one for the same conversation, while it has room",
    })
}

pub(crate) fn recovery(_: &mut SchemaGenerator) -> Schema {
    words(&[Recovery::Off, Recovery::ConnectOnly, Recovery::Full], |recovery| match recovery {
        Recovery::Off => "none",
        Recovery::ConnectOnly => "only where no provider can have seen the request",
        Recovery::Full => "also where a provider may have executed it",
    })
}

pub(crate) fn usage(_: &mut SchemaGenerator) -> Schema {
    words(&[UsageMode::Exact, UsageMode::Observed], |mode| match mode {
        UsageMode::Exact => {
            "streams are asked for their usage, and the one chunk that the client did not ask for is \
             removed"
        }
        UsageMode::Observed => "nothing is added or removed: what passes by is counted",
    })
}

/// An enum of words, each with what it does.
fn words<T: Copy + Serialize>(all: &[T], effect: impl Fn(T) -> &'static str) -> Schema {
    let choices: Vec<_> =
        all.iter().map(|word| json!({ "const": word, "description": effect(*word) })).collect();
    json_schema!({ "oneOf": choices })
}
