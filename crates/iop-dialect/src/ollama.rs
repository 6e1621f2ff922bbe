//! Ollama's own API: OpenAI requests become its bodies, its answers become events.
//!
//! Nothing here knows HTTP.

mod models;

pub use models::{ModelNamesError, read_model_names};
