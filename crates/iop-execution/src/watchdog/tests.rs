//! Scenarios on a manual clock: the call that they are about, and what must hold of every one.

mod any_order;
mod done;
mod ends;
mod join;
mod silence;

use super::*;
use crate::vitals::Sent;

const SECOND: Duration = Duration::from_secs(1);
const STALL: Duration = Duration::from_secs(10);

/// A call, its watchdog and the clock of both.
struct Call {
    watchdog: Watchdog,
    vitals: Vitals,
    start: Instant,
    now: Instant,
    stopped: Option<Instant>,
    probed: Option<Instant>,
    settled: Option<(Instant, Ownership)>,
    ended: Option<(Instant, End)>,
    next: Next,
}

impl Call {
    fn new(rules: impl FnOnce(Instant) -> Rules) -> Self {
        let start = Instant::now();
        let mut call = Self {
            watchdog: Watchdog::new(rules(start)),
            vitals: Vitals::default(),
            start,
            now: start,
            stopped: None,
            probed: None,
            settled: None,
            ended: None,
            next: Next::default(),
        };
        call.see(Seen::default());
        call
    }

    /// A call whose provider has the whole request at once.
    fn sent() -> Self {
        Self::sent_with(plain)
    }

    fn sent_with(rules: impl FnOnce(Instant) -> Rules) -> Self {
        let mut call = Self::new(rules);
        call.vitals.note_sent(Sent::Whole, call.now);
        call
    }

    /// A call that is silent for too long since the middle of its answer.
    fn stalled() -> Self {
        let mut call = Self::sent();
        call.progress();
        call.advance(STALL);
        assert!(call.stopped.is_some() && call.probed.is_some(), "the stall is claimed");
        call
    }

    fn progress(&mut self) {
        self.vitals.note_progress(self.now);
    }

    /// The provider says that its answer is whole; whoever polled the call looks, where it is worth it.
    fn done(&mut self) {
        self.progress();
        self.vitals.note_done(self.now);
        self.polled();
    }

    /// The call was polled: it is looked at if that may bring the next time nearer.
    fn polled(&mut self) {
        if self.next.is_outdated(&self.vitals) {
            self.see(Seen::default());
        }
    }

    /// Gives what was seen to the machine and checks what must hold of every answer.
    fn see(&mut self, seen: Seen) {
        let orders = self.watchdog.look(self.now, seen, &self.vitals);
        if orders.stop {
            assert_eq!(self.stopped.replace(self.now), None, "stopped once");
        }
        if orders.probe {
            assert_eq!(self.probed.replace(self.now), None, "probed once");
        }
        if let Some(ownership) = orders.settle {
            assert!(self.settled.replace((self.now, ownership)).is_none(), "settled once");
        }
        if let Some(end) = orders.end {
            assert!(self.ended.replace((self.now, end)).is_none(), "one terminal");
        }
        let is_later = orders.next.at.is_none_or(|at| at > self.now);
        assert!(is_later || self.watchdog.is_over(), "the next look lies ahead");
        self.next = orders.next;
    }

    /// Lets time pass and looks whenever the machine asked for it.
    fn advance(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(at) = self.next.at.filter(|at| *at <= until) {
            self.now = at;
            self.see(Seen::default());
        }
        self.now = until;
    }

    /// Lets time pass up to an instant at which something else is to be seen as well.
    fn advance_up_to(&mut self, until: Instant) {
        while let Some(at) = self.next.at.filter(|at| *at < until) {
            self.now = at.max(self.now);
            self.see(Seen::default());
        }
        self.now = until;
    }

    fn returned(&mut self, ownership: Ownership) {
        self.see(Seen { returned: Some(ownership), ..Seen::default() });
    }

    fn probed(&mut self, health: HealthEvidence) {
        self.see(Seen { health: Some(health), ..Seen::default() });
    }

    fn cancelled(&mut self, cancel: Cancel) {
        self.see(Seen { cancelled: Some(cancel), ..Seen::default() });
    }

    fn disconnected(&mut self) {
        self.see(Seen { disconnected: true, ..Seen::default() });
    }

    fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    fn end(&self) -> Option<End> {
        self.ended.map(|(_, end)| end)
    }

    fn stall(&self) -> Stall {
        match self.end() {
            Some(End::Stalled(stall)) => stall,
            other => panic!("no stall: {other:?}"),
        }
    }
}

fn plain(_: Instant) -> Rules {
    Rules { stall: STALL, first_response: None, first_progress_by: None, ends_by: None }
}
