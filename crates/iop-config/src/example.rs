//! The commented example.
