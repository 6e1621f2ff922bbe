//! The looks that are under way and those just over, each shared by all who want one.
//!
//! When a server falls silent all its calls stall within a moment. One look serves them all:
//!
//! ```text
//! nobody looks ──► begin ──► under way ──────────────────► seen ──────► forgotten
//!                            whoever comes waits with      whoever comes within [`FRESH`]
//!                            the others                    of its beginning, and was silent
//!                                                          by then, takes what was seen
//! ```
//!
//! A look without a token does not serve whom a token is due, where it left the question open. Nobody
//! owns a look: it goes on as long as one waits for it, and ends with the last who leaves.
//!
//! Looks at two targets of one provider do not wait for each other. A look at a server that hangs takes
//! all its time, and the second would have none left to see the same.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{Shared, WeakShared};
use iop_execution::{BoxFuture, ProbeOutcome};
use iop_types::{Generation, ProviderKey, Target};

/// How long after its beginning a look that is over still serves others: calls that stall together
/// do so within a few milliseconds, and a server is not restarted within a second.
const FRESH: Duration = Duration::from_secs(1);

/// What is looked at. The link is part of it because its configuration says what server that is.
pub(super) type Place = (Generation, ProviderKey, Target);

/// What a look showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) outcome: ProbeOutcome,
    /// Whether it was allowed to ask for a token.
    pub(super) might_generate: bool,
}

impl Seen {
    /// Says whether a look of one's own would show no more.
    pub(super) fn settles(self, may_generate: bool) -> bool {
        self.outcome != ProbeOutcome::Unknown || self.might_generate || !may_generate
    }
}

/// Who is about to look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller {
    pub(super) now: Instant,
    /// How long its call has been silent at least.
    pub(super) silent: Duration,
    /// Whether a token may be asked for on its behalf.
    pub(super) may_generate: bool,
}

/// The table of looks.
#[derive(Default)]
pub(super) struct Looks(Arc<Mutex<Table>>);

type Table = BTreeMap<Place, Look>;

struct Look {
    began: Instant,
    state: State,
}

enum State {
    UnderWay(WeakShared<BoxFuture<'static, Seen>>),
    Over(Seen),
}

impl Look {
    /// A look that everyone left before its end is none.
    fn is_of_use(&self, now: Instant) -> bool {
        match &self.state {
            State::UnderWay(look) => look.upgrade().is_some(),
            State::Over(_) => now.saturating_duration_since(self.began) <= FRESH,
        }
    }
}

impl Looks {
    /// Takes part in the look at a place, or begins it.
    ///
    /// Cancel safe: the look goes on for whoever else waits for it.
    pub(super) async fn share(
        &self,
        place: &Place,
        caller: Caller,
        begin: impl FnOnce() -> BoxFuture<'static, ProbeOutcome>,
    ) -> Seen {
        let look = match self.find(place, caller) {
            Found::Seen(seen) => return seen,
            Found::UnderWay(look) => look,
            Found::Nothing(mut table) => {
                let look = self.conduct(place.clone(), caller, begin()).boxed().shared();
                if let Some(under_way) = look.downgrade() {
                    let state = State::UnderWay(under_way);
                    table.insert(place.clone(), Look { began: caller.now, state });
                }
                look
            }
        };
        look.await
    }

    fn find(&self, place: &Place, caller: Caller) -> Found<'_> {
        let mut table = self.lock();
        table.retain(|_, look| look.is_of_use(caller.now));
        let Some(look) = table.get(place) else { return Found::Nothing(table) };
        match &look.state {
            State::UnderWay(under_way) => match under_way.upgrade() {
                Some(under_way) => Found::UnderWay(under_way),
                None => Found::Nothing(table),
            },
            State::Over(seen) => {
                let age = caller.now.saturating_duration_since(look.began);
                if age <= caller.silent && seen.settles(caller.may_generate) {
                    Found::Seen(*seen)
                } else {
                    Found::Nothing(table)
                }
            }
        }
    }

    /// Carries a look to its end and notes what it showed.
    fn conduct(
        &self,
        place: Place,
        caller: Caller,
        look: BoxFuture<'static, ProbeOutcome>,
    ) -> impl Future<Output = Seen> + Send + use<> {
        let looks = Self(Arc::clone(&self.0));
        async move {
            let seen = Seen { outcome: look.await, might_generate: caller.may_generate };
            let over = Look { began: caller.now, state: State::Over(seen) };
            looks.lock().insert(place, over);
            seen
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().expect("no code panics while it holds the looks")
    }
}

enum Found<'a> {
    Seen(Seen),
    UnderWay(Shared<BoxFuture<'static, Seen>>),
    Nothing(MutexGuard<'a, Table>),
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures_util::future::{join_all, select};
    use tokio::sync::oneshot;

    use super::*;

    fn place() -> Place {
        (Generation(1), "p".into(), "m".into())
    }

    fn caller() -> Caller {
        Caller { now: Instant::now(), silent: Duration::from_secs(60), may_generate: true }
    }

    fn unasked() -> BoxFuture<'static, ProbeOutcome> {
        unreachable!("somebody looked already")
    }

    fn at_once(outcome: ProbeOutcome) -> impl FnOnce() -> BoxFuture<'static, ProbeOutcome> {
        move || std::future::ready(outcome).boxed()
    }

    /// A look that waits for its outcome; dropped, it breaks the channel.
    fn told(told: oneshot::Receiver<ProbeOutcome>) -> BoxFuture<'static, ProbeOutcome> {
        async { told.await.expect("it is told") }.boxed()
    }

    #[tokio::test]
    async fn whoever_comes_while_somebody_looks_sees_the_same() {
        let (looks, begun) = (Looks::default(), Cell::new(0));
        let place = place();
        let callers = (0..50).map(|_| {
            looks.share(&place, caller(), || {
                begun.set(begun.get() + 1);
                tokio::task::yield_now().map(|()| ProbeOutcome::Silent).boxed()
            })
        });
        let seen = join_all(callers).await;
        assert!(seen.iter().all(|seen| seen.outcome == ProbeOutcome::Silent));
        assert_eq!(begun.get(), 1);
    }

    #[tokio::test]
    async fn a_caller_that_leaves_does_not_end_the_look_and_the_last_one_does() {
        let looks = Looks::default();
        let place = place();
        let (tell, outcome) = oneshot::channel();
        let mut first = looks.share(&place, caller(), || told(outcome)).boxed_local();
        let mut second = looks.share(&place, caller(), unasked).boxed_local();
        let mut both = select(&mut first, &mut second);
        assert!((&mut both).now_or_never().is_none());
        drop(first);
        tell.send(ProbeOutcome::Available).unwrap();
        assert_eq!(second.await.outcome, ProbeOutcome::Available);

        let looks = Looks::default();
        let (mut tell, outcome) = oneshot::channel();
        let mut only = looks.share(&place, caller(), || told(outcome)).boxed_local();
        assert!((&mut only).now_or_never().is_none());
        drop(only);
        tell.closed().await;
        let seen = looks.share(&place, caller(), at_once(ProbeOutcome::Silent)).await;
        assert_eq!(seen.outcome, ProbeOutcome::Silent, "a look of its own");
    }

    #[tokio::test]
    async fn a_look_that_is_over_serves_who_was_silent_when_it_began_and_for_a_second() {
        let looks = Looks::default();
        let (place, began) = (place(), Instant::now());
        let after = |millis, silent| Caller {
            now: began + Duration::from_millis(millis),
            silent: Duration::from_millis(silent),
            may_generate: true,
        };
        looks.share(&place, after(0, 500), at_once(ProbeOutcome::Silent)).await;
        let seen = looks.share(&place, after(300, 300), unasked).await;
        assert_eq!(seen.outcome, ProbeOutcome::Silent);
        let seen = looks.share(&place, after(301, 300), at_once(ProbeOutcome::Available)).await;
        assert_eq!(seen.outcome, ProbeOutcome::Available, "the other began before its silence");
        let seen = looks.share(&place, after(1301, 60_000), unasked).await;
        assert_eq!(seen.outcome, ProbeOutcome::Available);
        let seen = looks.share(&place, after(1302, 60_000), at_once(ProbeOutcome::Unknown)).await;
        assert_eq!(seen.outcome, ProbeOutcome::Unknown, "the other is too old");
    }

    #[tokio::test]
    async fn an_open_question_is_asked_again_by_whom_a_token_is_due() {
        let looks = Looks::default();
        let place = place();
        let (without, with) = (Caller { may_generate: false, ..caller() }, caller());
        looks.share(&place, without, at_once(ProbeOutcome::Unknown)).await;
        assert!(!looks.share(&place, without, unasked).await.might_generate);
        let seen = looks.share(&place, with, at_once(ProbeOutcome::Unknown)).await;
        assert!(seen.might_generate);
        let seen = looks.share(&place, with, unasked).await;
        assert_eq!(seen.outcome, ProbeOutcome::Unknown, "it was asked for a token already");
    }

    #[tokio::test]
    async fn other_targets_and_other_links_have_looks_of_their_own() {
        let looks = Looks::default();
        let (generation, provider, target) = place();
        let others = [
            (generation, provider.clone(), "n".into()),
            (generation, "q".into(), target.clone()),
            (Generation(2), provider, target),
        ];
        looks.share(&place(), caller(), at_once(ProbeOutcome::Silent)).await;
        for other in others {
            let seen = looks.share(&other, caller(), at_once(ProbeOutcome::Available)).await;
            assert_eq!(seen.outcome, ProbeOutcome::Available);
        }
    }
}
