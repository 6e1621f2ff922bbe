//! Filter, score, pick: which candidate gets a request.
//!
//! Filter: connected, able to do the operation, ready, listing the target, with capacity. What falls
//! out is counted, so that a refusal can say why nobody qualified. Then the smallest priority number
//! that is left, then the route's policy. Nothing is random: equals take turns by their last grant,
//! and then by their order.
//!
//! A server in which requests wait is full by its own word, whatever the counts here say: its clients
//! may be others, or its real capacity smaller than the configured one. So the least loaded is first
//! one without a queue of its own, and what waits inside counts as load beside what is in use here.
//! The figure is some seconds old and never filters.
//!
//! A candidate at which the request failed before comes after all others, and while another is ready
//! and merely full the request waits for that one. Last come those that are left out as unavailable or
//! because they asked for it (`provider/overlay.rs`): only where nobody else is ready, so that the last
//! candidate of a route is never lost to a look. One of them that is on offer counts as any other, for
//! one request at a time.

use std::cmp::Reverse;
use std::time::Instant;

use iop_types::{Form, Policy, Target};

use crate::permit::Why;
use crate::provider::{Fitness, Providers, SlotId};
use crate::refused::Shortage;
use crate::request::{AffinityKey, Ask};
use crate::route::{Member, RouteEntry};

/// Who won.
#[derive(Debug)]
pub(crate) struct Pick {
    /// Index of the candidate within its route.
    pub(crate) member: usize,
    pub(crate) slot: SlotId,
    pub(crate) target: Target,
    pub(crate) form: Form,
    pub(crate) why: Why,
    /// Whether another candidate that has not failed the request is ready, with or without room.
    pub(crate) has_others: bool,
}

/// The candidates of one rank.
#[derive(Default)]
struct Rank<'a> {
    best: Option<Qualified<'a>>,
    qualified: u32,
    shortage: Shortage,
}

struct Qualified<'a> {
    index: usize,
    member: &'a Member,
    target: Target,
    form: Form,
    fitness: Fitness,
    /// In use or waiting inside, and room, for shares compared without division.
    load: (u64, u64),
    is_loaded: bool,
    /// Whether requests wait inside the server.
    has_queue: bool,
    last_grant: u64,
}

/// Picks a candidate of `entry` for a request, or says why nobody qualifies.
pub(crate) fn pick(
    now: Instant,
    providers: &Providers,
    entry: &RouteEntry,
    ask: &Ask,
    affinity: Option<AffinityKey>,
) -> Result<Pick, Shortage> {
    let mut ranks: [Rank<'_>; RANKS] = Default::default();
    let mut is_spared = false;
    let mut home: Option<(u64, usize)> = None;

    for (index, member) in entry.members.iter().enumerate() {
        if let Some(key) = affinity {
            home = home.max(Some((key.rank(member.hash), index)));
        }
        let slot = providers.slot(member.slot);
        let target = member.resolve(slot, ask.matched.as_deref());
        let (has_failed, fitness) = target.as_ref().map_or((false, Fitness::Fit), |target| {
            (ask.has_failed_at(&slot.id, target), slot.overlay.fitness(now, target))
        });
        if has_failed && ask.elsewhere {
            is_spared |= slot.is_ready() && fitness != Fitness::LeftOut;
            continue;
        }
        let rank = &mut ranks[match (fitness, has_failed) {
            (Fitness::Fit | Fitness::OnOffer, false) => UNTRIED,
            (Fitness::Fit | Fitness::OnOffer, true) => FAILED,
            (Fitness::LeftOut, _) => LEFT_OUT,
        }];
        let wait = entry.route.settings.queue.wait_for_node;
        let form = slot.qualify(now, &ask.need, target.as_ref(), wait, &mut rank.shortage);
        let (Some(form), Some(target)) = (form, target) else { continue };
        rank.qualified += 1;
        let queued = u64::from(slot.queued());
        let candidate = Qualified {
            index,
            member,
            is_loaded: slot.has_loaded(&target),
            has_queue: queued > 0,
            target,
            form,
            fitness,
            load: (u64::from(slot.in_use()) + queued, u64::from(slot.room())),
            last_grant: slot.last_grant,
        };
        let wins = rank.best.as_ref().is_none_or(|best| beats(entry, affinity, &candidate, best));
        if wins {
            rank.best = Some(candidate);
        }
    }

    // Not the last of the route: one that is well would only say the same again.
    if is_spared {
        ranks[LEFT_OUT].leave_out();
    }
    let [untried, failed, left_out] = ranks;
    let is_first_choice = untried.has_anybody();
    let chosen = untried.or(failed).or(left_out);
    let Rank { best, qualified, shortage } = chosen;
    let winner = best.ok_or(shortage)?;
    let is_home = home.is_some_and(|(_, index)| index == winner.index);
    Ok(Pick {
        member: winner.index,
        slot: winner.member.slot,
        why: why(entry, qualified, affinity, is_home, &winner),
        has_others: is_first_choice && qualified + shortage.full > 1,
        target: winner.target,
        form: winner.form,
    })
}

/// Candidates in the order in which they are considered: one of a later rank only where nobody of the
/// earlier ones is ready.
const RANKS: usize = 3;
const UNTRIED: usize = 0;
/// The request failed there before.
const FAILED: usize = 1;
/// Seen to be unavailable, or asked to be left alone: the last candidate of a route is taken anyway.
const LEFT_OUT: usize = 2;

impl Rank<'_> {
    /// Says whether somebody is ready, with or without room.
    fn has_anybody(&self) -> bool {
        self.best.is_some() || self.shortage.full > 0
    }

    /// Takes the next rank where nobody of this one is ready.
    fn or(self, next: Self) -> Self {
        if self.has_anybody() {
            return self;
        }
        Self { shortage: self.shortage.and(next.shortage), ..next }
    }

    /// Counts whoever is ready as left out.
    fn leave_out(&mut self) {
        let full = std::mem::take(&mut self.shortage.full);
        self.shortage.left_out += full + std::mem::take(&mut self.qualified);
        self.best = None;
    }
}

/// Says whether `new` is the better choice; on equal terms the one that came first stays.
fn beats(
    entry: &RouteEntry,
    affinity: Option<AffinityKey>,
    new: &Qualified<'_>,
    best: &Qualified<'_>,
) -> bool {
    let priority = new.member.priority.cmp(&best.member.priority);
    let by_policy = match (entry.route.settings.policy, affinity) {
        (Policy::Ordered, _) => std::cmp::Ordering::Equal,
        (Policy::Weighted, _) => new.member.due.cmp(&best.member.due),
        (Policy::Affinity, Some(key)) => {
            Reverse(key.rank(new.member.hash)).cmp(&Reverse(key.rank(best.member.hash)))
        }
        (Policy::Affinity, None) | (Policy::LeastLoaded, _) => Reverse(new.is_loaded)
            .cmp(&Reverse(best.is_loaded))
            .then(new.has_queue.cmp(&best.has_queue))
            .then_with(|| (new.load.0 * best.load.1).cmp(&(best.load.0 * new.load.1)))
            .then_with(|| new.last_grant.cmp(&best.last_grant)),
    };
    priority.then(by_policy).is_lt()
}

fn why(
    entry: &RouteEntry,
    qualified: u32,
    affinity: Option<AffinityKey>,
    is_home: bool,
    winner: &Qualified<'_>,
) -> Why {
    match winner.fitness {
        Fitness::Fit => {}
        Fitness::OnOffer => return Why::HalfOpen,
        Fitness::LeftOut => return Why::LastResort,
    }
    match (entry.route.settings.policy, affinity) {
        (Policy::Affinity, Some(_)) if is_home => Why::Affinity,
        (Policy::Affinity, Some(_)) => Why::AffinitySpilled,
        _ if entry.members.len() == 1 => Why::OnlyCandidate,
        _ if qualified == 1 => Why::OnlyOneFit,
        (Policy::Ordered, _) => Why::Ordered,
        (Policy::Weighted, _) => Why::Weighted,
        (Policy::Affinity, None) | (Policy::LeastLoaded, _) if winner.is_loaded => Why::Loaded,
        (Policy::Affinity, None) | (Policy::LeastLoaded, _) => Why::LeastLoaded,
    }
}

/// One turn at weight 1, in virtual time: so fine that the largest weight still counts, in a number so
/// wide that it never runs out.
const TURN: u128 = 1 << 32;

/// Moves the route's virtual time on by the turn that `pick` took.
///
/// A candidate that could not take its turns does not make up for them when it is back: its next turn
/// counts from now.
pub(crate) fn take_turn(entry: &mut RouteEntry, member: usize) {
    let due = entry.members[member].due.max(entry.turn);
    entry.turn = due;
    entry.members[member].due = due + TURN / u128::from(entry.members[member].weight.max(1));
}
