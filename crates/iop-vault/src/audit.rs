//! The chain of the audit log: each entry's tag covers the one before.
//!
//! ```text
//! tag(n) = HMAC-SHA256(key, "IOP/audit-entry/v1\0" || tag(n-1) || entry(n))      tag(0) = zeros
//! head   = HMAC-SHA256(key, "IOP/audit-head/v1\0" || n || tag(n))
//! ```
//!
//! Without the key nobody can change, remove, add or reorder an entry unnoticed. Entries cut off at
//! the end are noticed by the head; who puts back a whole older file, head and all, is noticed only by
//! a process that ran meanwhile and remembers how far the log had come.

use std::fmt;

use subtle::ConstantTimeEq;

use crate::domain::{self, put};
use crate::mac::Keyed;

/// What one entry says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its number; the first has 1.
    pub number: u64,
    /// When, in Unix milliseconds.
    pub at_ms: i64,
    /// Who did it.
    pub who: &'a str,
    /// What was done.
    pub action: &'a str,
    /// What it was done to.
    pub object: &'a str,
    /// Particulars; never a secret.
    pub detail: &'a str,
}

/// An entry's link in the chain.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tag([u8; 32]);

impl Tag {
    /// Comes before the first entry.
    pub const NONE: Self = Self([0; 32]);

    /// Reads a tag that was kept.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes to keep.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tag({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

/// How far a log has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Number of the last entry; 0 where there is none.
    pub number: u64,
    /// Its tag.
    pub tag: Tag,
}

impl Head {
    /// The head of an empty log.
    pub const EMPTY: Self = Self { number: 0, tag: Tag::NONE };
}

/// The key of a log's chain.
#[derive(Clone)]
pub struct AuditKey {
    entries: Keyed,
    heads: Keyed,
}

impl AuditKey {
    /// Takes the key that was opened.
    pub fn new(key: &[u8; 32]) -> Self {
        Self {
            entries: Keyed::new(key, domain::AUDIT_ENTRY),
            heads: Keyed::new(key, domain::AUDIT_HEAD),
        }
    }

    /// Makes the tag of the entry that follows `before`.
    pub fn tag(&self, before: &Tag, entry: &Entry<'_>) -> Tag {
        let mut message = before.0.to_vec();
        message.extend_from_slice(&entry.number.to_be_bytes());
        message.extend_from_slice(&entry.at_ms.to_be_bytes());
        for text in [entry.who, entry.action, entry.object, entry.detail] {
            put(&mut message, text.as_bytes());
        }
        Tag(self.entries.tag(&message))
    }

    /// Makes what proves a head.
    pub fn prove(&self, head: &Head) -> Tag {
        let mut message = head.number.to_be_bytes().to_vec();
        message.extend_from_slice(&head.tag.0);
        Tag(self.heads.tag(&message))
    }

    /// Says whether a head was proved with this key.
    pub fn is_proved(&self, head: &Head, proof: &Tag) -> bool {
        self.prove(head).is(proof)
    }
}

impl fmt::Debug for AuditKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuditKey(..)")
    }
}

/// Walks a log from its first entry on.
#[derive(Debug)]
pub struct Walk<'a> {
    key: &'a AuditKey,
    head: Head,
}

impl<'a> Walk<'a> {
    /// Begins before the first entry.
    pub const fn new(key: &'a AuditKey) -> Self {
        Self { key, head: Head::EMPTY }
    }

    /// Takes the next entry as it was kept.
    ///
    /// # Errors
    /// Fails at the first entry that is not what was written there.
    pub fn step(&mut self, entry: &Entry<'_>, tag: &Tag) -> Result<(), Broken> {
        let expected = self.head.number + 1;
        if entry.number != expected {
            return Err(Broken::Missing { number: expected });
        }
        if !self.key.tag(&self.head.tag, entry).is(tag) {
            return Err(Broken::Altered { number: expected });
        }
        self.head = Head { number: expected, tag: *tag };
        Ok(())
    }

    /// Compares where the walk came to with where the log ends.
    ///
    /// # Errors
    /// Fails when entries are missing at the end, or more are there than were written.
    pub fn finish(self, head: &Head) -> Result<u64, Broken> {
        if self.head.number < head.number {
            return Err(Broken::Missing { number: self.head.number + 1 });
        }
        if self.head.number > head.number || !self.head.tag.is(&head.tag) {
            return Err(Broken::Head);
        }
        Ok(self.head.number)
    }
}

/// Where a log is not what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// An entry was removed, or others stand in its place.
    #[error("entry {number} of the audit log is missing")]
    Missing {
        /// The entry.
        number: u64,
    },
    /// An entry was changed, or exchanged with another.
    #[error("entry {number} of the audit log was altered")]
    Altered {
        /// The entry.
        number: u64,
    },
    /// The end of the log is not where it was.
    #[error("the head of the audit log was altered or put back")]
    Head,
}

#[cfg(test)]
mod tests {
    use super::*;

    type Kept = (u64, i64, String, Tag);

    fn key() -> AuditKey {
        AuditKey::new(&[1; 32])
    }

    fn entry(kept: &Kept) -> Entry<'_> {
        Entry {
            number: kept.0,
            at_ms: kept.1,
            who: "admin",
            action: "key.create",
            object: &kept.2,
            detail: "{}",
        }
    }

    fn log(len: u64) -> (Vec<Kept>, Head) {
        let mut head = Head::EMPTY;
        let log = (1..=len)
            .map(|number| {
                let mut kept = (number, 1000, format!("key-{number}"), Tag::NONE);
                kept.3 = key().tag(&head.tag, &entry(&kept));
                head = Head { number, tag: kept.3 };
                kept
            })
            .collect();
        (log, head)
    }

    fn verify(log: &[Kept], head: &Head) -> Result<u64, Broken> {
        let key = key();
        let mut walk = Walk::new(&key);
        for kept in log {
            walk.step(&entry(kept), &kept.3)?;
        }
        walk.finish(head)
    }

    #[test]
    fn an_untouched_log_is_whole() {
        let (log, head) = log(5);
        assert_eq!(verify(&log, &head), Ok(5));
        assert_eq!(verify(&[], &Head::EMPTY), Ok(0));
    }

    #[test]
    fn a_changed_entry_is_found() {
        let (mut log, head) = log(5);
        log[2].2.push('x');
        assert_eq!(verify(&log, &head), Err(Broken::Altered { number: 3 }));
    }

    #[test]
    fn a_removed_entry_is_found_even_when_the_rest_is_numbered_anew() {
        let (mut log, head) = log(5);
        log.remove(2);
        assert_eq!(verify(&log, &head), Err(Broken::Missing { number: 3 }));
        log[2].0 = 3;
        log[3].0 = 4;
        assert_eq!(verify(&log, &head), Err(Broken::Altered { number: 3 }));
    }

    #[test]
    fn exchanged_entries_are_found() {
        let (mut log, head) = log(5);
        log.swap(1, 2);
        assert_eq!(verify(&log, &head), Err(Broken::Missing { number: 2 }));
        log[1].0 = 2;
        log[2].0 = 3;
        assert_eq!(verify(&log, &head), Err(Broken::Altered { number: 2 }));
    }

    #[test]
    fn entries_cut_off_or_added_at_the_end_are_found() {
        let (mut all, head) = log(5);
        let cut = all.split_off(4);
        assert_eq!(verify(&all, &head), Err(Broken::Missing { number: 5 }));
        let (longer, _) = log(6);
        assert_eq!(verify(&longer, &head), Err(Broken::Head));
        drop(cut);
    }

    #[test]
    fn a_head_is_proved_by_the_key_alone() {
        let (_, head) = log(2);
        let proof = key().prove(&head);
        assert!(key().is_proved(&head, &proof));
        assert!(!AuditKey::new(&[2; 32]).is_proved(&head, &proof));
        let (_, shorter) = log(1);
        assert!(!key().is_proved(&shorter, &proof));
    }
}
