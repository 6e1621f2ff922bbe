//! What a call has shown of itself so far, kept as timestamps.
//!
//! Whatever comes only stores when it came: no timer is armed, nothing is allocated. Whoever watches
//! the call asks [`Vitals::silent_at`] when a timer of its own fires.
//!
//! A provider is silent while it could get on and does not. The silence therefore *stands still*,
//! keeping what has elapsed, while the call waits for somebody else: for the client to take what is
//! there (no credit), or for the Edge to send the rest of the request. It begins anew with every
//! progress and with every byte of the request that the provider accepts.
//!
//! A provider that has said that it is *done* owes nothing but its end. Its silence runs from there,
//! whatever else it sends and whatever of its request it still takes; only the client, who has to take
//! what came before, makes it stand still.

use std::time::{Duration, Instant};

use iop_types::StallPhase;

/// How much of its request a provider has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// More than before; the next byte waits for the provider.
    More,
    /// All that is here; the next byte is still to come from the Edge.
    AllSoFar,
    /// The whole request.
    Whole,
}

/// What is known of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Vitals {
    silence: Silence,
    /// The provider has taken or said something.
    has_begun: bool,
    awaits_edge: bool,
    awaits_credit: bool,
    /// What comes of the call is known, and only the provider's end is awaited.
    has_outcome: bool,
    /// The provider has said that its answer is whole.
    is_done: bool,
    handed_over: Option<Instant>,
    first_progress: Option<Instant>,
    last_progress: Option<Instant>,
}

impl Vitals {
    /// The provider has taken more of its request.
    pub fn note_sent(&mut self, sent: Sent, now: Instant) {
        self.has_begun = true;
        self.awaits_edge = sent == Sent::AllSoFar;
        if sent == Sent::Whole {
            self.handed_over.get_or_insert(now);
        }
        self.restart(now);
    }

    /// The provider got on.
    pub fn note_progress(&mut self, now: Instant) {
        self.has_begun = true;
        self.first_progress.get_or_insert(now);
        self.last_progress = Some(now);
        self.restart(now);
    }

    /// There is no room downstream: what the provider says next waits for the client.
    pub fn note_no_credit(&mut self, now: Instant) {
        self.awaits_credit = true;
        self.silence.stop(now);
    }

    /// There is room again.
    pub fn note_credit(&mut self, now: Instant) {
        self.awaits_credit = false;
        if self.runs() {
            self.silence.resume(now);
        }
    }

    /// What comes of the call is known: nothing is expected of the provider but its end.
    pub const fn note_outcome(&mut self) {
        self.has_outcome = true;
    }

    /// The provider said that its answer is whole.
    pub fn note_done(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.is_done, true) {
            self.silence.restart(now, self.runs());
        }
    }

    /// Says whether it is known what comes of the call, so that no silence is judged any more.
    pub const fn has_outcome(&self) -> bool {
        self.has_outcome
    }

    /// Says whether the provider has said that its answer is whole, and owes its end.
    pub const fn is_done(&self) -> bool {
        self.is_done
    }

    /// Says whether the call waits for room downstream.
    pub const fn awaits_credit(&self) -> bool {
        self.awaits_credit
    }

    /// Says whether the silence keeps what has elapsed and does not grow, because the call waits for
    /// somebody else than its provider.
    pub const fn stands_still(&self) -> bool {
        self.awaits_credit || (self.awaits_edge && !self.is_done)
    }

    /// Returns for how long the provider has been silent by `now`.
    pub fn silent_at(&self, now: Instant) -> Duration {
        self.silence.elapsed(now)
    }

    /// Returns when the silence will have lasted for `limit` unless something comes; `None` while it
    /// does not grow.
    pub fn silent_for(&self, limit: Duration) -> Option<Instant> {
        self.silence.reaches(limit)
    }

    /// Returns when the provider had its whole request.
    pub const fn handed_over(&self) -> Option<Instant> {
        self.handed_over
    }

    /// Returns when the first progress came.
    pub const fn first_progress(&self) -> Option<Instant> {
        self.first_progress
    }

    /// Returns when the last progress came.
    pub const fn last_progress(&self) -> Option<Instant> {
        self.last_progress
    }

    /// Says how far the call has got.
    pub const fn phase(&self) -> StallPhase {
        match (self.first_progress, self.handed_over) {
            (Some(_), _) => StallPhase::MidStream,
            (None, Some(_)) => StallPhase::BeforeHead,
            (None, None) => StallPhase::Sending,
        }
    }

    fn restart(&mut self, now: Instant) {
        if !self.is_done {
            self.silence.restart(now, self.runs());
        }
    }

    const fn runs(&self) -> bool {
        self.has_begun && !self.stands_still()
    }
}

/// A stopwatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Silence {
    /// Elapsed before it last stood still.
    kept: Duration,
    /// `None` while it stands still.
    since: Option<Instant>,
}

impl Silence {
    fn restart(&mut self, now: Instant, runs: bool) {
        *self = Self { kept: Duration::ZERO, since: runs.then_some(now) };
    }

    fn stop(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.kept += now.saturating_duration_since(since);
        }
    }

    fn resume(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    fn elapsed(&self, now: Instant) -> Duration {
        let running = self.since.map(|since| now.saturating_duration_since(since));
        self.kept + running.unwrap_or_default()
    }

    fn reaches(&self, limit: Duration) -> Option<Instant> {
        self.since.map(|since| since + limit.saturating_sub(self.kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn nothing_is_silent_before_the_provider_has_taken_a_byte() {
        let start = Instant::now();
        let vitals = Vitals::default();
        assert_eq!(vitals.silent_at(start + 600 * SECOND), Duration::ZERO);
        assert_eq!(vitals.silent_for(SECOND), None);
    }

    #[test]
    fn a_pause_for_credit_keeps_the_elapsed_silence_and_credit_resumes_the_remainder() {
        let start = Instant::now();
        let mut vitals = Vitals::default();
        vitals.note_sent(Sent::Whole, start);
        vitals.note_no_credit(start + 2 * SECOND);
        assert_eq!(vitals.silent_at(start + 500 * SECOND), 2 * SECOND);
        assert!(vitals.stands_still());
        vitals.note_credit(start + 500 * SECOND);
        assert_eq!(vitals.silent_for(3 * SECOND), Some(start + 501 * SECOND));
    }

    #[test]
    fn while_sending_the_silence_runs_from_the_last_accepted_byte_and_not_while_the_edge_is_awaited()
     {
        let start = Instant::now();
        let mut vitals = Vitals::default();
        vitals.note_sent(Sent::More, start);
        vitals.note_sent(Sent::More, start + SECOND);
        assert_eq!(vitals.silent_for(3 * SECOND), Some(start + 4 * SECOND));
        vitals.note_sent(Sent::AllSoFar, start + 2 * SECOND);
        assert_eq!(vitals.silent_at(start + 900 * SECOND), Duration::ZERO);
        assert_eq!((vitals.stands_still(), vitals.phase()), (true, StallPhase::Sending));
        vitals.note_sent(Sent::More, start + 900 * SECOND);
        assert_eq!(vitals.silent_for(3 * SECOND), Some(start + 903 * SECOND));
    }

    #[test]
    fn an_answer_that_came_before_the_request_was_sent_whole_still_waits_for_the_edge() {
        let start = Instant::now();
        let mut vitals = Vitals::default();
        vitals.note_sent(Sent::AllSoFar, start);
        vitals.note_progress(start + SECOND);
        assert!(vitals.stands_still());
        vitals.note_sent(Sent::Whole, start + 5 * SECOND);
        assert_eq!(vitals.silent_for(SECOND), Some(start + 6 * SECOND));
        assert_eq!(vitals.phase(), StallPhase::MidStream);
    }

    #[test]
    fn what_comes_after_the_provider_said_that_it_is_done_begins_no_silence_anew() {
        let start = Instant::now();
        let mut vitals = Vitals::default();
        vitals.note_sent(Sent::AllSoFar, start);
        vitals.note_progress(start);
        vitals.note_done(start + SECOND);
        assert!(!vitals.stands_still(), "it need not take the rest");
        vitals.note_progress(start + 2 * SECOND);
        vitals.note_sent(Sent::More, start + 2 * SECOND);
        assert_eq!(vitals.silent_for(2 * SECOND), Some(start + 3 * SECOND));
        vitals.note_no_credit(start + 2 * SECOND);
        assert!(vitals.stands_still());
        vitals.note_credit(start + 60 * SECOND);
        assert_eq!(vitals.silent_for(2 * SECOND), Some(start + 61 * SECOND));
    }

    #[test]
    fn credit_that_comes_while_the_edge_is_awaited_resumes_nothing() {
        let start = Instant::now();
        let mut vitals = Vitals::default();
        vitals.note_sent(Sent::AllSoFar, start);
        vitals.note_no_credit(start);
        vitals.note_credit(start + SECOND);
        assert_eq!(vitals.silent_for(SECOND), None);
    }
}
