//! Ends other than a stall, and which of several wins.

use super::*;

#[test]
fn a_cancelled_call_is_stopped_and_ends_when_it_returned_or_its_grace_is_over() {
    for (cancel, end) in
        [(Cancel::Asked, End::Cancelled), (Cancel::Deadline, End::Deadline(Deadline::Told))]
    {
        let mut returns = Call::sent();
        returns.cancelled(cancel);
        assert_eq!((returns.stopped, returns.end()), (Some(returns.now), None));
        returns.advance(SECOND);
        returns.returned(Ownership::Confirmed);
        assert_eq!(returns.ended, Some((returns.now, end)));
        assert!(returns.watchdog.is_over());

        let mut ignores = Call::sent();
        ignores.cancelled(cancel);
        ignores.advance(10 * SECOND);
        assert_eq!(ignores.ended, Some((ignores.start + CLOSE_GRACE, end)));
        assert_eq!(ignores.settled, Some((ignores.start + CLOSE_GRACE, Ownership::Unconfirmed)));
    }
}

#[test]
fn the_node_keeps_the_deadlines_that_the_edge_gave_it_also_when_no_cancel_comes() {
    let by = |now: Instant| Some(now + 4 * SECOND);
    let mut whole = Call::sent_with(|now| Rules { ends_by: by(now), ..plain(now) });
    whole.progress();
    whole.advance(4 * SECOND);
    whole.returned(Ownership::Confirmed);
    assert_eq!(whole.end(), Some(End::Deadline(Deadline::Whole)));
    assert_eq!(whole.elapsed(), 4 * SECOND);

    let first = |now| Rules { first_progress_by: by(now), ..plain(now) };
    let mut silent = Call::sent_with(first);
    silent.advance(4 * SECOND);
    silent.returned(Ownership::Confirmed);
    assert_eq!(silent.end(), Some(End::Deadline(Deadline::FirstProgress)));

    let mut quick = Call::sent_with(first);
    quick.progress();
    quick.advance(9 * SECOND);
    assert_eq!(quick.stopped, None, "the first progress came in time");

    let mut collected = Call::new(first);
    collected.advance(4 * SECOND);
    assert!(collected.stopped.is_some(), "also before anything was sent");
}

#[test]
fn a_disconnect_stops_the_call_tells_nobody_and_still_settles_the_permit() {
    let mut call = Call::sent();
    call.disconnected();
    call.advance(10 * SECOND);
    assert_eq!(call.end(), None);
    assert_eq!(call.settled, Some((call.start + CLOSE_GRACE, Ownership::Unconfirmed)));
    assert!(call.watchdog.is_over());

    let mut leaving = Call::sent();
    leaving.cancelled(Cancel::Asked);
    leaving.disconnected();
    leaving.returned(Ownership::Confirmed);
    assert_eq!(leaving.end(), None, "a cancel whose link ended is told to nobody");
}

/// F82, F83, F84: everything that may come at one instant, in every combination.
#[test]
fn at_the_same_instant_disconnect_deadline_cancel_the_terminal_and_the_stall_win_in_this_order() {
    for bits in 1..32_u32 {
        let [disconnect, deadline, cancel, terminal, silence] =
            std::array::from_fn(|bit| bits & (1 << bit) != 0);
        let mut call = Call::sent_with(|now| Rules {
            stall: if silence { STALL } else { 2 * STALL },
            ends_by: deadline.then_some(now + STALL),
            ..plain(now)
        });
        call.now += STALL;
        call.see(Seen {
            disconnected: disconnect,
            cancelled: cancel.then_some(Cancel::Asked),
            returned: terminal.then_some(Ownership::Confirmed),
            health: None,
        });
        call.advance(20 * SECOND);
        let end = call.end();
        match (disconnect, deadline, cancel, terminal, silence) {
            (true, ..) => assert_eq!(end, None, "{bits:b}"),
            (_, true, ..) => assert_eq!(end, Some(End::Deadline(Deadline::Whole)), "{bits:b}"),
            (_, _, true, ..) => assert_eq!(end, Some(End::Cancelled), "{bits:b}"),
            (_, _, _, true, _) => assert_eq!(end, Some(End::Own), "{bits:b}"),
            (..) => assert!(matches!(end, Some(End::Stalled(_))), "{bits:b}"),
        }
        assert!(call.watchdog.is_over(), "{bits:b}");
    }
}
