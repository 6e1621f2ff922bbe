//! One timer that is armed again only when it fires or must fire earlier.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::time::{Sleep, sleep_until};

/// A timer for whatever is due next; made at its first use.
#[derive(Debug, Default)]
pub(crate) struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Ready when `due` has passed, with the time. A later `due` than before costs nothing until the
    /// old one passes.
    pub(crate) fn poll(&mut self, due: Option<Instant>, cx: &mut Context<'_>) -> Poll<Instant> {
        let Some(due) = due else { return Poll::Pending };
        let due = tokio::time::Instant::from_std(due);
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(due)));
        loop {
            if sleep.is_elapsed() || due < sleep.deadline() {
                sleep.as_mut().reset(due);
            }
            ready!(sleep.as_mut().poll(cx));
            let now = crate::now();
            if tokio::time::Instant::from_std(now) >= due {
                return Poll::Ready(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_later_time_is_reached_and_not_the_earlier_one() {
        let start = crate::now();
        let mut timer = Timer::default();
        let mut due = Some(start + Duration::from_secs(1));
        assert!(futures_util::poll!(poll_fn(|cx| timer.poll(due, cx))).is_pending());
        due = Some(start + Duration::from_secs(3));
        let reached = poll_fn(|cx| timer.poll(due, cx)).await;
        assert!(reached >= start + Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_time_is_reached_first_and_the_timer_serves_again() {
        let start = crate::now();
        let mut timer = Timer::default();
        let far = Some(start + Duration::from_secs(900));
        assert!(futures_util::poll!(poll_fn(|cx| timer.poll(far, cx))).is_pending());
        for second in 1..4 {
            let due = start + Duration::from_secs(second);
            let reached = poll_fn(|cx| timer.poll(Some(due), cx)).await;
            assert!((due..due + Duration::from_millis(10)).contains(&reached));
        }
        assert!(futures_util::poll!(poll_fn(|cx| timer.poll(None, cx))).is_pending());
    }
}
