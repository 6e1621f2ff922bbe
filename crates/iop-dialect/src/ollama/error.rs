//! Why a request cannot be put into Ollama's words.

use crate::splice::BodyError;

/// A request that Ollama cannot serve as it was meant: always the client's to mend, with 400
/// `invalid_request`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The body is not one that anybody could serve.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// One member is malformed or asks for what Ollama's API cannot do.
    #[error("`{member}` {problem}")]
    Member {
        /// Path of the member, as `messages[3].content[1].image_url`.
        member: String,
        /// What is wrong with it and what to do.
        problem: String,
    },
}

impl RequestError {
    pub(super) fn at(member: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Member { member: member.into(), problem: problem.into() }
    }
}
