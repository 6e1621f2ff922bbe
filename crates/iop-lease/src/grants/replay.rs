//! Which leases were opened on this link.

use std::collections::BTreeSet;

use iop_types::LeaseFault;

use crate::id::LeaseId;
use crate::time::SKEW_MS;

/// Remembers opened leases until they could not open any more, and some more for a clock that is set.
///
/// Full, it refuses: a live entry never makes room. An entry is the lease with its end, which its seal
/// authenticates: the same lease under another end does not open.
#[derive(Debug)]
pub(super) struct Replay {
    opened: BTreeSet<(i64, LeaseId)>,
    bound: usize,
}

impl Replay {
    pub(super) const fn new(bound: usize) -> Self {
        Self { opened: BTreeSet::new(), bound }
    }

    pub(super) fn insert(
        &mut self,
        id: LeaseId,
        expires_ms: i64,
        now_ms: i64,
    ) -> Result<(), LeaseFault> {
        while self.opened.first().is_some_and(|(end, _)| end.saturating_add(SKEW_MS) <= now_ms) {
            self.opened.pop_first();
        }
        if self.opened.contains(&(expires_ms, id)) {
            return Err(LeaseFault::Replayed);
        }
        if self.opened.len() >= self.bound {
            return Err(LeaseFault::ReplayCacheFull);
        }
        self.opened.insert((expires_ms, id));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_remembered_until_five_seconds_after_its_end() {
        let mut replay = Replay::new(8);
        assert_eq!(replay.insert(id(1), 1_000, 0), Ok(()));
        assert_eq!(replay.insert(id(1), 1_000, 5_999), Err(LeaseFault::Replayed));
        assert_eq!(replay.insert(id(1), 1_000, 6_000), Ok(()));
    }

    #[test]
    fn a_full_memory_refuses_until_its_entries_are_over() {
        let mut replay = Replay::new(2);
        assert_eq!(replay.insert(id(1), 1_000, 0), Ok(()));
        assert_eq!(replay.insert(id(2), 2_000, 0), Ok(()));
        assert_eq!(replay.insert(id(3), 3_000, 0), Err(LeaseFault::ReplayCacheFull));
        assert_eq!(replay.insert(id(1), 1_000, 0), Err(LeaseFault::Replayed));
        assert_eq!(replay.insert(id(3), 3_000, 6_000), Ok(()));
        assert_eq!(replay.insert(id(2), 2_000, 6_000), Err(LeaseFault::Replayed));
    }

    fn id(byte: u8) -> LeaseId {
        LeaseId([byte; 16])
    }
}
