//! What an answer says of the provider that gives it.
//!
//! Most answers say nothing that is not known. What counts is the outcome of a request that tries a
//! target which was left out, that any request was served to its end, what a Node observed when its
//! provider fell silent, and a provider's wish to be left alone.

use std::time::{Duration, SystemTime};

use iop_admission::Candidate;
use iop_dialect::retry_after;
use iop_types::{
    ErrorCode, Event, EventKind, Failure, HealthObservation, ResponseHead, TunnelFrame,
};

use super::Request;
use super::attempt::Heard;
use super::state::{Seat, State};
use crate::bridge::Step;

impl State {
    /// Takes note of what is heard. Costs a comparison where nothing is to be noted.
    pub(super) fn note_health(&mut self, request: &Request, heard: &Heard) {
        let Seat::Held(held) = &mut self.seat else { return };
        match Sign::of(heard) {
            Sign::Nothing => {}
            Sign::Progress => held.note_progress(),
            Sign::Served => held.note_served(),
            Sign::Failed => held.note_failed(),
            Sign::Overloaded(wish) => {
                held.note_failed();
                held.note_throttled(Some(wish));
            }
            Sign::Throttled(wish) => held.note_throttled(wish),
            Sign::Fell(failure) => {
                if let Some(observation) = observation(held.candidate(), failure) {
                    let instance = &held.candidate().instance;
                    let (node, generation) = (&instance.node, instance.generation);
                    request.core.group.take_in(node, generation, &observation);
                }
                held.note_failed();
            }
        }
    }
}

/// What one answer says of its provider.
#[derive(Debug, PartialEq, Eq)]
enum Sign<'a> {
    /// Nothing, or nothing about the provider.
    Nothing,
    /// It gets on.
    Progress,
    /// It has answered to the end, if with a refusal of the request.
    Served,
    /// It cannot be connected to, breaks off, or says itself that it fails.
    Failed,
    /// It says that it fails, and for how long.
    Overloaded(Duration),
    /// It has too much to do, and perhaps says for how long.
    Throttled(Option<Duration>),
    /// It fell silent; its Node says what it knows.
    Fell(&'a Failure),
}

impl<'a> Sign<'a> {
    fn of(heard: &'a Heard) -> Self {
        match heard {
            Heard::Step(Step::Frame(frame)) => Self::of_frame(frame),
            Heard::Step(Step::Event(event)) => Self::of_event(event),
            // What is the matter with a Node or a link ends the link, and what is known with it.
            Heard::Step(Step::Refused(_))
            | Heard::Unsent
            | Heard::LinkEnded(_)
            | Heard::Nonsense(_)
            | Heard::NoMemory => Self::Nothing,
        }
    }

    fn of_frame(frame: &'a TunnelFrame) -> Self {
        match frame {
            TunnelFrame::Body { progress: true, .. } => Self::Progress,
            TunnelFrame::Body { progress: false, .. }
            | TunnelFrame::Trailers(_)
            | TunnelFrame::Cancelled => Self::Nothing,
            TunnelFrame::Head(head) => match head.status {
                429 => Self::Throttled(wish_of(head)),
                503 => Self::unavailable(wish_of(head)),
                500.. => Self::Failed,
                _ => Self::Nothing,
            },
            TunnelFrame::End => Self::Served,
            TunnelFrame::Error(failure) => Self::of_failure(failure),
        }
    }

    fn of_event(event: &'a Event) -> Self {
        match &event.kind {
            EventKind::Start | EventKind::Cancelled => Self::Nothing,
            EventKind::Delta { .. } | EventKind::ReasoningDelta { .. } => Self::Progress,
            EventKind::Complete { .. } => Self::Served,
            EventKind::Error(failure) => Self::of_failure(failure),
        }
    }

    fn of_failure(failure: &'a Failure) -> Self {
        let wish = || failure.retry_after_s.map(|seconds| Duration::from_secs(seconds.into()));
        match (failure.code, failure.provider_status) {
            (ErrorCode::ResponseStalled, _) => Self::Fell(failure),
            (ErrorCode::RateLimited, _) | (_, Some(429)) => Self::Throttled(wish()),
            (_, Some(503)) => Self::unavailable(wish()),
            (ErrorCode::ConnectFailed | ErrorCode::Truncated, _) | (_, Some(500..)) => Self::Failed,
            // It answered, if to say that the request is wrong.
            (_, Some(_)) => Self::Served,
            (ErrorCode::ProviderError | ErrorCode::NodeLost, None) => Self::Failed,
            (_, None) => Self::Nothing,
        }
    }

    fn unavailable(wish: Option<Duration>) -> Self {
        wish.map_or(Self::Failed, Self::Overloaded)
    }
}

/// What the Node saw when the provider of this candidate fell silent; `None` where it had no number
/// for it.
fn observation(candidate: &Candidate, failure: &Failure) -> Option<HealthObservation> {
    let stall = failure.stall?;
    Some(HealthObservation {
        provider: candidate.instance.provider.clone(),
        target: candidate.target.clone(),
        health: stall.health,
        seq: stall.observation_seq?,
    })
}

/// Reads how long a provider asks to be left alone.
fn wish_of(head: &ResponseHead) -> Option<Duration> {
    let value = |name: &[u8]| {
        let mut headers = head.headers.iter();
        let header = headers.find(|header| header.name.eq_ignore_ascii_case(name));
        header.map(|header| header.value.as_ref())
    };
    retry_after(value(b"retry-after")?, value(b"date"), SystemTime::now())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use iop_types::{Header, HealthEvidence, Ownership, Part, Stall, StallPhase};

    use super::*;

    fn head(status: u16, retry_after: Option<&str>) -> TunnelFrame {
        let header = |value: &str| Header {
            name: Bytes::from_static(b"Retry-After"),
            value: Bytes::copy_from_slice(value.as_bytes()),
        };
        TunnelFrame::Head(ResponseHead {
            status,
            headers: retry_after.map(header).into_iter().collect(),
        })
    }

    fn failure(code: ErrorCode, status: Option<u16>) -> Failure {
        Failure { provider_status: status, ..Failure::new(code, "no") }
    }

    #[test]
    fn a_head_alone_serves_nobody_and_5xx_fails() {
        assert_eq!(Sign::of_frame(&head(200, None)), Sign::Nothing);
        assert_eq!(Sign::of_frame(&head(404, None)), Sign::Nothing);
        assert_eq!(Sign::of_frame(&head(500, None)), Sign::Failed);
        assert_eq!(Sign::of_frame(&head(503, None)), Sign::Failed);
        assert_eq!(Sign::of_frame(&TunnelFrame::End), Sign::Served);
    }

    #[test]
    fn a_429_is_a_wish_to_be_left_alone() {
        let wish = |text| Sign::Throttled(Some(Duration::from_secs(text)));
        assert_eq!(Sign::of_frame(&head(429, Some("7"))), wish(7));
        assert_eq!(Sign::of_frame(&head(429, None)), Sign::Throttled(None));
        assert_eq!(Sign::of_frame(&head(429, Some("soon"))), Sign::Throttled(None));
        let failure =
            Failure { retry_after_s: Some(3), ..failure(ErrorCode::ProviderError, Some(429)) };
        assert_eq!(Sign::of_failure(&failure), wish(3));
    }

    #[test]
    fn a_date_is_a_wish_by_the_clock_of_whoever_says_it() {
        let TunnelFrame::Head(mut head) = head(429, Some("Mon, 01 Jan 1990 00:00:30 GMT")) else {
            unreachable!("it was made as a head")
        };
        head.headers.push(Header {
            name: Bytes::from_static(b"date"),
            value: Bytes::from_static(b"Mon, 01 Jan 1990 00:00:00 GMT"),
        });
        let wish = Sign::Throttled(Some(Duration::from_secs(30)));
        assert_eq!(Sign::of_frame(&TunnelFrame::Head(head)), wish);
    }

    #[test]
    fn a_503_that_says_for_how_long_is_a_failure_and_a_wish() {
        let both = Sign::Overloaded(Duration::from_secs(9));
        assert_eq!(Sign::of_frame(&head(503, Some("9"))), both);
        assert_eq!(Sign::of_frame(&head(500, Some("9"))), Sign::Failed);
        let failure = failure(ErrorCode::ProviderError, Some(503));
        assert_eq!(Sign::of_failure(&failure), Sign::Failed);
        assert_eq!(Sign::of_failure(&Failure { retry_after_s: Some(9), ..failure }), both);
    }

    #[test]
    fn keep_alives_and_a_start_are_no_progress() {
        let comment =
            TunnelFrame::Body { data: Bytes::from_static(b": ping\n\n"), progress: false };
        assert_eq!(Sign::of_frame(&comment), Sign::Nothing);
        assert_eq!(Sign::of_event(&EventKind::Start.into()), Sign::Nothing);
        let delta = EventKind::Delta { choice: 0, part: Part::Text("a".into()) };
        assert_eq!(Sign::of_event(&delta.into()), Sign::Progress);
    }

    #[test]
    fn a_failure_is_the_providers_where_it_says_or_does_so() {
        for (code, status, sign) in [
            (ErrorCode::ConnectFailed, None, Sign::Failed),
            (ErrorCode::Truncated, None, Sign::Failed),
            (ErrorCode::ProviderError, Some(502), Sign::Failed),
            (ErrorCode::ProviderError, None, Sign::Failed),
            (ErrorCode::InvalidRequest, Some(400), Sign::Served),
            (ErrorCode::InvalidRequest, None, Sign::Nothing),
            (ErrorCode::OverMemoryBudget, None, Sign::Nothing),
        ] {
            assert_eq!(Sign::of_failure(&failure(code, status)), sign, "{code} {status:?}");
        }
    }

    #[test]
    fn a_stall_tells_what_its_node_saw() {
        let stall = Stall {
            timeout: Duration::from_secs(3),
            silent: Duration::from_secs(3),
            phase: StallPhase::MidStream,
            ownership: Ownership::Unconfirmed,
            health: HealthEvidence::Unavailable,
            observation_seq: Some(1),
        };
        let failure = Failure { stall: Some(stall), ..failure(ErrorCode::ResponseStalled, None) };
        assert_eq!(Sign::of_failure(&failure), Sign::Fell(&failure));
    }
}
