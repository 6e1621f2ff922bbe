//! Looking at providers, again and again, and telling the Edge what changed.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::call::now;
use crate::node::Shared;

/// How often providers are looked at while all of them serve.
const USUAL_PAUSE: Duration = Duration::from_secs(10);

/// How often while one is not up or away: requests may wait for it, 10 s at the Edge as a default.
const EXPECTED_PAUSE: Duration = Duration::from_secs(2);

/// How often zombies are checked against their ceiling.
const COUNT_PAUSE: Duration = Duration::from_secs(1);

/// Looks until `stop` is cancelled.
pub(crate) async fn watch(node: Arc<Shared>, stop: CancellationToken) {
    let mut counted = tokio::time::interval(COUNT_PAUSE);
    counted.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut next_look = tokio::time::Instant::now() + EXPECTED_PAUSE;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = node.look_now.notified() => {}
            () = tokio::time::sleep_until(next_look) => {}
            _ = counted.tick() => {
                node.tell(node.providers.count_calls(now()));
                continue;
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = look(&node) => {}
        }
        let pause = if node.providers.has_expected() { EXPECTED_PAUSE } else { USUAL_PAUSE };
        next_look = tokio::time::Instant::now() + pause;
    }
}

async fn look(node: &Arc<Shared>) {
    node.tell(node.providers.look_at_all().await);
    let (draining, changed) = node.providers.look_around(&node.settings.local_servers).await;
    node.finish(draining);
    node.tell(changed);
}
