//! What this Node finds out about the health of its targets, and what it does about it.
//!
//! ```text
//! a call stalls ─► look ─► conclude ──available, unknown──► numbered, in the stall's terminal
//!                             └─────unavailable──► the same, and watched:
//!                                                  pause ─► look ─► observation ─► pause …
//!                                                           until it is available again, its provider
//!                                                           is gone, or the link ends
//! a permit becomes a zombie ─► the same, where a served token would show that the provider is idle
//! ```
//!
//! A provider that takes one call at once and has just served a token is at work at nothing else: the
//! zombies that there were when that was asked are free. Where it takes several, or belongs to others
//! who are paid for tokens, no look shows that.
//!
//! A look takes at most [`BOUND`] and never fails; what it cannot find out is `unknown`. Calls that stall
//! together share one ([`looks`]), and each concludes from it for itself. What is found out is told on
//! the link under which it was asked, numbered by that link, or not at all: the next Edge knows nothing
//! of it and begins anew.

mod looks;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::FutureExt;
use iop_execution::registry::Bound;
use iop_execution::{Company, Look, Neighbours, ProbeOutcome};
use iop_net::link::NodeLink;
use iop_types::{Generation, HealthEvidence, HealthObservation, ProviderKey, Target, WorkKey};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use self::looks::{Caller, Looks};
use crate::call::now;
use crate::node::Shared;
use crate::providers::settle_zombies;

/// How long a look may take.
pub(crate) const BOUND: Duration = iop_execution::watchdog::PROBE_BOUND;

/// What an adapter is given of it, so that what was seen by the end is said and not lost.
const GIVEN: Duration = Duration::from_millis(4_750);

/// The first pause before a target that was found unavailable is looked at again. A server that was
/// restarted by its supervisor is back after a few seconds.
const FIRST_PAUSE: Duration = Duration::from_secs(2);

/// The longest pause: each doubles the one before. As long as a restarted machine would be missed
/// without being noticed, and two looks a minute cost a server nothing.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A Node's calls by provider, and the targets that it watches.
#[derive(Default)]
pub(crate) struct Health {
    /// Every call sits here from its permit to its terminal.
    pub(crate) neighbours: Neighbours,
    looks: Looks,
    watch: Mutex<Watch>,
}

/// What is watched under the current link.
#[derive(Default)]
struct Watch {
    generation: Generation,
    ended: CancellationToken,
    /// Each with whether it was unavailable when it was last concluded about.
    targets: BTreeMap<(ProviderKey, Target), bool>,
}

/// One question about the health of a target.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    /// The link under which it is asked.
    pub(crate) generation: Generation,
    /// The target.
    pub(crate) target: Target,
    /// The call that gave reason to ask; not its own neighbour.
    pub(crate) about: Option<WorkKey>,
    /// How long a call of the provider may be silent.
    pub(crate) stall_timeout: Duration,
}

impl Shared {
    /// Looks at a target, or takes part in a look that somebody else began: over connections of its
    /// own, outside the gate, for [`BOUND`] at most. No token is asked for while other calls of the
    /// provider are getting on or have just begun.
    ///
    /// Cancel safe: the connections are closed when the last leaves who takes part.
    pub(crate) async fn look_at(&self, provider: &Bound, question: &Question) -> HealthEvidence {
        let Question { generation, target, about, stall_timeout } = question;
        let company =
            || self.health.neighbours.company(provider.key(), *about, now(), *stall_timeout);
        let is_alone = || company() == Company::Alone;
        let place = (*generation, provider.key().clone(), target.clone());
        let looking = async {
            loop {
                let may_generate = is_alone();
                let caller = Caller { now: now(), silent: *stall_timeout, may_generate };
                let begin = || ask(provider.clone(), target.clone(), may_generate).boxed();
                let seen = self.health.looks.share(&place, caller, begin).await;
                // Those who kept it from asking for a token may be silent as well by now.
                if seen.settles(is_alone()) {
                    return seen.outcome;
                }
            }
        };
        let outcome = timeout(BOUND, looking).await.unwrap_or(ProbeOutcome::Unknown);
        if outcome == ProbeOutcome::Served {
            self.tell(self.providers.count_calls(now()));
        }
        // A neighbour may have got on, or appeared, while the server was asked.
        outcome.evidence(company())
    }

    /// Settles what a look showed: numbers it on the link under which it was asked, `None` where that
    /// has ended, and watches a target that is unavailable until it is not.
    pub(crate) fn conclude(
        self: &Arc<Self>,
        provider: &ProviderKey,
        question: &Question,
        health: HealthEvidence,
    ) -> Option<u64> {
        let link = self.link().clone().filter(|link| link.generation() == question.generation)?;
        let seq = link.number_observation()?;
        info!(%provider, target = %question.target, %health, seq, "looked at a target");
        match health {
            HealthEvidence::Unavailable => self.watch_target(link, provider, question, true),
            HealthEvidence::Available | HealthEvidence::Unknown => {}
        }
        Some(seq)
    }

    /// Looks again at a provider that holds a zombie, where a look can show that it is idle.
    pub(crate) fn watch_zombies(self: &Arc<Self>, provider: &Bound, question: &Question) {
        let link = self.link().clone().filter(|link| link.generation() == question.generation);
        if let Some(link) = link.filter(|_| is_haunted(provider)) {
            self.watch_target(link, provider.key(), question, false);
        }
    }

    fn watch_target(
        self: &Arc<Self>,
        link: NodeLink,
        provider: &ProviderKey,
        asked: &Question,
        is_down: bool,
    ) {
        let begun = self.health.begin(link.generation(), provider, &asked.target, is_down);
        let Some(ended) = begun else { return };
        let node = Arc::clone(self);
        let provider = provider.clone();
        let question = Question { about: None, ..asked.clone() };
        self.tasks.spawn(async move {
            let watching = watch(&node, &link, &provider, &question);
            let _ = ended.run_until_cancelled(watching).await;
            node.health.end(link.generation(), &provider, &question.target);
        });
    }
}

/// Asks the server, and settles the zombies that its answer shows to be over.
async fn ask(provider: Bound, target: Target, may_generate: bool) -> ProbeOutcome {
    let Some(probe) = provider.probe() else { return ProbeOutcome::Unknown };
    let look = Look { target, may_generate, within: GIVEN };
    let began = now();
    let outcome = timeout(BOUND, probe.probe(look)).await.unwrap_or(ProbeOutcome::Unknown);
    if outcome == ProbeOutcome::Served && provider.gate().capacity() == 1 {
        settle_zombies(&provider, began);
    }
    outcome
}

/// Looks at a target again and again, and reports what it sees, until there is no reason any more.
async fn watch(node: &Shared, link: &NodeLink, provider: &ProviderKey, question: &Question) {
    for pause in pauses() {
        sleep(pause).await;
        let Ok(bound) = node.providers.registry().find(provider) else {
            return debug!(%provider, "a provider that was watched is gone");
        };
        let health = node.look_at(&bound, question).await;
        let is_haunted = is_haunted(&bound);
        drop(bound);
        let target = question.target.clone();
        let observation = HealthObservation { provider: provider.clone(), target, health, seq: 0 };
        let Some(seq) = link.send_observation(observation.into()) else { return };
        debug!(%provider, target = %question.target, %health, seq, "looked at a target again");
        let was_down = node.health.note(link.generation(), provider, &question.target, health);
        if was_down && health == HealthEvidence::Available {
            info!(%provider, target = %question.target, "target is available again");
        }
        let is_down = was_down && health != HealthEvidence::Available;
        if !is_down && !is_haunted {
            return;
        }
    }
}

/// Says whether a provider holds a zombie that a served token would show to be over.
fn is_haunted(provider: &Bound) -> bool {
    provider.gate().capacity() == 1
        && provider.gate().zombies() > 0
        && provider.probe().is_some_and(iop_execution::Probe::may_serve)
}

fn pauses() -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(FIRST_PAUSE), |pause| Some((*pause * 2).min(LONGEST_PAUSE)))
}

impl Health {
    /// A link is up: what is watched is watched for it.
    pub(crate) fn link_up(&self, generation: Generation) {
        let fresh = Watch { generation, ..Watch::default() };
        std::mem::replace(&mut *self.watch(), fresh).ended.cancel();
    }

    /// A link ended: nothing is watched for it any more.
    pub(crate) fn link_down(&self, generation: Generation) {
        let watch = self.watch();
        if watch.generation == generation {
            watch.ended.cancel();
        }
    }

    /// Notes that a target is watched, and whether it is unavailable; `None` when it is watched
    /// already, or when its link has ended.
    fn begin(
        &self,
        generation: Generation,
        provider: &ProviderKey,
        target: &Target,
        is_down: bool,
    ) -> Option<CancellationToken> {
        let mut watch = self.watch();
        if watch.generation != generation || watch.ended.is_cancelled() {
            return None;
        }
        match watch.targets.entry((provider.clone(), target.clone())) {
            Entry::Occupied(mut watched) => {
                *watched.get_mut() |= is_down;
                None
            }
            Entry::Vacant(place) => {
                place.insert(is_down);
                Some(watch.ended.clone())
            }
        }
    }

    /// Notes what another look showed; says whether the target is, or was until now, unavailable.
    fn note(
        &self,
        generation: Generation,
        provider: &ProviderKey,
        target: &Target,
        health: HealthEvidence,
    ) -> bool {
        let mut watch = self.watch();
        if watch.generation != generation {
            return false;
        }
        let watched = watch.targets.get_mut(&(provider.clone(), target.clone()));
        watched.is_some_and(|is_down| match health {
            HealthEvidence::Available => std::mem::take(is_down),
            HealthEvidence::Unavailable => {
                *is_down = true;
                true
            }
            HealthEvidence::Unknown => *is_down,
        })
    }

    fn end(&self, generation: Generation, provider: &ProviderKey, target: &Target) {
        let mut watch = self.watch();
        if watch.generation == generation {
            watch.targets.remove(&(provider.clone(), target.clone()));
        }
    }

    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().expect("no code panics while it holds the watch")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let seconds: Vec<_> = pauses().take(7).map(|pause| pause.as_secs()).collect();
        assert_eq!(seconds, [2, 4, 8, 16, 30, 30, 30]);
    }

    #[test]
    fn a_target_that_is_found_unavailable_while_it_is_watched_stays_so_until_it_is_seen_well() {
        let health = Health::default();
        let (generation, key, target) = (Generation(1), "p".into(), "m".into());
        health.link_up(generation);
        assert!(health.begin(generation, &key, &target, false).is_some());
        let note = |evidence| health.note(generation, &key, &target, evidence);
        assert!(!note(HealthEvidence::Unknown));
        assert!(health.begin(generation, &key, &target, true).is_none());
        assert!(note(HealthEvidence::Unknown), "nothing new is no recovery");
        assert!(note(HealthEvidence::Available), "until now");
        assert!(!note(HealthEvidence::Unknown));
    }

    #[test]
    fn a_target_is_watched_once_and_only_for_the_link_that_is_up() {
        let health = Health::default();
        let begin = |generation, target: &str| {
            health.begin(Generation(generation), &"p".into(), &target.into(), false)
        };
        health.link_up(Generation(1));
        let ended = begin(1, "m").unwrap();
        assert!(begin(1, "m").is_none(), "it is watched already");
        assert!(begin(1, "n").is_some());
        health.end(Generation(1), &"p".into(), &"m".into());
        assert!(begin(1, "m").is_some(), "a reason came up again");

        health.link_up(Generation(2));
        assert!(ended.is_cancelled());
        assert!(begin(1, "o").is_none(), "an old link tells nobody");
        assert!(begin(2, "m").is_some());
        health.link_down(Generation(1));
        assert!(begin(2, "n").is_some(), "the end of an old link is no news");
        health.link_down(Generation(2));
        assert!(begin(2, "o").is_none());
    }
}
