//! Compiles the schema with protox: no protoc needed.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    let schema = root.join("iop/runtime/v1/runtime.proto");
    println!("cargo::rerun-if-changed={}", schema.display());
    let descriptors = protox::compile([&schema], [&root])?;
    prost_build::Config::new().bytes(["."]).compile_fds(descriptors)?;
    Ok(())
}
