//! The one timer of a call, which looks twice.
//!
//! ```text
//! set ──over──► looked once ──over, in time──► goes off
//!                   └──over, far too late──► looked once
//! ```
//!
//! A process that stood still (a signal, a frozen container, a suspended machine) may find its time
//! over before it has read what came meanwhile, or before a provider that stood still with it had a
//! chance to go on. So a time that is over sets the timer once more: a moment, in which the runtime
//! reads its sockets, or for as long as the timer was late, within bounds. Only then does it go off.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use super::now;

/// Enough for a turn of the runtime, whose timers count milliseconds.
const MOMENT: Duration = Duration::from_millis(10);

/// What a provider that stood still with its Node gets at most. Who is later than that at the second
/// look stood still again.
const LONGEST: Duration = Duration::from_secs(1);

pub(super) struct Alarm<'a> {
    timer: Pin<&'a mut Sleep>,
    due: Option<Due>,
    /// Whom the timer will wake. It is polled with every chunk, and is asked no more than whether it
    /// has gone off once it knows that.
    armed_for: Option<Waker>,
}

#[derive(Clone, Copy)]
struct Due {
    at: Instant,
    /// Whether this was over once already.
    looked: bool,
}

impl<'a> Alarm<'a> {
    /// Uses `timer`, whatever it is set to.
    pub(super) const fn new(timer: Pin<&'a mut Sleep>) -> Self {
        Self { timer, due: None, armed_for: None }
    }

    /// Sets the alarm, unless it is set to that time already, or stops it.
    pub(super) fn set(&mut self, at: Option<Instant>) {
        if at == self.due.map(|due| due.at) {
            return;
        }
        self.due = at.map(|at| Due { at, looked: false });
        if let Some(at) = at {
            self.arm(at);
        }
    }

    /// Ready once, when the time is over and what had arrived by then can have been read.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(due) = self.due {
            let is_armed = self.armed_for.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
            if is_armed && !self.timer.is_elapsed() {
                return Poll::Pending;
            }
            self.armed_for = Some(cx.waker().clone());
            ready!(self.timer.as_mut().poll(cx));
            let now = now();
            let late = now.saturating_duration_since(self.timer.deadline().into_std());
            if due.looked && late < LONGEST {
                self.due = None;
                return Poll::Ready(());
            }
            self.due = Some(Due { looked: true, ..due });
            self.arm(now + late.clamp(MOMENT, LONGEST));
        }
        Poll::Pending
    }

    fn arm(&mut self, at: Instant) {
        let at = tokio::time::Instant::from(at);
        if at != self.timer.deadline() {
            self.timer.as_mut().reset(at);
            self.armed_for = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::time::{advance, sleep};

    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);
    const TIME: Duration = Duration::from_millis(800);

    /// Polls an alarm as a task does that something else has woken.
    fn goes_off(alarm: &mut Alarm<'_>) -> bool {
        alarm.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_that_is_over_is_looked_at_a_moment_later_and_goes_off_once() {
        let timer = pin!(sleep(Duration::ZERO));
        let mut alarm = Alarm::new(timer);
        alarm.set(Some(now() + TIME));
        assert!(!goes_off(&mut alarm));
        advance(TIME + MILLISECOND).await;
        assert!(!goes_off(&mut alarm), "the sockets come first");
        advance(MOMENT + MILLISECOND).await;
        assert!(goes_off(&mut alarm));
        advance(TIME).await;
        assert!(!goes_off(&mut alarm));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_stood_still_waits_for_as_long_as_that_made_it_late() {
        for (late, waits) in [
            (Duration::from_millis(300), Duration::from_millis(300)),
            (Duration::from_secs(3_600), LONGEST),
        ] {
            let timer = pin!(sleep(Duration::ZERO));
            let mut alarm = Alarm::new(timer);
            alarm.set(Some(now() + TIME));
            assert!(!goes_off(&mut alarm));
            advance(TIME + late).await;
            assert!(!goes_off(&mut alarm));
            advance(waits - MILLISECOND).await;
            assert!(!goes_off(&mut alarm), "{late:?}");
            advance(2 * MILLISECOND).await;
            assert!(goes_off(&mut alarm), "{late:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_stood_still_at_the_second_look_looks_again() {
        let timer = pin!(sleep(Duration::ZERO));
        let mut alarm = Alarm::new(timer);
        alarm.set(Some(now() + TIME));
        advance(TIME).await;
        assert!(!goes_off(&mut alarm));
        advance(2 * LONGEST).await;
        assert!(!goes_off(&mut alarm));
        advance(LONGEST + MILLISECOND).await;
        assert!(goes_off(&mut alarm));
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_time_again_changes_nothing_and_another_begins_anew() {
        let timer = pin!(sleep(Duration::ZERO));
        let mut alarm = Alarm::new(timer);
        let at = now() + TIME;
        alarm.set(Some(at));
        advance(TIME).await;
        assert!(!goes_off(&mut alarm));
        alarm.set(Some(at));
        advance(MOMENT + MILLISECOND).await;
        assert!(goes_off(&mut alarm));

        alarm.set(Some(now() + TIME));
        advance(TIME).await;
        assert!(!goes_off(&mut alarm));
        alarm.set(Some(now() + TIME));
        advance(TIME - MILLISECOND).await;
        assert!(!goes_off(&mut alarm));
        alarm.set(None);
        advance(TIME).await;
        assert!(!goes_off(&mut alarm));
    }
}
