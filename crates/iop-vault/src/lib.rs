//! What an Edge keeps and must not give away: how it is sealed at rest.
//!
//! Decides how one master key becomes the keys of each purpose, how a secret is sealed in a record that
//! cannot be moved or rolled back unnoticed, how a client key is made and recognised, and how the
//! entries of the audit log are chained. Holds no file, reads no clock and draws no randomness: what
//! must be random is an argument.
//!
//! Does not decide who may have a secret, and stores nothing: `iop-store` keeps the records.
//!
//! ```text
//! master key ──HKDF──► one wrapping key per purpose ──wraps──► a data key per record ──seals──► secret
//!            ──HKDF──► id and check (tell a wrong key from a right one)
//! ```
//!
//! What is only compared or chained (client keys, fingerprints, the audit log) is keyed by random keys
//! that are themselves sealed records. Were they derived from the master key, another master key would
//! void every client key and the whole log.
//!
//! Read next: [`master`] and [`sealed`], then [`client_key`] and [`audit`]; `domain.rs` is the table
//! of strings that keep the uses of cryptography apart.

pub mod audit;
pub mod client_key;
pub mod fingerprint;
pub mod master;
pub mod sealed;
pub mod secret;

mod base62;
mod domain;
mod mac;

pub use client_key::{ClientKey, KeyHash, KeyId, Pepper, PresentedKey};
pub use fingerprint::{Fingerprint, FingerprintKey};
pub use master::{MasterKey, MasterKeyCheck, MasterKeyId, Purpose, WrappingKeys};
pub use sealed::{OpenError, Place, Sealed};
pub use secret::Secret;
