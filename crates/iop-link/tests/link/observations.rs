//! Health observations: numbered by the link that carries them, and by no other.

use std::collections::BTreeSet;
use std::time::Duration;

use iop_link::edge;
use iop_testkit::Line;
use iop_types::CloseReason;
use iop_wire::v1;

use crate::support::Pair;

fn observation(target: &str) -> v1::HealthObservation {
    v1::HealthObservation {
        adapter: "p".into(),
        target: target.into(),
        health: v1::HealthEvidence::UnavailableProviderUnhealthy.into(),
        health_observation_seq: 0,
    }
}

/// What the Edge was told, as targets and numbers.
fn told(pair: &Pair) -> Vec<(String, u64)> {
    let of = |output: &edge::Output| match output {
        edge::Output::Observation(seen) => Some((seen.target.clone(), seen.health_observation_seq)),
        _ => None,
    };
    pair.edge.told.iter().filter_map(of).collect()
}

#[test]
fn the_first_observation_is_1_on_every_link() {
    for _ in 0..3 {
        let mut pair = Pair::up(Line::LOCAL);
        assert_eq!(pair.node.link.number_observation(), Some(1));
        assert_eq!(pair.node.link.number_observation(), Some(2));
    }
}

#[test]
fn terminals_and_messages_share_one_sequence() {
    let mut pair = Pair::up(Line::LOCAL);
    assert_eq!(pair.node.link.number_observation(), Some(1));
    assert_eq!(pair.node.link.send_observation(observation("m")), Some(2));
    assert_eq!(pair.node.link.number_observation(), Some(3));
    assert_eq!(pair.node.link.send_observation(observation("n")), Some(4));
    pair.run(Duration::from_millis(1));
    assert_eq!(told(&pair), [("m".to_owned(), 2), ("n".to_owned(), 4)]);
}

#[test]
fn an_observation_has_no_number_before_the_link_is_up_nor_after_its_end() {
    let mut pair = Pair::connected(Line::LOCAL);
    assert_eq!(pair.node.link.number_observation(), None);
    assert_eq!(pair.node.link.send_observation(observation("m")), None);

    let mut pair = Pair::up(Line::LOCAL);
    let now = pair.clock.now();
    pair.node.link.fence(now, CloseReason::ShuttingDown);
    assert_eq!(pair.node.link.number_observation(), None);
    assert_eq!(pair.node.link.send_observation(observation("m")), None);
    pair.run(Duration::from_millis(1));
    assert_eq!(told(&pair), []);
}

#[test]
fn what_waits_is_bounded_by_the_targets_and_the_newest_of_each_is_sent() {
    let mut pair = Pair::up(Line::LOCAL);
    for _ in 0..1_000 {
        pair.node.link.send_observation(observation("m"));
        pair.node.link.send_observation(observation("n"));
    }
    pair.run(Duration::from_millis(1));
    assert_eq!(told(&pair), [("m".to_owned(), 1_999), ("n".to_owned(), 2_000)]);
    let numbers: BTreeSet<_> = told(&pair).into_iter().map(|(_, seq)| seq).collect();
    assert_eq!(numbers.len(), 2);
}

#[test]
fn an_edge_that_observes_breaks_the_protocol() {
    use iop_wire::Message;
    let mut pair = Pair::up(Line::LOCAL);
    let now = pair.clock.now();
    let message = Message::HealthObservation(observation("m"));
    crate::support::feed(&mut pair.node.link, now, &crate::support::bytes(0, 0, message));
    assert_eq!(pair.node.link.close_reason(), Some(CloseReason::ProtocolError));
}
