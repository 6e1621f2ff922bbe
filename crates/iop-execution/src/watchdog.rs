//! Watches one call, run or tunnel, and settles how it ends.
//!
//! A call has two sides that end apart from each other. *Its part at the provider* decides about the
//! permit; *its end* is what the Edge is told, once or, where the link is gone, never.
//!
//! ```text
//! part:  running ──returned──────────────────────────────────────► settled (confirmed)
//!           └─stopped─► closing ──returned─────────────────────────► settled (confirmed)
//!                           └──close grace over: reset─────────────► settled (unconfirmed)
//!
//! end:   watching ──returned──────────────────────────────────────► said: the call's own terminal
//!           ├─silent for too long─► joining ──settled and probed───► said: response_stalled
//!           │                          └──deadline, cancel─────────► said: the same, at once
//!           ├─done, and left open─┐
//!           ├─deadline, cancel────┴► leaving ──settled─────────────► said: completed, deadline_exceeded,
//!           │                                                               cancelled
//!           └─disconnect (from each of these)─────────────────────► nobody is told
//! ```
//!
//! **The claim.** A provider that was silent for its stall timeout, or sent no head within its
//! `first_response_timeout`, is claimed: [`Orders::stop`] closes the fence (what was put before
//! leaves, what comes later never) and cancels the call, [`Orders::probe`] starts the look at the
//! provider's health. Close grace and probe run side by side; the join lasts as long as the longer.
//! What a probe finds changes nothing but the evidence in the terminal.
//!
//! A call whose outcome is known ([`Vitals::has_outcome`]) and that waits for its provider's end only is
//! claimed no more: its adapter bounds that wait.
//!
//! **The end after done.** A provider that said that its answer is whole ([`Vitals::is_done`]) has the close
//! grace to end it, whatever its stall timeout; what it sends meanwhile passes. Then its call is stopped like
//! a cancelled one, and completes when that is settled: what is said of the answer does not depend on
//! whether the provider was seen to return, and what becomes of the permit does.
//!
//! **Precedence.** Everything that has happened by the same instant comes in together, as one
//! [`Seen`], and is judged in this order: disconnect, hard deadline, cancel, the provider's terminal,
//! silence. After the claim the end stays `response_stalled`: the provider's terminal counts as its
//! return, a deadline or a cancel only ends the waiting.
//!
//! **Timers.** There is one, and it is the host's: [`Orders::next`] says when to look again at the
//! latest. Progress moves no timer. It stores a timestamp ([`Vitals`]), and whoever looks too early
//! is told of a later time. Only what brings that time nearer is worth a look of its own: a silence that
//! stood still and does no more, a provider that is done ([`Next::is_outdated`]).

use std::time::{Duration, Instant};

use iop_types::{HealthEvidence, Ownership, Stall, StallPhase};

use crate::vitals::Vitals;

/// How long a provider may take to be seen to return from a cancelled call.
pub const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// How long the look at a provider's health may take.
pub const PROBE_BOUND: Duration = Duration::from_secs(5);

/// How long one call may take for what.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Allowed silence of the provider.
    pub stall: Duration,
    /// Bound on the provider's head, from when it has the request; `None` for no bound of its own.
    pub first_response: Option<Duration>,
    /// When the first progress must have come.
    pub first_progress_by: Option<Instant>,
    /// When all must be over.
    pub ends_by: Option<Instant>,
}

/// What has happened since the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// The link ended: nobody is left to be told.
    pub disconnected: bool,
    /// The call was cancelled from outside.
    pub cancelled: Option<Cancel>,
    /// The provider's call returned.
    pub returned: Option<Ownership>,
    /// The probe's finding.
    pub health: Option<HealthEvidence>,
}

/// Who cancelled a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancel {
    /// The Edge, because the request's time is over.
    Deadline,
    /// The Edge for any other reason, or this Node.
    Asked,
}

/// What the host has to do now, in the order of the fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Orders {
    /// Close the fence, then cancel the provider's call.
    pub stop: bool,
    /// Start the probe of the exact target.
    pub probe: bool,
    /// The provider's part is over. Confirmed: free the permit. Unconfirmed: reset the connection,
    /// unless the call did so itself, and keep the permit as a zombie.
    pub settle: Option<Ownership>,
    /// Claim the end and send this terminal. A probe that still runs is no longer needed.
    pub end: Option<End>,
    /// When to look again.
    pub next: Next,
}

/// When to look at a call again. A host looks earlier when something of a [`Seen`] happened, or when
/// the call was polled and this [is outdated](Self::is_outdated).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Next {
    /// At the latest then; `None` where no time is set.
    pub at: Option<Instant>,
    /// The silence stood still.
    pub stands_still: bool,
    /// The provider was still expected to say that it is done.
    pub expects_done: bool,
}

impl Next {
    /// Says whether the call has shown something since that may bring the next time nearer.
    pub const fn is_outdated(&self, vitals: &Vitals) -> bool {
        let goes_on = self.stands_still && !vitals.stands_still();
        goes_on || (self.expects_done && vitals.is_done())
    }
}

/// The one terminal of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// What the call returned.
    Own,
    /// Its provider said that it was done and left its answer open: it completed.
    Done,
    /// It was cancelled.
    Cancelled,
    /// Its time was over.
    Deadline(Deadline),
    /// Its provider fell silent. The observation has no number yet.
    Stalled(Stall),
}

/// Which time was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deadline {
    /// Nothing came in time.
    FirstProgress,
    /// The whole took too long.
    Whole,
    /// The Edge said so.
    Told,
}

/// The machine of one call. `now` never goes backwards.
#[derive(Debug)]
pub struct Watchdog {
    rules: Rules,
    part: Part,
    end: Ending,
}

/// The call's part at the provider.
#[derive(Debug, Clone, Copy)]
enum Part {
    Running,
    /// It was stopped and has until then to return.
    Closing {
        until: Instant,
    },
    Settled(Ownership),
}

/// The call's end.
#[derive(Debug, Clone, Copy)]
enum Ending {
    Watching,
    Joining(Join),
    Leaving(Leave),
    /// The terminal was ordered, or there is nobody to be told.
    Over,
}

/// A claimed stall.
#[derive(Debug, Clone, Copy)]
struct Join {
    timeout: Duration,
    silent: Duration,
    phase: StallPhase,
    health: Option<HealthEvidence>,
    probe_until: Instant,
}

#[derive(Debug, Clone, Copy)]
enum Leave {
    Done,
    Cancelled,
    Deadline(Deadline),
}

impl Watchdog {
    /// Watches a call that has its permit.
    pub const fn new(rules: Rules) -> Self {
        Self { rules, part: Part::Running, end: Ending::Watching }
    }

    /// Judges what was seen by `now`. The first look, with nothing seen, only tells the next time.
    pub fn look(&mut self, now: Instant, seen: Seen, vitals: &Vitals) -> Orders {
        let mut orders = Orders::default();
        self.settle(now, seen.returned, &mut orders);
        self.note_health(now, seen.health);
        if seen.disconnected {
            self.end = Ending::Over;
        }
        if let Some(deadline) = self.deadline(now, seen.cancelled, vitals) {
            self.leave(Leave::Deadline(deadline), &mut orders);
        }
        if seen.cancelled == Some(Cancel::Asked) {
            self.leave(Leave::Cancelled, &mut orders);
        }
        self.conclude(now, vitals);
        self.claim(now, vitals, &mut orders);
        self.finish(&mut orders);
        self.stop(now, &mut orders);
        orders.next = self.next(now, vitals);
        orders
    }

    /// Says whether nothing is left to wait for.
    pub const fn is_over(&self) -> bool {
        matches!((&self.part, &self.end), (Part::Settled(_), Ending::Over))
    }

    /// The provider's part is over when the call returned, and given up when its grace is.
    fn settle(&mut self, now: Instant, returned: Option<Ownership>, orders: &mut Orders) {
        let settled = match (self.part, returned) {
            (Part::Running | Part::Closing { .. }, Some(ownership)) => ownership,
            (Part::Closing { until }, None) if until <= now => Ownership::Unconfirmed,
            (Part::Running | Part::Closing { .. }, None) | (Part::Settled(_), _) => return,
        };
        self.part = Part::Settled(settled);
        orders.settle = Some(settled);
    }

    /// A probe that has not come back within its bound shows nothing.
    fn note_health(&mut self, now: Instant, found: Option<HealthEvidence>) {
        if let Ending::Joining(join) = &mut self.end
            && join.health.is_none()
        {
            let late = (join.probe_until <= now).then_some(HealthEvidence::Unknown);
            join.health = found.or(late);
        }
    }

    fn deadline(
        &self,
        now: Instant,
        cancelled: Option<Cancel>,
        vitals: &Vitals,
    ) -> Option<Deadline> {
        let is_due = |by: Option<Instant>| by.is_some_and(|by| by <= now);
        if cancelled == Some(Cancel::Deadline) {
            Some(Deadline::Told)
        } else if is_due(self.rules.ends_by) {
            Some(Deadline::Whole)
        } else if vitals.first_progress().is_none() && is_due(self.rules.first_progress_by) {
            Some(Deadline::FirstProgress)
        } else {
            None
        }
    }

    /// Ends what is watched. A stall that was claimed stays one and is said with what is known.
    fn leave(&mut self, why: Leave, orders: &mut Orders) {
        match self.end {
            Ending::Watching => self.end = Ending::Leaving(why),
            Ending::Joining(join) => {
                let ownership = match self.part {
                    Part::Settled(ownership) => ownership,
                    Part::Running | Part::Closing { .. } => Ownership::Unconfirmed,
                };
                self.say(join.stalled(ownership, join.health.unwrap_or_default()), orders);
            }
            Ending::Leaving(_) | Ending::Over => {}
        }
    }

    /// Leaves a provider that said that it is done and does not end.
    fn conclude(&mut self, now: Instant, vitals: &Vitals) {
        let (Part::Running, Ending::Watching) = (self.part, self.end) else { return };
        let is_left_open = vitals.is_done() && !vitals.has_outcome();
        if is_left_open && !vitals.stands_still() && vitals.silent_at(now) >= CLOSE_GRACE {
            self.end = Ending::Leaving(Leave::Done);
        }
    }

    /// Claims a provider that is silent for too long, unless it has returned or said all that matters.
    fn claim(&mut self, now: Instant, vitals: &Vitals, orders: &mut Orders) {
        let (Part::Running, Ending::Watching) = (self.part, self.end) else { return };
        if vitals.has_outcome() || vitals.is_done() {
            return;
        }
        let silent = vitals.silent_at(now);
        let no_head_for = self.first_response(vitals).filter(|(_, due)| *due <= now);
        let (timeout, silent) = match no_head_for {
            _ if !vitals.stands_still() && silent >= self.rules.stall => (self.rules.stall, silent),
            Some((timeout, due)) => (timeout, timeout + now.saturating_duration_since(due)),
            None => return,
        };
        let (phase, probe_until) = (vitals.phase(), now + PROBE_BOUND);
        self.end = Ending::Joining(Join { timeout, silent, phase, health: None, probe_until });
        orders.probe = true;
    }

    fn finish(&mut self, orders: &mut Orders) {
        let Part::Settled(ownership) = self.part else { return };
        let end = match self.end {
            Ending::Watching => End::Own,
            Ending::Leaving(Leave::Done) => End::Done,
            Ending::Leaving(Leave::Cancelled) => End::Cancelled,
            Ending::Leaving(Leave::Deadline(deadline)) => End::Deadline(deadline),
            Ending::Joining(join) => match join.health {
                Some(health) => join.stalled(ownership, health),
                None => return,
            },
            Ending::Over => return,
        };
        self.say(end, orders);
    }

    fn say(&mut self, end: End, orders: &mut Orders) {
        self.end = Ending::Over;
        orders.end = Some(end);
    }

    /// A call that is no longer watched is stopped, and has the close grace from there.
    fn stop(&mut self, now: Instant, orders: &mut Orders) {
        match (self.part, self.end) {
            (Part::Running, Ending::Joining(_) | Ending::Leaving(_) | Ending::Over) => {
                self.part = Part::Closing { until: now + CLOSE_GRACE };
                orders.stop = true;
            }
            (Part::Running, Ending::Watching) | (Part::Closing { .. } | Part::Settled(_), _) => {}
        }
    }

    fn next(&self, now: Instant, vitals: &Vitals) -> Next {
        let grace = match self.part {
            Part::Closing { until } => Some(until),
            Part::Running | Part::Settled(_) => None,
        };
        let (own, stands_still) = match self.end {
            Ending::Watching if vitals.has_outcome() => ([None; 3], false),
            Ending::Watching if vitals.is_done() => {
                ([vitals.silent_for(CLOSE_GRACE), None, None], vitals.stands_still())
            }
            Ending::Watching => {
                let stall = vitals.silent_for(self.rules.stall);
                let head = self.first_response(vitals).map(|(_, due)| due);
                let stands_still = vitals.stands_still();
                // Nothing can be due sooner than a whole timeout after the first byte was taken.
                let idle = (!stands_still && stall.is_none()).then(|| now + self.rules.shortest());
                ([stall, head, idle], stands_still)
            }
            Ending::Joining(join) => {
                ([join.health.is_none().then_some(join.probe_until), None, None], false)
            }
            Ending::Leaving(_) | Ending::Over => ([None; 3], false),
        };
        let deadlines = match self.end {
            Ending::Watching | Ending::Joining(_) => {
                let first = self.rules.first_progress_by;
                [self.rules.ends_by, first.filter(|_| vitals.first_progress().is_none())]
            }
            Ending::Leaving(_) | Ending::Over => [None; 2],
        };
        let at = own.into_iter().chain(deadlines).chain([grace]).flatten().min();
        let is_watching = matches!(self.end, Ending::Watching);
        let expects_done = is_watching && !vitals.has_outcome() && !vitals.is_done();
        Next { at, stands_still, expects_done }
    }

    /// Returns the bound on the head and when it is over, while there is one to wait for. A head that
    /// waits for credit has come.
    fn first_response(&self, vitals: &Vitals) -> Option<(Duration, Instant)> {
        let limit = self.rules.first_response?;
        let has_come = vitals.first_progress().is_some() || vitals.awaits_credit();
        let since = vitals.handed_over().filter(|_| !has_come)?;
        Some((limit, since + limit))
    }
}

impl Rules {
    fn shortest(&self) -> Duration {
        self.first_response.map_or(self.stall, |limit| limit.min(self.stall))
    }
}

impl Join {
    const fn stalled(self, ownership: Ownership, health: HealthEvidence) -> End {
        let Self { timeout, silent, phase, .. } = self;
        End::Stalled(Stall { timeout, silent, phase, ownership, health, observation_seq: None })
    }
}

#[cfg(test)]
mod tests;
