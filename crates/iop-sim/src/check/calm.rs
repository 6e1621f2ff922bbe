//! The rules that hold only while neither network nor process fails: what nothing excuses then.

use std::time::Duration;

use crate::plan::{Behaviour, CAPACITY, Manner, Plan};
use crate::record::{CallEnd, Seen};

/// A provider learns within this that a client has left, beside the way there.
const NOTICE: Duration = Duration::from_secs(1);

/// Finds what was broken, and by whom.
pub(super) fn breaches(plan: &Plan, seen: &Seen) -> Vec<(String, String)> {
    let mut breaches = Vec::new();
    breaches.extend(crowded(seen));
    for call in &plan.calls {
        let who = format!("call-{}", call.number);
        let Some(end) = &seen.calls[call.number] else { continue };
        let stays = matches!(call.manner, Manner::Patient | Manner::ReadsSlowly(_));
        if plan.misbehaviour == 0 && stays && (end.end, end.status) != (CallEnd::Clean, Some(200)) {
            let what = format!("ended {:?}, {:?} although nothing failed", end.end, end.status);
            breaches.push((who.clone(), what));
        }
        if end.end == CallEnd::Left {
            breaches.extend(unnoticed(plan, seen, call.number, end.ended).map(|what| (who, what)));
        }
    }
    breaches
}

/// A provider that still worked for a client well after it had left.
fn unnoticed(plan: &Plan, seen: &Seen, call: usize, left: Duration) -> Option<String> {
    // Client, Edge, Node, provider: each way is as long as a message takes, and a turn.
    let way = 3 * (plan.latency + 2 * plan.tick);
    let deadline = left + NOTICE + way;
    let late = seen.served.iter().find(|served| {
        served.call == call
            && served.behaviour != Behaviour::IgnoresCancel
            && served.ended.is_none_or(|ended| ended > deadline)
    })?;
    Some(format!("left at {left:?}, and `{}` went on until {:?}", late.tag, late.ended))
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
