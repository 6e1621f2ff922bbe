//! Compiles the schema with protox: no protoc needed.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    let schemas = ["iop/runtime/v1/runtime.proto", "iop/lease/v1/claims.proto"];
    let schemas = schemas.map(|schema| root.join(schema));
    for schema in &schemas {
        println!("cargo::rerun-if-changed={}", schema.display());
    }
    let descriptors = protox::compile(&schemas, [&root])?;
    prost_build::Config::new()
        .bytes(["."])
        // Most requests have none: their heads stay small.
        .boxed(".iop.runtime.v1.RequestHead.lease")
        .compile_fds(descriptors)?;
    Ok(())
}
