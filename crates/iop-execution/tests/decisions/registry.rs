//! Look-up, live swap, and who may start and stop.

use std::pin::pin;
use std::sync::Arc;

use crate::support::{Counting, boot, configuration, now, poll};
use iop_execution::{Bootstrap, Draining, Registry, registry};
use iop_types::AdapterType::{Mock, OpenaiCompat, Vllm};
use iop_types::{ConfigRevision, ProviderRevision, Refusal};

const CAPACITY: u32 = 2;

/// Swaps in these providers, each at the configuration's own counter.
fn configure(
    bootstrap: &mut Bootstrap,
    counter: u64,
    providers: &[(&str, &Arc<Counting>)],
) -> Draining {
    let mut draft = bootstrap.draft(configuration(counter));
    for (key, provider) in providers {
        let provider = Arc::clone(*provider);
        draft
            .add((*key).into(), ProviderRevision(counter), CAPACITY, provider)
            .expect("keys differ");
    }
    now(draft.start()).swap()
}

fn serving(providers: &[(&str, &Arc<Counting>)]) -> (Bootstrap, Registry) {
    let (mut bootstrap, registry) = registry();
    now(configure(&mut bootstrap, 1, providers).finish());
    (bootstrap, registry)
}

fn key_of(registry: &Registry, name: &str) -> Result<String, Refusal> {
    registry.find(&name.into()).map(|bound| bound.key().to_string())
}

#[test]
fn an_instance_key_beats_an_equal_type_name() {
    let (key_named_like_a_type, other) = (Counting::new(Mock), Counting::new(Vllm));
    let (_bootstrap, registry) = serving(&[("vllm", &key_named_like_a_type), ("rack", &other)]);
    let bound = registry.find(&"vllm".into()).unwrap();
    assert_eq!((bound.key().as_str(), bound.adapter()), ("vllm", Mock));
}

#[test]
fn a_type_name_finds_the_only_instance_of_the_type() {
    let (a, b) = (Counting::new(Mock), Counting::new(Vllm));
    let (_bootstrap, registry) = serving(&[("lab", &a), ("rack", &b)]);
    assert_eq!(key_of(&registry, "vllm"), Ok("rack".into()));
}

#[test]
fn a_type_name_with_several_instances_is_refused_naming_all_of_them() {
    let (a, b, c) = (Counting::new(Vllm), Counting::new(Vllm), Counting::new(Vllm));
    let (_bootstrap, registry) = serving(&[("b", &b), ("a", &a), ("c", &c)]);
    let choices = ["a", "b", "c"].map(String::from).to_vec();
    let refused = Refusal::AmbiguousProvider { type_name: "vllm".into(), choices };
    assert_eq!(key_of(&registry, "vllm"), Err(refused.clone()));
    let bound = registry.bind(&"vllm".into(), ProviderRevision(1));
    assert_eq!(bound.err(), Some(refused));
}

#[test]
fn a_name_that_nothing_ever_had_is_unknown() {
    let a = Counting::new(Mock);
    let (_bootstrap, registry) = serving(&[("lab", &a)]);
    let refused = Refusal::UnknownProvider { provider: "nope".into() };
    assert_eq!(registry.bind(&"nope".into(), ProviderRevision(1)).err(), Some(refused));
}

#[test]
fn a_request_binds_to_the_draining_snapshot_that_has_its_revision() {
    let (old, new) = (Counting::new(Mock), Counting::new(Mock));
    let (mut bootstrap, registry) = serving(&[("lab", &old)]);
    let running = registry.bind(&"lab".into(), ProviderRevision(1)).unwrap();
    let draining = configure(&mut bootstrap, 2, &[("lab", &new)]);

    let late = registry.bind(&"lab".into(), ProviderRevision(1)).unwrap();
    assert_eq!(late.revision(), ProviderRevision(1));
    let fresh = registry.bind(&"lab".into(), ProviderRevision(2)).unwrap();
    assert_eq!(fresh.revision(), ProviderRevision(2));

    let mut finish = pin!(draining.finish());
    assert_eq!(poll(&mut finish), None);
    assert_eq!(old.stops(), 0, "calls of the old snapshot are still running");
    drop(running);
    assert_eq!(poll(&mut finish), None);
    drop(late);
    assert_eq!(poll(&mut finish), Some(()));
    assert_eq!((old.stops(), new.stops()), (1, 0));
}

#[test]
fn a_provider_that_was_stopped_is_not_bound_again_while_its_snapshot_drains_on() {
    let (a, b) = (Counting::new(Mock), Counting::new(Vllm));
    let (mut bootstrap, registry) = serving(&[("a", &a), ("b", &b)]);
    let running = registry.bind(&"b".into(), ProviderRevision(1)).unwrap();
    let mut finish = pin!(configure(&mut bootstrap, 2, &[]).finish());
    assert_eq!(poll(&mut finish), None);
    assert_eq!((a.stops(), b.stops()), (1, 0));
    let refused = registry.bind(&"a".into(), ProviderRevision(1)).err();
    assert_eq!(refused, Some(Refusal::StaleConfig { revision: 1 }));
    assert!(registry.bind(&"b".into(), ProviderRevision(1)).is_ok());
    drop(running);
    assert_eq!(poll(&mut finish), Some(()));
}

#[test]
fn a_revision_that_is_neither_current_nor_draining_is_stale() {
    let (old, new) = (Counting::new(Mock), Counting::new(Mock));
    let (mut bootstrap, registry) = serving(&[("lab", &old)]);
    now(configure(&mut bootstrap, 2, &[("lab", &new)]).finish());
    for revision in [0, 1, 3] {
        let refused = registry.bind(&"lab".into(), ProviderRevision(revision)).err();
        assert_eq!(refused, Some(Refusal::StaleConfig { revision }));
    }
}

#[test]
fn a_provider_that_was_removed_is_stale_and_not_unknown() {
    let (lab, rack) = (Counting::new(Mock), Counting::new(Vllm));
    let (mut bootstrap, registry) = serving(&[("lab", &lab), ("rack", &rack)]);
    now(configure(&mut bootstrap, 2, &[("rack", &rack)]).finish());
    let refused = registry.bind(&"lab".into(), ProviderRevision(1)).err();
    assert_eq!(refused, Some(Refusal::StaleConfig { revision: 1 }));
    assert_eq!(lab.stops(), 1);
}

#[test]
fn equal_counters_of_another_edge_boot_do_not_meet_a_draining_snapshot() {
    let (old, new) = (Counting::new(Mock), Counting::new(Mock));
    let (mut bootstrap, registry) = serving(&[("lab", &old)]);
    let _running = registry.bind(&"lab".into(), ProviderRevision(1)).unwrap();
    let mut draft = bootstrap.draft(ConfigRevision { boot: boot(2), counter: 9 });
    draft.add("lab".into(), ProviderRevision(9), CAPACITY, new).unwrap();
    let _draining = now(draft.start()).swap();
    let refused = registry.bind(&"lab".into(), ProviderRevision(1)).err();
    assert_eq!(refused, Some(Refusal::StaleConfig { revision: 1 }));
}

#[test]
fn an_unchanged_provider_keeps_its_instance_and_its_gate_over_a_swap() {
    let lab = Counting::new(Mock);
    let (mut bootstrap, registry) = serving(&[("lab", &lab)]);
    let before = registry.bind(&"lab".into(), ProviderRevision(1)).unwrap();
    let permit = before.gate().try_acquire().unwrap();

    let mut draft = bootstrap.draft(configuration(2));
    assert_eq!(draft.keep(&"lab".into(), ProviderRevision(1), CAPACITY), Ok(true));
    assert_eq!(draft.keep(&"gone".into(), ProviderRevision(1), CAPACITY), Ok(false));
    now(now(draft.start()).swap().finish());

    let after = registry.bind(&"lab".into(), ProviderRevision(1)).unwrap();
    assert!(after.gate().is_same(before.gate()));
    assert_eq!(after.gate().in_use(), 1);
    assert_eq!((lab.starts(), lab.stops()), (1, 0));
    drop(permit);
    assert_eq!(after.gate().in_use(), 0);
}

#[test]
fn a_changed_provider_has_a_new_instance_and_calls_of_the_old_one_keep_counting() {
    let (old, new) = (Counting::new(Mock), Counting::new(Mock));
    let (mut bootstrap, registry) = serving(&[("lab", &old)]);
    let running = registry.bind(&"lab".into(), ProviderRevision(1)).unwrap();
    let permit = running.gate().try_acquire().unwrap();
    let mut draft = bootstrap.draft(configuration(2));
    draft.add("lab".into(), ProviderRevision(2), 1, Arc::clone(&new) as _).unwrap();
    let _draining = now(draft.start()).swap();

    let bound = registry.bind(&"lab".into(), ProviderRevision(2)).unwrap();
    let full = bound.gate().try_acquire().err();
    assert_eq!(full, Some(Refusal::CapacityExceeded { capacity: 1 }));
    drop(permit);
    assert!(bound.gate().try_acquire().is_ok());
}

#[test]
fn a_gate_outlives_the_removal_of_its_provider_while_calls_count() {
    let (lab, back) = (Counting::new(Mock), Counting::new(Mock));
    let (mut bootstrap, registry) = serving(&[("lab", &lab)]);
    let running = registry.bind(&"lab".into(), ProviderRevision(1)).unwrap();
    let _permit = running.gate().try_acquire().unwrap();
    let _removal = configure(&mut bootstrap, 2, &[]);
    let _return = configure(&mut bootstrap, 3, &[("lab", &back)]);
    let bound = registry.bind(&"lab".into(), ProviderRevision(3)).unwrap();
    assert_eq!(bound.gate().in_use(), 1);
}

#[test]
fn a_provider_that_does_not_start_is_left_out_with_its_reason() {
    let failing = Counting::that_refuses_to_start(Mock);
    let good = Counting::new(Vllm);
    let (mut bootstrap, registry) = registry();
    let mut draft = bootstrap.draft(configuration(1));
    draft.add("bad".into(), ProviderRevision(1), CAPACITY, failing).unwrap();
    draft.add("good".into(), ProviderRevision(1), CAPACITY, good).unwrap();
    let started = now(draft.start());
    assert_eq!(started.failures().len(), 1);
    assert_eq!(started.failures()[0].provider.as_str(), "bad");
    now(started.swap().finish());
    assert!(registry.find(&"bad".into()).is_err());
    assert!(registry.find(&"good".into()).is_ok());
}

#[test]
fn a_discarded_snapshot_is_stopped_and_the_current_one_goes_on() {
    let (current, next) = (Counting::new(Mock), Counting::new(Vllm));
    let (mut bootstrap, registry) = serving(&[("lab", &current)]);
    let mut draft = bootstrap.draft(configuration(2));
    assert_eq!(draft.keep(&"lab".into(), ProviderRevision(1), CAPACITY), Ok(true));
    draft.add("rack".into(), ProviderRevision(2), CAPACITY, Arc::clone(&next) as _).unwrap();
    now(now(draft.start()).discard());
    assert_eq!((next.starts(), next.stops()), (1, 1));
    assert_eq!((current.starts(), current.stops()), (1, 0));
    assert_eq!(registry.revision(), Some(configuration(1)));
    assert_eq!(key_of(&registry, "lab"), Ok("lab".into()));
}

#[test]
fn one_configuration_cannot_use_a_key_twice() {
    let (mut bootstrap, _registry) = registry();
    let mut draft = bootstrap.draft(configuration(1));
    draft.add("lab".into(), ProviderRevision(1), CAPACITY, Counting::new(Mock)).unwrap();
    let again = draft.add("lab".into(), ProviderRevision(1), CAPACITY, Counting::new(Vllm));
    let message = again.unwrap_err().to_string();
    assert!(message.contains("`lab` is used twice"), "{message}");
}

#[test]
fn shutdown_stops_each_provider_once_after_its_last_call() {
    let (lab, rack) = (Counting::new(OpenaiCompat), Counting::new(Vllm));
    let (bootstrap, registry) = serving(&[("lab", &lab), ("rack", &rack)]);
    let call = registry.find(&"rack".into()).unwrap();
    let mut finish = pin!(bootstrap.shutdown().finish());
    assert_eq!(poll(&mut finish), None);
    assert!(registry.find(&"rack".into()).is_err());
    drop(call);
    assert_eq!(poll(&mut finish), Some(()));
    assert_eq!((lab.starts(), lab.stops(), rack.starts(), rack.stops()), (1, 1, 1, 1));
}

#[test]
fn nothing_is_bound_to_an_instance_that_was_stopped_under_concurrent_swaps() {
    let (mut bootstrap, registry) = serving(&[("lab", &Counting::new(Mock))]);
    std::thread::scope(|scope| {
        let binder = scope.spawn(|| {
            while let Some(ConfigRevision { counter: 0..200, .. }) = registry.revision() {
                for bound in registry.providers() {
                    std::thread::yield_now();
                    // The provider itself fails a call that comes after its stop.
                    now(bound.discover()).expect("it lists nothing");
                }
            }
        });
        for counter in 2..=200 {
            let next = Counting::new(Mock);
            let draining = configure(&mut bootstrap, counter, &[("lab", &next)]);
            let mut finish = pin!(draining.finish());
            while poll(&mut finish).is_none() {
                std::thread::yield_now();
            }
            assert_eq!(next.stops(), 0);
        }
        binder.join().unwrap();
    });
    assert!(registry.bind(&"lab".into(), ProviderRevision(200)).is_ok());
    assert!(registry.bind(&"lab".into(), ProviderRevision(199)).is_err());
}
