//! The order of checks, and that each refusal leaves nothing behind.

use std::sync::Arc;

use crate::support::{Counting, configuration, now, work};
use iop_execution::{Admitted, Asked, Checks, Need, Work, registry};
use iop_types::{AdapterType, Generation, ProviderKey, ProviderRevision, Refusal, RunKind};

const REVISION: ProviderRevision = ProviderRevision(1);

struct Node {
    checks: Checks,
    lab: Arc<Counting>,
    key: ProviderKey,
}

impl Node {
    fn new() -> Self {
        let (mut bootstrap, registry) = registry();
        let lab = Counting::new(AdapterType::OpenaiCompat);
        let mut draft = bootstrap.draft(configuration(1));
        draft.add("lab".into(), REVISION, 1, Arc::clone(&lab) as _).expect("an empty draft");
        now(now(draft.start()).swap().finish());
        Self { checks: Checks { work: Work::new(), registry }, lab, key: "lab".into() }
    }

    fn asked(&self) -> Asked<'_> {
        Asked {
            stall_timeout_ms: 0,
            work: work(1, 1),
            generation: Generation(1),
            provider: &self.key,
            revision: REVISION,
            need: Need::Run(RunKind::Chat),
        }
    }

    /// Look-ups, permits and calls of the adapter so far, and work at hand.
    fn touched(&self) -> (u64, u32, u32, usize) {
        let lookups = self.checks.registry.lookups();
        let permits = self.checks.registry.providers()[0].gate().in_use();
        (lookups, permits, self.lab.calls(), self.checks.work.len())
    }

    fn refusal(&self, asked: &Asked<'_>) -> Refusal {
        self.checks.admit(asked).and_then(Admitted::pass_gate).err().expect("a refusal")
    }
}

#[test]
fn a_bad_stall_field_is_refused_before_any_look_up_permit_or_call() {
    let node = Node::new();
    let unknown = ProviderKey::from("nope");
    for ms in [-1, 86_400_001, i64::MIN, i64::MAX] {
        let needs = [
            Need::Run(RunKind::Chat),
            Need::Tunnel { method: "POST", path_and_query: "/v1/chat/completions" },
        ];
        for need in needs {
            // Everything else is wrong as well: the stall field still comes first.
            let asked = Asked { stall_timeout_ms: ms, provider: &unknown, need, ..node.asked() };
            assert!(matches!(node.refusal(&asked), Refusal::StallTimeout(error) if error.ms == ms));
        }
    }
    assert_eq!(node.touched(), (0, 0, 0, 0));
}

#[test]
fn an_absent_stall_field_means_five_minutes_and_any_other_arrives_unchanged() {
    let node = Node::new();
    for (ms, expected) in [(0, 300_000), (1, 1), (120_000, 120_000), (86_400_000, 86_400_000)] {
        let asked = Asked { stall_timeout_ms: ms, ..node.asked() };
        let passed = node.checks.admit(&asked).unwrap().pass_gate().unwrap();
        assert_eq!(passed.stall_timeout.as_wire(), expected);
    }
}

#[test]
fn a_duplicate_is_refused_before_the_registry_is_asked() {
    let node = Node::new();
    let _first = node.checks.admit(&node.asked()).unwrap();
    let unknown = ProviderKey::from("nope");
    let asked = Asked { provider: &unknown, ..node.asked() };
    assert_eq!(node.refusal(&asked), Refusal::Duplicate);
    assert_eq!(node.checks.registry.lookups(), 1, "only the first request looked");
}

#[test]
fn a_stale_revision_is_refused_before_the_gate() {
    let node = Node::new();
    let holder = node.checks.admit(&node.asked()).unwrap().pass_gate().unwrap();
    let asked = Asked { work: work(2, 1), revision: ProviderRevision(7), ..node.asked() };
    assert_eq!(node.refusal(&asked), Refusal::StaleConfig { revision: 7 });
    drop(holder);
}

#[test]
fn what_the_adapter_cannot_do_is_refused_before_the_gate() {
    let node = Node::new();
    let refused = [
        (Need::Run(RunKind::Rerank), "rerank runs"),
        (Need::Tunnel { method: "GET", path_and_query: "/v1/chat/completions" }, "GET /v1/chat"),
        (Need::Tunnel { method: "POST", path_and_query: "/v1/files?x=1" }, "POST /v1/files"),
        (Need::Tunnel { method: "POST", path_and_query: "/v1/chat/../files" }, "POST /v1/chat/.."),
    ];
    for (need, named) in refused {
        let refusal = node.refusal(&Asked { need, ..node.asked() });
        assert!(matches!(&refusal, Refusal::Unsupported { what } if what.starts_with(named)));
    }
    assert_eq!(node.touched(), (4, 0, 0, 0));
    let need = Need::Tunnel { method: "POST", path_and_query: "/v1/chat/completions?a=1" };
    assert!(node.checks.admit(&Asked { need, ..node.asked() }).is_ok());
}

#[test]
fn a_full_provider_refuses_and_the_refused_request_may_come_again() {
    let node = Node::new();
    let holder = node.checks.admit(&node.asked()).unwrap().pass_gate().unwrap();
    let second = Asked { work: work(2, 1), ..node.asked() };
    assert_eq!(node.refusal(&second), Refusal::CapacityExceeded { capacity: 1 });
    assert_eq!(node.checks.work.len(), 1, "the refused request left the table");
    drop(holder);
    assert!(node.checks.admit(&second).unwrap().pass_gate().is_ok());
    assert_eq!(node.touched(), (3, 0, 0, 0));
}

#[test]
fn a_draining_node_refuses_what_is_new() {
    let node = Node::new();
    node.checks.work.drain();
    assert_eq!(node.refusal(&node.asked()), Refusal::Draining);
}
