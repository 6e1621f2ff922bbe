//! Registry and checks on their public surface, with a provider that counts what is done to it.

mod admit;
mod registry;
mod support;
