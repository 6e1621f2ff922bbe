//! The calls of each provider that are under way, and whether they get on.
//!
//! A generation for a probe's sake could interrupt other calls or queue behind them (some servers do
//! one thing at a time, some drop what they do for whoever comes last). So whoever probes asks here
//! first. Progress is read off the calls' own fences when somebody asks: nothing happens here per
//! event.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use iop_types::{ProviderKey, WorkKey};

use crate::emission::Fence;

/// The calls under way, by provider. Clones are handles of the same table.
#[derive(Clone, Default)]
pub struct Neighbours(Arc<Mutex<Table>>);

type Table = BTreeMap<ProviderKey, BTreeMap<WorkKey, Call>>;

struct Call {
    began: Instant,
    fence: Fence,
}

/// How the other calls of a provider get on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Company {
    /// There is none, or none that was not silent for too long itself.
    Alone,
    /// Some began a short while ago, or have paused for a short while only.
    Quiet,
    /// One has progressed within the time that a call may be silent.
    Progressing,
}

impl Neighbours {
    /// Notes that a call began, until the seat is dropped.
    pub fn seat(
        &self,
        provider: &ProviderKey,
        work: WorkKey,
        began: Instant,
        fence: Fence,
    ) -> Seat {
        self.lock().entry(provider.clone()).or_default().insert(work, Call { began, fence });
        Seat { neighbours: self.clone(), provider: provider.clone(), work }
    }

    /// Says how the calls of a provider other than `but` get on; `within` is the silence that a call is
    /// allowed.
    pub fn company(
        &self,
        provider: &ProviderKey,
        but: Option<WorkKey>,
        now: Instant,
        within: Duration,
    ) -> Company {
        let is_recent = |at: Instant| now.saturating_duration_since(at) <= within;
        let table = self.lock();
        let calls = table.get(provider).into_iter().flatten();
        let others = calls.filter(|(work, _)| Some(**work) != but).map(|(_, call)| call);
        let mut company = Company::Alone;
        for call in others {
            if call.fence.last_progress().is_some_and(is_recent) {
                return Company::Progressing;
            }
            if is_recent(call.began) {
                company = Company::Quiet;
            }
        }
        company
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().expect("no code panics while it holds the neighbours")
    }
}

/// One call's place among its neighbours; dropping it says that the call is over.
#[must_use = "dropping the seat says that the call is over"]
pub struct Seat {
    neighbours: Neighbours,
    provider: ProviderKey,
    work: WorkKey,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut table = self.neighbours.lock();
        if let Some(calls) = table.get_mut(&self.provider) {
            calls.remove(&self.work);
            if calls.is_empty() {
                table.remove(&self.provider);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use iop_types::{Attempt, Event, EventKind, RunId};

    use super::*;
    use crate::emission::Emission;
    use crate::provider::{Fenced, Outlet};

    /// How long a call may be silent.
    const STALL: Duration = Duration::from_secs(3);

    struct Anywhere;

    impl Outlet<Event> for Anywhere {
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Fenced>> {
            Poll::Ready(Ok(()))
        }

        fn put(&mut self, _: Event) -> Result<(), Fenced> {
            Ok(())
        }
    }

    fn work(number: u8) -> WorkKey {
        let run_id = RunId::from_slice(&[number; 16]).unwrap();
        WorkKey { run_id, attempt: Attempt::FIRST }
    }

    /// A call that began at `began` and progressed then if `progresses`.
    fn fence(began: Instant, progresses: bool) -> Fence {
        let mut emission = Emission::new(Anywhere, move || began);
        if progresses {
            Outlet::<Event>::put(&mut emission, EventKind::Start.into()).unwrap();
        }
        emission.fence()
    }

    #[test]
    fn a_call_is_not_its_own_neighbour() {
        let (neighbours, began) = (Neighbours::default(), Instant::now());
        let _seat = neighbours.seat(&"p".into(), work(1), began, fence(began, true));
        let company = |but| neighbours.company(&"p".into(), but, began, STALL);
        assert_eq!(company(Some(work(1))), Company::Alone);
        assert_eq!(company(Some(work(2))), Company::Progressing);
        assert_eq!(company(None), Company::Progressing);
        assert_eq!(neighbours.company(&"q".into(), None, began, STALL), Company::Alone);
    }

    #[test]
    fn progress_counts_as_long_as_a_call_may_be_silent() {
        let (neighbours, began) = (Neighbours::default(), Instant::now());
        let _seat = neighbours.seat(&"p".into(), work(1), began, fence(began, true));
        let company = |now| neighbours.company(&"p".into(), None, now, STALL);
        assert_eq!(company(began + STALL), Company::Progressing);
        assert_eq!(company(began + STALL + Duration::from_millis(1)), Company::Alone);
    }

    #[test]
    fn a_call_that_had_no_time_yet_is_no_evidence_and_not_to_be_disturbed() {
        let (neighbours, began) = (Neighbours::default(), Instant::now());
        let seat = neighbours.seat(&"p".into(), work(1), began, fence(began, false));
        let company = |now| neighbours.company(&"p".into(), None, now, STALL);
        assert_eq!(company(began + STALL), Company::Quiet);
        assert_eq!(company(began + 2 * STALL), Company::Alone);
        drop(seat);
        assert_eq!(company(began), Company::Alone);
        assert!(neighbours.lock().is_empty());
    }
}
