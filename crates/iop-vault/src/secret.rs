//! Bytes that are wiped when they are let go, and that print nothing of themselves.

use std::fmt;

use zeroize::Zeroizing;

/// A secret in the clear. Has no `Clone`, compares with nothing and prints nothing.
///
/// What it was read from or is written to (a socket's buffer, a header) keeps copies that this
/// cannot wipe.
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes hold of bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Shows the bytes. Whoever asks makes sure that no copy stays behind.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self::new(text.into_bytes())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
