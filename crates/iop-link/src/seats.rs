//! Who holds a Node id: the takeover rule.
//!
//! A seat has one incumbent and at most one heir. The same instance that comes again races its own
//! half-open link and takes over at once. Another instance makes the Edge ask the incumbent for a sign
//! of life: answered, the newcomer is refused; unanswered, the incumbent is fenced. The heir is
//! seated when the incumbent's end was told to the host, never before, so that two generations of one
//! Node are never both up.
//!
//! ```text
//! empty ─ claim ─▶ held ─ claim by the same instance ────────────────▶ succeeding ─ ended ─▶ held
//!                   ├─ claim by another ─▶ challenged ─ unanswered ──▶ succeeding
//!                   │                        └─ answered ─▶ held (heir refused)
//!                   └─ ended ─▶ empty
//! ```

use std::collections::{BTreeMap, VecDeque};

use iop_types::{Generation, InstanceId, NodeId};

/// One connection that wants a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId(pub u64);

/// The seats of all Nodes of one Edge process.
#[derive(Debug, Default)]
pub struct Seats {
    seats: BTreeMap<NodeId, Seat>,
    minted: u64,
    outputs: VecDeque<Output>,
}

#[derive(Debug)]
struct Seat {
    generation: Generation,
    instance: InstanceId,
    heir: Option<Heir>,
}

#[derive(Debug, Clone, Copy)]
struct Heir {
    claim: ClaimId,
    instance: InstanceId,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Challenging,
    Succeeding,
}

/// What the Edge has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Register this claim under a newly minted generation.
    Seat {
        /// Who was seated.
        claim: ClaimId,
        /// The number of its link.
        generation: Generation,
    },
    /// Refuse this claim: another live instance holds the id.
    Refuse(ClaimId),
    /// Close this claim: the same instance has dialled once more.
    Replace(ClaimId),
    /// Ask this link for a sign of life.
    Challenge(Generation),
    /// End this link.
    Fence(Generation),
}

impl Seats {
    /// Takes a registration that the host admits.
    pub fn handle_claim(&mut self, node: NodeId, instance: InstanceId, claim: ClaimId) {
        let Some(seat) = self.seats.get_mut(&node) else {
            let generation = mint(&mut self.minted);
            self.seats.insert(node, Seat { generation, instance, heir: None });
            self.outputs.push_back(Output::Seat { claim, generation });
            return;
        };
        let returns = seat.instance == instance;
        match seat.heir {
            None if returns => {
                seat.heir = Some(Heir { claim, instance, stage: Stage::Succeeding });
                self.outputs.push_back(Output::Fence(seat.generation));
            }
            None => {
                seat.heir = Some(Heir { claim, instance, stage: Stage::Challenging });
                self.outputs.push_back(Output::Challenge(seat.generation));
            }
            Some(heir) if heir.instance == instance => {
                seat.heir = Some(Heir { claim, ..heir });
                self.outputs.push_back(Output::Replace(heir.claim));
            }
            Some(Heir { claim: challenger, stage: Stage::Challenging, .. }) if returns => {
                seat.heir = Some(Heir { claim, instance, stage: Stage::Succeeding });
                self.outputs.push_back(Output::Refuse(challenger));
                self.outputs.push_back(Output::Fence(seat.generation));
            }
            Some(Heir { stage: Stage::Challenging | Stage::Succeeding, .. }) => {
                self.outputs.push_back(Output::Refuse(claim));
            }
        }
    }

    /// The challenge of this link was answered, or not in time.
    pub fn handle_challenge(&mut self, node: &NodeId, generation: Generation, answered: bool) {
        let Some(seat) = self.held(node, generation) else { return };
        let Some(Heir { claim, instance, stage: Stage::Challenging }) = seat.heir else { return };
        if answered {
            seat.heir = None;
            self.outputs.push_back(Output::Refuse(claim));
        } else {
            seat.heir = Some(Heir { claim, instance, stage: Stage::Succeeding });
            self.outputs.push_back(Output::Fence(generation));
        }
    }

    /// This link ended and the host was told.
    pub fn handle_ended(&mut self, node: &NodeId, generation: Generation) {
        let Some(seat) = self.held(node, generation) else { return };
        let Some(heir) = seat.heir.take() else {
            self.seats.remove(node);
            return;
        };
        let next = mint(&mut self.minted);
        self.seats
            .insert(node.clone(), Seat { generation: next, instance: heir.instance, heir: None });
        self.outputs.push_back(Output::Seat { claim: heir.claim, generation: next });
    }

    /// This connection ended before it was seated.
    pub fn handle_withdrawn(&mut self, node: &NodeId, claim: ClaimId) {
        if let Some(seat) = self.seats.get_mut(node)
            && seat.heir.is_some_and(|heir| heir.claim == claim)
        {
            seat.heir = None;
        }
    }

    /// Yields what is to be done.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn held(&mut self, node: &NodeId, generation: Generation) -> Option<&mut Seat> {
        self.seats.get_mut(node).filter(|seat| seat.generation == generation)
    }
}

fn mint(minted: &mut u64) -> Generation {
    *minted += 1;
    Generation(*minted)
}
