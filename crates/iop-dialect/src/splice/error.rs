//! Why a request body cannot be routed.

/// Why a request body cannot be routed: always the client's to mend, with 400 `invalid_request`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The body is not UTF-8.
    #[error("body is not UTF-8 at byte {offset}: send the JSON as UTF-8")]
    NotUtf8 {
        /// Offset of the first byte that is wrong.
        offset: usize,
    },
    /// The body is not JSON.
    #[error("body is not JSON at line {line}, column {column}: {reason}")]
    NotJson {
        /// Line, from 1.
        line: usize,
        /// How many bytes of that line were read.
        column: usize,
        /// What the parser expected.
        reason: String,
    },
    /// The body is JSON but not an object.
    #[error("body is {found}: send a JSON object")]
    NotObject {
        /// What it is instead.
        found: &'static str,
    },
    /// The body is nested deeper than any provider reads.
    #[error("body is nested deeper than {limit} levels: flatten it")]
    TooDeep {
        /// The deepest level that is accepted.
        limit: usize,
    },
    /// A member that must be there is absent.
    #[error("`{key}` is missing: send {expected}")]
    Missing {
        /// The member.
        key: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// A member that must hold something is empty.
    #[error("`{key}` is empty: send {expected}")]
    Empty {
        /// The member.
        key: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// A member has another type than it must have.
    #[error("`{key}` is {found}: send {expected}")]
    WrongType {
        /// The member.
        key: &'static str,
        /// What it must be.
        expected: &'static str,
        /// What it is instead.
        found: &'static str,
    },
    /// A routing member appears twice: readers disagree about which one counts.
    #[error("`{key}` appears more than once: send it once")]
    Duplicate {
        /// The member.
        key: &'static str,
    },
    /// A member that lenient readers take for a routing member.
    #[error("`{found}` could be taken for `{key}`: spell it `{key}` or leave it out")]
    LookAlike {
        /// The routing member.
        key: &'static str,
        /// The client's spelling.
        found: String,
    },
}

impl BodyError {
    /// Returns the member at fault, for `param` of the error object.
    pub const fn param(&self) -> Option<&'static str> {
        match self {
            Self::NotUtf8 { .. }
            | Self::NotJson { .. }
            | Self::NotObject { .. }
            | Self::TooDeep { .. } => None,
            Self::Missing { key, .. }
            | Self::Empty { key, .. }
            | Self::WrongType { key, .. }
            | Self::Duplicate { key }
            | Self::LookAlike { key, .. } => Some(key),
        }
    }
}
