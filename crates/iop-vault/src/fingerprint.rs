//! A short mark of a secret: whether two are the same, and nothing else.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::domain;
use crate::mac::Keyed;

/// What an operator sees of a secret, in hexadecimal: equal for equal secrets of one group.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// Reads a fingerprint that was kept.
    pub fn from_text(text: String) -> Self {
        Self(text)
    }

    /// Returns the fingerprint as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The key of fingerprints: without it, nobody can try secrets against one.
#[derive(Clone)]
pub struct FingerprintKey(Keyed);

impl FingerprintKey {
    /// Takes the key that was opened.
    pub fn new(key: &[u8; 32]) -> Self {
        Self(Keyed::new(key, domain::FINGERPRINT))
    }

    /// Marks a secret. 64 bits, since it tells one slot's secret from another's to people.
    pub fn mark(&self, secret: &[u8]) -> Fingerprint {
        let tag = self.0.tag(secret);
        Fingerprint(tag[..8].iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl fmt::Debug for FingerprintKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FingerprintKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_secrets_have_equal_marks_under_one_key_only() {
        let (one, two) = (FingerprintKey::new(&[1; 32]), FingerprintKey::new(&[2; 32]));
        assert_eq!(one.mark(b"a"), one.mark(b"a"));
        assert_ne!(one.mark(b"a"), one.mark(b"b"));
        assert_ne!(one.mark(b"a"), two.mark(b"a"));
        assert_eq!(one.mark(b"a").as_str().len(), 16);
    }
}
