//! Shapes of client and provider dialects: what OpenAI bodies and streams look like, and how to read,
//! mend and write them.
//!
//! Decided here: where an SSE event begins and ends ([`sse`]), which bytes of a stream show that a
//! provider is getting on, whether a JSON body was cut ([`json_end`]), which members of a request body are read or replaced while the rest stays
//! as it came ([`splice`]), what a provider says about usage without parsing every chunk
//! ([`usage`]), how long it asks to be left alone ([`retry_after()`]), how OpenAI objects become [`iop_types::Event`]s and back ([`openai`]), and how they
//! become Ollama's bodies and its lines events ([`ollama`]).
//!
//! Not decided here: HTTP, status codes beyond the one table of [`iop_types::ErrorCode`], what is
//! done with a failure, and time. Ids, the time of creation and of receipt are arguments.
//!
//! Everything takes bytes in any segmentation and gives the same result. Nothing a peer sends can
//! panic, and everything that is kept between two calls is bounded.
//!
//! Two paths use this crate. A *tunnel* relays raw bytes: [`splice::Routing`] on the request,
//! [`sse::ProgressScan`] and [`json_end::EndScan`] on the Node, [`usage::ChunkFilter`] and [`usage::StreamObserver`] (or
//! [`usage::BodyObserver`]) at the Edge. A *normalized run* is translated: [`openai::StreamReader`]
//! and its unary siblings in an adapter, [`openai::StreamWriter`] and its siblings at the Edge. A
//! *form* passes through [`multipart::FormScan`], which finds its model.

pub mod json_end;
pub mod multipart;
pub mod ndjson;
pub mod ollama;
pub mod openai;
mod retry_after;
pub mod splice;
pub mod sse;
pub mod usage;

pub use retry_after::retry_after;
