//! What is learnt of the health of targets: observations of Nodes, outcomes of requests, wishes of
//! providers to be left alone.

use std::time::{Duration, Instant};

use iop_types::{Generation, HealthObservation, NodeId};

use super::Admission;
use crate::config::ProviderId;
use crate::permit::Permit;

impl Admission {
    /// Takes in what the Node observed on the link of `generation`: in a message of its own, or in
    /// the terminal of a request that stalled.
    ///
    /// # Errors
    /// The observation is stale and changes nothing.
    pub fn handle_observation(
        &mut self,
        now: Instant,
        node: &NodeId,
        generation: Generation,
        observation: &HealthObservation,
    ) -> Result<(), StaleObservation> {
        let HealthObservation { provider, target, health, seq } = observation;
        if self.providers.generation(node) != Some(generation) {
            return Err(StaleObservation::Generation { generation });
        }
        let id = ProviderId { node: node.clone(), provider: provider.clone() };
        let slot = self.providers.find(&id).filter(|slot| {
            let slot = self.providers.slot(*slot);
            slot.is_served() && slot.serves(target)
        });
        let slot = slot.ok_or(StaleObservation::Target)?;
        let overlay = &mut self.providers.slot_mut(slot).overlay;
        overlay
            .observe(now, target, *health, *seq)
            .map_err(|last| StaleObservation::Number { seq: *seq, last })?;
        self.serve(now, slot);
        self.review(now);
        Ok(())
    }

    /// The provider got on with the permit's request, which shows that it serves the target.
    pub fn handle_served(&mut self, now: Instant, permit: &mut Permit) {
        permit.trial = None;
        let slot = self.providers.slot_mut(permit.slot);
        if slot.is_current(permit.candidate.instance.generation) && !slot.overlay.is_clear() {
            slot.overlay.clear(&permit.candidate.target);
            self.serve(now, permit.slot);
            self.review(now);
        }
    }

    /// The provider failed the permit's request: it could not be connected to, answered 5xx, or fell
    /// silent. Matters where the request was a trial; what leaves a target out is observations.
    pub fn handle_failed(&mut self, now: Instant, permit: &mut Permit) {
        if let Some(trial) = permit.trial.take() {
            let overlay = &mut self.providers.slot_mut(permit.slot).overlay;
            overlay.fail(now, &permit.candidate.target, trial);
            self.review(now);
        }
    }

    /// The provider of this permit asked to be left alone for a while, for its target.
    pub fn cool(&mut self, now: Instant, permit: &Permit, time: Duration) {
        let overlay = &mut self.providers.slot_mut(permit.slot).overlay;
        overlay.cool(now, &permit.candidate.target, time);
        self.review(now);
    }

    /// The permit comes back: what it did not find out, another may.
    pub(super) fn end_trial(&mut self, permit: &mut Permit) {
        if let Some(trial) = permit.trial.take() {
            let overlay = &mut self.providers.slot_mut(permit.slot).overlay;
            overlay.give_back(&permit.candidate.target, trial);
        }
    }

    /// Plans when somebody is fit, or on offer, by the passing of time alone.
    pub(super) fn plan_turns(&mut self, now: Instant) {
        self.next_turn = self.providers.next_turn(now);
    }
}

/// An observation that says nothing about now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StaleObservation {
    /// It came on a link that is not the Node's any more.
    #[error("it was received under generation {generation}, which is not current")]
    Generation {
        /// The link's.
        generation: Generation,
    },
    /// Its provider does not serve its target.
    #[error("its provider does not serve its target")]
    Target,
    /// A later one was taken before.
    #[error("its number {seq} is not newer than {last}")]
    Number {
        /// Its number.
        seq: u64,
        /// The last that was taken for the same target.
        last: u64,
    },
}

impl StaleObservation {
    /// Returns the stable text for metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Generation { .. } => "old_generation",
            Self::Target => "unknown_target",
            Self::Number { .. } => "not_newer",
        }
    }
}
