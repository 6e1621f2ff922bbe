//! The takeover rule, every branch.

use iop_link::seats::{ClaimId, Output, Seats};
use iop_types::{Generation, InstanceId, NodeId};

const FIRST: Generation = Generation(1);
const SECOND: Generation = Generation(2);

struct Desk(Seats);

impl Desk {
    /// A desk with one incumbent: instance 1 under generation 1.
    fn with_incumbent() -> Self {
        let mut desk = Self(Seats::default());
        let outputs = desk.claims(1, 1);
        assert_eq!(outputs, [Output::Seat { claim: ClaimId(1), generation: FIRST }]);
        desk
    }

    fn claims(&mut self, claim: u64, instance: u8) -> Vec<Output> {
        let instance = InstanceId::from_slice(&[instance; 16]).expect("16 bytes");
        self.0.handle_claim(node(), instance, ClaimId(claim));
        self.outputs()
    }

    fn challenged(&mut self, answered: bool) -> Vec<Output> {
        self.0.handle_challenge(&node(), FIRST, answered);
        self.outputs()
    }

    fn ended(&mut self, generation: Generation) -> Vec<Output> {
        self.0.handle_ended(&node(), generation);
        self.outputs()
    }

    fn outputs(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.0.poll_output()).collect()
    }
}

fn node() -> NodeId {
    NodeId::from("workstation")
}

#[test]
fn the_same_instance_takes_over_at_once_but_only_after_the_old_link_ended() {
    let mut desk = Desk::with_incumbent();
    assert_eq!(desk.claims(2, 1), [Output::Fence(FIRST)]);
    assert_eq!(desk.ended(FIRST), [Output::Seat { claim: ClaimId(2), generation: SECOND }]);
}

#[test]
fn another_instance_is_refused_when_the_incumbent_answers() {
    let mut desk = Desk::with_incumbent();
    assert_eq!(desk.claims(2, 2), [Output::Challenge(FIRST)]);
    assert_eq!(desk.challenged(true), [Output::Refuse(ClaimId(2))]);
    assert_eq!(desk.ended(FIRST), []);
}

#[test]
fn another_instance_takes_over_when_the_incumbent_stays_silent() {
    let mut desk = Desk::with_incumbent();
    assert_eq!(desk.claims(2, 2), [Output::Challenge(FIRST)]);
    assert_eq!(desk.challenged(false), [Output::Fence(FIRST)]);
    assert_eq!(desk.ended(FIRST), [Output::Seat { claim: ClaimId(2), generation: SECOND }]);
}

#[test]
fn a_challenger_is_seated_when_the_incumbent_ends_by_itself() {
    let mut desk = Desk::with_incumbent();
    desk.claims(2, 2);
    assert_eq!(desk.ended(FIRST), [Output::Seat { claim: ClaimId(2), generation: SECOND }]);
    assert_eq!(desk.challenged(true), [], "an answer of the old generation changes nothing");
}

#[test]
fn an_incumbent_that_reconnects_beats_its_challenger() {
    let mut desk = Desk::with_incumbent();
    desk.claims(2, 2);
    assert_eq!(desk.claims(3, 1), [Output::Refuse(ClaimId(2)), Output::Fence(FIRST)]);
    assert_eq!(desk.ended(FIRST), [Output::Seat { claim: ClaimId(3), generation: SECOND }]);
}

#[test]
fn a_challenger_that_dials_again_keeps_its_challenge() {
    let mut desk = Desk::with_incumbent();
    desk.claims(2, 2);
    assert_eq!(desk.claims(3, 2), [Output::Replace(ClaimId(2))]);
    assert_eq!(desk.challenged(true), [Output::Refuse(ClaimId(3))]);
}

#[test]
fn a_third_instance_is_refused_while_two_settle_it() {
    let mut desk = Desk::with_incumbent();
    desk.claims(2, 2);
    assert_eq!(desk.claims(3, 3), [Output::Refuse(ClaimId(3))]);
    desk.challenged(false);
    assert_eq!(desk.claims(4, 3), [Output::Refuse(ClaimId(4))]);
    assert_eq!(desk.claims(5, 1), [Output::Refuse(ClaimId(5))]);
}

#[test]
fn a_reconnect_of_a_reconnect_replaces_it() {
    let mut desk = Desk::with_incumbent();
    desk.claims(2, 1);
    assert_eq!(desk.claims(3, 1), [Output::Replace(ClaimId(2))]);
    assert_eq!(desk.ended(FIRST), [Output::Seat { claim: ClaimId(3), generation: SECOND }]);
}

#[test]
fn a_challenger_that_leaves_is_forgotten() {
    let mut desk = Desk::with_incumbent();
    desk.claims(2, 2);
    desk.0.handle_withdrawn(&node(), ClaimId(2));
    assert_eq!(desk.challenged(false), [], "nobody waits: the incumbent keeps its seat");
    assert_eq!(desk.claims(3, 3), [Output::Challenge(FIRST)]);
}

#[test]
fn generations_grow_over_nodes_and_never_come_again() {
    let mut desk = Desk::with_incumbent();
    desk.ended(FIRST);
    assert_eq!(desk.claims(2, 1), [Output::Seat { claim: ClaimId(2), generation: SECOND }]);
    let other = InstanceId::from_slice(&[9; 16]).unwrap();
    desk.0.handle_claim(NodeId::from("rack"), other, ClaimId(3));
    let third = Output::Seat { claim: ClaimId(3), generation: Generation(3) };
    assert_eq!(desk.outputs(), [third]);
    assert_eq!(desk.ended(FIRST), [], "an end that comes late ends nobody");
}
