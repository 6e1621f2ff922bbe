//! The Edge-Node wire.

/// Types generated from `proto/iop/runtime/v1/runtime.proto`.
#[expect(missing_docs, unreachable_pub, clippy::all, reason = "generated; the schema carries the documentation")]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/iop.runtime.v1.rs"));
}
