//! The rules that hold only while neither network nor process fails: what nothing excuses then.

use std::time::Duration;

use iop_types::ErrorCode;

use crate::plan::{Behaviour, CAPACITY, Manner, Plan, STALL};
use crate::record::{CallEnd, Seen, Served};

/// A provider learns within this that a client has left, beside the way there.
const NOTICE: Duration = Duration::from_secs(1);

/// Finds what was broken, and by whom.
pub(super) fn breaches(plan: &Plan, seen: &Seen) -> Vec<(String, String)> {
    let mut breaches = Vec::new();
    breaches.extend(crowded(seen));
    breaches.extend(unwatched(plan, seen));
    breaches.extend(disturbed(plan, seen));
    for call in &plan.calls {
        let who = format!("call-{}", call.number);
        let Some(end) = &seen.calls[call.number] else { continue };
        let stays = matches!(call.manner, Manner::Patient | Manner::ReadsSlowly(_));
        if plan.misbehaviour == 0 && stays && (end.end, end.status) != (CallEnd::Clean, Some(200)) {
            let what = format!("ended {:?}, {:?} although nothing failed", end.end, end.status);
            breaches.push((who.clone(), what));
        }
        if end.end == CallEnd::Left {
            breaches.extend(
                unnoticed(plan, seen, call.number, end.ended).map(|what| (who.clone(), what)),
            );
        }
        if let Some(cancelled) = end.cancelled {
            let what = match cancelled.was_under_way {
                true => unnoticed(plan, seen, call.number, cancelled.at),
                false => unknown(seen, call.number, cancelled.at),
            };
            breaches.extend(what.map(|what| (who, what)));
        }
    }
    breaches
}

/// A provider that still worked for a client well after it had left.
fn unnoticed(plan: &Plan, seen: &Seen, call: usize, left: Duration) -> Option<String> {
    let deadline = left + NOTICE + ways(plan);
    let late = seen.served.iter().find(|served| {
        served.call == call
            && served.behaviour != Behaviour::IgnoresCancel
            && served.ended.is_none_or(|ended| ended > deadline)
    })?;
    Some(format!("left at {left:?}, and `{}` went on until {:?}", late.tag, late.ended))
}

/// An operator was told at this time that there is nothing to cancel, and there was.
fn unknown(seen: &Seen, call: usize, told: Duration) -> Option<String> {
    let request_id = format!("call-{call}");
    let run = seen.runs.iter().find(|run| run.request_id == request_id)?;
    let was_under_way = run.received < told && run.ended.is_none_or(|ended| ended > told);
    was_under_way.then(|| format!("was under way at {told:?}, and could not be cancelled"))
}

/// Client, Edge, Node, provider: each way takes as long as a message may, and a turn.
fn ways(plan: &Plan) -> Duration {
    3 * (plan.latency + 2 * plan.tick)
}

/// A provider that fell silent and was let wait, or whose silence history does not know.
fn unwatched(plan: &Plan, seen: &Seen) -> Option<(String, String)> {
    let mut silences = seen.served.iter().filter(|served| {
        // A client that reads slowly or leaves gives other reasons to wait or to stop.
        let client = plan.calls.get(served.call).map(|call| call.manner);
        served.behaviour.is_silence() && client == Some(Manner::Patient)
    });
    silences.find_map(|served| {
        let ended = served.ended.unwrap_or(Duration::MAX);
        let progressed = served.progressed();
        let breach = if ended > progressed + STALL + NOTICE + ways(plan) {
            format!("was silent from {progressed:?} to {ended:?}")
        } else if !is_known_as_stall(seen, served) {
            "was silent, and history says nothing of a stall".to_owned()
        } else {
            return None;
        };
        Some((served.tag.clone(), breach))
    })
}

fn is_known_as_stall(seen: &Seen, served: &Served) -> bool {
    let request_id = format!("call-{}", served.call);
    let run = seen.runs.iter().find(|run| run.request_id == request_id);
    let outcomes = run.into_iter().flat_map(|run| &run.outcomes);
    let mut ends =
        outcomes.flat_map(|outcome| &outcome.attempts).filter_map(|it| it.terminal.as_ref());
    ends.any(|end| end.code == Some(ErrorCode::ResponseStalled) && end.stall.is_some())
}

/// A provider that was asked for a token while another call of it got on or had just begun.
fn disturbed(plan: &Plan, seen: &Seen) -> Option<(String, String)> {
    // A look asks for health and list first, each over a new connection, and then for the token over
    // another; what came meanwhile it cannot know.
    let look = 4 * ways(plan);
    // A long request has begun long before its provider has it whole.
    let has_begun =
        |served: &Served| plan.calls.get(served.call).is_some_and(|call| call.bytes == 0);
    seen.probes.iter().find_map(|&(provider, at)| {
        let recent = |time: &Duration| *time + STALL > at + ways(plan) && *time + look < at;
        let neighbour = seen.served.iter().find(|served| {
            // A client that does not read holds its call back, which then does not get on.
            let client = plan.calls.get(served.call).map(|call| call.manner);
            served.provider == provider
                && client == Some(Manner::Patient)
                && served.ended.is_none_or(|ended| ended > at)
                && (has_begun(served) && recent(&served.began)
                    || served.progress.iter().any(recent))
        })?;
        let what = format!("was asked for a token at {at:?}, while it wrote `{}`", neighbour.tag);
        Some((provider.to_owned(), what))
    })
}

/// A provider that was asked more at once than it is configured for.
fn crowded(seen: &Seen) -> Option<(String, String)> {
    seen.served.iter().find_map(|newest| {
        let at_work = seen.served.iter().filter(|served| {
            served.provider == newest.provider
                && served.began <= newest.began
                && served.ended.is_none_or(|ended| ended > newest.began)
                // Its caller has given it up, and may have counted it out.
                && served.behaviour != Behaviour::IgnoresCancel
        });
        let count = at_work.count();
        let what = || format!("works on {count} requests at once with `{}`", newest.tag);
        (count > CAPACITY).then(|| (newest.provider.to_owned(), what()))
    })
}
