//! A provider that said that its answer is whole, and what it does then.

use super::*;

const JUST_BEFORE: Duration = Duration::from_nanos(1);

/// A call whose answer is whole, under a stall timeout of this length.
fn done_with(stall: Duration) -> Call {
    let mut call = Call::sent_with(|now| Rules { stall, ..plain(now) });
    call.progress();
    call.advance(SECOND);
    call.done();
    call
}

#[test]
fn a_provider_that_is_done_has_the_close_grace_to_end_whatever_its_stall_timeout() {
    for stall in [SECOND / 2, CLOSE_GRACE, 300 * SECOND] {
        let mut call = Call::sent_with(|now| Rules { stall, ..plain(now) });
        call.done();
        let done = call.now;
        call.advance(CLOSE_GRACE - JUST_BEFORE);
        assert_eq!((call.stopped, call.end()), (None, None), "{stall:?}");
        call.advance(JUST_BEFORE);
        assert_eq!((call.stopped, call.probed), (Some(done + CLOSE_GRACE), None), "{stall:?}");
    }
}

#[test]
fn a_provider_that_ends_in_time_ends_its_call_itself() {
    let mut call = done_with(STALL);
    call.advance(CLOSE_GRACE - JUST_BEFORE);
    call.returned(Ownership::Confirmed);
    assert_eq!((call.stopped, call.end()), (None, Some(End::Own)));
}

#[test]
fn at_the_end_of_the_grace_the_providers_own_end_wins() {
    let mut call = done_with(STALL);
    call.now += CLOSE_GRACE;
    call.returned(Ownership::Confirmed);
    assert_eq!((call.stopped, call.end()), (None, Some(End::Own)));
}

#[test]
fn a_call_that_was_stopped_after_done_completes_whether_or_not_its_provider_returns() {
    let mut returns = done_with(STALL);
    returns.advance(CLOSE_GRACE);
    returns.returned(Ownership::Confirmed);
    assert_eq!(returns.ended, Some((returns.now, End::Done)));
    assert_eq!(returns.settled, Some((returns.now, Ownership::Confirmed)));
    assert!(returns.watchdog.is_over());

    let mut ignores = done_with(STALL);
    let stopped = ignores.now + CLOSE_GRACE;
    ignores.advance(10 * SECOND);
    assert_eq!(ignores.ended, Some((stopped + CLOSE_GRACE, End::Done)));
    assert_eq!(ignores.settled, Some((stopped + CLOSE_GRACE, Ownership::Unconfirmed)));
}

#[test]
fn what_a_provider_goes_on_saying_after_done_wins_it_no_time() {
    let mut call = done_with(STALL);
    let done = call.now;
    for _ in 0..3 {
        call.advance(SECOND / 2);
        call.progress();
        call.vitals.note_done(call.now);
        call.polled();
    }
    call.advance(SECOND);
    assert_eq!(call.stopped, Some(done + CLOSE_GRACE));
}

#[test]
fn a_client_that_takes_nothing_holds_the_grace_up_and_credit_resumes_it() {
    let mut call = done_with(STALL);
    call.advance(SECOND);
    call.vitals.note_no_credit(call.now);
    call.advance(100 * STALL);
    assert_eq!(call.stopped, None, "what it has to say waits for the client");
    call.vitals.note_credit(call.now);
    call.polled();
    assert_eq!(call.next.at, Some(call.now + SECOND));
    call.advance(SECOND);
    assert!(call.stopped.is_some());
}

#[test]
fn whoever_polls_a_call_looks_at_it_when_its_provider_is_done_and_at_no_other_progress() {
    let mut call = Call::sent();
    call.progress();
    assert!(!call.next.is_outdated(&call.vitals));
    call.vitals.note_done(call.now);
    assert!(call.next.is_outdated(&call.vitals));
    call.see(Seen::default());
    assert!(!call.next.is_outdated(&call.vitals), "one look is enough");
    assert_eq!(call.next.at, Some(call.now + CLOSE_GRACE));
}

#[test]
fn disconnect_deadline_and_cancel_win_over_the_end_after_done_and_change_nothing_afterwards() {
    let cuts = [
        (Seen { disconnected: true, ..Seen::default() }, None),
        (
            Seen { cancelled: Some(Cancel::Deadline), ..Seen::default() },
            Some(End::Deadline(Deadline::Told)),
        ),
        (Seen { cancelled: Some(Cancel::Asked), ..Seen::default() }, Some(End::Cancelled)),
    ];
    for (cut, end) in cuts {
        let mut together = done_with(STALL);
        together.now += CLOSE_GRACE;
        together.see(cut);
        together.returned(Ownership::Confirmed);
        assert_eq!(together.end(), end);

        let mut late = done_with(STALL);
        late.advance(CLOSE_GRACE + SECOND);
        late.see(cut);
        late.returned(Ownership::Confirmed);
        let is_told = !cut.disconnected;
        assert_eq!(late.end(), is_told.then_some(End::Done));
    }
}

#[test]
fn an_answer_that_turned_out_unusable_after_done_is_its_adapters_to_end() {
    let mut call = done_with(STALL);
    call.vitals.note_outcome();
    call.see(Seen::default());
    call.advance(100 * SECOND);
    assert_eq!((call.stopped, call.next.at), (None, None));
    call.returned(Ownership::Unconfirmed);
    assert_eq!(call.end(), Some(End::Own));
}
