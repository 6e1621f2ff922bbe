//! Bytes to be hashed, signed or authenticated: a domain, then parts that cannot run into each other.

use aws_lc_rs::digest::{self, SHA256};

/// A SHA-256 hash.
pub(crate) type Hash = [u8; 32];

/// Collects such bytes. Parts of variable length carry their length in front, as 4 bytes, big-endian.
pub(crate) struct Transcript(Vec<u8>);

impl Transcript {
    pub(crate) fn new(domain: &[u8]) -> Self {
        Self(domain.to_vec())
    }

    /// Adds a part whose length the domain fixes.
    pub(crate) fn fixed(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Adds a part of any length.
    pub(crate) fn part(mut self, bytes: &[u8]) -> Self {
        let length = u32::try_from(bytes.len()).expect("parts are bounded far below 4 GiB");
        self.0.extend_from_slice(&length.to_be_bytes());
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn hash(self) -> Hash {
        sha256(&self.0)
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> Hash {
    digest::digest(&SHA256, bytes).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_into_each_other() {
        let one = Transcript::new(b"d\0").part(b"ab").part(b"c");
        let other = Transcript::new(b"d\0").part(b"a").part(b"bc");
        assert_ne!(one.bytes(), other.bytes());
    }

    #[test]
    fn a_part_carries_its_length_in_front() {
        let bytes = Transcript::new(b"d\0").fixed(b"xy").part(b"abc").bytes();
        assert_eq!(bytes, b"d\0xy\0\0\0\x03abc");
    }
}
