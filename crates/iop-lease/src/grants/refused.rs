//! Why grants were refused, so that the requests that stand on them say the same.

use std::collections::VecDeque;

use iop_types::LeaseFault;

use crate::id::GrantId;

/// Refused grants that are remembered; the oldest goes first. They are a comfort for whoever reads a
/// request's end: without one it is an unknown grant.
const REMEMBERED: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Refused(VecDeque<(GrantId, LeaseFault)>);

impl Refused {
    pub(super) fn remember(&mut self, id: GrantId, fault: LeaseFault) {
        self.forget(id);
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back((id, fault));
    }

    pub(super) fn forget(&mut self, id: GrantId) {
        self.0.retain(|(refused, _)| *refused != id);
    }

    pub(super) fn fault(&self, id: GrantId) -> Option<LeaseFault> {
        self.0.iter().find(|(refused, _)| *refused == id).map(|(_, fault)| *fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first_and_the_latest_fault_counts() {
        let mut refused = Refused::default();
        for number in 0..=REMEMBERED {
            let id = u8::try_from(number).expect("few");
            refused.remember(GrantId([id; 16]), LeaseFault::Stale);
        }
        refused.remember(GrantId([1; 16]), LeaseFault::Expired);
        assert_eq!(refused.fault(GrantId([0; 16])), None);
        assert_eq!(refused.fault(GrantId([1; 16])), Some(LeaseFault::Expired));
        assert_eq!(refused.0.len(), REMEMBERED);
    }
}
