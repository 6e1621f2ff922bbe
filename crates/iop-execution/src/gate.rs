//! How many calls one provider has at once, and who may add another.
//!
//! The gate has no queue: waiting is the Edge's work, at the request's old place in its line. It
//! belongs to the provider's key rather than to an instance or a snapshot, so that it outlives
//! refreshes and reconnects and calls of an old snapshot keep counting against the new capacity.
//!
//! ```text
//! try_acquire ──► Permit ──drop──────────────► free     the call returned
//!                   └──into_zombie──► zombie ──► free   settle_zombies: the provider was idle
//!                                            └─► free   expire_zombies: 60 s passed
//! ```
//!
//! A call that was cancelled without its return being seen may still occupy the provider. Its
//! permit stays counted, visible as a zombie, until something shows otherwise.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use iop_types::Refusal;
pub use iop_types::stall::ZOMBIE_CEILING;

/// The authority over one provider's concurrency. Clones are handles of the same gate.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    capacity: u32,
    /// Calls that run; zombies are counted apart.
    running: u32,
    /// When each zombie expires, earliest first.
    zombies: VecDeque<Instant>,
    expired: u64,
}

impl Gate {
    /// Makes a gate for `capacity` calls at once.
    pub fn new(capacity: u32) -> Self {
        Self(Arc::new(Mutex::new(State {
            capacity,
            running: 0,
            zombies: VecDeque::new(),
            expired: 0,
        })))
    }

    /// Takes a permit for one call.
    ///
    /// # Errors
    /// Refuses when every permit is in use; nothing waits here.
    pub fn try_acquire(&self) -> Result<Permit, Refusal> {
        let mut state = self.lock();
        if state.in_use() >= state.capacity {
            return Err(Refusal::CapacityExceeded { capacity: state.capacity });
        }
        state.running += 1;
        drop(state);
        Ok(Permit { gate: Some(self.clone()) })
    }

    /// Changes the capacity. Calls above a lower one run on; none is added until they are fewer.
    pub fn set_capacity(&self, capacity: u32) {
        self.lock().capacity = capacity;
    }

    /// Returns how many calls may run at once.
    pub fn capacity(&self) -> u32 {
        self.lock().capacity
    }

    /// Returns how many permits are taken, zombies included.
    pub fn in_use(&self) -> u32 {
        self.lock().in_use()
    }

    /// Returns how many calls were cancelled and have not been seen to return.
    pub fn zombies(&self) -> u32 {
        self.lock().zombie_count()
    }

    /// Returns how many zombies were given up at the ceiling since the gate was made.
    pub fn expired(&self) -> u64 {
        self.lock().expired
    }

    /// Frees the zombies that there were at `seen`, when the provider was shown to be idle; returns
    /// how many.
    pub fn settle_zombies(&self, seen: Instant) -> u32 {
        let mut state = self.lock();
        let before = state.zombies.partition_point(|expiry| *expiry <= seen + ZOMBIE_CEILING);
        state.zombies.drain(..before);
        u32::try_from(before).expect("each zombie was a permit, and those are u32")
    }

    /// Frees the zombies whose ceiling passed by `now`; returns how many.
    pub fn expire_zombies(&self, now: Instant) -> u32 {
        let mut state = self.lock();
        let mut freed = 0;
        while state.zombies.front().is_some_and(|expiry| *expiry <= now) {
            state.zombies.pop_front();
            freed += 1;
        }
        state.expired += u64::from(freed);
        freed
    }

    /// Returns when [`Self::expire_zombies`] has something to do next.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.lock().zombies.front().copied()
    }

    /// Says whether two handles are of the same gate.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no code panics while it holds the gate")
    }
}

impl State {
    fn zombie_count(&self) -> u32 {
        u32::try_from(self.zombies.len()).expect("each zombie was a permit, and those are u32")
    }

    fn in_use(&self) -> u32 {
        self.running + self.zombie_count()
    }
}

/// Granted capacity for one call; dropping it gives the capacity back.
#[derive(Debug)]
#[must_use = "dropping a permit frees it"]
pub struct Permit {
    /// `None` once the permit became a zombie.
    gate: Option<Gate>,
}

impl Permit {
    /// Keeps the capacity taken because the call was cancelled at `now` and not seen to return.
    ///
    /// It is freed by [`Gate::settle_zombies`], or by [`Gate::expire_zombies`] after
    /// [`ZOMBIE_CEILING`].
    pub fn into_zombie(mut self, now: Instant) {
        if let Some(gate) = self.gate.take() {
            let mut state = gate.lock();
            state.running -= 1;
            let expiry = now + ZOMBIE_CEILING;
            // Hosts read their clocks on several threads, so `now` may step back between calls.
            let place = state.zombies.partition_point(|earlier| *earlier <= expiry);
            state.zombies.insert(place, expiry);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(gate) = &self.gate {
            gate.lock().running -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_full_gate_refuses_at_once_and_names_its_capacity() {
        let gate = Gate::new(1);
        let permit = gate.try_acquire().unwrap();
        assert_eq!(gate.try_acquire().unwrap_err(), Refusal::CapacityExceeded { capacity: 1 });
        drop(permit);
        assert!(gate.try_acquire().is_ok());
    }

    #[test]
    fn a_zombie_stays_counted_until_the_provider_is_shown_idle() {
        let gate = Gate::new(1);
        let now = Instant::now();
        gate.try_acquire().unwrap().into_zombie(now);
        assert_eq!((gate.in_use(), gate.zombies()), (1, 1));
        assert!(gate.try_acquire().is_err());
        assert_eq!(gate.settle_zombies(now), 1);
        assert_eq!((gate.in_use(), gate.zombies(), gate.expired()), (0, 0, 0));
    }

    #[test]
    fn a_provider_that_was_idle_says_nothing_of_a_call_that_came_later() {
        let gate = Gate::new(2);
        let seen = Instant::now();
        gate.try_acquire().unwrap().into_zombie(seen);
        gate.try_acquire().unwrap().into_zombie(seen + Duration::from_millis(1));
        assert_eq!(gate.settle_zombies(seen), 1);
        assert_eq!(gate.zombies(), 1);
    }

    #[test]
    fn a_zombie_expires_at_sixty_seconds_and_not_before() {
        let gate = Gate::new(2);
        let start = Instant::now();
        gate.try_acquire().unwrap().into_zombie(start);
        gate.try_acquire().unwrap().into_zombie(start + Duration::from_secs(5));
        assert_eq!(gate.next_expiry(), Some(start + ZOMBIE_CEILING));
        assert_eq!(gate.expire_zombies(start + ZOMBIE_CEILING - Duration::from_millis(1)), 0);
        assert_eq!(gate.expire_zombies(start + ZOMBIE_CEILING), 1);
        assert_eq!((gate.in_use(), gate.expired()), (1, 1));
        assert_eq!(gate.next_expiry(), Some(start + Duration::from_secs(65)));
    }

    #[test]
    fn a_lower_capacity_ends_no_call_and_admits_none_until_there_is_room() {
        let gate = Gate::new(3);
        let mut permits: Vec<_> = (0..3).map(|_| gate.try_acquire().unwrap()).collect();
        gate.set_capacity(1);
        assert_eq!(gate.in_use(), 3);
        permits.truncate(1);
        assert!(gate.try_acquire().is_err());
        permits.clear();
        assert!(gate.try_acquire().is_ok());
    }

    mod properties {
        use proptest::prelude::*;

        use super::*;

        #[derive(Debug, Clone)]
        enum Step {
            Acquire,
            Release(usize),
            Abandon(usize),
            Settle,
            Pass(u64),
            Capacity(u32),
        }

        fn step() -> impl Strategy<Value = Step> {
            prop_oneof![
                4 => Just(Step::Acquire),
                3 => any::<usize>().prop_map(Step::Release),
                2 => any::<usize>().prop_map(Step::Abandon),
                1 => Just(Step::Settle),
                1 => (0_u64..90).prop_map(Step::Pass),
                1 => (0_u32..6).prop_map(Step::Capacity),
            ]
        }

        proptest! {
            #[test]
            fn permits_in_use_match_a_naive_count_and_none_is_granted_beyond_capacity(
                steps in proptest::collection::vec(step(), 0..200)
            ) {
                let mut capacity = 3;
                let gate = Gate::new(capacity);
                let mut now = Instant::now();
                let mut held = Vec::new();
                let mut zombies: Vec<Instant> = Vec::new();
                for step in steps {
                    match step {
                        Step::Acquire => {
                            let room = held.len() + zombies.len() < capacity as usize;
                            let permit = gate.try_acquire();
                            prop_assert_eq!(permit.is_ok(), room);
                            held.extend(permit);
                        }
                        Step::Release(at) if !held.is_empty() => {
                            drop(held.swap_remove(at % held.len()));
                        }
                        Step::Abandon(at) if !held.is_empty() => {
                            held.swap_remove(at % held.len()).into_zombie(now);
                            zombies.push(now + ZOMBIE_CEILING);
                        }
                        Step::Release(_) | Step::Abandon(_) => {}
                        Step::Settle => {
                            gate.settle_zombies(now);
                            zombies.clear();
                        }
                        Step::Pass(seconds) => {
                            now += Duration::from_secs(seconds);
                            gate.expire_zombies(now);
                            zombies.retain(|expiry| *expiry > now);
                        }
                        Step::Capacity(value) => {
                            capacity = value;
                            gate.set_capacity(value);
                        }
                    }
                    prop_assert_eq!(gate.in_use() as usize, held.len() + zombies.len());
                    prop_assert_eq!(gate.zombies() as usize, zombies.len());
                }
            }
        }
    }

    #[test]
    fn concurrent_callers_never_hold_more_permits_than_there_are() {
        let gate = Gate::new(4);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let permit = gate.try_acquire();
                        assert!(gate.in_use() <= 4);
                        drop(permit);
                    }
                });
            }
        });
        assert_eq!(gate.in_use(), 0);
    }
}
