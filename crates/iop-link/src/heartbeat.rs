//! Liveness of the peer: an own request every 30 s, answered within 45 s.
//!
//! Only the answer counts. Other traffic neither replaces nor postpones a heartbeat: bytes that move
//! in one direction say nothing about the other. The numbers are constants of the transport, the same
//! for everybody and in no configuration.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time between own requests. With [`PATIENCE`] a dead peer is noticed within 75 s.
pub const INTERVAL: Duration = Duration::from_secs(30);
/// How long an own request may stay unanswered. 45 s: two saturated directions of 100 kbit/s keep
/// about 150 KiB each ahead of a heartbeat, 25 s of waiting.
pub const PATIENCE: Duration = Duration::from_secs(45);
/// How long an incumbent may take to answer when another instance wants its seat.
pub const CHALLENGE: Duration = Duration::from_secs(8);

/// The own heartbeats of one side.
#[derive(Debug)]
pub struct Heartbeat {
    next_send: Instant,
    next_id: u64,
    unanswered: VecDeque<Sent>,
    challenge: Option<Challenge>,
    rtt: Option<Duration>,
    answered: Option<Instant>,
    asked: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    id: u64,
    at: Instant,
}

#[derive(Debug, Clone, Copy)]
struct Challenge {
    id: u64,
    until: Instant,
}

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Send a request with this id.
    Send(u64),
    /// The challenge stayed unanswered.
    ChallengeLost,
    /// A request stayed unanswered: the peer is gone.
    Expired,
}

impl Heartbeat {
    /// Starts the timer; the first request follows after [`INTERVAL`].
    pub fn new(now: Instant) -> Self {
        Self {
            next_send: now + INTERVAL,
            next_id: 1,
            unanswered: VecDeque::new(),
            challenge: None,
            rtt: None,
            answered: None,
            asked: None,
        }
    }

    /// Returns when [`Self::poll_due`] has something to say.
    pub fn deadline(&self) -> Instant {
        let mut deadline = self.next_send;
        if let Some(oldest) = self.unanswered.front() {
            deadline = deadline.min(oldest.at + PATIENCE);
        }
        if let Some(challenge) = self.challenge {
            deadline = deadline.min(challenge.until);
        }
        deadline
    }

    /// Yields what is due at `now`, one thing at a time.
    pub fn poll_due(&mut self, now: Instant) -> Option<Due> {
        if self.unanswered.front().is_some_and(|oldest| oldest.at + PATIENCE <= now) {
            return Some(Due::Expired);
        }
        if self.challenge.is_some_and(|challenge| challenge.until <= now) {
            self.challenge = None;
            return Some(Due::ChallengeLost);
        }
        if self.next_send <= now {
            while self.next_send <= now {
                self.next_send += INTERVAL;
            }
            return Some(Due::Send(self.sent(now)));
        }
        None
    }

    /// Asks for an answer at once, out of turn; yields the id to send.
    pub fn challenge(&mut self, now: Instant) -> u64 {
        let id = self.sent(now);
        self.challenge = Some(Challenge { id, until: now + CHALLENGE });
        id
    }

    /// Takes an answer; says whether it settled the challenge. An answer to a request answers the
    /// earlier ones too; one that was never asked for, or twice, changes nothing.
    pub fn handle_answer(&mut self, now: Instant, id: u64) -> bool {
        while let Some(oldest) = self.unanswered.front().copied()
            && oldest.id <= id
            && id < self.next_id
        {
            self.unanswered.pop_front();
            if oldest.id == id {
                self.rtt = Some(now.saturating_duration_since(oldest.at));
                self.answered = Some(now);
            }
        }
        let settled =
            self.challenge.is_some_and(|challenge| challenge.id <= id && id < self.next_id);
        if settled {
            self.challenge = None;
        }
        settled
    }

    /// The peer asked for a sign of life.
    pub const fn handle_request(&mut self, now: Instant) {
        self.asked = Some(now);
    }

    /// Returns when the peer last answered an own request.
    pub const fn answered(&self) -> Option<Instant> {
        self.answered
    }

    /// Returns when the peer last asked.
    pub const fn asked(&self) -> Option<Instant> {
        self.asked
    }

    /// Returns the last measured round trip.
    pub const fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    fn sent(&mut self, now: Instant) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.unanswered.push_back(Sent { id, at: now });
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent_at_30_s() -> (Instant, Heartbeat) {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(start);
        assert_eq!(heartbeat.poll_due(start + INTERVAL), Some(Due::Send(1)));
        (start + INTERVAL, heartbeat)
    }

    #[test]
    fn it_expires_exactly_45_s_after_the_unanswered_send() {
        let (sent, mut heartbeat) = sent_at_30_s();
        assert_eq!(heartbeat.poll_due(sent + INTERVAL), Some(Due::Send(2)));
        assert_eq!(heartbeat.deadline(), sent + PATIENCE);
        assert_eq!(heartbeat.poll_due(sent + PATIENCE - Duration::from_nanos(1)), None);
        assert_eq!(heartbeat.poll_due(sent + PATIENCE), Some(Due::Expired));
    }

    #[test]
    fn an_answer_to_a_later_request_answers_the_earlier() {
        let (sent, mut heartbeat) = sent_at_30_s();
        assert_eq!(heartbeat.poll_due(sent + INTERVAL), Some(Due::Send(2)));
        heartbeat.handle_answer(sent + INTERVAL + Duration::from_secs(1), 2);
        assert_eq!(heartbeat.rtt(), Some(Duration::from_secs(1)));
        assert_eq!(heartbeat.poll_due(sent + PATIENCE), None);
    }

    #[test]
    fn an_answer_nobody_asked_for_changes_nothing() {
        let (sent, mut heartbeat) = sent_at_30_s();
        assert!(!heartbeat.handle_answer(sent, u64::MAX));
        assert!(!heartbeat.handle_answer(sent, 0));
        assert_eq!(heartbeat.poll_due(sent + INTERVAL), Some(Due::Send(2)));
        assert_eq!(heartbeat.poll_due(sent + PATIENCE), Some(Due::Expired));
    }

    #[test]
    fn a_challenge_is_lost_after_8_s_and_settled_by_any_later_answer() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(start);
        let id = heartbeat.challenge(start);
        assert_eq!(heartbeat.poll_due(start + CHALLENGE), Some(Due::ChallengeLost));
        let again = heartbeat.challenge(start + CHALLENGE);
        assert!(!heartbeat.handle_answer(start + CHALLENGE, id));
        assert!(heartbeat.handle_answer(start + CHALLENGE, again));
        assert_eq!(heartbeat.poll_due(start + CHALLENGE * 2), None);
    }

    #[test]
    fn a_timer_that_was_judged_late_sends_one_request_not_all_that_were_missed() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(start);
        assert_eq!(heartbeat.poll_due(start + INTERVAL * 5), Some(Due::Send(1)));
        assert_eq!(heartbeat.poll_due(start + INTERVAL * 5), None);
        assert_eq!(heartbeat.deadline(), start + INTERVAL * 6);
    }
}
