//! Whatever happens in whatever order.

use proptest::prelude::*;

use super::*;

/// Something that may happen to a call.
#[derive(Debug, Clone, Copy)]
enum Step {
    Wait(u64),
    Sent(Sent),
    Progress,
    Done,
    NoCredit,
    Credit,
    Returned(bool),
    Probed(usize),
    Cancelled(bool),
    Disconnected,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..12_000_u64).prop_map(Step::Wait),
        2 => prop_oneof![Just(Sent::More), Just(Sent::AllSoFar), Just(Sent::Whole)]
            .prop_map(Step::Sent),
        3 => Just(Step::Progress),
        1 => Just(Step::Done),
        1 => Just(Step::NoCredit),
        2 => Just(Step::Credit),
        1 => any::<bool>().prop_map(Step::Returned),
        1 => (0..3_usize).prop_map(Step::Probed),
        1 => any::<bool>().prop_map(Step::Cancelled),
        1 => Just(Step::Disconnected),
    ];
    proptest::collection::vec(step, 1..40)
}

proptest! {
    /// I1: whatever the order, one terminal or, after a disconnect, at most one; and an end.
    #[test]
    fn any_order_of_events_gives_one_terminal_and_settles_the_permit_once(
        steps in steps(),
        ends_after in proptest::option::of(0..60_000_u64),
    ) {
        let mut call = Call::new(|now| Rules {
            ends_by: ends_after.map(|ms| now + Duration::from_millis(ms)),
            first_response: Some(7 * SECOND),
            ..plain(now)
        });
        let mut was_disconnected = false;
        let mut was_done = None;
        for step in steps {
            match step {
                Step::Wait(ms) => call.advance(Duration::from_millis(ms)),
                Step::Sent(sent) => call.vitals.note_sent(sent, call.now),
                Step::Progress => call.progress(),
                Step::Done => {
                    was_done.get_or_insert(call.now);
                    call.done();
                }
                Step::NoCredit => call.vitals.note_no_credit(call.now),
                Step::Credit => {
                    call.vitals.note_credit(call.now);
                    call.see(Seen::default());
                }
                Step::Returned(is_seen) => call.returned(match is_seen {
                    true => Ownership::Confirmed,
                    false => Ownership::Unconfirmed,
                }),
                Step::Probed(which) => call.probed(HealthEvidence::ALL[which]),
                Step::Cancelled(is_deadline) => call.cancelled(match is_deadline {
                    true => Cancel::Deadline,
                    false => Cancel::Asked,
                }),
                Step::Disconnected => {
                    was_disconnected = true;
                    call.disconnected();
                }
            }
            let stands_still = call.vitals.stands_still();
            if stands_still && call.ended.is_none() && call.stopped.is_none() {
                prop_assert!(call.vitals.silent_at(call.now) <= STALL, "a pause is no silence");
            }
        }
        call.cancelled(Cancel::Asked);
        call.advance(PROBE_BOUND);
        prop_assert!(call.watchdog.is_over());
        prop_assert!(call.settled.is_some());
        prop_assert!(call.ended.is_some() || was_disconnected);
        if call.end() == Some(End::Done) {
            prop_assert!(call.stopped.unwrap() >= was_done.unwrap() + CLOSE_GRACE);
            prop_assert_eq!(call.probed, None);
        }
        if let Some(End::Stalled(stall)) = call.end() {
            prop_assert!(stall.silent >= stall.timeout);
            let claimed = call.stopped.unwrap();
            prop_assert!(was_done.is_none_or(|done| done >= claimed), "done is no stall");
            let settled = call.settled.map(|(_, ownership)| ownership);
            prop_assert!(!stall.is_retryable() || settled == Some(Ownership::Confirmed));
            let (claimed, ended) = (call.stopped.unwrap(), call.ended.unwrap().0);
            prop_assert!(ended - claimed <= PROBE_BOUND.max(CLOSE_GRACE));
        }
    }
}
