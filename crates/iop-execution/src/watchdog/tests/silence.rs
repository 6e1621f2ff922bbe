//! When a provider is silent for too long, and when it is not its silence.

use super::*;

/// F47: the provider has the request and never answers.
#[test]
fn a_provider_that_never_answers_is_claimed_at_the_threshold_and_not_before() {
    let mut call = Call::sent();
    call.advance(STALL - Duration::from_nanos(1));
    assert_eq!(call.stopped, None);
    call.advance(Duration::from_nanos(1));
    assert_eq!(call.stopped, Some(call.start + STALL));
    call.returned(Ownership::Confirmed);
    call.probed(HealthEvidence::Available);
    let stall = call.stall();
    assert_eq!((stall.timeout, stall.silent, stall.phase), (STALL, STALL, StallPhase::BeforeHead));
}

/// F48, F49: silence in the middle, also after the last of the text but before the end.
#[test]
fn the_silence_runs_from_the_last_progress() {
    let mut call = Call::sent();
    for _ in 0..5 {
        call.advance(STALL - SECOND);
        call.progress();
    }
    call.advance(STALL);
    assert_eq!(call.stopped, Some(call.start + 5 * (STALL - SECOND) + STALL));
    call.advance(PROBE_BOUND);
    assert_eq!(call.stall().phase, StallPhase::MidStream);
}

/// F51, FC-025: what is no progress leaves no trace in the vitals, and so moves nothing.
#[test]
fn one_timer_is_armed_and_progress_moves_it_only_when_it_fires() {
    let mut call = Call::sent();
    assert_eq!(call.next.at, Some(call.start + STALL));
    call.advance(SECOND);
    call.progress();
    call.advance(STALL - 2 * SECOND);
    assert_eq!(call.next.at, Some(call.start + STALL), "progress re-armed nothing");
    call.advance(SECOND);
    assert_eq!((call.stopped, call.next.at), (None, Some(call.start + SECOND + STALL)));
}

#[test]
fn nothing_is_armed_before_the_provider_has_taken_a_byte() {
    let mut call = Call::new(plain);
    call.advance(100 * STALL);
    assert_eq!(call.stopped, None, "a request that is still collected stalls nobody");
    call.vitals.note_sent(Sent::Whole, call.now);
    let sent = call.now;
    call.advance(2 * STALL);
    assert_eq!(call.stopped, Some(sent + STALL));
}

#[test]
fn a_provider_that_stops_taking_the_request_is_claimed_in_the_phase_sending() {
    let mut call = Call::new(plain);
    call.vitals.note_sent(Sent::More, call.now);
    call.advance(STALL - SECOND);
    call.vitals.note_sent(Sent::More, call.now);
    call.advance(STALL);
    call.advance(PROBE_BOUND);
    let stall = call.stall();
    assert_eq!((stall.phase, stall.silent), (StallPhase::Sending, STALL));
}

#[test]
fn an_upload_that_waits_for_the_edge_stalls_nobody_and_is_watched_again_when_it_goes_on() {
    let mut call = Call::new(plain);
    call.vitals.note_sent(Sent::AllSoFar, call.now);
    call.advance(100 * STALL);
    assert_eq!((call.stopped, call.next.at, call.next.stands_still), (None, None, true));
    call.vitals.note_sent(Sent::More, call.now);
    call.see(Seen::default());
    assert_eq!(call.next.at, Some(call.now + STALL));
    call.advance(STALL);
    assert!(call.stopped.is_some());
}

/// FC-044: a slow client is never a provider stall.
#[test]
fn a_pause_for_credit_is_never_a_stall_and_credit_resumes_the_remainder() {
    let mut call = Call::sent();
    call.progress();
    call.advance(STALL - SECOND);
    call.vitals.note_no_credit(call.now);
    call.advance(100 * STALL);
    assert_eq!((call.stopped, call.next.at, call.next.stands_still), (None, None, true));
    call.vitals.note_credit(call.now);
    call.see(Seen::default());
    assert_eq!(call.next.at, Some(call.now + SECOND), "credit is no progress");
    call.advance(SECOND);
    call.advance(PROBE_BOUND);
    assert_eq!(call.stall().silent, STALL, "the pause is not counted");
}

/// FC-023, FC-026.
#[test]
fn the_bound_on_the_head_makes_the_same_claim_and_ends_with_the_head() {
    let limit = 3 * SECOND;
    let bounded = |now| Rules { first_response: Some(limit), ..plain(now) };
    let mut call = Call::sent_with(bounded);
    call.advance(limit);
    call.advance(PROBE_BOUND);
    let stall = call.stall();
    assert_eq!((stall.timeout, stall.silent), (limit, limit));
    assert_eq!(stall.phase, StallPhase::BeforeHead);

    let mut answered = Call::sent_with(bounded);
    answered.advance(limit - SECOND);
    answered.progress();
    answered.advance(STALL - SECOND);
    assert_eq!(answered.stopped, None);

    let mut waiting = Call::sent_with(bounded);
    waiting.vitals.note_no_credit(waiting.now);
    waiting.advance(10 * limit);
    assert_eq!(waiting.stopped, None, "a head that waits for credit has come");
}

#[test]
fn a_call_whose_outcome_is_known_is_claimed_no_more_and_ends_as_it_returns() {
    let head = |start| Rules { first_response: Some(3 * SECOND), ..plain(start) };
    for rules in [plain, head] {
        let mut call = Call::sent_with(rules);
        call.vitals.note_outcome();
        call.advance(STALL * 2);
        assert_eq!((call.end(), call.probed, call.next.at), (None, None, None));
        call.returned(Ownership::Unconfirmed);
        assert_eq!(call.end(), Some(End::Own));
    }
}

#[test]
fn a_known_outcome_holds_no_deadline_off() {
    let mut call =
        Call::sent_with(|start| Rules { ends_by: Some(start + STALL * 2), ..plain(start) });
    call.vitals.note_outcome();
    call.advance(STALL * 2);
    assert!(call.stopped.is_some());
    call.returned(Ownership::Confirmed);
    assert_eq!(call.end(), Some(End::Deadline(Deadline::Whole)));
}
