//! What is said of a provider that fell silent: a line for the operator and a message for the client.
//!
//! Numbers and words of our own. Nothing that the provider said gets in, nor where it is.

use std::time::Duration;

use iop_types::{ErrorCode, Failure, RequestHead, Stall, StallPhase};
use tracing::warn;

/// A stall that is about to be told.
pub(super) struct Silence<'a> {
    pub(super) stall: Stall,
    pub(super) head: &'a RequestHead,
    /// The provider's bound on its head, where it has one.
    pub(super) first_response: Option<Duration>,
    /// Whether nothing came behind the head of the answer.
    pub(super) is_head_all: bool,
    /// How long the end of the call and the look at the provider took.
    pub(super) looked_for: Duration,
}

impl Silence<'_> {
    /// Writes the operator's line.
    pub(super) fn log(&self) {
        let Self { stall, head, .. } = self;
        warn!(
            run = %head.work.run_id,
            attempt = %head.work.attempt,
            provider = %head.provider,
            target = %head.target,
            silent_ms = stall.silent.as_millis(),
            allowed_ms = stall.timeout.as_millis(),
            key = self.key(),
            phase = %stall.phase,
            ownership = %stall.ownership,
            health = %stall.health,
            "the provider stopped responding"
        );
    }

    /// Makes what the client is told.
    pub(super) fn failure(&self) -> Failure {
        let Self { stall, head, .. } = self;
        let message = format!(
            "provider `{}` was silent for {} ms {}; its `{}` allows {} ms, raise it if the provider may \
             need longer. Its node then took {} ms to end the call and to look at the provider",
            head.provider,
            stall.silent.as_millis(),
            self.phase(),
            self.key(),
            stall.timeout.as_millis(),
            self.looked_for.as_millis(),
        );
        Failure { stall: Some(*stall), ..Failure::new(ErrorCode::ResponseStalled, message) }
    }

    const fn phase(&self) -> &'static str {
        match self.stall.phase {
            StallPhase::Sending => "while the request was being sent",
            StallPhase::BeforeHead => "before its response began",
            StallPhase::MidStream if self.is_head_all => "right after its response began",
            StallPhase::MidStream => "in the middle of its response",
        }
    }

    /// Names the setting whose time was over.
    fn key(&self) -> &'static str {
        let is_stall = self.stall.timeout == self.head.stall_timeout.duration();
        match self.first_response {
            Some(limit) if limit == self.stall.timeout && !is_stall => "first_response_timeout",
            Some(_) | None => "response_stall_timeout",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use iop_types::{
        Attempt, HealthEvidence, Ownership, ProviderRevision, RunId, StallTimeout, WorkKey,
    };

    use super::*;

    fn head() -> RequestHead {
        let run_id = RunId::from_slice(&[7; 16]).unwrap();
        RequestHead {
            work: WorkKey { run_id, attempt: Attempt(2) },
            session_id: None,
            provider: "lab".into(),
            target: "m".into(),
            revision: ProviderRevision(1),
            stall_timeout: StallTimeout::from_wire(3_000).unwrap(),
            first_progress_within: None,
            ends_within: None,
            lease: None,
        }
    }

    fn stall(phase: StallPhase) -> Stall {
        Stall {
            timeout: Duration::from_millis(3_000),
            silent: Duration::from_millis(3_010),
            phase,
            ownership: Ownership::Unconfirmed,
            health: HealthEvidence::Unavailable,
            observation_seq: Some(4),
        }
    }

    fn silence(head: &RequestHead, phase: StallPhase) -> Silence<'_> {
        Silence {
            stall: stall(phase),
            head,
            first_response: None,
            is_head_all: false,
            looked_for: Duration::from_millis(2_005),
        }
    }

    #[test]
    fn the_message_names_the_provider_the_setting_and_every_time() {
        let head = head();
        let failure = silence(&head, StallPhase::BeforeHead).failure();
        assert_eq!(
            failure.message,
            "provider `lab` was silent for 3010 ms before its response began; its \
             `response_stall_timeout` allows 3000 ms, raise it if the provider may need longer. Its node \
             then took 2005 ms to end the call and to look at the provider"
        );
        assert_eq!(failure.code, ErrorCode::ResponseStalled);
        assert_eq!(failure.stall, Some(stall(StallPhase::BeforeHead)));
    }

    #[test]
    fn the_message_says_how_far_the_answer_had_come() {
        let head = head();
        for (phase, is_head_all, words) in [
            (StallPhase::Sending, false, "3010 ms while the request was being sent;"),
            (StallPhase::BeforeHead, false, "3010 ms before its response began;"),
            (StallPhase::MidStream, true, "3010 ms right after its response began;"),
            (StallPhase::MidStream, false, "3010 ms in the middle of its response;"),
        ] {
            let message = Silence { is_head_all, ..silence(&head, phase) }.failure().message;
            assert!(message.contains(words), "{message}");
        }
    }

    #[test]
    fn the_setting_that_is_named_is_the_one_whose_time_was_over() {
        let head = head();
        let named = |limit, timeout| {
            let stall = Stall { timeout, ..stall(StallPhase::BeforeHead) };
            Silence { stall, first_response: limit, ..silence(&head, StallPhase::BeforeHead) }.key()
        };
        let (short, own) = (Duration::from_millis(500), Duration::from_millis(3_000));
        assert_eq!(named(Some(short), short), "first_response_timeout");
        assert_eq!(named(Some(short), own), "response_stall_timeout");
        assert_eq!(named(Some(own), own), "response_stall_timeout", "the one that everybody has");
        assert_eq!(named(None, own), "response_stall_timeout");
    }

    /// Keeps what is logged.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_operators_line_is_one_warning_with_every_field() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_writer(move || writer.clone())
            .finish();
        let head = head();
        tracing::subscriber::with_default(subscriber, || {
            silence(&head, StallPhase::MidStream).log();
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(
            text.trim(),
            format!(
                "WARN the provider stopped responding run={} attempt=2 provider=lab target=m \
                 silent_ms=3010 allowed_ms=3000 key=\"response_stall_timeout\" phase=mid_stream \
                 ownership=unconfirmed health=unavailable",
                head.work.run_id
            )
        );
    }
}
