//! The seats of all Nodes, shared by the tasks of their links.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iop_link::edge::Edge;
use iop_link::seats::{ClaimId, Output, Seats};
use iop_types::{CloseReason, Generation, InstanceId, NodeId};
use tokio::sync::oneshot;

use super::super::shared::{Shared, now};

#[derive(Default)]
pub(super) struct Desk(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    seats: Seats,
    claims: BTreeMap<ClaimId, Waiting>,
    links: BTreeMap<Generation, Arc<Shared<Edge>>>,
    last_claim: u64,
}

struct Waiting {
    verdict: oneshot::Sender<Verdict>,
    link: Arc<Shared<Edge>>,
}

/// What became of a claim.
pub(super) enum Verdict {
    Seated(Generation),
    /// Another live instance holds the Node id.
    Refused,
    /// The same instance has dialled once more.
    Replaced,
}

/// A registration that waits for its seat.
pub(super) struct Claim {
    id: ClaimId,
    verdict: oneshot::Receiver<Verdict>,
}

impl Claim {
    /// Waits for the verdict. Cancel safe; not to be called again after it was given.
    pub(super) async fn verdict(&mut self) -> Verdict {
        // The desk settles every claim that was not withdrawn before it forgets it.
        (&mut self.verdict).await.unwrap_or(Verdict::Replaced)
    }
}

impl Desk {
    pub(super) fn claim(
        &self,
        node: NodeId,
        instance: InstanceId,
        link: Arc<Shared<Edge>>,
    ) -> Claim {
        let mut inner = self.lock();
        inner.last_claim += 1;
        let id = ClaimId(inner.last_claim);
        let (sender, verdict) = oneshot::channel();
        inner.claims.insert(id, Waiting { verdict: sender, link });
        inner.seats.handle_claim(node, instance, id);
        inner.settle();
        Claim { id, verdict }
    }

    /// The connection ended before its task learned of a verdict, which may have been given.
    pub(super) fn withdraw(&self, node: &NodeId, mut claim: Claim) {
        let mut inner = self.lock();
        match claim.verdict.try_recv() {
            Ok(Verdict::Seated(generation)) => {
                inner.links.remove(&generation);
                inner.seats.handle_ended(node, generation);
            }
            Ok(Verdict::Refused | Verdict::Replaced) | Err(_) => {
                inner.claims.remove(&claim.id);
                inner.seats.handle_withdrawn(node, claim.id);
            }
        }
        inner.settle();
    }

    pub(super) fn challenged(&self, node: &NodeId, generation: Generation, answered: bool) {
        let mut inner = self.lock();
        inner.seats.handle_challenge(node, generation, answered);
        inner.settle();
    }

    pub(super) fn ended(&self, node: &NodeId, generation: Generation) {
        let mut inner = self.lock();
        inner.links.remove(&generation);
        inner.seats.handle_ended(node, generation);
        inner.settle();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn settle(&mut self) {
        while let Some(output) = self.seats.poll_output() {
            match output {
                Output::Seat { claim, generation } => {
                    if let Some(waiting) = self.claims.remove(&claim) {
                        self.links.insert(generation, waiting.link);
                        let _ = waiting.verdict.send(Verdict::Seated(generation));
                    }
                }
                Output::Refuse(claim) => self.tell(claim, Verdict::Refused),
                Output::Replace(claim) => self.tell(claim, Verdict::Replaced),
                Output::Challenge(generation) => {
                    if let Some(link) = self.links.get(&generation) {
                        link.with_driver(|link| link.challenge(now()));
                    }
                }
                Output::Fence(generation) => {
                    if let Some(link) = self.links.get(&generation) {
                        link.with_driver(|link| link.fence(now(), CloseReason::Superseded));
                    }
                }
            }
        }
    }

    /// A receiver that is gone has withdrawn or is about to.
    fn tell(&mut self, claim: ClaimId, verdict: Verdict) {
        if let Some(waiting) = self.claims.remove(&claim) {
            let _ = waiting.verdict.send(verdict);
        }
    }
}
