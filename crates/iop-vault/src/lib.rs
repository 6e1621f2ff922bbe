//! What an Edge keeps and must not give away: how it is sealed at rest.
//!
//! Decides how one master key becomes the keys of each purpose, how a secret is sealed in a record that
//! cannot be moved or rolled back unnoticed, how a client key is made and recognised, and how the
//! entries of the audit log are chained. Holds no file, reads no clock and draws no randomness.
//!
//! Does not decide who may have a secret, and stores nothing: `iop-store` keeps the records.
