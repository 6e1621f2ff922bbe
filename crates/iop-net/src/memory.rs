//! The memory that whole bodies of one host may take together.
//!
//! What passes through in pieces is bounded by the credit of its link and its stream; what has to be
//! held whole is bounded here. An Edge holds a JSON body whole, because the model name may come last,
//! and an answer that is written in one piece; a Node holds the input of a run, and an answer that it
//! can only translate as a whole. A [`Share`] is taken as bytes arrive, never on the strength of a
//! declared length, and sealed into the finished [`Bytes`]: it returns when the last reference to
//! the body is dropped, wherever that is.

use bytes::Bytes;

use crate::sync::{Arc, AtomicU64, AtomicUsize, Ordering};

/// The budget; clones are handles of the same one.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
    refused: AtomicU64,
}

/// A budget as it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetStats {
    /// Bytes that may be held at once.
    pub limit: usize,
    /// Bytes that are held.
    pub used: usize,
    /// Most that was ever held; rewritten copies may have lifted it above the limit.
    pub peak: usize,
    /// How often a body did not fit.
    pub refused: u64,
}

/// Too many bodies are held right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the bodies that are buffered at once already fill the limit of {limit} bytes")]
pub struct OverBudget {
    /// The budget in bytes.
    pub limit: usize,
}

impl Budget {
    /// Makes a budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Inner {
            limit,
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
        }))
    }

    /// Starts with an empty share.
    pub fn share(&self) -> Share {
        Share { budget: Arc::clone(&self.0), bytes: 0 }
    }

    /// Counts a body that was made from one already admitted; never refused, so that a rewrite
    /// cannot fail halfway.
    pub fn adopt(&self, body: Bytes) -> Bytes {
        let mut share = self.share();
        share.bytes = body.len();
        self.0.note(self.0.used.fetch_add(body.len(), Ordering::Relaxed) + body.len());
        Bytes::from_owner(Sealed { body, _share: share })
    }

    /// Returns the bytes in use.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Returns what is in use, of how much, and what it came to.
    pub fn stats(&self) -> BudgetStats {
        BudgetStats {
            limit: self.0.limit,
            used: self.used(),
            peak: self.0.peak.load(Ordering::Relaxed),
            refused: self.0.refused.load(Ordering::Relaxed),
        }
    }
}

impl Inner {
    fn note(&self, used: usize) {
        self.peak.fetch_max(used, Ordering::Relaxed);
    }
}

/// A part of the budget, given back when dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Inner>,
    bytes: usize,
}

impl Share {
    /// Takes `more` bytes.
    ///
    /// # Errors
    /// Fails without taking anything when the budget does not have them.
    pub fn grow(&mut self, more: usize) -> Result<(), OverBudget> {
        let Inner { limit, ref used, ref refused, .. } = *self.budget;
        let before = used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(more).filter(|sum| *sum <= limit)
            })
            .map_err(|_| {
                refused.fetch_add(1, Ordering::Relaxed);
                OverBudget { limit }
            })?;
        self.budget.note(before + more);
        self.bytes += more;
        Ok(())
    }

    /// Makes the share `bytes` large, whatever it was.
    ///
    /// # Errors
    /// As [`Self::grow`]; a share is never refused to become smaller.
    pub fn cover(&mut self, bytes: usize) -> Result<(), OverBudget> {
        match bytes.checked_sub(self.bytes) {
            Some(0) => Ok(()),
            Some(more) => self.grow(more),
            None => {
                self.budget.used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
                self.bytes = bytes;
                Ok(())
            }
        }
    }

    /// Ties the share to the body it was taken for.
    pub fn seal(self, body: Vec<u8>) -> Bytes {
        Bytes::from_owner(Sealed { body, _share: self })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A body that grows part by part under one share.
#[derive(Debug)]
pub struct Gathering {
    bytes: Vec<u8>,
    share: Share,
    /// Up to this size the share stays empty.
    free: usize,
}

impl Gathering {
    /// Begins an empty body.
    pub fn new(budget: &Budget) -> Self {
        Self::beyond(0, budget)
    }

    /// Begins an empty body that is paid for only if it becomes larger than `free` bytes, so that a full
    /// budget stops nothing small. Whoever uses it sees to it that there are few at once.
    pub fn beyond(free: usize, budget: &Budget) -> Self {
        Self { bytes: Vec::new(), share: budget.share(), free }
    }

    /// Returns the bytes so far.
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Says whether nothing has come yet.
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Takes the next part.
    ///
    /// # Errors
    /// The budget has no room for it; what came before is kept.
    pub fn append(&mut self, part: &[u8]) -> Result<(), OverBudget> {
        let needed = self.bytes.len() + part.len();
        let capacity = self.bytes.capacity();
        if needed > capacity {
            let target = needed.max(capacity * 2);
            if target > self.free {
                self.share.cover(target)?;
            }
            self.bytes.reserve_exact(target - self.bytes.len());
        }
        self.bytes.extend_from_slice(part);
        Ok(())
    }

    /// Returns the whole body; the share goes with it.
    pub fn finish(self) -> Bytes {
        self.share.seal(self.bytes)
    }
}

struct Sealed<T> {
    body: T,
    _share: Share,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Sealed<T> {
    fn as_ref(&self) -> &[u8] {
        self.body.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_returns_when_the_last_reference_to_its_body_goes() {
        let budget = Budget::new(10);
        let mut share = budget.share();
        share.grow(4).unwrap();
        let body = share.seal(b"abcd".to_vec());
        let slice = body.slice(1..2);
        drop(body);
        assert_eq!(budget.used(), 4);
        drop(slice);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_refused_growth_takes_nothing() {
        let budget = Budget::new(10);
        let mut share = budget.share();
        share.grow(8).unwrap();
        assert_eq!(share.grow(3), Err(OverBudget { limit: 10 }));
        assert_eq!(share.grow(usize::MAX), Err(OverBudget { limit: 10 }));
        assert_eq!(budget.used(), 8);
        share.grow(2).unwrap();
        drop(share);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_rewritten_body_is_counted_beside_the_one_it_came_from() {
        let budget = Budget::new(4);
        let mut share = budget.share();
        share.grow(4).unwrap();
        let body = share.seal(b"abcd".to_vec());
        let rewritten = budget.adopt(Bytes::from_static(b"abcdef"));
        assert_eq!(budget.used(), 10);
        drop((body, rewritten));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_share_can_shrink_and_the_peak_and_the_refusals_stay() {
        let budget = Budget::new(10);
        let mut share = budget.share();
        share.cover(9).unwrap();
        share.cover(2).unwrap();
        assert!(share.cover(11).is_err());
        let stats = BudgetStats { limit: 10, used: 2, peak: 9, refused: 1 };
        assert_eq!(budget.stats(), stats);
        drop(share);
        assert_eq!(budget.stats(), BudgetStats { used: 0, ..stats });
    }

    #[test]
    fn a_body_that_grows_pays_for_its_allocation_and_keeps_what_it_has_when_refused() {
        let budget = Budget::new(24);
        let mut body = Gathering::new(&budget);
        body.append(b"0123456789").unwrap();
        body.append(b"ab").unwrap();
        assert_eq!((body.len(), budget.used()), (12, 20));
        assert_eq!(body.append(&[0; 13]), Err(OverBudget { limit: 24 }));
        let whole = body.finish();
        assert_eq!(whole, "0123456789ab");
        drop(whole);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_body_that_is_free_while_it_is_small_is_paid_for_as_a_whole_once_it_is_not() {
        let budget = Budget::new(24);
        let mut body = Gathering::beyond(10, &budget);
        body.append(b"0123456789").unwrap();
        assert_eq!(budget.used(), 0);
        body.append(b"ab").unwrap();
        assert_eq!(budget.used(), 20);
        drop(body);
        assert_eq!(budget.used(), 0);
    }
}
