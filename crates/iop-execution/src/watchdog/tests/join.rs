//! What follows the claim, and whatever may cut it short at whatever point.

use super::*;

/// F53: the return within the grace is what makes the hint.
#[test]
fn a_return_within_the_grace_is_confirmed_and_one_moment_later_it_is_not() {
    let mut call = Call::stalled();
    call.advance(CLOSE_GRACE - Duration::from_nanos(1));
    call.returned(Ownership::Confirmed);
    call.advance(PROBE_BOUND);
    assert!(call.stall().is_retryable());

    let mut late = Call::stalled();
    late.advance(CLOSE_GRACE);
    assert_eq!(late.settled.map(|(_, ownership)| ownership), Some(Ownership::Unconfirmed));
    late.returned(Ownership::Confirmed);
    late.advance(PROBE_BOUND);
    assert!(!late.stall().is_retryable(), "what comes after the reset confirms nothing");
}

/// At the very end of the grace the return that was seen counts.
#[test]
fn a_return_seen_at_the_instant_at_which_the_grace_ends_is_confirmed() {
    let mut call = Call::stalled();
    call.now += CLOSE_GRACE;
    call.returned(Ownership::Confirmed);
    assert_eq!(call.settled.map(|(_, ownership)| ownership), Some(Ownership::Confirmed));
}

/// F50: the provider keeps its connection. The permit is settled at the grace, not at the terminal.
#[test]
fn a_provider_that_ignores_its_cancel_is_given_up_at_the_end_of_the_grace() {
    let mut call = Call::stalled();
    let claimed = call.now;
    call.advance(PROBE_BOUND);
    assert_eq!(call.settled, Some((claimed + CLOSE_GRACE, Ownership::Unconfirmed)));
    assert_eq!(call.ended.map(|(at, _)| at), Some(claimed + PROBE_BOUND));
    let stall = call.stall();
    assert_eq!(stall.ownership, Ownership::Unconfirmed);
}

/// An adapter that reset a connection by itself saw no return.
#[test]
fn a_call_that_was_abandoned_by_its_adapter_is_unconfirmed() {
    let mut call = Call::stalled();
    call.returned(Ownership::Unconfirmed);
    call.probed(HealthEvidence::Available);
    assert!(!call.stall().is_retryable());

    let mut own = Call::sent();
    own.returned(Ownership::Unconfirmed);
    assert_eq!(own.end(), Some(End::Own));
    assert_eq!(own.settled.map(|(_, ownership)| ownership), Some(Ownership::Unconfirmed));
}

/// F54: a probe that hangs proves nothing.
#[test]
fn the_join_lasts_the_longer_of_grace_and_probe_and_never_their_sum() {
    for (returns, probes) in [(0, 0), (0, 5), (1, 3), (2, 1), (2, 2), (9, 1), (1, 9), (9, 9)] {
        let mut call = Call::stalled();
        let claimed = call.now;
        for second in 0..=6 {
            call.advance_up_to(claimed + second * SECOND);
            let returned = (second == returns).then_some(Ownership::Confirmed);
            let health = (second == probes).then_some(HealthEvidence::Available);
            call.see(Seen { returned, health, ..Seen::default() });
        }
        let grace = (returns * SECOND).min(CLOSE_GRACE);
        let probe = (probes * SECOND).min(PROBE_BOUND);
        let stall = call.stall();
        assert_eq!(call.ended.map(|(at, _)| at - claimed), Some(grace.max(probe)));
        let (confirmed, seen) = (returns <= 2, probes <= 5);
        assert_eq!(stall.is_retryable(), confirmed, "{returns} {probes}");
        assert_eq!(stall.health == HealthEvidence::Available, seen, "{returns} {probes}");
    }
}

#[test]
fn a_probe_that_finds_the_provider_well_changes_nothing_but_the_evidence() {
    let mut call = Call::stalled();
    call.probed(HealthEvidence::Available);
    assert_eq!((call.end(), call.settled), (None, None));
    // Late output: the fence holds it back, and here it must not count either.
    call.progress();
    call.advance(CLOSE_GRACE);
    let stall = call.stall();
    assert_eq!((stall.silent, stall.ownership), (STALL, Ownership::Unconfirmed));
    assert_eq!(stall.health, HealthEvidence::Available);
}

#[test]
fn each_evidence_of_the_probe_is_in_the_terminal_and_the_number_is_left_to_the_link() {
    for health in HealthEvidence::ALL {
        let mut call = Call::stalled();
        call.probed(*health);
        call.returned(Ownership::Confirmed);
        let stall = call.stall();
        assert_eq!((stall.health, stall.observation_seq), (*health, None));
    }
}

/// What may cut a join short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Deadline,
    ToldDeadline,
    Cancel,
    Disconnect,
}

/// Deadline, cancel and disconnect at every point of the join: before, at and after the return, the
/// probe's answer, the end of the grace and the end of the probe, each at the same instant too.
#[test]
fn whatever_cuts_a_join_short_at_whatever_point_leaves_one_stall_or_nothing() {
    let times = [0, 500, 1_000, 1_500, 2_000, 2_500, 5_000, 6_000];
    let sometime = times.map(Some).into_iter().chain([None]);
    let all = sometime.clone().flat_map(|returns| {
        let probes = sometime.clone();
        probes.flat_map(move |probes| times.map(|cut| (returns, probes, cut)))
    });
    for (returns, probes, cut_at) in all {
        for cut in [Cut::Deadline, Cut::ToldDeadline, Cut::Cancel, Cut::Disconnect] {
            check_cut(returns, probes, cut_at, cut);
        }
    }
}

fn check_cut(returns: Option<u64>, probes: Option<u64>, cut_at: u64, cut: Cut) {
    let case = format!("returns {returns:?}, probes {probes:?}, {cut:?} at {cut_at}");
    let ms = Duration::from_millis;
    let mut call = Call::sent_with(|now| Rules {
        ends_by: (cut == Cut::Deadline).then(|| now + STALL + ms(cut_at)),
        ..plain(now)
    });
    if cut == Cut::Deadline && cut_at == 0 {
        // At the same instant as the claim: there is no join.
        return;
    }
    call.advance(STALL);
    let claimed = call.now;
    for step in 0..=12 {
        let at = step * 500;
        let is_cut = at == cut_at;
        let seen = Seen {
            disconnected: is_cut && cut == Cut::Disconnect,
            cancelled: match cut {
                Cut::ToldDeadline if is_cut => Some(Cancel::Deadline),
                Cut::Cancel if is_cut => Some(Cancel::Asked),
                _ => None,
            },
            returned: (returns == Some(at)).then_some(Ownership::Confirmed),
            health: (probes == Some(at)).then_some(HealthEvidence::Available),
        };
        call.advance_up_to(claimed + ms(at));
        call.see(seen);
    }

    let is_confirmed = returns.is_some_and(|at| at <= 2_000);
    let settled_at = returns.unwrap_or(2_000).min(2_000);
    let probed_at = probes.unwrap_or(5_000).min(5_000);
    let joined_at = settled_at.max(probed_at);
    let ownership = if is_confirmed { Ownership::Confirmed } else { Ownership::Unconfirmed };
    assert_eq!(call.settled, Some((claimed + ms(settled_at), ownership)), "{case}");
    assert!(call.watchdog.is_over(), "{case}");
    if cut == Cut::Disconnect && cut_at <= joined_at {
        return assert_eq!(call.end(), None, "{case}");
    }
    let stall = call.stall();
    let ended_at = cut_at.min(joined_at);
    assert_eq!(call.ended.map(|(at, _)| at), Some(claimed + ms(ended_at)), "{case}");
    assert_eq!(stall.is_retryable(), is_confirmed && settled_at <= ended_at, "{case}");
    let was_probed = probes.is_some_and(|at| at <= 5_000 && at <= ended_at);
    assert_eq!(stall.health == HealthEvidence::Available, was_probed, "{case}");
    assert_eq!((stall.silent, stall.timeout), (STALL, STALL), "{case}");
}
