//! The memory that buffered request bodies of this process may take together.
//!
//! A JSON body is held whole, because the model name may come last. A [`Share`] is taken as its
//! bytes arrive, never on the strength of a declared length, and sealed into the finished
//! [`Bytes`]: the share returns when the last reference to the body is dropped, wherever that is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// The budget; clones are handles of the same one.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: usize,
    used: AtomicUsize,
}

/// Too many bodies are buffered right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the bodies that are buffered at once already fill the limit of {limit} bytes")]
pub(crate) struct OverBudget {
    /// The budget in bytes.
    pub(crate) limit: usize,
}

impl Budget {
    /// Makes a budget of `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self(Arc::new(Inner { limit, used: AtomicUsize::new(0) }))
    }

    /// Starts with an empty share.
    pub(crate) fn share(&self) -> Share {
        Share { budget: Arc::clone(&self.0), bytes: 0 }
    }

    /// Counts a body that was made from one already admitted; never refused, so that a rewrite
    /// cannot fail halfway.
    pub(crate) fn adopt(&self, body: Bytes) -> Bytes {
        let mut share = self.share();
        share.bytes = body.len();
        self.0.used.fetch_add(body.len(), Ordering::Relaxed);
        Bytes::from_owner(Sealed { body, _share: share })
    }

    /// Returns the bytes in use.
    pub(crate) fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }
}

/// A part of the budget, given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Inner>,
    bytes: usize,
}

impl Share {
    /// Takes `more` bytes.
    ///
    /// # Errors
    /// Fails without taking anything when the budget does not have them.
    pub(crate) fn grow(&mut self, more: usize) -> Result<(), OverBudget> {
        let Inner { limit, ref used } = *self.budget;
        used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(more).filter(|sum| *sum <= limit)
        })
        .map_err(|_| OverBudget { limit })?;
        self.bytes += more;
        Ok(())
    }

    /// Ties the share to the body it was taken for.
    pub(crate) fn seal(self, body: Vec<u8>) -> Bytes {
        Bytes::from_owner(Sealed { body, _share: self })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
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
}
