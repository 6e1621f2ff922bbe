//! JSON schemas of both files, for editors and for the reference page.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use iop_types::AdapterType;

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
