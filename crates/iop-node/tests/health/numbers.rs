//! The numbers of what is observed on one link while everything falls silent: real calls over real
//! sockets, and a clock that the test moves.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use iop_net::link::EdgeStream;
use iop_node::Secrets;
use iop_testkit::script::Step;
use iop_testkit::{PATIENCE, ScriptedProvider, answer, kernel};
use iop_wire::v1::{self, HealthEvidence, ProviderState};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::advance;

use super::{PATH, stall};
use crate::support::{Rig, all, head, is_terminal, provider, run, tunnel};

/// Half of them runs and half of them tunnels, half of either silent for the first time and half for
/// the second.
const CALLS: usize = 1_000;
/// Each is looked at by itself, and again while it is unavailable.
const TARGETS: u32 = 20;
const STEP: Duration = Duration::from_millis(10);
/// The silence that the first half is allowed, in steps. Two seconds later, targets that it showed to be
/// unavailable are looked at again.
const FIRST: u32 = 100;
/// The silence that the second half is allowed, a step more with each target: half of it ends before
/// those looks, half after.
const SECOND: u32 = FIRST + 200 - TARGETS / 2;
/// Both looks of a call's timer, and some.
const MORE: u32 = 5;

/// A clock that stands still though every task waits: without a task that always has something to do,
/// a paused clock goes on to the next timer while bytes are on their way.
struct Clock(JoinHandle<()>);

impl Clock {
    fn stop() -> Self {
        tokio::time::pause();
        Self(tokio::spawn(async {
            loop {
                yield_now().await;
            }
        }))
    }

    /// Goes on in small steps; whoever is due in one has had its turn before the next, so that nobody
    /// takes itself for late.
    async fn go_on(&self, steps: u32) {
        // A runtime that is busy looks at its timers and sockets in every 61st turn.
        const TURNS: usize = 100;
        for _ in 0..steps {
            advance(STEP).await;
            for _ in 0..TURNS {
                yield_now().await;
            }
        }
    }

    /// Lets everybody work at an unchanged time until something is so.
    async fn stand_until(&self, what: &str, is_so: impl Fn() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain until {what}");
            yield_now().await;
        }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What the Edge has heard, in the order in which it came.
#[derive(Default)]
struct Heard {
    begun: usize,
    /// The numbers in terminals.
    numbers: Vec<u64>,
}

const NOBODY: &str = "nobody panics who holds it";

/// Takes the answers of one call.
async fn listen(mut stream: EdgeStream, heard: Arc<Mutex<Heard>>) {
    let first = stream.recv().await.expect("its link lives");
    assert!(!is_terminal(&first), "{first:?}");
    heard.lock().expect(NOBODY).begun += 1;
    let stall = stall(&all(stream).await);
    assert_eq!(stall.health(), HealthEvidence::UnavailableProviderUnhealthy);
    let number = stall.health_observation_seq.expect("a number of its link");
    heard.lock().expect(NOBODY).numbers.push(number);
}

#[tokio::test]
async fn a_thousand_runs_and_tunnels_that_stall_and_looks_beside_them_are_numbered_as_they_are_final()
 {
    kernel::allow_many_files();
    let lab = ScriptedProvider::start().await;
    let targets: Vec<_> = (0..TARGETS).map(|target| format!("m{target}")).collect();
    lab.set_models(&targets.iter().map(String::as_str).collect::<Vec<_>>());
    lab.on("/health", |_| answer::error(500, "e", "e", "the engine is dead"));
    lab.on(PATH, |request| answer::stream_start(request).then(Step::Hold));
    let max_concurrency = CALLS.try_into().unwrap();
    let entry =
        v1::ProviderConfig { max_concurrency, ..provider("lab", "openai_compat", &lab.endpoint()) };
    let rig = Rig::start(vec![entry], Secrets::default()).await;
    rig.wait_for_state("lab", ProviderState::Ready).await;

    let clock = Clock::stop();
    let heard = Arc::new(Mutex::new(Heard::default()));
    let ended = |count| move |heard: &Heard| heard.numbers.len() == count;
    let is_so = |is_so: &dyn Fn(&Heard) -> bool| is_so(&heard.lock().unwrap());
    let call = |index: usize, silence: u32| {
        let target = &targets[index % targets.len()];
        let head = v1::RequestHead {
            response_stall_timeout_ms: (STEP * silence).as_millis().try_into().unwrap(),
            ..head("lab", target)
        };
        let message =
            if (index / targets.len()).is_multiple_of(2) { run(head) } else { tunnel(head) };
        let body = format!(r#"{{"model":"{target}","stream":true,"messages":[]}}"#);
        tokio::spawn(listen(rig.send(message, &body), Arc::clone(&heard)))
    };
    let mut calls = Vec::with_capacity(CALLS);
    for index in 0..CALLS {
        let later = u32::try_from(index % targets.len()).unwrap();
        calls.push(call(index, if index < CALLS / 2 { FIRST } else { SECOND + later }));
    }
    clock.stand_until("all have begun", || is_so(&|heard| heard.begun == CALLS)).await;

    clock.go_on(FIRST + MORE).await;
    clock.stand_until("the first half has ended", || is_so(&ended(CALLS / 2))).await;
    clock.go_on(SECOND - FIRST + TARGETS + MORE).await;
    clock.stand_until("all have ended", || is_so(&ended(CALLS))).await;
    for call in calls {
        call.await.unwrap();
    }
    let looks = rig.wait_until(|seen| seen.observations.len() == targets.len()).await.observations;
    let last = call(0, FIRST);
    clock.go_on(FIRST + MORE).await;
    last.await.unwrap();

    let in_terminals = std::mem::take(&mut heard.lock().unwrap().numbers);
    let in_looks: Vec<_> = looks.iter().map(|look| look.health_observation_seq).collect();
    let total = (CALLS + targets.len() + 1) as u64;
    let mut numbers = [in_terminals.as_slice(), &in_looks].concat();
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq(1..=total), "each number once, from 1: {numbers:?}");
    assert!(in_terminals.is_sorted(), "numbers grow as terminals become final: {in_terminals:?}");
    assert!(in_looks.is_sorted(), "numbers grow as looks become final: {in_looks:?}");
    let among =
        |number: &u64| in_terminals[CALLS / 2] < *number && *number < in_terminals[CALLS - 1];
    assert!(in_looks.iter().any(among), "they were final among each other: {in_looks:?}");
    assert_eq!(in_terminals[CALLS], total, "what is final last has the last");
}
