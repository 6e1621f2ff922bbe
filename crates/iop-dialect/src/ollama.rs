//! Ollama's own API: OpenAI requests become its bodies, its answers become events.
//!
//! Decided here: which member of an OpenAI object becomes which of `/api/chat`, `/api/generate` and
//! `/api/embed`; which cannot be carried and are refused by name; how an operator's [`Forced`]
//! options win over the request's, in bodies that are made here and in raw ones; what the lines of
//! an answer mean. A member that neither API knows stays where it was: Ollama may know it one day.
//! The table is in `docs/ollama.md`.
//!
//! Not decided here: HTTP, and which path a request takes.
//!
//! What an answer says of its time ([`Timings`]) has no place in an event: the reader returns it
//! beside the answer, for whoever logs it.

mod chat;
mod completion;
mod embeddings;
mod error;
mod forced;
mod image;
mod logprobs;
mod messages;
mod models;
mod object;
mod options;
mod reader;
mod thinking;
mod tools;

pub use chat::chat_body;
pub use completion::completion_body;
pub use embeddings::{EmbedBody, embed_body, read_embed};
pub use error::RequestError;
pub use forced::{Forced, asked_num_ctx};
pub use models::{ModelNamesError, read_model_names};
pub use reader::{Ended, StreamReader, Timings};
