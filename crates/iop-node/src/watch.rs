//! Looking at providers, again and again, and telling the Edge what changed.
//!
//! Every provider is looked at every 10 s, and the machine for new ones. Between that, every 2 s, those
//! are looked at that somebody may be waiting for, and those whose queue moves; while no provider is
//! known at all, the machine is. What a look shows is told when it matters (`board.rs`), so that a
//! provider is told of at most once in 2 s, however its figures flicker. Zombies and gates that have
//! room again are counted every second.
//!
//! [`Shared::look_again`] asks for the next look now.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use crate::call::now;
use crate::node::Shared;

/// How often everything is looked at.
const USUAL_PAUSE: Duration = Duration::from_secs(10);

/// How often what is expected is looked at: requests may wait for it, 10 s at the Edge as a default.
const GLANCE_PAUSE: Duration = Duration::from_secs(2);

/// How often zombies are checked against their ceiling, and full gates for room.
const COUNT_PAUSE: Duration = Duration::from_secs(1);

/// Looks until `stop` is cancelled.
pub(crate) async fn watch(node: Arc<Shared>, stop: CancellationToken) {
    let mut looks = every(USUAL_PAUSE);
    let mut glances = every(GLANCE_PAUSE);
    let mut counts = every(COUNT_PAUSE);
    loop {
        let due = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = node.look_now.notified() => Due::Look,
            _ = looks.tick() => Due::Look,
            _ = glances.tick() => Due::Glance,
            _ = counts.tick() => Due::Count,
        };
        let looking = async {
            match due {
                Due::Look => look(&node).await,
                Due::Glance => glance(&node).await,
                Due::Count => node.tell(node.providers.count_calls(now())),
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = looking => {}
        }
    }
}

enum Due {
    Look,
    Glance,
    Count,
}

fn every(pause: Duration) -> Interval {
    let mut interval = interval_at(Instant::now() + pause, pause);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

async fn look(node: &Arc<Shared>) {
    node.tell(node.providers.look_at_all().await);
    look_around(node).await;
}

async fn glance(node: &Arc<Shared>) {
    node.tell(node.providers.look_at_restless().await);
    if node.providers.is_empty() {
        look_around(node).await;
    }
}

async fn look_around(node: &Arc<Shared>) {
    let (draining, changed) = node.providers.look_around(&node.settings.local_servers).await;
    node.finish(draining);
    node.tell(changed);
}
