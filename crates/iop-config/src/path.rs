//! Where in a file a value stands.

use std::fmt;

/// The keys and indexes that lead to a value, shown as `routes.chat.candidates[0].target`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Path(Vec<Step>);

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Key(String),
    Index(usize),
}

impl Path {
    /// The file itself.
    pub const fn root() -> Self {
        Self(Vec::new())
    }

    /// Goes down to a key.
    #[must_use]
    pub fn key(&self, key: impl fmt::Display) -> Self {
        self.step(Step::Key(key.to_string()))
    }

    /// Goes down to an item of a list.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.step(Step::Index(index))
    }

    /// Goes up by one; the root has nothing above it.
    pub fn parent(&self) -> Option<Self> {
        let (_, above) = self.0.split_last()?;
        Some(Self(above.to_vec()))
    }

    /// Returns the first key, where the path begins with one.
    pub fn first_key(&self) -> Option<&str> {
        match self.0.first()? {
            Step::Key(key) => Some(key),
            Step::Index(_) => None,
        }
    }

    /// Says whether a key is part of the path.
    pub fn contains_key(&self, wanted: &str) -> bool {
        self.0.iter().any(|step| matches!(step, Step::Key(key) if key == wanted))
    }

    /// Returns the last key, where the path ends in one.
    pub fn last_key(&self) -> Option<&str> {
        match self.0.last()? {
            Step::Key(key) => Some(key),
            Step::Index(_) => None,
        }
    }

    fn step(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) => {
                    if at > 0 {
                        f.write_str(".")?;
                    }
                    if key.is_empty() || key.contains(['.', '[', ' ', '"']) {
                        write!(f, "{key:?}")?;
                    } else {
                        f.write_str(key)?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_reads_like_an_accessor_and_quotes_what_would_be_ambiguous() {
        let route = Path::root().key("routes").key("llama3.2");
        assert_eq!(route.to_string(), r#"routes."llama3.2""#);
        assert_eq!(
            route.key("candidates").index(1).key("target").to_string(),
            r#"routes."llama3.2".candidates[1].target"#
        );
        assert_eq!(route.last_key(), Some("llama3.2"));
        assert_eq!(route.parent(), Some(Path::root().key("routes")));
    }
}
