//! What the Edge says of itself: that it never hands out more than there is, that it comes to rest, that
//! it works again.

use std::cell::RefCell;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use crate::client::Clients;
use crate::ledger::{Ledger, now};
use crate::plan::{CAPACITY, Call, Manner, STAGE_CAPACITY, Wish};
use crate::record::CallEnd;
use crate::world::{ADMIN_PORT, NODES};

/// Until everything is quiet after the last call: a link that is given up and dialled again, a
/// zombie's ceiling.
const QUIET_WITHIN: Duration = Duration::from_secs(240);
/// How long a page of the admin listener may take where no network fails.
const PAGE_WITHIN: Duration = Duration::from_secs(10);

/// Looks again and again whether a provider has more permits out than it has. Never ends.
pub(crate) async fn audit(clients: &Clients) {
    loop {
        sleep(Duration::from_millis(500)).await;
        let page = timeout(PAGE_WITHIN, clients.page(ADMIN_PORT, "/api/v1/providers")).await;
        // The Edge may be down or cut off at the moment.
        let Ok(Ok(page)) = page else { continue };
        for provider in page["providers"].as_array().into_iter().flatten() {
            let figure = |name: &str| provider[name].as_u64().unwrap_or_default();
            if figure("in_use").max(figure("zombies")) > figure("capacity") {
                clients.ledger.violation("audit", provider.to_string());
            }
        }
    }
}

/// Waits until the Edge says that nothing is at work and every Node is linked and idle.
pub(crate) async fn become_quiet(clients: &Clients) {
    let deadline = now() + QUIET_WITHIN;
    loop {
        let unrest = match timeout(PAGE_WITHIN, unrest(clients)).await {
            Ok(Ok(None)) => return,
            Ok(Ok(Some(unrest))) => unrest,
            Ok(Err(error)) => format!("the admin listener fails: {error}"),
            Err(_) => "the admin listener does not answer".to_owned(),
        };
        if now() > deadline {
            clients.ledger.violation("edge", format!("is not quiet: {unrest}"));
            return;
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// While nothing is at work, every request that reached a Node has its one terminal on the wire.
pub(crate) fn all_answered(ledger: &Ledger) {
    for host in ledger.debtors() {
        ledger.violation(host, "has sent no terminal of a request on a link that lives");
    }
}

/// Says what is not quiet.
async fn unrest(clients: &Clients) -> Result<Option<String>, Box<dyn std::error::Error>> {
    let status = clients.page(ADMIN_PORT, "/api/v1/status").await?;
    let providers = clients.page(ADMIN_PORT, "/api/v1/providers").await?;
    let is_idle = status["in_flight"] == 0
        && status["waiting"] == 0
        && status["buffered_bodies"]["used_bytes"] == 0
        && status["nodes_linked"] == NODES.len();
    let providers = providers["providers"].as_array().cloned().unwrap_or_default();
    let restless = providers.iter().find(|provider| {
        provider["ready"] != true
            || provider["in_use"] != 0
            || provider["fenced_in_use"] != 0
            || provider["zombies"] != 0
    });
    Ok(match restless {
        Some(provider) => Some(provider.to_string()),
        None => (!is_idle).then(|| status.to_string()),
    })
}

/// Asks for everything that there is at once, when all is over: nothing of what failed may linger, and
/// a permit that a gate did not get back would be missed.
pub(crate) async fn aftermath(clients: &Clients, from: usize) {
    const MODELS: [(&str, usize); 2] = [("tiny", CAPACITY), ("play", STAGE_CAPACITY)];
    let models = MODELS.iter().flat_map(|&(model, capacity)| vec![model; capacity * NODES.len()]);
    let calls: Vec<_> = models
        .enumerate()
        .map(|(index, model)| Call {
            number: from + index,
            at: Duration::ZERO,
            model,
            wish: Wish::Stream,
            bytes: 0,
            manner: Manner::Patient,
        })
        .collect();
    clients.records.seen().calls.resize(from + calls.len(), None);
    join_all(calls.iter().map(|call| clients.call(call))).await;
    for call in &calls {
        let seen = clients.records.seen();
        let end = seen.calls[call.number].clone().unwrap_or_default();
        let id = format!("call-{}", call.number);
        let run = seen.runs.iter().find(|run| run.request_id == id);
        let attempts = run.and_then(|run| Some(run.outcomes.first()?.attempts.len()));
        drop(seen);
        let (end, status) = (end.end, end.status);
        if (end, status, attempts) != (CallEnd::Clean, Some(200), Some(1)) {
            let breach =
                format!("a fresh call ends {end:?}, {status:?} after {attempts:?} attempts");
            clients.ledger.violation("aftermath", breach);
        }
    }
}

/// Waits until Edge and Nodes have drained, closed what lingered, and said what they left behind.
pub(crate) async fn all_stopped(ledger: &Ledger, leaks: &RefCell<Vec<String>>) {
    const HOSTS: usize = 1 + NODES.len();
    for _ in 0..300 {
        if leaks.borrow().len() == HOSTS {
            break;
        }
        sleep(Duration::from_millis(100)).await;
    }
    let told = leaks.borrow();
    if told.len() != HOSTS {
        ledger.violation("stop", format!("{} of {HOSTS} hosts have stopped", told.len()));
    }
    for leak in told.iter().filter(|leak| !leak.is_empty()) {
        ledger.violation("stop", leak.clone());
    }
}
