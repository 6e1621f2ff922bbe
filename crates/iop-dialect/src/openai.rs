//! OpenAI objects: provider answers become events, events become client answers.
//!
//! Readers serve adapters. They repair what servers get wrong as long as the meaning is clear
//! (missing or repeated indices of tool calls, two names for reasoning, a missing end marker) and
//! fail with a [`Failure`](iop_types::Failure) where it is not: an error in a stream that began with
//! 200, a stream without a finish reason, bytes that are not UTF-8.
//!
//! Writers serve the Edge's OpenAI surface. They write what the official clients read: the role in
//! the first chunk of a choice, one finish chunk per choice, the usage chunk exactly when it was
//! asked for, one `[DONE]` after success and none after an error.

mod answer_reader;
mod answer_writer;
mod choices;
mod embeddings;
mod error_body;
mod head;
mod models;
mod provider_error;
mod stream_reader;
mod stream_writer;
mod tool_calls;

pub use answer_reader::{read_chat_answer, read_completion_answer};
pub use answer_writer::AnswerWriter;
pub use embeddings::{EmbeddingsRequest, EmbeddingsWriter, EncodingFormat, read_embeddings};
pub(crate) use embeddings::{check_count, read_vector, vector_events};
pub use error_body::{error_body, error_event, error_type};
pub use head::{Answer, Head, TextKind};
pub use models::{
    Availability, ListedModel, Model, ModelListError, model_list, model_object, read_model_list,
    read_models,
};
pub use provider_error::ProviderError;
pub use stream_reader::StreamReader;
pub use stream_writer::StreamWriter;
