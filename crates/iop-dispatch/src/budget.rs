//! How many further attempts an Edge makes in all, so that a failure that meets every request does not
//! multiply them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Further attempts for each hundred requests: enough for a provider that fails now and then, and a
/// load that what is left of the others can take.
const PERCENT: u64 = 20;
/// Further attempts that are always allowed: a quiet Edge must be able to try again too.
const AT_LEAST: u64 = 10;
/// How far back requests and further attempts count: longer than a burst, shorter than it takes people
/// to notice that a provider is gone.
const SECONDS: usize = 10;

/// What the further attempts of one Edge are taken from. Clones share it.
///
/// Every request puts in at its receipt, whatever it asks for; an attempt takes out when the verdict on
/// the one before it is made, and nothing is put back. Both count by whole seconds, the present one
/// included: "recent" is between nine and ten seconds.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Mutex<Window>>);

#[derive(Debug)]
struct Window {
    origin: Instant,
    seconds: [Second; SECONDS],
}

#[derive(Debug, Clone, Copy, Default)]
struct Second {
    number: u64,
    requests: u64,
    attempts: u64,
}

impl Budget {
    /// Begins to count; no later call names an earlier time.
    pub fn new(origin: Instant) -> Self {
        Self(Arc::new(Mutex::new(Window { origin, seconds: Default::default() })))
    }

    /// A request was received.
    pub fn note_request(&self, now: Instant) {
        self.lock().second(now).requests += 1;
    }

    /// Takes out a further attempt; `false` when there is none left.
    pub fn take(&self, now: Instant) -> bool {
        let mut window = self.lock();
        let newest = window.number(now);
        let recent = window.seconds.iter().filter(|second| second.is_recent(newest));
        let (requests, attempts) = recent.fold((0, 0), |(requests, attempts), second| {
            (requests + second.requests, attempts + second.attempts)
        });
        if attempts >= (requests * PERCENT / 100).max(AT_LEAST) {
            return false;
        }
        window.second(now).attempts += 1;
        true
    }

    fn lock(&self) -> MutexGuard<'_, Window> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Window {
    fn number(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.origin).as_secs()
    }

    fn second(&mut self, now: Instant) -> &mut Second {
        let number = self.number(now);
        let index =
            usize::try_from(number % SECONDS as u64).expect("less than the number of seconds");
        let second = &mut self.seconds[index];
        // A request whose body took long counts where there is still room for its second.
        if second.number < number {
            *second = Second { number, ..Second::default() };
        }
        second
    }
}

impl Second {
    const fn is_recent(&self, newest: u64) -> bool {
        self.number + SECONDS as u64 > newest
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn taken(budget: &Budget, now: Instant) -> u32 {
        let mut taken = 0;
        while budget.take(now) {
            taken += 1;
        }
        taken
    }

    #[test]
    fn a_quiet_edge_may_try_ten_times_in_ten_seconds() {
        let now = Instant::now();
        let budget = Budget::new(now);
        assert_eq!(taken(&budget, now), 10);
        assert_eq!(taken(&budget, now + 9 * SECOND), 0);
        assert_eq!(taken(&budget, now + 10 * SECOND), 10);
    }

    #[test]
    fn a_busy_edge_may_try_again_for_a_fifth_of_its_requests() {
        let now = Instant::now();
        let budget = Budget::new(now);
        for second in 0..10 {
            for _ in 0..100 {
                budget.note_request(now + second * SECOND);
            }
        }
        let end = now + 9 * SECOND;
        assert_eq!(taken(&budget.clone(), end), 200);
        assert!(!budget.take(end), "clones share it");
    }

    #[test]
    fn requests_that_are_ten_seconds_old_earn_nothing_any_more() {
        let now = Instant::now();
        let budget = Budget::new(now);
        for _ in 0..1_000 {
            budget.note_request(now);
        }
        assert_eq!(taken(&budget, now + 30 * SECOND), 10);
    }

    #[test]
    fn a_request_that_was_received_long_ago_does_not_wipe_out_the_present() {
        let now = Instant::now();
        let budget = Budget::new(now);
        for _ in 0..100 {
            budget.note_request(now + 30 * SECOND);
        }
        budget.note_request(now + 20 * SECOND);
        assert_eq!(taken(&budget, now + 30 * SECOND), 20);
    }
}
