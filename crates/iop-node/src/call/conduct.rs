//! Drives one call and does what its watchdog orders.
//!
//! One task holds everything of a call: the adapter's future, the signals that may stop it, the look
//! at a stalled provider and one timer. It collects what has happened since it was last polled and
//! asks [`Watchdog`] what that means. A chunk on its way costs nothing here: the call is polled, and
//! the timer stays where it is.
//!
//! A time that is over is judged only when the sockets were read after it: that is the [`Alarm`]'s part.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use iop_execution::admit::Passed;
use iop_execution::emission::Terminus;
use iop_execution::registry::Bound;
use iop_execution::watchdog::{Cancel, Deadline, End, Next, Rules, Seen, Watchdog};
use iop_execution::{
    BoxFuture, CallError, Cancelled, Completion, Emission, Fence, Permit, cancellation,
};
use iop_net::link;
use iop_types::{ErrorCode, Failure, HealthEvidence, Ownership, RequestHead, Stall, StallTimeout};
use iop_wire::v1;
use tracing::{debug, info};

use super::alarm::Alarm;
use super::silence::Silence;
use super::{Clock, named, now};
use crate::health::Question;
use crate::node::Shared;

/// The provider's part of a request: what is called, with which output.
pub(super) type Call<'c, O> = Box<
    dyn for<'a> FnOnce(
            &'a Bound,
            &'a mut Emission<O, Clock>,
            &'a mut Cancelled,
        ) -> BoxFuture<'a, Result<Completion, CallError>>
        + Send
        + 'c,
>;

/// How a call ended, as its terminal tells.
pub(crate) enum Outcome {
    /// Its answer is whole.
    Completed(Completion),
    /// It failed.
    Failed(Failure),
    /// It was cancelled, perhaps just when the last of a whole answer came.
    Cancelled(Option<Completion>),
}

/// Carries one call from its permit to its terminal, whatever its form.
pub(super) async fn conduct<T, O>(
    node: &Arc<Shared>,
    passed: Passed,
    head: &RequestHead,
    outlet: O,
    told: link::Cancelled,
    call: Call<'_, O>,
    terminal: impl Fn(&Outcome) -> T,
) where
    O: Terminus<T> + 'static,
{
    let Passed { permit, entry, cancelled: asked, provider, stall_timeout } = passed;
    let mut record = Some(node.journal.begin(head));
    let mut emission = Emission::new(outlet, now as Clock);
    let (fence, ender) = (emission.fence(), emission.ender());
    let (canceller, mut cancelled) = cancellation();
    let question = Question {
        generation: entry.generation(),
        target: head.target.clone(),
        about: Some(head.work),
        stall_timeout: stall_timeout.duration(),
    };
    let _seat = node.health.neighbours.seat(provider.key(), head.work, now(), fence.clone());
    let mut watchdog = Watchdog::new(rules(head, &provider, stall_timeout));
    let mut orders = watchdog.look(now(), Seen::default(), &fence.vitals());
    let timer = pin!(tokio::time::sleep_until(orders.next.at.unwrap_or_else(now).into()));
    let mut alarm = Alarm::new(timer);
    let mut scene = Scene {
        call: Some(call(&provider, &mut emission, &mut cancelled)),
        returned: None,
        told: Some(told),
        asked: Some(asked),
        look: None,
    };
    let mut held = Some((permit, entry));
    let mut claimed_at = None;
    loop {
        if orders.stop {
            if fence.vitals().is_done() {
                debug!("the provider is told to end: it said that it is done");
            }
            fence.close();
            canceller.cancel();
        }
        if orders.probe {
            debug!("the provider is silent: the call is cancelled and its health looked at");
            claimed_at = Some(now());
            scene.look = Some(Box::pin(node.look_at(&provider, &question)));
        }
        if let Some(ownership) = orders.settle
            && let Some((permit, entry)) = held.take()
        {
            // A call that has not returned is reset by being dropped.
            scene.call = None;
            settle(node, permit, ownership, scene.returned.as_ref());
            drop(entry);
        }
        if let Some(end) = orders.end {
            scene.look = None;
            let outcome = match end {
                End::Own => own(scene.returned.take(), head),
                End::Done => Outcome::Completed(fence.completion().unwrap_or_default()),
                End::Cancelled => Outcome::Cancelled(
                    scene.returned.take().and_then(Result::ok).or_else(|| fence.completion()),
                ),
                End::Deadline(deadline) => Outcome::Failed(late(deadline)),
                End::Stalled(stall) => {
                    let observation_seq = node.conclude(provider.key(), &question, stall.health);
                    let stall = Stall { observation_seq, ..stall };
                    let vitals = fence.vitals();
                    let silence = Silence {
                        stall,
                        head,
                        first_response: provider.first_response_timeout(),
                        is_head_all: vitals.first_progress() == vitals.last_progress(),
                        looked_for: now().saturating_duration_since(claimed_at.unwrap_or_else(now)),
                    };
                    silence.log();
                    Outcome::Failed(silence.failure())
                }
            };
            if let Some(claim) = ender.claim() {
                // A link that ended has told the client's side by itself.
                let _ = claim.finish(terminal(&outcome));
            }
            if let Some(record) = record.take() {
                node.journal.end(record, fence.first_progress(), &outcome);
            }
        }
        if watchdog.is_over() {
            break;
        }
        alarm.set(orders.next.at);
        let next = orders.next;
        let seen = std::future::poll_fn(|cx| scene.poll(cx, &mut alarm, &fence, next)).await;
        orders = watchdog.look(now(), seen, &fence.vitals());
    }
    node.watch_zombies(&provider, &question);
    if let Some(record) = record {
        node.journal.end(record, fence.first_progress(), &Outcome::Cancelled(None));
    }
}

/// Everything that a call waits for.
struct Scene<'a> {
    /// `None` once it returned or was given up.
    call: Option<BoxFuture<'a, Result<Completion, CallError>>>,
    returned: Option<Result<Completion, CallError>>,
    /// The link's word. `None` once it has said all that matters.
    told: Option<link::Cancelled>,
    /// The Node's own word, given through the table of work.
    asked: Option<Cancelled>,
    look: Option<BoxFuture<'a, HealthEvidence>>,
}

impl Scene<'_> {
    /// Ready when something happened, or when it is time to look.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        alarm: &mut Alarm<'_>,
        fence: &Fence,
        next: Next,
    ) -> Poll<Seen> {
        let mut seen = Seen::default();
        // First of all, so that what the provider has sent counts before its silence is judged.
        if let Some(call) = &mut self.call
            && let Poll::Ready(returned) = call.as_mut().poll(cx)
        {
            seen.returned = Some(ownership(&returned));
            self.returned = Some(returned);
            self.call = None;
        }
        if let Some(told) = &mut self.told
            && let Poll::Ready(why) = Pin::new(told).poll(cx)
        {
            self.told = None;
            debug!(?why, "the call is cancelled");
            match why {
                Err(_) => seen.disconnected = true,
                Ok(v1::CancelReason::Deadline) => seen.cancelled = Some(Cancel::Deadline),
                Ok(_) => seen.cancelled = Some(Cancel::Asked),
            }
        }
        if let Some(asked) = &mut self.asked
            && Pin::new(asked).poll(cx).is_ready()
        {
            self.asked = None;
            seen.cancelled.get_or_insert(Cancel::Asked);
        }
        if let Some(look) = &mut self.look
            && let Poll::Ready(health) = look.as_mut().poll(cx)
        {
            seen.health = Some(health);
            self.look = None;
        }
        if seen == Seen::default()
            && !next.is_outdated(&fence.vitals())
            && alarm.poll(cx).is_pending()
        {
            return Poll::Pending;
        }
        Poll::Ready(seen)
    }
}

fn rules(head: &RequestHead, provider: &Bound, stall_timeout: StallTimeout) -> Rules {
    let in_time = |left: Option<Duration>| left.and_then(|left| now().checked_add(left));
    Rules {
        stall: stall_timeout.duration(),
        first_response: provider.first_response_timeout(),
        first_progress_by: in_time(head.first_progress_within),
        ends_by: in_time(head.ends_within),
    }
}

/// A call that returned has returned, however; one that was reset may still be at work.
const fn ownership(returned: &Result<Completion, CallError>) -> Ownership {
    match returned {
        Ok(_) | Err(CallError::Failed(_) | CallError::Cancelled) => Ownership::Confirmed,
        Err(CallError::Abandoned(_)) => Ownership::Unconfirmed,
    }
}

/// Gives the permit back, or keeps it as a zombie when nobody saw the call return.
fn settle(
    node: &Shared,
    permit: Permit,
    ownership: Ownership,
    returned: Option<&Result<Completion, CallError>>,
) {
    match ownership {
        Ownership::Confirmed => drop(permit),
        Ownership::Unconfirmed => {
            info!("the provider did not end a call within the close grace: connection reset");
            permit.into_zombie(now());
            // At once: a look at a server that hangs takes seconds.
            node.tell(node.providers.count_calls(now()));
        }
    }
    let failure = returned.and_then(|returned| returned.as_ref().err()?.failure());
    let is_unreachable = failure.is_some_and(|failure| failure.code == ErrorCode::ConnectFailed);
    if ownership == Ownership::Unconfirmed || is_unreachable {
        node.look_again();
    }
}

fn own(returned: Option<Result<Completion, CallError>>, head: &RequestHead) -> Outcome {
    match returned {
        Some(Ok(whole)) => Outcome::Completed(whole),
        Some(Err(CallError::Failed(failure) | CallError::Abandoned(failure))) => {
            Outcome::Failed(named(&failure, &head.provider))
        }
        Some(Err(CallError::Cancelled)) | None => Outcome::Cancelled(None),
    }
}

fn late(deadline: Deadline) -> Failure {
    let message = match deadline {
        Deadline::FirstProgress => "no progress within the time that was left for it",
        Deadline::Whole => "not finished within the time that was left for the request",
        Deadline::Told => "the request's time was over",
    };
    Failure::new(ErrorCode::DeadlineExceeded, message)
}
