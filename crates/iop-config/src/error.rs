//! What is wrong with a file, said so that it can be mended.

use std::fmt;

use crate::path::Path;

/// A file that was refused: where, what, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// Name of the file, or what else the value came from.
    pub source_name: String,
    /// Every mistake that was found, at least one, in the order of the file.
    pub problems: Vec<Problem>,
}

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where it stands, where that is known.
    pub position: Option<Position>,
    /// Which field it is.
    pub path: Path,
    /// What is wrong and what to write instead; lower case, no full stop, no secret.
    pub message: String,
}

/// A place in a text, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line.
    pub line: u64,
    /// Column in characters.
    pub column: u64,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.problems.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            f.write_str(&self.source_name)?;
            if let Some(Position { line, column }) = problem.position {
                write!(f, ":{line}:{column}")?;
            }
            f.write_str(": ")?;
            if problem.path != Path::root() {
                write!(f, "`{}`: ", problem.path)?;
            }
            f.write_str(&problem.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
